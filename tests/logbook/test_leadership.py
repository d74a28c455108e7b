"""The replica with a peer that a test speaks for: what travels, what is unknown, what ends with an epoch."""

from pathlib import Path
from typing import Any

import pytest

from stepward.server.core import rows
from stepward.server.logbook import batch as batches
from stepward.server.logbook import frames
from stepward.server.logbook.errors import ReplicaStopped
from stepward.server.logbook.frames import (
    NO_OP,
    REGULAR,
    Append,
    AppendAnswer,
    Compacted,
    HigherTerm,
    PreVote,
    PreVoteRequest,
    StandNow,
    Vote,
)
from stepward.server.logbook.identity import found_cluster
from stepward.server.logbook.outbox import Arrived, ReplicaLimits, Transfer
from stepward.server.logbook.raft import APPEND_PERIOD_MS, ELECTION_MAX_MS
from stepward.server.store import facts
from stepward.server.store.memory import MemoryStore
from tests.logbook import toy
from tests.logbook.toy import Add, Ask, Counted, answers, at, proposals, reasons
from tests.store.logged import abandon, logged


def elected(replica: toy.PeeredReplica | None = None, *, from_ms: int = 0) -> toy.PeeredReplica:
    """A replica that was voted for, 704 ms later, its no-op not yet acknowledged."""
    replica = replica or toy.pair()
    replica.step(at(from_ms), [])
    replica.win(from_ms + 704)
    return replica


def leading(**more: Any) -> toy.PeeredReplica:
    """A replica whose epoch is open, at 720 ms."""
    replica = elected(toy.pair(**more))
    replica.peer.acknowledge()
    replica.step(at(710), [])
    replica.peer.acknowledge()
    assert replica.step(at(720), []).standing.leads
    return replica


def test_without_a_leader_nothing_is_proposed() -> None:
    replica = toy.pair()
    outbox = replica.step(at(0), proposals(Add(), Ask()))

    assert reasons(outbox.answers) == {0: "NOT_LEADER", 1: "NOT_LEADER"}
    assert not outbox.standing.leads


def test_epoch_opens_behind_the_no_op() -> None:
    """Before that, entries of earlier leaders may still be applied under the rules' feet."""
    replica = elected()
    before = replica.step(at(705), [])
    assert (replica._journal[-1][0], before.applied) == (NO_OP, [])
    replica.peer.acknowledge()
    proposed = replica.step(at(710), [])
    assert (proposed.applied, proposed.standing.leads) == ([], False)
    replica.peer.acknowledge()
    opened = replica.step(at(720), [])

    assert [(one.sequence, one.epoch) for one in opened.applied] == [(1, 1)]
    assert opened.standing.leads


def test_commands_wait_while_the_epoch_opens() -> None:
    replica = elected()
    replica.peer.acknowledge()
    assert replica.step(at(710), proposals(Add())).answers == []
    replica.peer.acknowledge()
    assert replica.step(at(720), []).answers == []
    replica.peer.acknowledge()

    assert answers(replica.step(at(730), [])) == {0: Counted(1, 2)}


def test_nothing_is_answered_before_a_majority_has_it() -> None:
    replica = leading()
    assert replica.step(at(730), proposals(Add())).answers == []
    assert replica.step(at(740), []).answers == []
    replica.peer.acknowledge()

    assert answers(replica.step(at(750), [])) == {0: Counted(1, 2)}


def test_proposal_leaves_in_its_step() -> None:
    """Waiting for the next heartbeat would be most of the time that a command takes."""
    replica = leading()
    replica.sent.clear()
    replica.step(at(730), proposals(Add()))

    assert replica.entries_sent() == [replica._journal[-1][0]]


def test_followers_write_a_batch_while_the_leader_does() -> None:
    """What it sends them promises nothing, so it leaves first; what it tells others does not."""
    replica = leading()
    store = replica._store
    assert isinstance(store, MemoryStore)
    before = store._entries.committed.copy()
    began = replica.begin(at(730), toy.proposals(Add()))

    assert [type(frames.decode(frame.content)) for frame in began] == [Append]
    assert store._entries.committed == before

    outbox = replica.finish()
    assert store._entries.committed != before
    assert (outbox.answers, outbox.frames, outbox.is_deciding) == ([], [], True)


def test_what_promises_something_leaves_behind_the_flush() -> None:
    replica = toy.pair()
    replica.step(at(0), [])
    message = Arrived("n2", 1, frames.encode(Append(1, 1, 0, 1, 1, 1, [], 0)))

    assert replica.begin(at(100), [message]) == []
    assert [type(frames.decode(frame.content)) for frame in replica.finish().frames] == [AppendAnswer]


def test_rows_of_a_step_are_shown_before_its_flush_only_where_a_majority_has_them(tmp_path: Path) -> None:
    """A node alone applies what nobody but its own disk has; so its flush is a part of the step."""
    replica = leading(store=logged(tmp_path / "with a peer"))
    replica.step(at(730), proposals(Add()))
    replica.peer.acknowledge()
    replica.begin(at(740), [*replica.peer.letters, *proposals(Add())])
    flush = replica.flush_apart()

    assert flush is not None
    with replica.committed() as shown:
        assert toy.count(shown) == 1
        assert shown.head().sequence == replica.shown_sequence
    flush()
    replica.finish()
    replica.close()
    store = logged(tmp_path / "alone")
    found_cluster(store, "n1", wall_ms=at(0).wall_ms)
    alone = toy.start(store)
    alone.step(at(0), proposals(Add()))
    alone.begin(at(10), proposals(Add()))
    assert alone.flush_apart() is None
    alone.finish()
    alone.close()


def test_what_is_only_applied_waits_for_no_flush(tmp_path: Path) -> None:
    """The entry is on the disks of a majority; whoever loses its rows applies it again."""
    replica = leading(store=logged(tmp_path))
    replica.step(at(730), proposals(Add()))
    replica.peer.acknowledge()
    replica.begin(at(740), replica.peer.letters)

    assert replica.flush_apart() is None
    outbox = replica.finish()
    assert answers(outbox) == {0: Counted(1, 2)}
    assert len(outbox.applied) == 1
    abandon(replica._store)  # type: ignore[arg-type]  # `logged` made it

    found = logged(tmp_path)
    again = toy.start(found)
    with again.committed() as shown:
        assert toy.count(shown) == 0
    assert facts.read_applied(found)[0] < again._journal.last_index
    again.close()


def test_rows_are_not_kept_over_a_step() -> None:
    """They are read through the transaction of the replica, and would move."""
    replica = leading()
    with pytest.raises(AssertionError, match="kept over a step"), replica.committed():
        replica.step(at(730), [])


def test_step_that_is_not_finished_is_the_last() -> None:
    replica = leading()
    replica.begin(at(730), [])

    with pytest.raises(ReplicaStopped):
        replica.begin(at(731), [])


def test_leader_wakes_when_it_has_to_say_that_it_lives() -> None:
    replica = leading()
    woken, now_ms, sent = 0, 800, 0
    # A millisecond more each: pysyncobj waits for more than the period to be over.
    while now_ms < 800 + 10 * (APPEND_PERIOD_MS + 1):
        replica.peer.acknowledge()
        outbox = replica.step(at(now_ms), [])
        now_ms, woken, sent = outbox.wake_at_ms - toy.START.steady_ms, woken + 1, sent + len(outbox.frames)

    assert (woken, sent) == (10, 10)


def test_follower_wakes_when_it_would_stand() -> None:
    replica = toy.pair()
    replica.step(at(0), [])
    now_ms = 0
    while not replica.said(PreVoteRequest):
        outbox = replica.step(at(now_ms), [])
        now_ms = outbox.wake_at_ms - toy.START.steady_ms
        assert now_ms <= ELECTION_MAX_MS + 1
        assert outbox.wake_at_ms <= at(now_ms).steady_ms + ReplicaLimits().idle_ms


def test_large_batch_travels_in_one_piece() -> None:
    """What is larger than its limit pysyncobj cuts into pieces that followers cannot put together."""
    replica = leading()
    replica.sent.clear()
    replica.step(at(730), proposals(Add(rows_written=70, row_bytes=100_000)))

    assert replica.entries_sent() == [replica._journal[-1][0]]
    assert len(replica._journal[-1][0]) > 7_000_000


def test_peer_that_is_too_far_behind_is_told_so() -> None:
    """What it lacks is in no entry any more; it has to fetch the rows."""
    replica = leading(limits=ReplicaLimits(journal_entries_max=10))
    for ms in range(20):
        replica.step(at(730 + ms), proposals(Add()))
        replica.peer.acknowledge()
    replica.sent.clear()
    replica.step(at(750), proposals(Add()))
    last = replica.said(Append)[-1]
    replica.peer.say(AppendAnswer(last.term, last.round, last.sent_ms, matches=False, next_index=2, ability=toy.ABLE))
    replica.sent.clear()
    replica.step(at(850), [])

    assert [type(sent.message) for sent in replica.sent] == [Compacted]


def test_commands_gather_while_a_batch_travels() -> None:
    """One batch is in flight; what comes meanwhile is decided on what that one leaves."""
    replica = leading()
    replica.step(at(730), proposals(Add()))
    more = [one._replace(token=f"later-{one.token}") for one in proposals(Add(), Add())]
    assert replica.step(at(740), more).answers == []
    assert len(replica._journal) == replica._journal.applied + 1
    replica.peer.acknowledge()
    assert answers(replica.step(at(750), [])) == {0: Counted(1, 2)}
    replica.peer.acknowledge()

    assert answers(replica.step(at(760), [])) == {"later-0": Counted(2, 3), "later-1": Counted(3, 3)}


def test_even_a_question_waits_for_the_batch_in_flight() -> None:
    """It would otherwise be answered from rows that are about to change."""
    replica = leading()
    replica.step(at(730), proposals(Add()))

    assert replica.step(at(740), proposals(Ask())).answers == []


def test_lost_leadership_answers_everybody() -> None:
    """What was proposed may have happened; what only waited has not."""
    replica = leading()
    replica.step(at(730), proposals(Add(), Ask()))
    replica.step(at(740), [one._replace(token="waiting") for one in proposals(Add())])
    replica.peer.depose(term=9)
    outbox = replica.step(at(750), [one._replace(token="late") for one in proposals(Add())])

    assert reasons(outbox.answers) == {
        0: "COMMIT_UNKNOWN",
        1: "COMMIT_UNKNOWN",
        "waiting": "NOT_LEADER",
        "late": "NOT_LEADER",
    }
    assert not outbox.standing.leads
    assert replica._live is None


def test_batch_of_unknown_fate_may_be_applied_later() -> None:
    """COMMIT_UNKNOWN is no "no": the new leader kept the entry, and it counts once."""
    replica = leading()
    replica.step(at(730), proposals(Add()))
    last = replica._journal[-1]
    replica.peer.depose(term=9)
    assert reasons(replica.step(at(740), []).answers) == {0: "COMMIT_UNKNOWN"}
    replica.peer.append(term=9, previous=(last.index, last.term), entries=[], commit_index=last.index)
    outbox = replica.step(at(750), [])

    assert [(one.sequence, one.epoch, one.changes) for one in outbox.applied] == [(2, 1, None)]
    assert outbox.answers == []


def test_two_terms_are_two_epochs() -> None:
    """Also when the same node leads again: its memory did not see what happened in between."""
    replica = leading()
    replica.step(at(730), proposals(Add()))
    replica.peer.acknowledge()
    replica.step(at(740), [])
    first = replica._live
    replica.peer.depose(term=9)
    elected(replica, from_ms=750)
    for ms in (1_510, 1_520, 1_530):
        replica.peer.acknowledge()
        replica.step(at(ms), [])
    replica.peer.acknowledge()
    replica.step(at(1_540), proposals(Add()))
    replica.peer.acknowledge()
    outbox = replica.step(at(1_550), [])

    assert answers(outbox)[0].counter == 2
    assert (outbox.standing.epoch, outbox.standing.term) == (2, 10)
    assert replica._live is not first


def flap(replica: toy.PeeredReplica, now_ms: int, *, term: int) -> None:
    """Let the engine lose leadership and win it again while the replica does not look."""
    engine = replica._engine

    def hear(message: frames.Message, ms: int) -> None:
        engine.receive("n2", 1, frames.encode(message), now_ms + ms)
        engine.tick(now_ms + ms)

    hear(HigherTerm(term), 0)
    engine.tick(now_ms + 1_000)
    attempts = [frames.decode(frame.content) for frame in engine.release()]
    asked = next(one for one in attempts if isinstance(one, PreVoteRequest))
    hear(PreVote(term, asked.attempt, granted=True), 1_001)
    hear(Vote(term + 1), 1_002)
    assert (engine.leads, engine.term) == (True, term + 1)


def test_leadership_lost_and_won_between_two_steps_is_noticed() -> None:
    """The term tells, not the belief to lead."""
    replica = leading()
    replica.step(at(730), proposals(Add()))
    flap(replica, at(740).steady_ms, term=9)

    assert reasons(replica.step(at(1_750), []).answers) == {0: "COMMIT_UNKNOWN"}


def overtake(replica: toy.PeeredReplica, *, epoch: int) -> rows.Head:
    """Let a batch of another leader stand at the head, as an installed snapshot would."""
    head = replica.standing.head
    other = batches.Batch(head.sequence + 1, head.hash, epoch, 1, 0, 0, 0, 0, "other", [], [])
    after = batches.head_after(other, batches.hash_of(batches.encode(other)))
    replica._head = after
    replica._store.put_fact(facts.HEAD, facts.encode_head(after))
    return after


def test_own_batch_that_is_skipped_closes_the_epoch() -> None:
    """Somebody else's batch has its place: what this leader holds in memory is not what the rows say."""
    replica = leading()
    replica.step(at(730), proposals(Add()))
    replica.step(at(735), [one._replace(token="waiting") for one in proposals(Add())])
    overtake(replica, epoch=5)
    replica.peer.acknowledge()
    outbox = replica.step(at(740), [])

    assert reasons(outbox.answers) == {0: "COMMIT_UNKNOWN", "waiting": "NOT_LEADER"}
    assert not outbox.standing.leads


def test_opening_that_is_skipped_is_tried_again() -> None:
    replica = elected()
    replica.peer.acknowledge()
    replica.step(at(710), [])
    overtake(replica, epoch=5)
    replica.peer.acknowledge()
    replica.step(at(720), [])
    replica.peer.tell_age(30)
    replica.step(at(725), [])
    replica.peer.acknowledge()
    outbox = replica.step(at(730), [])

    assert outbox.standing.leads
    assert (outbox.standing.epoch, outbox.standing.head.sequence) == (6, 2)


def test_follower_tells_what_it_applies() -> None:
    """Its streams live from that; it has the bytes, not the rows."""
    replica = toy.pair()
    replica.step(at(0), [])
    head = replica.standing.head
    batch = batches.Batch(1, head.hash, 1, 1, 5, 6, 7, 8, "other", [(b"Pa", b"row")], [b"Pb"])
    entry = (REGULAR + batches.encode(batch), 4)
    replica.peer.append(term=4, previous=(1, 0), commit_index=2, entries=[entry])
    outbox = replica.step(at(10), [])

    assert [(one.changes, one.puts, one.deletes) for one in outbox.applied] == [(None, [(b"Pa", b"row")], [b"Pb"])]
    assert replica._store.get(b"Pa") == b"row"
    assert not outbox.standing.leads
    assert (outbox.standing.epoch, outbox.standing.head.sequence) == (1, 1)


@pytest.mark.parametrize("content", [b"", b"\xc1", b"\x80\x04\x95", frames.encode(HigherTerm(9)) + b"\x00"])
def test_what_cannot_be_read_ends_its_stream(content: bytes) -> None:
    """The node goes on. What stands behind it on that stream counts for nothing: something is missing before it."""
    replica = leading()
    later = frames.encode(HigherTerm(9))
    outbox = replica.step(at(730), [Arrived("n2", 1, content), Arrived("n2", 1, later)])
    assert (outbox.unreadable, outbox.standing.leads) == (["n2"], True)
    outbox = replica.step(at(740), [Arrived("n2", 1, later)])
    assert (outbox.unreadable, outbox.standing.leads) == ([], True)

    assert not replica.step(at(750), [Arrived("n2", 2, later)]).standing.leads


def test_no_epoch_opens_while_leadership_is_handed_over() -> None:
    """What it proposes the other node lacks, and so would not be elected."""
    replica = elected()
    replica.step(at(705), [Transfer("asked", "n2")])
    replica.peer.acknowledge()
    replica.step(at(710), [])
    assert [message.term for message in replica.said(StandNow)] == [1]
    assert replica.entries_sent() == [NO_OP]
    # It stays here: the other one has not stood.
    replica.peer.acknowledge()
    replica.step(at(1_220), [])

    assert len(replica.entries_sent()) == 2


def test_closed_replica_steps_no_more() -> None:
    replica = leading()
    replica.close()

    with pytest.raises(ReplicaStopped):
        replica.step(at(800), [])
