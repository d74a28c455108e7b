"""`stepward job list`, `count`, `steps` and `show` of large jobs, against a server that answers by a script."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from stepward.v1 import common_pb2, job_service_pb2
from tests.client.command_line import run
from tests.client.job_messages import job, step
from tests.client.scripted_server import ScriptedServer

RUNNING, PENDING, SUCCEEDED = (
    common_pb2.STEP_STATE_RUNNING,
    common_pb2.STEP_STATE_PENDING,
    common_pb2.STEP_STATE_SUCCEEDED,
)


def counts(*found: tuple[str, int]) -> list[job_service_pb2.JobStateCount]:
    return [
        job_service_pb2.JobStateCount(state=common_pb2.JobState.Value(f"JOB_STATE_{state}"), count=count)
        for state, count in found
    ]


@pytest.mark.parametrize("command", ["list", "count"])
def test_filters(server: ScriptedServer, at: list[str], command: str) -> None:
    """All of them, alike for both commands."""
    server.on("ListJobs", job_service_pb2.ListJobsResponse())
    server.on("CountJobs", job_service_pb2.CountJobsResponse())
    options = ["--state", "failed", "--definition", "trip", "--label", "team=red", "--label", "size=l"]
    options += ["--since", "2h", "--until", "2126-11-30T12:00:00+02:00", "--queue", "travel"]

    ran = run("job", command, *options, *at)

    (asked,) = server.requests("ListJobs" if command == "list" else "CountJobs")
    since_s = datetime.now(UTC).timestamp() - asked.filter.submitted_from.ToDatetime(UTC).timestamp()
    assert ran.code == 0
    assert list(asked.filter.states) == [common_pb2.JOB_STATE_FAILED]
    assert (asked.filter.definition_name, asked.filter.queue) == ("trip", "travel")
    assert dict(asked.filter.labels) == {"team": "red", "size": "l"}
    assert 7_200 <= since_s < 7_260
    assert asked.filter.submitted_before.ToJsonString() == "2126-11-30T10:00:00Z"


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (["--since", "yesterday"], "'yesterday' is no time; give a duration back from now"),
        (["--since", "99999999d"], "'99999999d' is no time"),
        (["--since", "3000000d"], "'3000000d' ago is before all time"),
        (["--since", "1h", "--until", "2h"], "no job can match"),
        (["--label", "team"], "'team' is not key=value"),
        (["--state", "runing"], "no job state 'runing'"),
    ],
)
def test_filters_that_make_no_sense(at: list[str], options: list[str], complaint: str) -> None:
    """Said before anybody is asked."""
    ran = run("job", "count", *options, *at)

    assert ran.code == 2
    assert complaint in " ".join(ran.stderr.split())


def test_count(server: ScriptedServer, at: list[str]) -> None:
    """A row a state, then all; with a word when there may be more."""
    whole = job_service_pb2.CountJobsResponse(counts=counts(("RUNNING", 3), ("FAILED", 20)))
    part = job_service_pb2.CountJobsResponse(counts=counts(("RUNNING", 7)), truncated=True)
    server.on("CountJobs", whole, part, whole)

    table = run("job", "count", *at)
    truncated = run("job", "count", "--label", "a=b", *at)
    as_json = run("job", "count", *at, "-o", "json")

    assert [line.split() for line in table.lines] == [
        ["STATE", "JOBS"],
        ["RUNNING", "3"],
        ["FAILED", "20"],
        ["all", "23"],
    ]
    assert table.stderr == ""
    assert truncated.lines[-1].split() == ["all", "7", "or", "more"]
    assert "only the newest jobs were looked at" in truncated.stderr
    assert as_json.json["counts"][0] == {"state": "JOB_STATE_RUNNING", "count": "3"}


def test_steps(server: ScriptedServer, at: list[str]) -> None:
    """A row a step, page by page; states in any case."""
    failure = common_pb2.Failure(kind="SoldOut", message="no seat")
    server.on(
        "ListJobSteps",
        job_service_pb2.ListJobStepsResponse(
            steps=[step("a", "RETRY_WAIT", attempts=1, attempts_max=5, failure=failure)], next_page_token="1"
        ),
        job_service_pb2.ListJobStepsResponse(steps=[step("b", "READY")]),
    )

    ran = run("job", "steps", "0-1", "--state", "ready,retry_wait", *at)

    assert [line.split() for line in ran.lines] == [
        ["STEP", "STATE", "ATTEMPTS", "UPDATED", "WHY"],
        ["a", "RETRY_WAIT", "1/5", "SoldOut:", "no", "seat"],
        ["b", "READY"],
    ]
    assert list(server.requests("ListJobSteps")[0].states) == [
        common_pb2.STEP_STATE_READY,
        common_pb2.STEP_STATE_RETRY_WAIT,
    ]


def test_show_of_a_large_job(server: ScriptedServer, at: list[str]) -> None:
    """First how many steps are in each state, then those that matter now, then how to see the others."""
    step_counts = [
        common_pb2.StepCount(state=state, count=count)
        for state, count in ((PENDING, 5_000), (RUNNING, 2), (SUCCEEDED, 4_998))
    ]
    some = [step(f"s{n}", "SUCCEEDED") for n in range(100)]
    server.on(
        "GetJob", job_service_pb2.GetJobResponse(job=job(steps=some, steps_total=10_000, step_counts=step_counts))
    )
    moving = [step(f"s{n}", "RUNNING", attempts=1, attempts_max=5) for n in (7_000, 7_001)]
    server.on("ListJobSteps", job_service_pb2.ListJobStepsResponse(steps=moving))

    ran = run("job", "show", "0-1", *at)

    (asked,) = server.requests("ListJobSteps")
    assert list(asked.states) == [RUNNING]
    assert ran.lines[1] == "10000 steps: 5000 PENDING, 2 RUNNING, 4998 SUCCEEDED"
    assert [line for line in ran.lines if "s700" in line] == ["├─ ▶ s7000  attempt 1/5", "├─ ▶ s7001  attempt 1/5"]
    assert ran.lines[-1] == "└─ … and 5000 PENDING, 4960 SUCCEEDED"
    assert len(ran.lines) == 43
    assert "all steps, or those in some states: stepward job steps 0-1 --state STATE" in ran.stderr
