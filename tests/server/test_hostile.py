"""What nobody should send: it is refused with its reason, or comes back byte for byte, and the node stays up."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable
from pathlib import Path

import grpc
import grpc.aio
import pytest
import pytest_asyncio
from google.protobuf.duration_pb2 import Duration

from stepward.server.core.limits import Limits
from stepward.v1 import (
    agent_service_pb2,
    cluster_service_pb2,
    common_pb2,
    definition_pb2,
    definition_service_pb2,
    job_service_pb2,
)
from tests.server import nodes
from tests.server.nodes import CALL_S_MAX, Stubs, define, json_payload, refused, submission
from tests.server.plain_agent import agent, succeeded

S = CALL_S_MAX
BOUND = 4_096
LIMITS = Limits(session_ttl_ms=3_000, payload_bytes_max=BOUND)


@pytest_asyncio.fixture
async def stubs(tmp_path: Path) -> AsyncIterator[Stubs]:
    """A connection to a node that knows `echo`, whose only step gives back its input; it must answer at the end."""
    async with nodes.running(tmp_path / "data", limits=LIMITS) as node, nodes.connected(node.address) as stubs:
        await define(stubs, "echo", definition_pb2.Step(id="echo"))
        yield stubs
        status = await stubs.cluster.GetStatus(cluster_service_pb2.GetStatusRequest(), timeout=S)
        assert status.shards[0].leader
        assert node.counters.call_failures == node.counters.rule_failures == node.counters.delivery_failures == 0


PAYLOADS = [
    pytest.param(b"", "", id="empty"),
    pytest.param(b"null", "", id="null"),
    pytest.param(b' {"a" : 1.10}\n', "json/utf-8", id="whitespace-and-zeros"),
    pytest.param(b"9007199254740993", "", id="past-2^53"),
    pytest.param(b"[1e400,-1e-400,18446744073709551616]", "", id="numbers-out-of-range"),
    pytest.param('"\U0001f600 \u202e"'.encode(), "", id="four-byte-and-right-to-left"),
    pytest.param(b'"\\u0000"', "", id="escaped-NUL"),
    pytest.param(b'"\\ud800"', "", id="lone-surrogate"),
    pytest.param(b'{"a":1,"a":2}', "", id="key-twice"),
    pytest.param(b"\x00\xff\x00\xfe", "application/octet-stream", id="bytes"),
    pytest.param(b"{", "text/plain", id="not-JSON-and-does-not-say-so"),
    pytest.param(b"[" * 64 + b"]" * 64, "", id="as-deep-as-may-be"),
    pytest.param(b'"' + b"x" * (BOUND - 2) + b'"', "", id="as-large-as-may-be"),
]


@pytest.mark.parametrize(("data", "encoding"), PAYLOADS)
async def test_payload_comes_back_byte_for_byte(stubs: Stubs, data: bytes, encoding: str) -> None:
    """From the call to the row to the offer, and from the outcome to the row to the answer."""
    payload = common_pb2.Payload(data=data, encoding=encoding)
    job = job_service_pb2.JobSubmission(definition_name="echo", input=payload)
    async with agent(stubs, "echo") as joined:
        answer = await stubs.jobs.RunJob(job_service_pb2.RunJobRequest(job=job), timeout=S)
        offered = joined.offers[0].input
    read = await stubs.jobs.GetJob(job_service_pb2.GetJobRequest(job_id=answer.job.job_id), timeout=S)

    assert answer.job.state == common_pb2.JOB_STATE_COMPLETED
    assert (offered.data, offered.encoding) == (data, encoding)
    assert (read.job.input.data, read.job.input.encoding) == (data, encoding)
    assert answer.job.output.data == read.job.steps[0].output.data == data


X = "x" * 129
REFUSED = [
    # field, what is wrong with it, and the submission
    pytest.param("job.input.data", submission("echo", b"{"), id="half-JSON"),
    pytest.param("job.input.data", submission("echo", b"1 2"), id="two-values"),
    pytest.param("job.input.data", submission("echo", b'"\xff"'), id="JSON-not-UTF-8"),
    pytest.param("job.input.data", submission("echo", b'"\x00"'), id="raw-NUL-in-JSON"),
    pytest.param("job.input.data", submission("echo", b"NaN"), id="NaN"),
    pytest.param("job.input.data", submission("echo", b"[" * 65 + b"]" * 65), id="one-too-deep"),
    pytest.param("job.input.data", submission("echo", b"[" * 4_000), id="deep-and-open"),
    pytest.param("job.definition_name", submission(""), id="no-name"),
    pytest.param("job.definition_name", submission("a\x00b"), id="NUL-in-a-name"),
    pytest.param("job.definition_name", submission("../etc"), id="path"),
    pytest.param("job.definition_name", submission("\U0001f600"), id="emoji"),
    pytest.param("job.definition_name", submission("echo\n"), id="newline-behind-a-name"),
    pytest.param("job.definition_name", submission(X), id="name-too-long"),
    pytest.param("job.namespace", submission("echo", namespace="a b"), id="space-in-a-namespace"),
    pytest.param("job.idempotency_key", submission("echo", idempotency_key="x" * 257), id="key-too-long"),
    pytest.param("job.idempotency_key", submission("echo", idempotency_key="a\0b"), id="NUL-in-a-key"),
    pytest.param("job.caller_id", submission("echo", caller_id=X), id="caller-too-long"),
    pytest.param("job.labels", submission("echo", labels={str(n): "" for n in range(33)}), id="too-many-labels"),
    pytest.param('job.labels["k"]', submission("echo", labels={"k": "v" * 257}), id="label-too-long"),
    pytest.param('job.labels[""]', submission("echo", labels={"": "v"}), id="label-without-key"),
    pytest.param("job.deadline", submission("echo", deadline=Duration()), id="deadline-of-nothing"),
    pytest.param("job.deadline", submission("echo", deadline=Duration(seconds=-1)), id="deadline-before-now"),
    pytest.param("job.deadline", submission("echo", deadline=Duration(seconds=366 * 86_400)), id="deadline-too-far"),
]


@pytest.mark.parametrize(("field", "job"), REFUSED)
async def test_submission_breaks_a_rule(stubs: Stubs, field: str, job: job_service_pb2.JobSubmission) -> None:
    """The refusal names the field."""
    answer = await refused(stubs.jobs.SubmitJob(job_service_pb2.SubmitJobRequest(job=job), timeout=S))

    assert (answer.code, answer.reason) == (grpc.StatusCode.INVALID_ARGUMENT, "INVALID_ARGUMENT")
    assert [violated for violated, _ in answer.violations] == [field]


async def test_longest_key_of_the_widest_characters(stubs: Stubs) -> None:
    """The bound counts characters; what they are made of is no reason to refuse a key."""
    job = submission("echo", idempotency_key="\U0001f600" * 256)
    first = await stubs.jobs.SubmitJob(job_service_pb2.SubmitJobRequest(job=job), timeout=S)
    again = await stubs.jobs.SubmitJob(job_service_pb2.SubmitJobRequest(job=job), timeout=S)

    assert (again.job_id, again.duplicate) == (first.job_id, True)


async def test_all_violations_at_once(stubs: Stubs) -> None:
    """Nobody should have to mend one field a call."""
    job = submission("", b"{", namespace="a b", labels={"k": "v" * 257})

    answer = await refused(stubs.jobs.SubmitJob(job_service_pb2.SubmitJobRequest(job=job), timeout=S))

    assert [field for field, _ in answer.violations] == [
        "job.namespace",
        "job.definition_name",
        'job.labels["k"]',
        "job.input.data",
    ]


async def test_payload_one_past_its_bound(stubs: Stubs) -> None:
    """Too large is too large for good: not RESOURCE_EXHAUSTED, which may pass."""
    job = submission("echo", b'"' + b"x" * (BOUND - 1) + b'"')

    answer = await refused(stubs.jobs.SubmitJob(job_service_pb2.SubmitJobRequest(job=job), timeout=S))

    assert (answer.code, answer.reason) == (grpc.StatusCode.INVALID_ARGUMENT, "PAYLOAD_TOO_LARGE")
    assert str(BOUND + 1) in answer.violations[0][1]
    assert str(BOUND) in answer.violations[0][1]


@pytest.mark.parametrize(
    "job_id",
    ["", "nothing", "0-", "1-" + "0" * 32, "0-" + "0" * 32, "0-" + "F" * 32, "x" * 10_000, "0-\0", "\U0001f600"],
)
async def test_job_that_does_not_exist(stubs: Stubs, job_id: str) -> None:
    """Whatever is asked for, what is not there is not found."""
    calls: list[Awaitable[object]] = [
        stubs.jobs.GetJob(job_service_pb2.GetJobRequest(job_id=job_id), timeout=S),
        stubs.jobs.CancelJob(job_service_pb2.CancelJobRequest(job_id=job_id), timeout=S),
        stubs.jobs.GetJobHistory(job_service_pb2.GetJobHistoryRequest(job_id=job_id), timeout=S),
    ]
    for call in calls:
        answer = await refused(call)
        assert (answer.code, answer.reason) == (grpc.StatusCode.NOT_FOUND, "JOB_NOT_FOUND")

    watch = stubs.jobs.WatchJob(job_service_pb2.WatchJobRequest(job_id=job_id), timeout=S)
    assert (await refused(watch.read())).reason == "JOB_NOT_FOUND"


@pytest.mark.parametrize("token", ["x", "====", "\U0001f600", "A" * 40, "A" * 5_000, "\0"])
async def test_page_token_of_nobody(stubs: Stubs, token: str) -> None:
    """A forged token is refused, and never read as a place."""
    calls: list[Awaitable[object]] = [
        stubs.jobs.ListJobs(job_service_pb2.ListJobsRequest(page_token=token), timeout=S),
        stubs.definitions.ListDefinitions(definition_service_pb2.ListDefinitionsRequest(page_token=token), timeout=S),
        stubs.agents.ListAgents(agent_service_pb2.ListAgentsRequest(page_token=token), timeout=S),
    ]
    for call in calls:
        assert (await refused(call)).reason == "PAGE_TOKEN_INVALID"


async def test_page_past_its_bound(stubs: Stubs) -> None:
    """At the bound is granted, one past it is refused."""
    await stubs.jobs.ListJobs(job_service_pb2.ListJobsRequest(page_size=1_000), timeout=S)

    answer = await refused(stubs.jobs.ListJobs(job_service_pb2.ListJobsRequest(page_size=1_001), timeout=S))

    assert [field for field, _ in answer.violations] == ["page_size"]


async def test_reports_of_nonsense(stubs: Stubs) -> None:
    """Whatever an agent reports on, it is told that it does not exist or is not its own, and the stream goes on."""
    refs = [
        agent_service_pb2.AttemptRef(job_id="", step_id="", token=0),
        agent_service_pb2.AttemptRef(job_id="x" * 10_000, step_id="y" * 10_000, token=2**64 - 1),
        agent_service_pb2.AttemptRef(job_id="0-" + "0" * 32, step_id="echo", token=1),
        agent_service_pb2.AttemptRef(job_id="0-\0", step_id="\0", token=1),
    ]
    async with agent(stubs, "echo") as joined:
        for ref in refs:
            offer = agent_service_pb2.Offer(attempt=ref)
            await joined.report(succeeded(offer, json_payload(b"1")))
        await joined.report(agent_service_pb2.AttemptReport(attempt=refs[2]))
        await joined.heartbeat(7, held=refs)
        await joined.until(lambda: len(joined.answers) == len(refs) and joined.heartbeats)

    assert {answer.result for answer in joined.answers} == {agent_service_pb2.REPORT_RESULT_NOT_FOUND}
    assert sorted(named.attempt.job_id for named in joined.answers) == sorted(ref.job_id for ref in refs)


@pytest.mark.parametrize(
    ("output", "kind", "result"),
    [
        (b"{", "INVALID_OUTPUT", agent_service_pb2.REPORT_RESULT_RECORDED),
        (b'"' + b"x" * (BOUND - 1) + b'"', "RESULT_TOO_LARGE", agent_service_pb2.REPORT_RESULT_TOO_LARGE),
    ],
)
async def test_output_that_cannot_be_kept(stubs: Stubs, output: bytes, kind: str, result: int) -> None:
    """An output that no later step could use is a failure that says why."""
    async with agent(stubs, "echo", handler=lambda offer: succeeded(offer, json_payload(output))) as joined:
        answer = await stubs.jobs.RunJob(job_service_pb2.RunJobRequest(job=submission("echo")), timeout=S)
        await joined.until(lambda: joined.answers)

    assert answer.job.failure.kind == kind
    assert joined.answers[0].result == result


async def test_definition_of_nonsense(stubs: Stubs) -> None:
    """Everything that is wrong is told at once, and the answer stays small enough to arrive."""
    steps = [definition_pb2.Step(id=f"step {n}", needs=["nobody"], effect=99) for n in range(400)]  # type: ignore[arg-type]  # a number that no version knows
    request = definition_service_pb2.ApplyDefinitionRequest(definition=definition_pb2.Definition(name="x", steps=steps))
    dry = definition_service_pb2.ValidateDefinitionRequest(definition=request.definition)

    answer = await refused(stubs.definitions.ApplyDefinition(request, timeout=S))
    valid = await stubs.definitions.ValidateDefinition(dry, timeout=S)

    assert (answer.code, answer.reason) == (grpc.StatusCode.INVALID_ARGUMENT, "INVALID_DEFINITION")
    assert len(answer.violations) > 10
    assert "more" in answer.violations[-1][1]
    assert len(valid.violations) > 10


async def test_message_past_the_bound_of_a_call(stubs: Stubs) -> None:
    """The bound of gRPC itself refuses it, before it is in memory as a whole."""
    call = nodes.raw_call(stubs, "JobService/SubmitJob")

    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call(b"\x0a" + bytes(5 * 1024 * 1024), timeout=S)

    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


async def test_call_that_fails_inside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The caller learns that we are wrong, and not what is inside; the node counts it and stays up."""

    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("a secret")

    monkeypatch.setattr("stepward.server.core.lists.walk", broken)
    async with nodes.running(tmp_path / "data") as node, nodes.connected(node.address) as stubs:
        answer = await refused(stubs.jobs.ListJobs(job_service_pb2.ListJobsRequest(), timeout=S))
        await stubs.cluster.GetStatus(cluster_service_pb2.GetStatusRequest(), timeout=S)

    assert (answer.code, answer.reason) == (grpc.StatusCode.INTERNAL, "INTERNAL")
    assert "secret" not in answer.message
    assert node.counters.call_failures == 1
