"""A real node on a real socket, inside the test's own event loop, and everything to talk to it by generated stubs."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import grpc
import grpc.aio
from google.rpc import error_details_pb2, status_pb2  # type: ignore[import-untyped]  # ships no types

from stepward.server.config import ClusterConfig, NodeConfig
from stepward.server.core.limits import Limits
from stepward.server.logbook.identity import create_cluster
from stepward.server.node import Node
from stepward.v1 import (
    agent_service_pb2_grpc,
    cluster_service_pb2_grpc,
    common_pb2,
    definition_pb2,
    definition_service_pb2,
    definition_service_pb2_grpc,
    job_service_pb2,
    job_service_pb2_grpc,
    operator_service_pb2_grpc,
    supervision_service_pb2_grpc,
)
from tests.certificates import Files

T = TypeVar("T")

# Nothing here takes longer, unless it hangs.
CALL_S_MAX = 10.0

DETAILS = "grpc-status-details-bin"
CHANNEL_OPTIONS = {
    "grpc.max_receive_message_length": -1,
    "grpc.max_send_message_length": -1,
    "grpc.use_local_subchannel_pool": 1,
}


@dataclass
class Stubs:
    """One connection to a node."""

    channel: grpc.aio.Channel
    jobs: job_service_pb2_grpc.JobServiceAsyncStub
    definitions: definition_service_pb2_grpc.DefinitionServiceAsyncStub
    agents: agent_service_pb2_grpc.AgentServiceAsyncStub
    cluster: cluster_service_pb2_grpc.ClusterServiceAsyncStub
    operators: operator_service_pb2_grpc.OperatorServiceAsyncStub
    supervision: supervision_service_pb2_grpc.SupervisionServiceAsyncStub


@contextlib.asynccontextmanager
async def connected(address: str, *options: tuple[str, int]) -> AsyncIterator[Stubs]:
    """A connection of its own to a node."""
    options_of_all = tuple((CHANNEL_OPTIONS | dict(options)).items())
    async with stubs_on(grpc.aio.insecure_channel(address, options=options_of_all)) as stubs:
        yield stubs


def secure_channel(address: str, files: Files) -> grpc.aio.Channel:
    """A connection with TLS, by somebody who shows a certificate."""
    credentials = grpc.ssl_channel_credentials(
        files.ca.read_bytes(), files.key.read_bytes(), files.certificate.read_bytes()
    )
    return grpc.aio.secure_channel(address, credentials)


@contextlib.asynccontextmanager
async def stubs_on(channel: grpc.aio.Channel) -> AsyncIterator[Stubs]:
    """Stubs on a connection, which is closed behind them."""
    async with channel:
        yield Stubs(
            channel,
            job_service_pb2_grpc.JobServiceStub(channel),
            definition_service_pb2_grpc.DefinitionServiceStub(channel),
            agent_service_pb2_grpc.AgentServiceStub(channel),
            cluster_service_pb2_grpc.ClusterServiceStub(channel),
            operator_service_pb2_grpc.OperatorServiceStub(channel),
            supervision_service_pb2_grpc.SupervisionServiceStub(channel),
        )


def make_cluster(directory: Path) -> None:
    """A cluster of one node, if the directory has none."""
    if not directory.exists():
        create_cluster(directory, "n1")


@contextlib.asynccontextmanager
async def running(directory: Path, *, limits: Limits | None = None, **config: Any) -> AsyncIterator[Node]:
    """A node on a free port; a cluster is made when the directory has none."""
    make_cluster(directory)
    cluster = ClusterConfig(limits=limits or Limits(session_ttl_ms=3_000))
    node = Node(cluster, NodeConfig(data=directory, port=0, stop_grace_ms=500, **config))
    await node.start()
    try:
        yield node
    finally:
        await node.stop()


def raw_call(stubs: Stubs, method: str) -> Any:
    """A call of the contract whose request and response are bytes."""
    return stubs.channel.unary_unary(f"/stepward.v1.{method}")


def json_payload(data: bytes) -> common_pb2.Payload:
    """A payload that says it is JSON."""
    return common_pb2.Payload(data=data, encoding="json/utf-8")


def submission(name: str, data: bytes = b"{}", **fields: Any) -> job_service_pb2.JobSubmission:
    """What to run."""
    return job_service_pb2.JobSubmission(definition_name=name, input=json_payload(data), **fields)


async def define(stubs: Stubs, name: str, *steps: definition_pb2.Step) -> definition_pb2.DefinitionVersion:
    """Store a definition."""
    definition = definition_pb2.Definition(name=name, steps=steps)
    request = definition_service_pb2.ApplyDefinitionRequest(definition=definition)
    return (await stubs.definitions.ApplyDefinition(request, timeout=CALL_S_MAX)).version


@dataclass
class Refusal:
    """A call that was refused, taken apart."""

    code: grpc.StatusCode
    reason: str
    message: str
    metadata: dict[str, str]
    violations: list[tuple[str, str]]
    retry_after_ms: int
    resource: str


def has_details(error: grpc.aio.AioRpcError) -> bool:
    """Whether a server has said why, and not the caller's own clock or connection."""
    return DETAILS in dict(error.trailing_metadata() or ())


def refusal(error: grpc.aio.AioRpcError) -> Refusal:
    """The google.rpc details of a refused call, which hold exactly one ErrorInfo."""
    raw = dict(error.trailing_metadata() or ())[DETAILS]
    assert isinstance(raw, bytes)
    status = status_pb2.Status.FromString(raw)
    assert status.code == error.code().value[0]
    (info,) = unpacked(status, error_details_pb2.ErrorInfo)
    assert info.domain == "stepward"
    bad = unpacked(status, error_details_pb2.BadRequest)
    retry = unpacked(status, error_details_pb2.RetryInfo)
    resources = unpacked(status, error_details_pb2.ResourceInfo)
    return Refusal(
        code=error.code(),
        reason=info.reason,
        message=status.message,
        metadata=dict(info.metadata),
        violations=[(one.field, one.description) for request in bad for one in request.field_violations],
        retry_after_ms=sum(one.retry_delay.ToMilliseconds() for one in retry),
        resource=resources[0].resource_name if resources else "",
    )


def unpacked(status: Any, type_: type[T]) -> list[T]:
    """The details of one type."""
    found = []
    for detail in status.details:
        message: Any = type_()
        if detail.Unpack(message):
            found.append(message)
    return found


async def refused(call: Awaitable[Any]) -> Refusal:
    """The refusal of a call that must be refused."""
    try:
        answer = await call
    except grpc.aio.AioRpcError as error:
        return refusal(error)
    raise AssertionError(answer)


async def eventually(condition: Callable[[], Awaitable[bool]], *, within_s: float = CALL_S_MAX) -> None:
    """Wait until a condition holds."""
    async with asyncio.timeout(within_s):
        while not await condition():  # noqa: ASYNC110 - what is waited for happens in a node, which sets no event
            await asyncio.sleep(0.01)
