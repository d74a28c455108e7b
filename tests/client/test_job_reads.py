"""Lists, counts and steps of jobs, as the clients ask for them and read them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import grpc
import pytest

from stepward.client.values import JobState, StepState
from stepward.v1 import common_pb2, job_pb2, job_service_pb2
from tests.client.both_clients import BOTH, Driver
from tests.client.job_messages import job, step
from tests.client.scripted_server import Refused, ScriptedServer

both = pytest.mark.parametrize("drive", BOTH)
NOON = datetime(2026, 11, 30, 12, tzinfo=UTC)
TOO_SLOW = Refused(grpc.StatusCode.RESOURCE_EXHAUSTED, "WATCH_TOO_SLOW", "nothing was read")


@both
@pytest.mark.parametrize("method", ["list", "count"])
def test_everything_that_may_be_said_of_jobs(server: ScriptedServer, drive: Driver, method: str) -> None:
    """It goes into the filter, alike for lists and counts."""
    server.on("ListJobs", job_service_pb2.ListJobsResponse())
    server.on("CountJobs", job_service_pb2.CountJobsResponse())
    wanted: dict[str, Any] = {
        "states": ["FAILED", JobState.ESCALATED],
        "definition": "trip",
        "labels": {"team": "red"},
        "since": NOON,
        "until": (NOON + timedelta(hours=1)).astimezone(timezone(timedelta(hours=5))),
        "queue": "travel",
    }
    drive(server.address, method, namespace="other", **wanted)
    (asked,) = server.requests("ListJobs" if method == "list" else "CountJobs")
    filter_ = job_service_pb2.JobFilter(
        states=[common_pb2.JOB_STATE_FAILED, common_pb2.JOB_STATE_ESCALATED],
        definition_name="trip",
        labels={"team": "red"},
        queue="travel",
    )
    filter_.submitted_from.FromJsonString("2026-11-30T12:00:00Z")
    filter_.submitted_before.FromJsonString("2026-11-30T13:00:00Z")

    assert asked.filter == filter_
    assert asked.namespace == "other"


@both
def test_time_without_a_zone(server: ScriptedServer, drive: Driver) -> None:
    """Nobody can know which moment was meant."""
    with pytest.raises(ValueError, match="since is 2026-11-30T12:00:00, which has no time zone"):
        drive(server.address, "count", since=datetime(2026, 11, 30, 12))  # noqa: DTZ001 - that is what is refused


@both
def test_count(server: ScriptedServer, drive: Driver) -> None:
    """By state, in all, and whether that is all."""
    counts = [
        job_service_pb2.JobStateCount(state=common_pb2.JOB_STATE_RUNNING, count=3),
        job_service_pb2.JobStateCount(state=common_pb2.JOB_STATE_FAILED, count=2),
    ]
    server.on("CountJobs", job_service_pb2.CountJobsResponse(counts=counts, truncated=True))

    counted = drive(server.address, "count")

    assert counted.by_state == {JobState.RUNNING: 3, JobState.FAILED: 2}
    assert (counted.total, counted.truncated) == (5, True)


@both
def test_steps_page_by_page(server: ScriptedServer, drive: Driver) -> None:
    """An empty page is not the end; the states go with every page."""
    pages = [([step("a", "READY")], "1"), ([], "2"), ([step("b", "READY")], "")]
    server.on(
        "ListJobSteps",
        *(job_service_pb2.ListJobStepsResponse(steps=steps, next_page_token=token) for steps, token in pages),
    )

    steps = drive(server.address, "steps", "0-1", states=["READY"])
    asked = server.requests("ListJobSteps")

    assert [one.step_id for one in steps] == ["a", "b"]
    assert [request.page_token for request in asked] == ["", "1", "2"]
    assert {tuple(request.states) for request in asked} == {(common_pb2.STEP_STATE_READY,)}


@both
def test_job_with_more_steps_than_fit(server: ScriptedServer, drive: Driver) -> None:
    """It says how many there are, and in which states."""
    counts = [
        common_pb2.StepCount(state=common_pb2.STEP_STATE_SUCCEEDED, count=7_000),
        common_pb2.StepCount(state=common_pb2.STEP_STATE_PENDING, count=3_000),
    ]
    large = job(steps=[step("a", "SUCCEEDED")], steps_total=10_000, step_counts=counts)
    server.on("GetJob", job_service_pb2.GetJobResponse(job=large))

    found = drive(server.address, "get", "0-1")

    assert (len(found.steps), found.steps_total) == (1, 10_000)
    assert found.step_counts == {StepState.SUCCEEDED: 7_000, StepState.PENDING: 3_000}


def event(revision: int, step_id: str) -> job_pb2.HistoryEvent:
    return job_pb2.HistoryEvent(revision=revision, type="StepStarted", step_id=step_id)


def response(revision: int, *steps: job_pb2.JobStep, state: str = "RUNNING") -> job_service_pb2.WatchJobResponse:
    """A message of a job with four steps."""
    return job_service_pb2.WatchJobResponse(
        job=job(state, revision=revision, steps=steps, steps_total=4),
        events=[event(revision, one.step_id) for one in steps],
    )


@both
def test_watch_puts_together_what_does_not_fit(server: ScriptedServer, drive: Driver) -> None:
    """Each change has every step that was told so far, as it was last; also over streams that were cut."""
    server.on(
        "WatchJob",
        [response(2, step("a", "READY"), step("b", "READY")), response(3, step("c", "RUNNING")), TOO_SLOW],
        [response(3, step("c", "RUNNING")), response(4, step("a", "SUCCEEDED"), state="COMPLETED")],
    )

    changes = drive(server.address, "watch", "0-1")

    assert [{one.step_id: str(one.state) for one in change.job.steps} for change in changes] == [
        {"a": "READY", "b": "READY"},
        {"a": "READY", "b": "READY", "c": "RUNNING"},
        {"a": "SUCCEEDED", "b": "READY", "c": "RUNNING"},
    ]
    assert [[one.step_id for one in change.events] for change in changes] == [["a", "b"], ["c"], ["a"]]
    # Just before the batch of the last event: what it brought already comes again, and is dropped.
    assert [request.from_revision for request in server.requests("WatchJob")] == [0, 2]


@both
def test_watch_in_another_history(server: ScriptedServer, drive: Driver) -> None:
    """After a restore revisions begin again further back: nothing that comes may be taken for what was seen."""
    compacted = Refused(
        grpc.StatusCode.OUT_OF_RANGE, "REVISION_COMPACTED", "not here", metadata={"newest_revision": "9"}
    )
    server.on(
        "WatchJob",
        [response(90, step("a", "RUNNING")), Refused(grpc.StatusCode.UNAVAILABLE, "NODE_DRAINING", "going")],
        compacted,
        [response(8, step("a", "SUCCEEDED"), state="COMPLETED")],
    )

    changes = drive(server.address, "watch", "0-1")

    assert [(change.job.revision, change.events_missing, len(change.events)) for change in changes] == [
        (90, False, 1),
        (8, True, 1),
    ]
    assert [request.from_revision for request in server.requests("WatchJob")] == [0, 89, 0]
