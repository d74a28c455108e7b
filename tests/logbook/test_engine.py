"""pysyncobj at its seams: what must be there, and that nothing is promised before it is durable."""

import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pysyncobj
import pysyncobj.syncobj
import pysyncobj.transport
import pysyncobj.version
import pytest

from stepward.server.logbook import engine as engines
from stepward.server.logbook import frames
from stepward.server.logbook import raft as rafts
from stepward.server.logbook.engine import Engine
from stepward.server.logbook.errors import BatchUnreadable, EngineUnfit
from stepward.server.logbook.outbox import ReplicaLimits
from stepward.server.logbook.raft import check_fields, check_version
from stepward.server.logbook.room import Room
from stepward.server.store import facts
from stepward.server.store.memory import MemoryStore
from tests.logbook import toy
from tests.logbook.hand import Hand
from tests.logbook.rules import take_away

OPEN_FILES = Path("/proc/self/fd")
EVERYTHING = tuple(SimpleNamespace(**dict.fromkeys(names)) for names in (rafts.METHODS, rafts.GLOBALS, rafts.SEAM))


def test_installed_version_fits() -> None:
    check_version(pysyncobj.version.VERSION, pysyncobj.SyncObj, pysyncobj.syncobj, pysyncobj.transport.Transport)


def test_other_version_is_refused() -> None:
    """Its holes are closed one by one; another version may move them."""
    with pytest.raises(EngineUnfit) as caught:
        check_version("0.3.18", *EVERYTHING)

    assert caught.value.version == "0.3.18"


@pytest.mark.parametrize("name", [*rafts.METHODS, *rafts.GLOBALS, *rafts.SEAM])
def test_missing_name_is_refused(name: str) -> None:
    """An override of a method that is called no more would do nothing, in silence."""
    parts = [SimpleNamespace(**vars(part)) for part in EVERYTHING]
    for part in parts:
        vars(part).pop(name, None)

    with pytest.raises(EngineUnfit) as caught:
        check_version("0.3.17", *parts)
    assert caught.value.missing == (name,)


class Applies:
    """An engine without peers on a store of its own, and what it applied."""

    def __init__(self, store: MemoryStore) -> None:
        self.store = store
        self.journal = toy.journal(store)
        self.applied: list[tuple[int, bytes]] = []
        self.engine = Engine(
            node_id="n1",
            peers=(),
            journal=self.journal,
            apply=self.apply,
            now_ms=1_000,
            rng=random.Random(1),
            room=Room(store, ReplicaLimits(), now_ms=1_000),
        )

    def apply(self, index: int, command: bytes) -> None:
        self.applied.append((index, command))
        self.journal.mark_applied(index)


def test_alone_it_leads_at_once() -> None:
    """There is nobody to wait for: the first tick elects, commits and applies."""
    alone = Applies(toy.new_store())
    assert not alone.engine.leads
    alone.engine.tick(1_000)

    assert (alone.engine.leads, alone.engine.term, alone.engine.settled) == (True, 1, True)
    assert alone.applied == [(2, engines.NO_OP)]


def test_clock_that_starts_at_zero() -> None:
    alone = Applies(toy.new_store())
    alone.engine.tick(0)

    assert alone.engine.leads


def test_command_is_applied_once_and_in_order() -> None:
    alone = Applies(toy.new_store())
    alone.engine.tick(1_000)
    for number in range(3):
        alone.engine.propose(b"\x00%d" % number)
        alone.engine.tick(1_000)
    alone.engine.tick(2_000)

    assert alone.applied[1:] == [(3, b"\x000"), (4, b"\x001"), (5, b"\x002")]


def test_what_was_appended_and_not_applied_is_applied_before_it_is_settled() -> None:
    """An earlier leader's entries come first, then the no-op of the new term."""
    store = toy.new_store()
    journal = toy.journal(store)
    journal.add(b"\x00inherited", 2, 1)
    journal.setCurrentTerm(1, "n1")
    alone = Applies(store)
    alone.engine.tick(1_000)

    assert alone.applied == [(2, b"\x00inherited"), (3, engines.NO_OP)]
    assert alone.engine.term == 2


def test_compacted_journal_is_gone_on_with() -> None:
    """Tried with a stock start at index 1: nothing is ever applied, and nothing says so."""
    store = toy.new_store()
    journal = toy.journal(store, entries_max=4)
    for index in range(2, 20):
        journal.add(b"\x00", index, 1)
        journal.mark_applied(index)
    journal.compact()
    alone = Applies(store)
    alone.engine.tick(1_000)
    alone.engine.propose(b"\x00new")
    alone.engine.tick(1_000)

    assert alone.applied == [(20, engines.NO_OP), (21, b"\x00new")]


def test_each_start_is_a_new_term() -> None:
    store = toy.new_store()
    terms = []
    for _ in range(3):
        alone = Applies(store)
        alone.engine.tick(1_000)
        store.commit()
        terms.append(alone.engine.term)

    assert terms == [1, 2, 3]


def test_idle_engine_writes_nothing() -> None:
    """So an idle node flushes nothing."""
    alone = Applies(toy.new_store())
    alone.engine.tick(1_000)
    alone.store.commit()
    for ms in range(1_000, 10_000, 100):
        alone.engine.tick(ms)

    assert not any(space.pending for space in alone.store._spaces())


def test_only_bytes_of_ours_are_proposed() -> None:
    """Other kinds of entries pysyncobj would unpickle."""
    alone = Applies(toy.new_store())
    alone.engine.tick(1_000)

    with pytest.raises(AssertionError):
        alone.engine.propose(b"\x02pickle")


@pytest.mark.parametrize("kind", [b"\x02", b"\x03", b"\x09"])
def test_entry_of_another_kind_is_refused(kind: bytes) -> None:
    """Changes of membership and of code version are pickled; nobody unpickles here."""
    store = toy.new_store()
    toy.journal(store).add(kind + b"cos\nsystem\n", 2, 0)

    with pytest.raises(BatchUnreadable):
        toy.start(store).step(toy.START, [])


def test_pysyncobj_pickles_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise AssertionError("pickled")

    for name in ("dumps", "loads", "dump", "load"):
        monkeypatch.setattr(pysyncobj.syncobj.pickle, name, refuse)
    replica = toy.start(toy.new_store())
    outbox = replica.step(toy.START, toy.proposals(toy.Add()))

    assert toy.counted(toy.answers(outbox)[0]).counter == 1


def test_no_pipe_is_made() -> None:
    """One for each replica would be two file descriptors that nobody reads."""
    before = len(list(OPEN_FILES.iterdir()))
    alone = Applies(toy.new_store())
    alone.engine.tick(1_000)

    assert len(list(OPEN_FILES.iterdir())) == before


def test_pysyncobj_does_not_compact_when_time_passes() -> None:
    """By default it does so after five minutes."""
    replica = toy.start(toy.new_store())
    for minute in range(20):
        replica.step(toy.at(minute * 60_000), toy.proposals(toy.Add()))

    assert len(replica._journal) == 23


def test_missing_field_is_refused() -> None:
    """What would be written to it would be read by nobody."""
    made = SimpleNamespace(**dict.fromkeys(rafts.FIELDS[1:]))

    with pytest.raises(EngineUnfit) as caught:
        check_fields(made, timer_seen=False)
    assert caught.value.missing == (rafts.FIELDS[0], "_SyncObj__raftElectionDeadline")


def test_vote_for_itself_is_durable_before_it_is_asked_for() -> None:
    """A candidate that forgets its own vote could vote twice in one term."""
    replica = toy.pair()
    replica.step(toy.at(0), [])
    replica.win(700)

    (asked,) = replica.said(frames.VoteRequest)
    durable = next(sent.durable for sent in replica.sent if sent.message is asked)
    assert msgspec.msgpack.decode(durable.fact(facts.TERM) or b"") == [asked.term, "n1"]


def test_vote_for_another_is_durable_before_it_is_given() -> None:
    replica = toy.pair()
    replica.step(toy.at(300), [])
    replica.peer.say(frames.VoteRequest(term=9, last_index=5, last_term=5, transfer=False))
    replica.step(toy.at(300), [])

    given = replica.sent[0]
    assert given.message == frames.Vote(9)
    assert msgspec.msgpack.decode(given.durable.fact(facts.TERM) or b"") == [9, "n2"]


def test_entries_are_durable_before_they_are_acknowledged() -> None:
    replica = toy.pair()
    replica.step(toy.at(0), [])
    replica.peer.append(term=5, previous=(1, 0), entries=[(engines.NO_OP, 5)], commit_index=1)
    assert replica.sent == []
    replica.step(toy.at(0), [])

    (acknowledged,) = replica.said(frames.AppendAnswer)
    assert (acknowledged.matches, acknowledged.next_index) == (True, 3)
    store = replica._store
    assert isinstance(store, MemoryStore)
    store.lose_uncommitted()
    assert toy.journal(store).last == (2, 5)


def test_pysyncobj_says_nothing_that_has_no_message() -> None:
    """A forwarded command would pass every check of ours."""
    alone = Applies(toy.new_store())

    with pytest.raises(AssertionError, match="apply_command"):
        alone.engine._raft._seam.send(SimpleNamespace(id="n2"), {"type": "apply_command", "command": b"\x00"})


def test_a_cluster_of_one_talks_to_nobody() -> None:
    alone = Applies(toy.new_store())
    for ms in range(1_000, 3_000, 10):
        alone.engine.tick(ms)

    assert alone.engine.release_appends() == alone.engine.release() == []


def unapplied_tail() -> MemoryStore:
    """Of a node that has three entries, and of which its rows hold none."""
    store = toy.new_store()
    journal = toy.journal(store)
    for index in (2, 3, 4):
        journal.add(b"\x00%d" % index, index, 1)
    journal.setCurrentTerm(1, None)
    store.commit()
    return store


def test_h080_at_the_start_only_what_is_applied_counts_as_committed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stored commit index was ahead of the journal, and the node acknowledged without anybody else."""

    def alone_applies() -> list[tuple[int, bytes]]:
        hand = Hand(store=unapplied_tail())
        hand.step()
        return hand.applied

    assert alone_applies() == []
    take_away(monkeypatch, "committed at the start is what is applied")
    assert len(alone_applies()) == 3


def test_h080_a_leader_with_silent_followers_acknowledges_nothing() -> None:
    hand = Hand(store=unapplied_tail())
    hand.lead()
    hand.engine.propose(b"\x00new")
    for _ in range(50):
        hand.step()

    assert hand.applied == []


def test_what_is_above_the_journal_does_not_count_as_committed() -> None:
    """A leader may have committed more than it has sent."""
    hand = Hand()
    hand.append("n2", term=1, previous=(1, 0), entries=[("a", 1)], commit_index=14)
    hand.step()

    assert (hand.engine._raft.commit_index, hand.applied) == (2, [(2, b"\x00a")])


@pytest.mark.parametrize("connection", [1, 2])
def test_frames_of_the_same_or_a_newer_stream_are_read(connection: int) -> None:
    hand = Hand()
    hand.follow("n2")
    hand.append("n2", term=1, previous=(1, 0), entries=[("a", 1)], connection=connection)

    assert hand.entries() == [("a", 1)]


def test_frames_of_an_older_stream_are_dropped() -> None:
    """Also when they come behind those of the newer one: they are late, and out of order."""
    hand = Hand()
    hand.append("n2", term=1, previous=(1, 0), connection=7)
    hand.append("n2", term=1, previous=(1, 0), entries=[("a", 1)], connection=6)
    assert hand.entries() == []
    hand.append("n3", term=1, previous=(1, 0), entries=[("a", 1)], connection=1)

    # Streams of another peer are counted for themselves.
    assert hand.entries() == [("a", 1)]


def test_questions_of_age_are_handed_on() -> None:
    """The engine does not know what a batch is."""
    hand = Hand()
    question, answer = frames.AgeQuestion(bytes(32)), frames.AgeAnswer(bytes(32), 5, 6)

    assert [hand.engine.receive("n2", 1, frames.encode(one), hand.now_ms) for one in (question, answer)] == [
        question,
        answer,
    ]
    hand.engine.say("n2", answer)
    assert answer in hand.heard("n2")


def test_messages_wait_until_they_are_released() -> None:
    """Until then what they promise may be lost."""
    hand = Hand()
    hand.append("n2", term=1, previous=(1, 0), entries=[("a", 1)])
    hand.engine.tick(hand.now_ms)
    first, second = hand.engine.release(), hand.engine.release()

    assert [frame.peer_id for frame in first] == ["n2"]
    assert second == []
