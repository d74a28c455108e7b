"""Both clients against a real server that answers by a script: same calls, same repetitions, same errors."""

from __future__ import annotations

import inspect
from datetime import timedelta
from typing import Any

import grpc
import pytest
from google.protobuf.duration_pb2 import Duration

from stepward.client import AsyncClient, Client, errors
from stepward.client.failover import Patience
from stepward.client.values import DetectionLatency, JobState, StepState
from stepward.v1 import (
    agent_service_pb2,
    cluster_service_pb2,
    common_pb2,
    definition_pb2,
    definition_service_pb2,
    job_pb2,
    job_service_pb2,
)
from tests.client.both_clients import BOTH, QUICK, Driver
from tests.client.scripted_server import (
    COMMIT_UNKNOWN,
    NO_LEADER,
    WAIT_TIMED_OUT,
    Broken,
    Refused,
    ScriptedServer,
    Silence,
)

SUBMITTED = job_service_pb2.SubmitJobResponse(job_id="0-1", state=common_pb2.JOB_STATE_RUNNING, revision=7)
REFUSED_PORT = "127.0.0.1:1"

both = pytest.mark.parametrize("drive", BOTH)


def ended(state: str, **fields: Any) -> job_service_pb2.RunJobResponse:
    number = common_pb2.JobState.Value(f"JOB_STATE_{state}")
    return job_service_pb2.RunJobResponse(job=job_pb2.Job(job_id="0-1", state=number, revision=9, **fields))


def overloaded(delay_s: float) -> Refused:
    return Refused(grpc.StatusCode.RESOURCE_EXHAUSTED, "OVERLOADED", retry_delay_s=delay_s)


def test_both_have_the_same_methods() -> None:
    """What works in a script works in a coroutine, by the same name and with the same arguments."""

    def signatures(client: type) -> dict[str, Any]:
        methods = {name: member for name, member in vars(client).items() if inspect.isfunction(member)}
        return {
            name: [
                (one.name, one.kind, one.default, one.annotation)
                for one in inspect.signature(member).parameters.values()
            ]
            for name, member in methods.items()
            if name == "__init__" or not name.startswith("_")
        }

    assert signatures(Client) == signatures(AsyncClient)
    assert {"submit", "run", "get", "list", "watch", "cancel", "history", "wait"} <= signatures(Client).keys()


@both
@pytest.mark.parametrize(
    "failures",
    [
        [COMMIT_UNKNOWN],
        [NO_LEADER, COMMIT_UNKNOWN, Broken()],
        [Broken(grpc.StatusCode.INTERNAL, "RST_STREAM")],
        [overloaded(0.001)],
        [Refused(grpc.StatusCode.UNAVAILABLE, "NODE_DRAINING")],
    ],
    ids=["commit unknown", "several", "reset", "overloaded", "draining"],
)
def test_a_submission_is_repeated_with_the_same_key(server: ScriptedServer, drive: Driver, failures: list[Any]) -> None:
    """The key is ours, and stays the same over all attempts: so they are one job."""
    server.on("SubmitJob", *failures, SUBMITTED)

    submitted = drive(server.address, "submit", "trip", {"who": "ann"})

    asked = server.requests("SubmitJob")
    assert len(asked) == len(failures) + 1
    assert len({request.SerializeToString(deterministic=True) for request in asked}) == 1
    assert len(asked[0].job.idempotency_key) == 32
    assert submitted.idempotency_key == asked[0].job.idempotency_key
    assert (submitted.job_id, submitted.state, submitted.revision) == ("0-1", JobState.RUNNING, 7)


@both
def test_a_submission_is_sent_as_it_was_given(server: ScriptedServer, drive: Driver) -> None:
    """Every argument has its place in the request."""
    server.on("SubmitJob", SUBMITTED)

    drive(
        server.address,
        "submit",
        "trip",
        {"who": "ann"},
        version=3,
        idempotency_key="k",
        labels={"tenant": "a"},
        deadline=timedelta(minutes=5),
        namespace="n",
    )

    assert server.requests("SubmitJob")[0].job == job_service_pb2.JobSubmission(
        namespace="n",
        definition_name="trip",
        definition_version=3,
        input=common_pb2.Payload(data=b'{"who":"ann"}', encoding="json/utf-8"),
        idempotency_key="k",
        labels={"tenant": "a"},
        deadline=Duration(seconds=300),
    )


@both
@pytest.mark.parametrize(
    ("refused", "kind"),
    [
        (Refused(grpc.StatusCode.NOT_FOUND, "DEFINITION_NOT_FOUND"), errors.DefinitionNotFound),
        (Refused(grpc.StatusCode.ALREADY_EXISTS, "IDEMPOTENCY_CONFLICT"), errors.IdempotencyConflict),
        (Refused(grpc.StatusCode.RESOURCE_EXHAUSTED, "DISK_FULL"), errors.DiskFull),
        (Refused(grpc.StatusCode.INTERNAL, "INTERNAL"), errors.InternalFault),
        (Broken(grpc.StatusCode.UNIMPLEMENTED, "Method not found!"), errors.UnknownAnswer),
    ],
)
def test_what_is_an_answer_is_not_asked_again(
    server: ScriptedServer, drive: Driver, refused: Any, kind: type[errors.StepwardError]
) -> None:
    """One attempt, one error."""
    server.always("SubmitJob", refused)

    with pytest.raises(kind):
        drive(server.address, "submit", "trip")
    assert len(server.requests("SubmitJob")) == 1


@both
def test_a_submission_that_may_be_stored_names_its_key(server: ScriptedServer, drive: Driver) -> None:
    """Whoever gets this error can go on asking for the same job."""
    server.always("SubmitJob", COMMIT_UNKNOWN)

    with pytest.raises(errors.CommitUnknown, match="tried") as caught:
        drive(server.address, "submit", "trip", patience=Patience(timeout_s=0.5, backoff_initial_s=0.001))
    keys = {request.job.idempotency_key for request in server.requests("SubmitJob")}
    assert {caught.value.metadata["idempotency_key"]} == keys


@both
def test_goes_to_the_next_address(server: ScriptedServer, drive: Driver) -> None:
    """A dead node is passed over."""
    server.on("GetJob", job_service_pb2.GetJobResponse(job=job_pb2.Job(job_id="0-1")))

    assert drive(f"{REFUSED_PORT},{server.address}", "get", "0-1").job_id == "0-1"


@both
def test_passes_over_a_silent_node(server: ScriptedServer, second_server: ScriptedServer, drive: Driver) -> None:
    """A node that takes the call and says nothing does not use up the time of the others."""
    server.on("SubmitJob", Silence())
    second_server.on("SubmitJob", SUBMITTED)
    patience = Patience(timeout_s=10, attempt_s=0.2)

    drive(f"{server.address},{second_server.address}", "submit", "trip", patience=patience)

    first, second = server.requests("SubmitJob"), second_server.requests("SubmitJob")
    assert first == second


@both
def test_follows_a_hint(server: ScriptedServer, second_server: ScriptedServer, drive: Driver) -> None:
    """The leader is asked although its address was never given."""
    hint = Refused(grpc.StatusCode.UNAVAILABLE, "NOT_LEADER", metadata={"leader_address": second_server.address})
    server.on("SubmitJob", hint)
    second_server.on("SubmitJob", SUBMITTED)

    assert drive(server.address, "submit", "trip").job_id == "0-1"


@both
def test_says_that_there_is_no_server(drive: Driver) -> None:
    """The address that was tried, and in a word what became of it."""
    with pytest.raises(errors.Unreachable) as caught:
        drive(REFUSED_PORT, "get", "0-1", patience=Patience(timeout_s=0.1))

    assert str(caught.value).startswith(f"no stepward server answers at {REFUSED_PORT} (Connection refused); tried ")
    assert "stepward dev" not in str(caught.value)


@both
def test_run_gives_the_output(server: ScriptedServer, drive: Driver) -> None:
    """Bytes are kept, and decoded when asked for."""
    output = common_pb2.Payload(data=b'{"ref": 1.10}', encoding="json/utf-8")
    server.on("RunJob", ended("COMPLETED", output=output))

    result = drive(server.address, "run", "trip")

    assert result.output == {"ref": 1.1}
    assert result.job.output_payload.data == b'{"ref": 1.10}'
    assert (result.state, result.job_id, result.duplicate) == (JobState.COMPLETED, "0-1", False)


@both
@pytest.mark.parametrize(
    ("state", "kind"),
    [
        ("FAILED", errors.JobFailed),
        ("COMPENSATED", errors.JobCompensated),
        ("CANCELLED", errors.JobCancelled),
        ("ESCALATED", errors.JobEscalated),
    ],
)
def test_run_raises_what_became_of_the_job(
    server: ScriptedServer, drive: Driver, state: str, kind: type[errors.JobNotCompleted]
) -> None:
    """A job that did not complete is an error with the job in it, unless nobody checks."""
    answer = ended(state, failure=common_pb2.Failure(kind="SoldOut", message="no seat"), remaining=["hotel"])
    server.always("RunJob", answer)

    with pytest.raises(kind, match="0-1") as caught:
        drive(server.address, "run", "trip")
    assert caught.value.job.failure is not None
    assert caught.value.job.failure.text == "SoldOut: no seat"
    assert caught.value.job.remaining == ("hotel",)
    assert "SoldOut: no seat" in str(caught.value)
    assert drive(server.address, "run", "trip", check=False).state == state


@both
def test_run_waits_on_with_the_same_key(server: ScriptedServer, drive: Driver) -> None:
    """A wait is asked for again, in chunks, until the job has ended; broken ones as well."""
    server.on("RunJob", WAIT_TIMED_OUT, WAIT_TIMED_OUT, Broken(), WAIT_TIMED_OUT, ended("COMPLETED"))

    drive(server.address, "run", "trip", {"a": 1})

    asked = server.requests("RunJob")
    assert len(asked) == 5
    assert len({request.job.idempotency_key for request in asked}) == 1
    assert {request.wait_max.seconds for request in asked} == {60}


@both
def test_run_ends_its_wait(server: ScriptedServer, drive: Driver) -> None:
    """After `wait_max_s` the server's word stands: the job goes on, and this is its id."""
    server.always("RunJob", WAIT_TIMED_OUT)

    with pytest.raises(errors.WaitTimedOut) as caught:
        drive(server.address, "run", "trip", wait_max_s=0.01)
    assert caught.value.job_id == "0-1"
    assert all(request.wait_max.ToMilliseconds() <= 10 for request in server.requests("RunJob"))


@both
def test_reads_a_job(server: ScriptedServer, drive: Driver) -> None:
    """Everything that the contract tells about a job and its steps."""
    step = job_pb2.JobStep(
        step_id="flight",
        state=common_pb2.STEP_STATE_UNDO_RETRY_WAIT,
        action="book",
        queue="trip",
        needs=["a"],
        attempts=2,
        attempts_max=5,
        token=1 << 62,
        output=common_pb2.Payload(data=b"[1]"),
        failure=common_pb2.Failure(kind="SoldOut"),
        maybe_done=True,
        has_undo=True,
        due_for="retry",
    )
    step.due_at.FromJsonString("2026-11-30T10:00:00Z")
    step.schedule_ends_at.FromJsonString("2026-11-30T11:00:00Z")
    told = job_pb2.Job(job_id="0-1", steps=[step], labels={"a": "b"})
    told.deadline_at.FromJsonString("2026-11-30T12:00:00Z")
    server.on("GetJob", job_service_pb2.GetJobResponse(job=told))

    job = drive(server.address, "get", "0-1")

    flight = job.step("flight")
    assert (flight.state, flight.needs, flight.token) == (StepState.UNDO_RETRY_WAIT, ("a",), 1 << 62)
    assert (flight.output, flight.failure.kind, flight.lease_ends_at) == ([1], "SoldOut", None)
    assert flight.due_at.isoformat() == "2026-11-30T10:00:00+00:00"
    assert flight.schedule_ends_at.isoformat() == "2026-11-30T11:00:00+00:00"
    assert job.deadline_at.isoformat() == "2026-11-30T12:00:00+00:00"
    assert (job.labels, job.output, job.ended_at) == ({"a": "b"}, None, None)
    with pytest.raises(KeyError, match="job 0-1 has no step 'x'"):
        job.step("x")


@both
def test_states_of_the_future_are_unspecified(server: ScriptedServer, drive: Driver) -> None:
    """A newer server may know states that this client does not."""
    future = job_pb2.Job(job_id="0-1", state=99, steps=[job_pb2.JobStep(state=98)])  # type: ignore[arg-type]  # unknown on purpose
    server.on("GetJob", job_service_pb2.GetJobResponse(job=future))

    job = drive(server.address, "get", "0-1")

    assert (job.state, job.steps[0].state) == (JobState.UNSPECIFIED, StepState.UNSPECIFIED)


def page(*ids: str, token: str = "") -> job_service_pb2.ListJobsResponse:
    return job_service_pb2.ListJobsResponse(jobs=[job_pb2.Job(job_id=one) for one in ids], next_page_token=token)


@both
def test_list_reads_page_by_page(server: ScriptedServer, drive: Driver) -> None:
    """Filters go with every page, a failed page is asked for again, and an empty page is not the end."""
    server.on("ListJobs", page("c", token="1"), Broken(), page(token="2"), page("b", "a"))

    jobs = drive(server.address, "list", states=["FAILED", JobState.ESCALATED], definition="trip")

    assert [job.job_id for job in jobs] == ["c", "b", "a"]
    asked = server.requests("ListJobs")
    assert [request.page_token for request in asked] == ["", "1", "1", "2"]
    assert {tuple(request.filter.states) for request in asked} == {
        (common_pb2.JOB_STATE_FAILED, common_pb2.JOB_STATE_ESCALATED)
    }
    assert {(request.filter.definition_name, request.namespace) for request in asked} == {("trip", "default")}


@both
@pytest.mark.parametrize(("limit", "ids", "pages"), [(0, [], 0), (2, ["c", "b"], 1), (3, ["c", "b", "a"], 2)])
def test_list_stops_at_its_limit(server: ScriptedServer, drive: Driver, limit: int, ids: list[str], pages: int) -> None:
    """No page is read that nobody needs."""
    server.on("ListJobs", page("c", "b", token="1"), page("a", "z"))

    assert [job.job_id for job in drive(server.address, "list", limit=limit)] == ids
    assert len(server.requests("ListJobs")) == pages


@both
def test_cancel_is_repeated(server: ScriptedServer, drive: Driver) -> None:
    """Twice is once."""
    cancelled = job_service_pb2.CancelJobResponse(
        job=job_pb2.Job(job_id="0-1", state=common_pb2.JOB_STATE_COMPENSATING)
    )
    server.on("CancelJob", COMMIT_UNKNOWN, cancelled)

    assert drive(server.address, "cancel", "0-1", reason="no longer wanted").state == "COMPENSATING"
    assert [request.reason for request in server.requests("CancelJob")] == ["no longer wanted"] * 2


@both
def test_history(server: ScriptedServer, drive: Driver) -> None:
    """Oldest first, over all pages."""
    first = job_service_pb2.GetJobHistoryResponse(
        events=[job_pb2.HistoryEvent(revision=1, type="JobSubmitted")], next_page_token="1"
    )
    second = job_service_pb2.GetJobHistoryResponse(
        events=[job_pb2.HistoryEvent(revision=2, type="StepOffered", step_id="a", attempt=1, token=5)]
    )
    server.on("GetJobHistory", first, second)

    events = drive(server.address, "history", "0-1")

    assert [(event.revision, event.type, event.step_id) for event in events] == [
        (1, "JobSubmitted", ""),
        (2, "StepOffered", "a"),
    ]


@both
def test_definitions(server: ScriptedServer, drive: Driver) -> None:
    """Apply, validate, get, list."""
    trip = definition_pb2.Definition(name="trip")
    version = definition_pb2.DefinitionVersion(definition=trip, version=2, hash="ab")
    violation = definition_service_pb2.Violation(field="steps", description="is empty")
    server.on(
        "ApplyDefinition", Broken(), definition_service_pb2.ApplyDefinitionResponse(version=version, created=True)
    )
    found = definition_service_pb2.ValidateDefinitionResponse(violations=[violation])
    soon = definition_service_pb2.DetectionLatency(step_id="a", part="undo", trouble="QUEUE_TIME", text="soon")
    soon.within.FromSeconds(61)
    fine = definition_service_pb2.ValidateDefinitionResponse(warnings=[violation], detections=[soon])
    server.on("ValidateDefinition", found, found, fine)
    server.on("GetDefinition", definition_service_pb2.GetDefinitionResponse(version=version))
    server.on("ListDefinitions", definition_service_pb2.ListDefinitionsResponse(versions=[version]))

    applied = drive(server.address, "apply_definition", trip)

    assert (applied.created, applied.version.name, applied.version.version) == (True, "trip", 2)
    assert drive(server.address, "validate_definition", trip) == (errors.Violation("steps", "is empty"),)
    assert drive(server.address, "check_definition", trip).violations == (errors.Violation("steps", "is empty"),)
    checked = drive(server.address, "check_definition", trip)
    assert (checked.violations, checked.warnings) == ((), (errors.Violation("steps", "is empty"),))
    assert checked.detections == (
        DetectionLatency(step_id="a", part="undo", trouble="QUEUE_TIME", within=timedelta(seconds=61), text="soon"),
    )
    assert drive(server.address, "get_definition", "trip", version=2).definition == trip
    assert [one.hash for one in drive(server.address, "list_definitions")] == ["ab"]


@both
def test_status_and_agents(server: ScriptedServer, drive: Driver) -> None:
    """What a node knows of itself, and who is there to work."""
    count = cluster_service_pb2.JobCount(state=common_pb2.JOB_STATE_RUNNING, count=3)
    shard = cluster_service_pb2.ShardStatus(leader=True, leader_id="n1", sequence=9, jobs=[count])
    server.on("GetStatus", cluster_service_pb2.GetStatusResponse(node_id="n1", shards=[shard]))
    agent = agent_service_pb2.Agent(session_id="s", queue="trip", actions=["book"], connected=True, slots=2)
    server.on("ListAgents", agent_service_pb2.ListAgentsResponse(agents=[agent]))

    status = drive(server.address, "status")
    (found,) = drive(server.address, "agents")

    assert (status.node_id, status.shards[0].sequence, status.shards[0].jobs) == ("n1", 9, {JobState.RUNNING: 3})
    assert found.offers("book", "trip")
    assert not found.offers("book", "default")


def test_addresses_are_checked_before_anything_is_connected() -> None:
    """A wrong address is a mistake of the caller, not of the world."""
    with pytest.raises(ValueError, match="is not an address"):
        Client("http://localhost:7654")
    with pytest.raises(ValueError, match="is not an address"):
        AsyncClient("http://localhost:7654")
    assert QUICK.timeout_s == 10
