"""Each field of each call at its bound and one past it, and no field without one."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
import pytest_asyncio
from google.protobuf.message_factory import GetMessageClass

from stepward.server.node import SERVICES
from stepward.v1 import (
    agent_service_pb2,
    definition_pb2,
    definition_service_pb2,
    job_service_pb2,
    supervision_service_pb2,
)
from tests.server import nodes
from tests.server.call_bounds import BOUNDS, LIMITS, NOT_REFUSED, UNBOUNDED, Bound, json_of, paths, place
from tests.server.nodes import Refusal, Stubs, define, submission

S = nodes.CALL_S_MAX
METHODS = {f"{service.name}/{method.name}": method for service in SERVICES for method in service.methods}
ROWS = [(name, bound) for name, bounds in BOUNDS.items() if name in METHODS for bound in bounds]
HELLO = agent_service_pb2.Hello(protocol_version=1, session_id="session-0123456789", actions=["nobody"], slots=1)
# Calls that wait for what does not come are ended by their caller.
WAITS = {"JobService/RunJob", "JobService/WatchJobs", "AgentService/LeaseWork"}
WAIT_S = 0.5
# What a call says when it is right, so that nothing but the field in question can be wrong with it.
RIGHT: dict[str, dict[str, Any]] = {
    "JobService/SubmitJob": {"job": submission("one")},
    "JobService/RunJob": {"job": submission("one"), "wait_max.seconds": 0},
    "JobService/WatchJobs": {"caller_id": "me"},
    "DefinitionService/ApplyDefinition": {
        "definition": definition_pb2.Definition(name="two", steps=[definition_pb2.Step(id="a")])
    },
    "DefinitionService/GetDefinition": {"name": "one"},
    "AgentService/LeaseWork": {"hello": HELLO},
    "AgentService/RenewSession": {"session_id": "session-0123456789"},
    "AgentService/ReportAttempts": {"session_id": "session-0123456789"},
    "OperatorService/TerminateJob": {"reason": "why"},
    "ClusterService/RecoverNode": {"reason": "why"},
    "SupervisionService/ResolveIncidents": {
        "filter": supervision_service_pb2.IncidentFilter(),
        "resolution": supervision_service_pb2.RESOLUTION_SKIP,
        "reason": "why",
    },
}
# Refusals that say nothing of the field: what it names is not there, or what was waited for did not come.
BEYOND = {
    "JOB_NOT_FOUND",
    "DEFINITION_NOT_FOUND",
    "SESSION_ENDED",
    "WAIT_TIMED_OUT",
    "STEP_NOT_FOUND",
    "INCIDENT_NOT_FOUND",
    "NODE_STATE",
}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stubs(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stubs]:
    """A connection to a node that knows `one`, whose only step nobody runs."""
    directory: Path = tmp_path_factory.mktemp("bounds") / "data"
    async with nodes.running(directory, limits=LIMITS) as node, nodes.connected(node.address) as stubs:
        await define(stubs, "one", definition_pb2.Step(id="a", action="nobody-else"))
        yield stubs
        assert node.counters.call_failures == node.counters.rule_failures == 0


def request(name: str, bound: Bound, value: Any) -> Any:
    message: Any = GetMessageClass(METHODS[name].input_type)()
    for path, right in RIGHT.get(name, {}).items():
        if "." in path:
            place(message, path, right)
        elif isinstance(right, str | int):
            setattr(message, path, right)
        else:
            getattr(message, path).CopyFrom(right)
    if name == "AgentService/Work" and bound.path.startswith("hello."):
        message.hello.CopyFrom(HELLO)
    place(message, bound.path, value)
    return message


async def outcome(stubs: Stubs, name: str, message: Any, *, within_s: float = S) -> Refusal | None:
    """How the call was refused, if it was. One that still waits at the end of its caller's time was not."""
    channel: Any = stubs.channel
    path = f"/stepward.v1.{name}"
    try:
        if METHODS[name].client_streaming:
            return await _on_a_stream(channel.stream_stream(path)(timeout=S), message)
        await channel.unary_unary(path)(message.SerializeToString(), timeout=within_s)
    except grpc.aio.AioRpcError as error:
        if name in WAITS and error.code() is grpc.StatusCode.DEADLINE_EXCEEDED and not nodes.has_details(error):
            return None
        return nodes.refusal(error)
    return None


async def _on_a_stream(call: Any, message: Any) -> Refusal | None:
    """Of a message that must follow a hello, say that first."""
    if message.WhichOneof("message") != "hello":
        await call.write(agent_service_pb2.WorkRequest(hello=HELLO).SerializeToString())
        await call.read()
    await call.write(message.SerializeToString())
    with contextlib.suppress(grpc.aio.AioRpcError):
        await call.done_writing()
    while await call.read() is not grpc.aio.EOF:
        pass
    return None


def _id(value: object) -> str:
    return f"{value.path}={_shown(value.at)}" if isinstance(value, Bound) else str(value)


def _shown(value: Any) -> str:
    return str(value) if isinstance(value, int) else f"{type(value).__name__}-of-{len(value)}"


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize(("name", "bound"), ROWS, ids=_id)
async def test_at_the_bound_and_one_past_it(stubs: Stubs, name: str, bound: Bound) -> None:
    """At the bound nobody minds the field; one past it the refusal names it."""
    within_s = WAIT_S if name in WAITS else S
    at = await outcome(stubs, name, request(name, bound, bound.at), within_s=within_s)
    past = await outcome(stubs, name, request(name, bound, bound.past))

    assert at is None or at.reason in BEYOND, at
    assert past is not None
    assert past.reason == bound.reason, past
    if bound.reason != "PROTOCOL_VERSION" and bound.field != "*":
        wanted = bound.field or bound.path
        named = [field for field, _ in past.violations] or [past.message.split()[0]]
        assert all(field.startswith(wanted) for field in named), past


@pytest.mark.asyncio(loop_scope="module")
async def test_submissions_of_one_call(stubs: Stubs) -> None:
    """As many as may be are taken; one more refuses the call; each that is wrong is refused by itself."""
    most = LIMITS.submissions_max
    wrong = submission("one", json_of(LIMITS.payload_bytes_max + 1))
    jobs = [submission("one")] * (most - 1)
    at = await stubs.jobs.SubmitJobs(job_service_pb2.SubmitJobsRequest(jobs=[*jobs, wrong]), timeout=S)
    past = await nodes.refused(
        stubs.jobs.SubmitJobs(job_service_pb2.SubmitJobsRequest(jobs=[submission("one")] * (most + 1)), timeout=S)
    )

    assert [result.WhichOneof("result") for result in at.results] == ["job"] * (most - 1) + ["error"]
    assert at.results[-1].error.reason == "PAYLOAD_TOO_LARGE"
    assert "jobs[19].input.data has 4097 bytes" in at.results[-1].error.message
    assert [field for field, _ in past.violations] == ["jobs"]


@pytest.mark.asyncio(loop_scope="module")
async def test_validation_tells_in_its_answer(stubs: Stubs) -> None:
    """What another call would refuse is here what was asked for."""
    one = definition_pb2.Definition(name="one", steps=[definition_pb2.Step(id="a")])
    said = [
        await stubs.definitions.ValidateDefinition(
            definition_service_pb2.ValidateDefinitionRequest(namespace="x" * size, definition=one), timeout=S
        )
        for size in (LIMITS.name_chars_max, LIMITS.name_chars_max + 1)
    ]

    assert [[violation.field for violation in answer.violations] for answer in said] == [[], ["namespace"]]


def test_every_field_has_a_bound_or_a_reason() -> None:
    """A field that is added to a call is added here, with its bound or with why it needs none."""
    without = [
        f"{name} {path}"
        for name, method in METHODS.items()
        if name not in NOT_REFUSED
        for path in paths(method.input_type)
        if not any(bound.path == path or bound.path.startswith(f"{path}.") for bound in BOUNDS[name])
        and path.rpartition(".")[2] not in UNBOUNDED
    ]

    assert without == []


def test_every_bound_is_of_a_field() -> None:
    """A row whose field is gone checks nothing."""
    gone = [
        f"{name} {bound.path}"
        for name, bound in ROWS
        if not any(bound.path == path or bound.path.startswith(f"{path}.") for path in paths(METHODS[name].input_type))
    ]

    assert gone == []
