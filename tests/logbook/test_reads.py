"""Answers that change nothing leave only when it is sure that this node led: under its lease, or after a round."""

import pytest

from stepward.server.logbook.outbox import Confirmed, Proposal, ReplicaLimits, Transfer, Transferred
from tests.logbook import test_leadership, toy
from tests.logbook.toy import Add, Ask, Counted, answers, at, proposals, reasons
from tests.logbook.trio import IDS, Trio

# Acknowledgements count for 150 ms from when the message left that they answer.
LEASE_MS = 150


def others(node_id: str) -> list[str]:
    return [one for one in IDS if one != node_id]


@pytest.mark.parametrize(("since_ms", "at_once"), [(LEASE_MS - 1, True), (LEASE_MS, False)])
def test_read_leaves_at_once_under_the_lease(since_ms: int, at_once: bool) -> None:
    """At the bound and one past it; a renewal is such an answer, too."""
    replica = test_leadership.leading()
    # The step at 720 heard the answer to what the step at 710 sent.
    outbox = replica.step(at(710 + since_ms), [Proposal("renewal", Ask(), urgent=True)])

    assert answers(outbox) == ({"renewal": Counted(0, 2)} if at_once else {})


def test_read_without_a_lease_waits_for_a_round_that_began_after_it() -> None:
    """Answers to what was sent before prove nothing: another node may have been elected between."""
    replica = test_leadership.leading()
    replica.step(at(715), [])
    replica.peer.acknowledge()
    late = replica.peer.letters.pop()
    replica.step(at(1_000), proposals(Ask()))
    replica.peer.letters.append(late)
    assert answers(replica.step(at(1_001), [])) == {}
    replica.peer.acknowledge()

    assert answers(replica.step(at(1_002), [])) == {0: Counted(0, 2)}


def test_round_leaves_with_the_step_that_asks_for_it() -> None:
    """Waiting for the next heartbeat would be most of the time that the answer takes."""
    replica = test_leadership.leading()
    replica.step(at(999), [])
    replica.sent.clear()
    replica.step(at(1_000), proposals(Ask()))

    assert len(replica.sent) == 1


def test_read_whose_epoch_closes_is_not_answered() -> None:
    replica = test_leadership.leading()
    replica.step(at(1_000), proposals(Ask()))
    replica.peer.depose(term=9)

    assert reasons(replica.step(at(1_010), []).answers) == {0: "NOT_LEADER"}


@pytest.mark.parametrize(("asked", "overloaded"), [(5, 0), (6, 6)])
def test_reads_that_wait_are_bounded(asked: int, overloaded: int) -> None:
    """Those of one decision wait together, or are refused together."""
    replica = test_leadership.leading(limits=ReplicaLimits(waiting_max=10))
    replica.step(at(1_000), proposals(*[Ask()] * 5))
    outbox = replica.step(at(1_001), [one._replace(token=f"more {one.token}") for one in proposals(*[Ask()] * asked)])

    assert list(reasons(outbox.answers).values()) == ["OVERLOADED"] * overloaded


def test_alone_nobody_waits() -> None:
    replica = toy.start(toy.new_store())
    replica.step(at(0), [])

    assert answers(replica.step(at(100_000), proposals(Ask()))) == {0: Counted(0, 2)}


# Which batches a reader must see.


def test_reader_is_told_the_newest_sequence() -> None:
    trio = Trio()
    trio.write(Add())
    trio.write(Add())
    token = trio.confirm(trio.lead())
    trio.run(50)

    assert trio.answers[token].answer == Confirmed()
    assert trio.answers[token].sequence == 3


def test_follower_confirms_nothing_and_names_the_leader() -> None:
    trio = Trio()
    leader = trio.lead()
    trio.settle()
    token = trio.confirm(others(leader)[0])
    trio.run(10)

    assert trio.reason(token) == "NOT_LEADER"
    assert trio.answers[token].answer.metadata == {"leader_id": leader}  # type: ignore[union-attr]  # it is a rejection


def test_reader_waits_until_the_epoch_is_open() -> None:
    """Before that, what earlier leaders acknowledged may not be applied here."""
    trio = Trio()
    trio.write(Add())
    trio.kill(trio.lead())
    trio.run_until(lambda: any(machine.replica and machine.replica._engine.leads for machine in trio.machines.values()))
    (winner,) = [one for one in IDS if (replica := trio.machines[one].replica) and replica._engine.leads]
    token = trio.confirm(winner)
    trio.step(winner)
    assert token not in trio.answers
    trio.run_until(lambda: token in trio.answers)

    # The first batch opened the first epoch, the second is the write, the third opens this one.
    assert (trio.answers[token].answer, trio.answers[token].sequence) == (Confirmed(), 3)


def test_leader_that_is_cut_off_confirms_nothing() -> None:
    trio = Trio()
    leader = trio.lead()
    trio.settle()
    trio.isolate(leader)
    trio.run(LEASE_MS)
    began_ms, token = trio.ms, trio.confirm(leader)
    trio.run_until(lambda: token in trio.answers)

    assert trio.reason(token) == "NOT_LEADER"
    assert trio.answered_ms[token] - began_ms <= 1_100


# Handing over.


def hand_over(trio: Trio, node_id: str, target_id: str = "") -> str:
    token = f"transfer at {trio.ms}"
    trio.machines[node_id].inbox.append(Transfer(token, target_id))
    return token


def test_leadership_is_handed_over_within_a_moment() -> None:
    trio = Trio()
    trio.write(Add())
    leader = trio.lead()
    target = others(leader)[0]
    trio.settle()
    began_ms, token = trio.ms, hand_over(trio, leader, target)
    assert trio.run_until(lambda: trio.leading() == [target]) <= 100
    trio.run_until(lambda: token in trio.answers)

    assert trio.answers[token].answer == Transferred(target, trio.replica(target).standing.term)
    assert trio.answered_ms[token] - began_ms <= 100
    assert trio.write(Add()) == [Counted(2, 4)]


def test_under_load_nothing_is_unknown_when_leadership_is_handed_over() -> None:
    """What is in flight ends before; what waits did not happen, and can be asked for elsewhere."""
    trio = Trio()
    leader = trio.lead()
    trio.settle()
    tokens = trio.ask(leader, Add())
    trio.run(5)
    token = hand_over(trio, leader)
    for _ in range(20):
        tokens += trio.ask(leader, Add())
        trio.run(5)
    trio.run_until(lambda: all(one in trio.answers for one in [*tokens, token]))

    found = [trio.reason(one) for one in tokens]
    assert found == [""] * found.count("") + ["NOT_LEADER"] * found.count("NOT_LEADER")
    assert trio.leading() != [leader]
    assert trio.counter(trio.lead()) == found.count("")


def test_leadership_that_nobody_takes_comes_back() -> None:
    """It is given up half a second later, at most twice that; what waited is decided."""
    trio = Trio()
    leader = trio.lead()
    target = others(leader)[0]
    trio.settle()
    trio.machines[target].paused = True
    token = hand_over(trio, leader, target)
    trio.run(20)
    (waiting,) = trio.ask(leader, Add())
    began_ms = trio.ms
    trio.run_until(lambda: waiting in trio.answers and token in trio.answers)

    assert trio.answers[token].answer == Transferred(leader, trio.replica(leader).standing.term)
    assert trio.answered_ms[waiting] - began_ms <= 1_050
    assert trio.leading() == [leader]


def test_after_a_transfer_that_was_given_up_reads_need_a_round() -> None:
    """The other node may still win: the lease of this term means nothing any more."""
    trio = Trio()
    leader = trio.lead()
    target, third = others(leader)
    trio.settle()
    token = hand_over(trio, leader, target)
    trio.run_until(lambda: trio.replica(leader)._engine.transferring)
    trio.cut_off(leader, target)
    trio.run_until(lambda: token in trio.answers)
    assert trio.leading() == [leader]
    confirm = trio.confirm(leader)
    trio.machines[third].paused = True
    trio.run(40)
    standing = trio.replica(leader).standing
    assert confirm not in trio.answers
    trio.machines[third].paused = False
    trio.run_until(lambda: confirm in trio.answers)

    assert standing.leads
    assert trio.answers[confirm].answer == Confirmed()


@pytest.mark.parametrize(
    ("node", "target", "reason"),
    [
        ("follower", "", "NOT_LEADER"),
        ("leader", "leader", "INVALID_ARGUMENT"),
        ("leader", "n9", "INVALID_ARGUMENT"),
    ],
)
def test_transfer_that_cannot_be(node: str, target: str, reason: str) -> None:
    trio = Trio()
    leader = trio.lead()
    trio.settle()
    names = {"leader": leader, "follower": others(leader)[0]}
    token = hand_over(trio, names[node], names.get(target, target))
    trio.run(10)

    assert trio.reason(token) == reason


def test_transfer_that_is_under_way_is_not_begun_again() -> None:
    trio = Trio()
    leader = trio.lead()
    trio.settle()
    trio.machines[others(leader)[0]].paused = True
    hand_over(trio, leader, others(leader)[0])
    trio.run(10)
    second = hand_over(trio, leader, others(leader)[1])
    trio.run(10)

    assert trio.reason(second) == "NODE_STATE"


# A disk that is slow.


@pytest.mark.parametrize(("took_ms", "leads"), [(600, True), (600.1, False)])
def test_leader_with_a_slow_disk_gives_up(took_ms: float, leads: bool) -> None:
    trio = Trio()
    leader = trio.lead()
    trio.settle()
    trio.replica(leader).note_flush(took_ms)
    trio.run(5)

    assert trio.replica(leader).standing.leads is leads
    if not leads:
        trio.lead(among=others(leader))


def test_alone_a_slow_disk_changes_nothing() -> None:
    replica = toy.start(toy.new_store())
    replica.step(at(0), [])
    replica.note_flush(5_000)

    assert replica.step(at(10), []).standing.leads
