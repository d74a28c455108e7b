"""The replica with a peer that a test speaks for: what travels, what is unknown, what ends with an epoch."""

import pytest

from stepward.server.core import rows
from stepward.server.logbook import batch as batches
from stepward.server.logbook import engine, frames
from stepward.server.logbook.errors import ReplicaStopped
from stepward.server.logbook.outbox import ReplicaLimits
from stepward.server.store import facts
from tests.logbook import toy
from tests.logbook.toy import Add, Ask, Counted, answers, at, proposals, reasons


def elected(*, until_ms: int = 700) -> toy.PeeredReplica:
    """A replica that was voted for, its no-op not yet acknowledged."""
    replica: toy.PeeredReplica = toy.start(toy.new_store(), kind=toy.PeeredReplica)
    replica.peer.connect()
    replica.step(at(0), [])
    replica.win(until_ms)
    return replica


def sent_commands(replica: toy.PeeredReplica) -> list[bytes]:
    """What left, message by message."""
    appends = [sent.message for sent in replica.sent]
    return [entry.command for one in appends if isinstance(one, frames.Append) for entry in one.entries]


def leading() -> toy.PeeredReplica:
    """A replica whose epoch is open, at 720 ms."""
    replica = elected()
    replica.peer.acknowledge()
    replica.step(at(710), [])
    replica.peer.acknowledge()
    assert replica.step(at(720), []).standing.leads
    return replica


def test_without_a_leader_nothing_is_proposed() -> None:
    replica: toy.PeeredReplica = toy.start(toy.new_store(), kind=toy.PeeredReplica)
    outbox = replica.step(at(0), proposals(Add(), Ask()))

    assert reasons(outbox.answers) == {0: "NOT_LEADER", 1: "NOT_LEADER"}
    assert not outbox.standing.leads


def test_epoch_opens_behind_the_no_op() -> None:
    """Before that, entries of earlier leaders may still be applied under the rules' feet."""
    replica = elected()
    before = replica.step(at(705), [])
    assert (replica._journal[-1][0], before.applied) == (engine.NO_OP, [])
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

    assert sent_commands(replica) == [replica._journal[-1][0]]


def test_large_batch_travels_in_one_piece() -> None:
    """What is larger than its limit pysyncobj cuts into pieces that followers cannot put together."""
    replica = leading()
    replica.sent.clear()
    replica.step(at(730), proposals(Add(rows_written=70, row_bytes=100_000)))

    assert sent_commands(replica) == [replica._journal[-1][0]]
    assert len(replica._journal[-1][0]) > 7_000_000


def test_peer_that_is_too_far_behind_does_not_hold_up_the_step() -> None:
    """It is told so once a period; stock pysyncobj told it so until time had passed."""
    replica = leading()
    for ms in range(1_000):
        replica.step(at(730 + ms), proposals(Add()))
        replica.peer.acknowledge()
    replica._limits = ReplicaLimits(journal_entries_max=10)
    replica._journal._entries_max = 10
    for ms in range(1_730, 1_750):
        replica.step(at(ms), [])
        replica.peer.acknowledge()
    replica.sent.clear()
    replica.peer.refuse(next_index=1)
    replica.step(at(1_900), [])

    assert [type(sent.message) for sent in replica.sent] == [frames.Compacted]


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
    replica.step(at(750), [])
    replica.win(1_500)
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


def test_leadership_lost_and_won_between_two_steps_is_noticed() -> None:
    """The term tells, not the belief to lead."""
    replica = leading()
    replica.step(at(730), proposals(Add()))
    replica.peer.depose(term=9)
    replica._engine.tick(at(1_499).steady_ms)
    replica.peer.grant()
    replica._engine.tick(at(1_500).steady_ms)
    replica.peer.vote(replica._engine.term)
    assert replica._engine.leads

    assert reasons(replica.step(at(1_510), []).answers) == {0: "COMMIT_UNKNOWN"}


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
    replica.peer.acknowledge()
    outbox = replica.step(at(730), [])

    assert outbox.standing.leads
    assert (outbox.standing.epoch, outbox.standing.head.sequence) == (6, 2)


def test_follower_tells_what_it_applies() -> None:
    """Its streams live from that; it has the bytes, not the rows."""
    replica: toy.PeeredReplica = toy.start(toy.new_store(), kind=toy.PeeredReplica)
    replica.peer.connect()
    replica.step(at(0), [])
    head = replica.standing.head
    batch = batches.Batch(1, head.hash, 1, 1, 5, 6, 7, 8, "other", [(b"Pa", b"row")], [b"Pb"])
    entries = [(engine.REGULAR + batches.encode(batch), 4)]
    replica.peer.append(term=4, previous=(1, 0), entries=entries, commit_index=2)
    outbox = replica.step(at(10), [])

    assert [(one.changes, one.puts, one.deletes) for one in outbox.applied] == [(None, [(b"Pa", b"row")], [b"Pb"])]
    assert replica._store.get(b"Pa") == b"row"
    assert not outbox.standing.leads
    assert (outbox.standing.epoch, outbox.standing.head.sequence) == (1, 1)


def test_closed_replica_steps_no_more() -> None:
    replica = leading()
    replica.close()

    with pytest.raises(ReplicaStopped):
        replica.step(at(800), [])
