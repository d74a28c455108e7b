"""A watch over lost connections: nothing twice, nothing left out."""

from __future__ import annotations

from functools import partial
from typing import Any

import grpc
import pytest

from stepward.client import Client, errors
from stepward.client.failover import Patience
from stepward.client.values import JobChange
from stepward.v1 import common_pb2, job_pb2, job_service_pb2
from tests.client.both_clients import BOTH, QUICK, Driver
from tests.client.scripted_server import Broken, Refused, ScriptedServer, Silence

both = pytest.mark.parametrize("drive", BOTH)

COMPACTED = Refused(grpc.StatusCode.OUT_OF_RANGE, "REVISION_COMPACTED")


def job(revision: int, state: str = "RUNNING") -> job_pb2.Job:
    number = common_pb2.JobState.Value(f"JOB_STATE_{state}")
    return job_pb2.Job(job_id="0-1", revision=revision, state=number)


def change(revision: int, state: str = "RUNNING", *, events: tuple[int, ...] | None = None) -> Any:
    told = [job_pb2.HistoryEvent(revision=one, type="X") for one in (events if events is not None else (revision,))]
    return job_service_pb2.WatchJobResponse(job=job(revision, state), events=told)


def seen(changes: list[JobChange]) -> list[tuple[int, list[int], bool]]:
    return [(one.job.revision, [event.revision for event in one.events], one.events_missing) for one in changes]


def resumed_from(server: ScriptedServer) -> list[int]:
    return [request.from_revision for request in server.requests("WatchJob")]


@both
def test_ends_with_the_job(server: ScriptedServer, drive: Driver) -> None:
    """One stream when nothing goes wrong."""
    server.on("WatchJob", [change(1), change(3), change(4, "COMPLETED")])

    assert seen(drive(server.address, "watch", "0-1")) == [(1, [1], False), (3, [3], False), (4, [4], False)]
    assert resumed_from(server) == [0]


@both
def test_resumes_behind_what_it_gave_out(server: ScriptedServer, drive: Driver) -> None:
    """Each new stream begins behind the last change; failures in between lose nothing."""
    server.on(
        "WatchJob",
        [change(1), change(3), Broken()],
        [Broken()],
        [change(5), Broken(grpc.StatusCode.INTERNAL, "reset")],
        [change(6, "COMPENSATED")],
    )

    assert seen(drive(server.address, "watch", "0-1")) == [
        (1, [1], False),
        (3, [3], False),
        (5, [5], False),
        (6, [6], False),
    ]
    # Just before the batch of the last event: more events of that batch may be left.
    assert resumed_from(server) == [0, 2, 2, 4]


@both
def test_drops_what_comes_twice(server: ScriptedServer, drive: Driver) -> None:
    """A server may begin further back than it was asked to."""
    server.on(
        "WatchJob",
        [change(1), change(3), Broken()],
        [change(1), change(3), change(4), change(5, "FAILED")],
    )

    assert seen(drive(server.address, "watch", "0-1")) == [
        (1, [1], False),
        (3, [3], False),
        (4, [4], False),
        (5, [5], False),
    ]


@both
def test_begins_where_it_is_told(server: ScriptedServer, drive: Driver) -> None:
    """Somebody who has seen a revision wants what is newer."""
    server.on("WatchJob", [change(7), change(8), change(9, "CANCELLED")])

    assert seen(drive(server.address, "watch", "0-1", 7)) == [(8, [8], False), (9, [9], False)]
    assert resumed_from(server) == [7]


@both
def test_a_stream_that_ends_too_soon_is_taken_up_again(server: ScriptedServer, drive: Driver) -> None:
    """A node may end streams to spread its load; the job says whether there is more to come."""
    server.on("WatchJob", [change(1)], [change(2), change(3, "COMPLETED")])
    server.on("GetJob", job_service_pb2.GetJobResponse(job=job(2)))

    assert seen(drive(server.address, "watch", "0-1")) == [(1, [1], False), (2, [2], False), (3, [3], False)]
    assert len(resumed_from(server)) == 2


@both
def test_a_stream_that_ends_without_the_end_of_the_job(server: ScriptedServer, drive: Driver) -> None:
    """The end is given out all the same, and it is said that its events are missing."""
    server.on("WatchJob", [change(1)])
    server.on("GetJob", job_service_pb2.GetJobResponse(job=job(9, "COMPLETED")))

    assert seen(drive(server.address, "watch", "0-1")) == [(1, [1], False), (9, [], True)]


@both
def test_an_ended_job_that_was_seen_has_nothing_to_say(server: ScriptedServer, drive: Driver) -> None:
    """Watching from the last revision of an ended job ends at once."""
    server.on("WatchJob", [])
    server.on("GetJob", job_service_pb2.GetJobResponse(job=job(9, "COMPLETED")))

    assert drive(server.address, "watch", "0-1", 9) == []


@both
def test_a_compacted_revision_is_said(server: ScriptedServer, drive: Driver) -> None:
    """The watch goes on from the job as it is, and does not pretend that nothing is missing."""
    server.on("WatchJob", [change(5), Broken()], [COMPACTED], [change(8, events=()), change(9, "COMPLETED")])

    assert seen(drive(server.address, "watch", "0-1")) == [(5, [5], False), (8, [], True), (9, [9], False)]
    assert resumed_from(server) == [0, 4, 0]


@both
def test_a_compacted_beginning_is_an_error(server: ScriptedServer, drive: Driver) -> None:
    """A server that cannot even begin is not asked for ever."""
    server.on("WatchJob", [COMPACTED])

    with pytest.raises(errors.RevisionCompacted):
        drive(server.address, "watch", "0-1")


@both
def test_an_unknown_job_is_an_error(server: ScriptedServer, drive: Driver) -> None:
    """And is not asked for again."""
    server.always("WatchJob", [Refused(grpc.StatusCode.NOT_FOUND, "JOB_NOT_FOUND", "no job 0-1")])

    with pytest.raises(errors.JobNotFound, match="no job 0-1"):
        drive(server.address, "watch", "0-1")
    assert len(server.requests("WatchJob")) == 1


@both
def test_gives_up_when_nobody_answers_any_more(server: ScriptedServer, drive: Driver) -> None:
    """For as long as the client's timeout after the last sign of life."""
    server.on("WatchJob", [change(1), Broken()])
    server.always("WatchJob", [Broken()])

    with pytest.raises(errors.Unreachable, match="tried"):
        drive(server.address, "watch", "0-1", patience=Patience(timeout_s=0.1, backoff_initial_s=0.001))


@both
def test_goes_on_at_another_node(server: ScriptedServer, second_server: ScriptedServer, drive: Driver) -> None:
    """The node that had the stream is gone; another takes it up at the same revision."""
    server.on("WatchJob", [change(1), change(2), Broken()])
    second_server.on("WatchJob", [change(3, "COMPLETED")])

    changes = drive(f"{server.address},{second_server.address}", "watch", "0-1")

    assert [one.job.revision for one in changes] == [1, 2, 3]
    assert resumed_from(second_server) == [1]


@both
@pytest.mark.parametrize("pieces", [2, 3, 4, 5])
def test_many_events_of_one_change_come_in_pieces(server: ScriptedServer, drive: Driver, pieces: int) -> None:
    """A stream that breaks between the pieces loses none of them, not even within one batch."""
    told = [1, 2, 3, 3, 3, 4, 5, 5, 5, 6]

    def stream(request: Any, *, pieces: int) -> list[Any]:
        left = [event for event in told if event > request.from_revision]
        cut = [change(6, "FAILED", events=tuple(left[at : at + 2])) for at in range(0, len(left), 2)]
        return cut if len(cut) <= pieces else [*cut[:pieces], Broken()]

    server.always("WatchJob", partial(stream, pieces=pieces))

    changes = drive(server.address, "watch", "0-1")

    assert len(resumed_from(server)) > 1 or pieces >= 5
    assert [event.revision for one in changes for event in one.events] == told
    assert {one.job.revision for one in changes} == {6}


@both
def test_a_change_without_events_is_complete(server: ScriptedServer, drive: Driver) -> None:
    """Then there is nothing left before it, and the next stream begins behind it."""
    server.on("WatchJob", [change(4), change(5, events=()), Broken()], [change(6, "COMPLETED")])

    assert seen(drive(server.address, "watch", "0-1")) == [(4, [4], False), (5, [], False), (6, [6], False)]
    assert resumed_from(server) == [0, 5]


@both
def test_a_follower_that_is_behind_takes_nothing_back(server: ScriptedServer, drive: Driver) -> None:
    """Another node may show the job as it was before what was given out."""
    server.on("WatchJob", [change(4), Broken()], [change(3), change(4), change(5, "COMPLETED")])

    assert [one.job.revision for one in drive(server.address, "watch", "0-1")] == [4, 5]


@both
def test_wait_gives_the_end(server: ScriptedServer, drive: Driver) -> None:
    """With the steps, since it comes from a watch."""
    server.on("WatchJob", [change(1), Broken()], [change(2, "COMPLETED")])

    assert drive(server.address, "wait", "0-1").job.revision == 2


@both
def test_wait_ends_when_its_caller_said(server: ScriptedServer, drive: Driver) -> None:
    """The job goes on, and the error names it."""
    silence = Silence()
    server.on("WatchJob", [change(1), silence])

    with pytest.raises(errors.WaitTimedOut, match="it goes on") as caught:
        drive(server.address, "wait", "0-1", wait_max_s=0.2)
    assert caught.value.job_id == "0-1"


@both
def test_wait_stops_at_a_job_that_waits_for_a_person(server: ScriptedServer, drive: Driver) -> None:
    """Nobody knows how long a person takes."""
    server.on("WatchJob", [change(1), change(2, "ESCALATED"), Silence()])

    with pytest.raises(errors.JobEscalated):
        drive(server.address, "wait", "0-1")


def test_leaving_a_watch_ends_its_stream(server: ScriptedServer) -> None:
    """Whoever breaks out of the loop leaves nothing behind at the server."""
    silence = Silence()
    server.on("WatchJob", [change(1), silence])

    with Client(server.address, patience=QUICK) as client:
        changes = client.watch("0-1")
        assert next(changes).job.revision == 1
        silence.wait_for_begin()
        changes.close()  # type: ignore[attr-defined]  # an iterator that is a generator
        silence.wait_for_end()
