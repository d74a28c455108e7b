"""Three replicas that lose their leader: who leads next, what is unknown, and that nothing acknowledged is lost."""

from random import Random
from typing import Any

import pytest
from typing_extensions import override

from stepward.server.logbook import batch as batches
from stepward.server.logbook.errors import Diverged
from stepward.server.logbook.outbox import Answered, ReplicaLimits
from stepward.server.store import facts
from stepward.server.store.memory import MemoryStore
from tests.logbook import test_leadership, toy
from tests.logbook.toy import Add, Ask, Counted, at, proposals, reasons
from tests.logbook.trio import IDS, Trio


def others(node_id: str) -> list[str]:
    return [one for one in IDS if one != node_id]


def assert_agreed(trio: Trio) -> None:
    """Equal heads, equal rows; no epoch had two leaders; what was applied twice was the same batch."""
    trio.settle()
    assert trio.rows("n1") == trio.rows("n2") == trio.rows("n3")
    assert all(len(leaders) == 1 for leaders in trio.leaders.values()), trio.leaders
    for node_id in IDS:
        # What its disk did not have yet a node applies again when it has started, as it was.
        applied = {one.sequence: one for one in trio.applied[node_id]}
        for life in trio.applied_by_life(node_id):
            sequences = [one.sequence for one in life]
            assert sequences == sorted(set(sequences))
            assert all(one.puts == applied[one.sequence].puts for one in life)


def test_three_agree() -> None:
    trio = Trio()
    answers = trio.write(Add(), Add(), Ask())

    assert answers == [Counted(1, 2), Counted(2, 2), Counted(2, 2)]
    assert_agreed(trio)
    assert [trio.counter(one) for one in IDS] == [2, 2, 2]


def test_followers_refuse_and_name_the_leader() -> None:
    trio = Trio()
    leader = trio.lead()
    trio.settle()
    (token,) = trio.ask(others(leader)[0], Add())
    trio.run(10)

    assert trio.reason(token) == "NOT_LEADER"
    assert trio.answers[token].answer.metadata == {"leader_id": leader}  # type: ignore[union-attr]  # it is a rejection


def test_killed_leader_is_followed_within_a_second() -> None:
    trio = Trio()
    for _ in range(5):
        killed = trio.lead()
        trio.write(Add())
        trio.kill(killed)
        assert trio.run_until(lambda: trio.leading(others(killed)), within_ms=2_000) <= 1_300  # noqa: B023 - called at once
        trio.write(Add())
        trio.start(killed)
    assert_agreed(trio)

    assert trio.counter("n1") == 10


def test_H107_who_waits_for_a_leader_that_was_cut_off_is_answered_soon() -> None:
    """Unknown is what was proposed, and nothing else; the rest surely did not happen."""
    trio = Trio(limits=ReplicaLimits(commands_max=5))
    leader = trio.lead()
    trio.settle()
    trio.isolate(leader)
    tokens = trio.ask(leader, *[Add()] * 20)
    began_ms = trio.ms
    trio.run_until(lambda: all(token in trio.answers for token in tokens))

    assert max(trio.answered_ms[token] for token in tokens) - began_ms <= 1_100
    assert [trio.reason(token) for token in tokens] == ["COMMIT_UNKNOWN"] * 5 + ["NOT_LEADER"] * 15
    trio.heal()
    assert_agreed(trio)
    assert trio.counter(leader) == 0


def test_H107_what_waits_while_an_epoch_opens_is_decided_in_it() -> None:
    trio = Trio()
    trio.kill(trio.lead())
    trio.run_until(lambda: any(machine.replica and machine.replica._engine.leads for machine in trio.machines.values()))
    (winner,) = [one for one in IDS if (replica := trio.machines[one].replica) and replica._engine.leads]
    assert not trio.leading()
    (token,) = trio.ask(winner, Add())
    trio.run_until(lambda: token in trio.answers)

    assert toy.counted(trio.answers[token].answer).counter == 1


def test_H003_proposal_of_a_deposed_leader_comes_to_nothing() -> None:
    """It stands in that leader's journal, on a head that is no longer the last: another batch has its place."""
    trio = Trio()
    trio.write(Add())
    old = trio.lead()
    trio.settle()
    trio.isolate(old)
    (token,) = trio.ask(old, Add())
    trio.run(10)
    left_behind = trio.replica(old)._journal[-1].command
    new = trio.lead(among=others(old))
    trio.write(Add(), node_id=new)
    trio.heal()
    assert_agreed(trio)

    assert trio.reason(token) == "COMMIT_UNKNOWN"
    assert trio.counter(old) == 2
    assert left_behind not in [entry.command for entry in trio.replica(old)._journal[:]]


def test_H003_proposal_that_reached_one_other_counts_once() -> None:
    """Its leader died before it knew; the one who has it leads on, and applies it before it opens its epoch."""
    trio = Trio()
    old = trio.lead()
    trio.settle()
    heir, left_out = others(old)
    trio.cut_off(old, left_out)
    (token,) = trio.ask(old, Add())
    trio.run_until(lambda: len(trio.replica(heir)._journal[:]) > len(trio.replica(left_out)._journal[:]))
    assert token not in trio.answers
    trio.kill(old)
    trio.lead(among=[heir])
    trio.heal()
    trio.start(old)
    assert_agreed(trio)

    assert [trio.counter(one) for one in IDS] == [1, 1, 1]


@pytest.mark.parametrize("pause_ms", [900, 1_800, 20_000])
def test_H103_leader_that_was_paused_decides_nothing(pause_ms: int) -> None:
    """It wakes up and acts before it hears of its successor: nothing that it says may count."""
    trio = Trio()
    trio.write(Add())
    zombie = trio.lead()
    trio.settle()
    trio.machines[zombie].paused = True
    trio.run(pause_ms)
    successor = trio.lead(among=others(zombie))
    trio.write(Add(), Add(), node_id=successor)
    late, trio.machines[zombie].inbox = trio.machines[zombie].inbox, []
    asked = trio.ask(zombie, Ask(), urgent=True)
    outbox = trio.step(zombie)
    asked += trio.ask(zombie, Add(), Ask())
    asked.append(trio.confirm(zombie))
    answered_first = [*outbox.answers, *trio.step(zombie).answers]
    trio.machines[zombie].inbox += late
    trio.machines[zombie].paused = False
    trio.run_until(lambda: all(token in trio.answers for token in asked))
    assert_agreed(trio)

    assert {trio.reason(token) for token in asked} <= {"NOT_LEADER", "COMMIT_UNKNOWN"}
    assert not [one for one in answered_first if reasons([one]) == {}]
    assert trio.counter(zombie) == 3


def test_H104_flaps_between_two_steps() -> None:
    """Lost and won within a moment: the epoch is another one each time, built from rows, and nobody waits for ever."""
    replica = test_leadership.leading()
    answered: list[Answered] = []
    ms, asked = 730, 0
    for flap in range(30):
        live, epoch = replica._live, replica.standing.epoch
        for _ in range(2):
            inbox = [one._replace(token=asked + place) for place, one in enumerate(proposals(Add(), Ask()))]
            answered += replica.step(at(ms), inbox).answers
            asked += len(inbox)
        test_leadership.flap(replica, at(ms).steady_ms, term=100 * (flap + 1))
        ms += 1_010
        outbox = replica.step(at(ms), [])
        answered += outbox.answers
        assert not outbox.standing.leads
        while not replica.standing.leads:
            replica.peer.acknowledge()
            ms += 5
            answered += replica.step(at(ms), []).answers
        assert replica.standing.epoch > epoch
        assert replica._live is not live

    assert sorted(str(one.token) for one in answered) == sorted(map(str, range(asked)))
    assert set(reasons(answered).values()) == {"COMMIT_UNKNOWN", "NOT_LEADER"}


def test_H104_leadership_that_moves_all_the_time() -> None:
    trio = Trio()
    written = 0
    for _ in range(30):
        leader = trio.lead()
        written += sum(isinstance(answer, Counted) for answer in trio.write(Add(), node_id=leader))
        assert len(trio.leading()) == 1
        trio.isolate(leader)
        trio.lead(among=others(leader))
        trio.heal()
        trio.run_until(lambda: len(trio.leading()) == 1)
    assert_agreed(trio)

    assert trio.counter("n1") == written == 30


@pytest.mark.parametrize("seed", range(8))
def test_H079_nothing_acknowledged_is_lost_when_all_restart_at_once(seed: int) -> None:
    """Terms and votes survive, too: no term falls, and no epoch has two leaders."""
    chance = Random(seed)
    trio = Trio(seed=seed, limits=ReplicaLimits(commands_max=3))
    acknowledged, terms = 0, dict.fromkeys(IDS, 0)
    for _ in range(6):
        trio.lead()
        tokens = trio.ask(trio.lead(), *[Add()] * 12)
        trio.run(chance.randrange(5, 40))
        for node_id in IDS:
            terms[node_id] = max(terms[node_id], trio.replica(node_id).standing.term)
        for node_id in IDS:
            trio.kill(node_id)
        known = [trio.answers[token].answer for token in tokens if token in trio.answers]
        acknowledged += sum(isinstance(answer, Counted) for answer in known)
        # The third one starts later, with what may be an older log.
        late = chance.choice(IDS)
        for node_id in others(late):
            trio.start(node_id)
        trio.write(Add(), node_id=trio.lead())
        acknowledged += 1
        trio.start(late)
        assert all(trio.replica(one).standing.term >= terms[one] for one in IDS)
    assert_agreed(trio)

    assert trio.counter("n1") >= acknowledged


class Killed(Exception):  # noqa: N818 - what happens, named as such
    """The process ends here."""


class KillingStore(MemoryStore):
    """Ends its process at a write: before it, or after it where that is a commit."""

    writes_left = -1

    def _count(self) -> None:
        self.writes_left -= 1
        if self.writes_left == 0:
            raise Killed

    @override
    def apply(self, *changes: Any, entry: int | None = None) -> None:
        self._count()
        super().apply(*changes, entry=entry)

    @override
    def put_fact(self, name: bytes, value: bytes) -> None:
        self._count()
        super().put_fact(name, value)

    @override
    def put_entry(self, index: int, value: bytes) -> None:
        self._count()
        super().put_entry(index, value)

    @override
    def delete_entries(self, first: int, last: int) -> None:
        self._count()
        super().delete_entries(first, last)

    @override
    def commit(self) -> None:
        self._count()
        super().commit()
        self._count()


def work_for_ever(trio: Trio) -> None:
    while True:
        trio.ask(trio.lead(), Add(rows_written=2))
        trio.run(5)


@pytest.mark.parametrize("role", ["leader", "follower"])
def test_H082_rows_and_what_is_applied_are_one(role: str) -> None:
    """A kill at any write: no entry is applied twice or skipped, and the rows are those of the others."""
    trio = Trio(limits=ReplicaLimits(journal_entries_max=10), stores={node_id: KillingStore() for node_id in IDS})
    for writes in range(1, 40):
        leader = trio.lead()
        victim = leader if role == "leader" else others(leader)[0]
        store = trio.machines[victim].store
        assert isinstance(store, KillingStore)
        store.writes_left = writes
        with pytest.raises(Killed):
            work_for_ever(trio)
        trio.kill(victim)
        store.writes_left = -1
        head = facts.read_head(store)
        survivor = trio.lead(among=others(victim))
        trio.write(Add(), node_id=survivor)
        applied = {one.sequence: one for one in trio.applied[survivor]}
        if head.sequence in applied:
            assert head.epoch == applied[head.sequence].epoch
        trio.start(victim)
        trio.settle()
    assert_agreed(trio)


def test_divergence_stops_one_and_keeps_its_files() -> None:
    """A head that no correct run leaves: the replica stops, and says what it has beside what it was given."""
    trio = Trio()
    trio.write(Add())
    leader = trio.lead()
    trio.settle()
    victim = others(leader)[0]
    trio.kill(victim)
    store = trio.machines[victim].store
    head = facts.read_head(store)
    forged = batches.Batch(head.sequence, b"elsewhere", head.epoch, 1, 0, 0, 0, 0, "other", [], [])
    wrong = batches.head_after(forged, batches.hash_of(batches.encode(forged)))
    store.put_fact(facts.HEAD, facts.encode_head(wrong))
    store.commit()
    trio.start(victim)
    trio.ask(leader, Add())
    with pytest.raises(Diverged) as caught:
        trio.run(2_000)

    assert caught.value.head == wrong
    assert trio.replica(victim).standing.head == wrong
    assert facts.read_head(store) == wrong
