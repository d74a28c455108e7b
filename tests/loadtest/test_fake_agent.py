"""What locust's agent knows of its work, and what its observer makes of the nodes. Neither does any I/O."""

from __future__ import annotations

import hashlib

from loadtest.fake_session import Session
from loadtest.watchman import Watchman
from stepward.v1 import agent_service_pb2 as pb
from stepward.v1.cluster_service_pb2 import GetStatusResponse, ShardStatus


def offers(*tokens: int) -> pb.Offers:
    """Of one step."""
    return pb.Offers(offers=[pb.Offer(attempt=attempt(token)) for token in tokens])


def attempt(token: int) -> pb.AttemptRef:
    return pb.AttemptRef(job_id="job-1", step_id="reserve", token=token)


def answers(token: int, result: pb.ReportResult.ValueType) -> pb.ReportAnswers:
    return pb.ReportAnswers(answers=[pb.ReportAnswer(attempt=attempt(token), result=result)])


def succeeded(token: int) -> pb.AttemptReport:
    return pb.AttemptReport(attempt=attempt(token), succeeded=pb.Succeeded())


def test_what_is_offered_again_is_not_done_again() -> None:
    """By job, step and token; a newer token is another attempt."""
    session = Session()
    first = session.taken(offers(7))
    again = session.taken(offers(7, 8))

    assert [offer.attempt.token for offer in first] == [7]
    assert [offer.attempt.token for offer in again] == [8]
    assert [held.token for held in session.hello().hello.held] == [7, 8]


def test_outcome_is_kept_until_it_is_acknowledged() -> None:
    """A server that says INTERNAL has not recorded it."""
    session = Session()
    session.taken(offers(7))
    assert session.unreported() == []
    session.done(succeeded(7))

    assert session.unreported() == [succeeded(7)]
    session.answered(answers(7, pb.REPORT_RESULT_INTERNAL))
    assert session.unreported() == [succeeded(7)]
    session.answered(answers(7, pb.REPORT_RESULT_RECORDED))
    assert (session.unreported(), session.held) == ([], {})


def test_cancel_of_what_was_never_begun_is_answered() -> None:
    """What was begun says how it ended."""
    session = Session()
    session.taken(offers(7))
    cancels = pb.Cancels(cancels=[pb.Cancel(attempt=attempt(7)), pb.Cancel(attempt=attempt(8))])

    assert session.unknown(cancels) == [pb.AttemptReport(attempt=attempt(8), refused=pb.Refused())]


def test_heartbeat_has_the_digest_of_what_is_held_and_the_list_when_asked() -> None:
    """As the contract describes it."""
    session = Session()
    session.taken(offers(7))
    wanted = int.from_bytes(hashlib.sha256(b"job-1/reserve/7").digest()[:8], "big")

    beat = session.heartbeat(1).heartbeat
    assert (beat.held_digest, beat.held_is_complete, len(beat.held)) == (wanted, False, 0)
    session.send_held = True
    beat = session.heartbeat(2).heartbeat
    assert (beat.held_is_complete, [held.token for held in beat.held]) == (True, [7])
    assert not session.heartbeat(3).heartbeat.held_is_complete


def status(node_id: str, *, leads: bool, term: int = 1, sequence: int = 1, pid: int = 1) -> GetStatusResponse:
    """What a node says of itself."""
    shard = ShardStatus(leader=leads, term=term, sequence=sequence)
    return GetStatusResponse(node_id=node_id, pid=pid, shards=[shard])


def test_two_leaders_of_one_term_are_seen() -> None:
    """Also when they are not seen at once. One after the other in other terms is what a failover is."""
    watchman = Watchman()
    assert watchman.look([status("n1", leads=True, term=1)], 0.0).wrong == []
    assert watchman.look([status("n2", leads=True, term=2)], 1.0).wrong == []

    assert watchman.look([status("n1", leads=True, term=2)], 2.0).wrong == ["two nodes led one term"]


def test_node_that_goes_back_is_seen() -> None:
    """A new process reads what it has; the same one cannot forget."""
    watchman = Watchman()
    watchman.look([status("n1", leads=True, sequence=9)], 0.0)
    assert watchman.look([status("n1", leads=True, sequence=9)], 1.0).wrong == []

    assert watchman.look([status("n1", leads=True, sequence=8)], 2.0).wrong == ["a node has gone back"]
    assert watchman.look([status("n1", leads=True, sequence=7, pid=2)], 3.0).wrong == []


def test_time_without_a_leader_is_told_once_it_is_over() -> None:
    """From when one was last seen."""
    watchman = Watchman()
    watchman.look([status("n1", leads=True)], 10.0)
    assert watchman.look([], 10.5).leaderless_s is None
    assert watchman.look([status("n2", leads=False)], 11.0).leaderless_s is None

    assert watchman.look([status("n2", leads=True, term=2)], 11.5).leaderless_s == 1.5
    assert watchman.look([status("n2", leads=True, term=2)], 12.0).leaderless_s is None
