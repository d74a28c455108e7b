"""A scripted node: it serves the Work stream and takes definitions, does what a test says, and keeps what it hears."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc
from google.protobuf.any_pb2 import Any as AnyMessage
from google.rpc import error_details_pb2, status_pb2  # type: ignore[import-untyped]  # it ships no types

from stepward.v1 import agent_service_pb2 as wire
from stepward.v1 import agent_service_pb2_grpc, definition_service_pb2, definition_service_pb2_grpc
from tests.agents.played import duration

BOUND_S = 20.0


def new_stub() -> Stub:
    """A node that does not listen yet."""
    return Stub()  # type: ignore[abstract]  # it serves what the tests call, and no more


async def until(condition: Callable[[], bool]) -> None:
    """Wait for a condition, not longer than the bound."""
    async with asyncio.timeout(BOUND_S):
        while not condition():  # noqa: ASYNC110 - what it waits for is no event, and happens in other processes too
            await asyncio.sleep(0.01)


class StubStream:
    """One stream of one agent."""

    def __init__(self, hello: wire.Hello) -> None:
        self.hello = hello
        self.heartbeats: list[wire.Heartbeat] = []
        self.reports: list[wire.AttemptReport] = []
        self.drained = False
        self.closed = False
        self.failure = ""
        self.outgoing: asyncio.Queue[wire.WorkResponse | None] = asyncio.Queue()

    def offer(self, *offers: wire.Offer) -> None:
        self.outgoing.put_nowait(wire.WorkResponse(offers=wire.Offers(offers=offers)))

    def cancel(self, ref: wire.AttemptRef, reason: wire.CancelReason.ValueType = wire.CANCEL_REASON_JOB_ENDING) -> None:
        cancels = wire.Cancels(cancels=[wire.Cancel(attempt=ref, reason=reason)])
        self.outgoing.put_nowait(wire.WorkResponse(cancels=cancels))

    def end(self) -> None:
        self.outgoing.put_nowait(None)

    def fail(self, reason: str) -> None:
        """End it with a reason of the contract."""
        self.failure = reason
        self.end()

    def events(self, step: str) -> list[str]:
        """What was reported of a step, in order."""
        return [one.WhichOneof("event") or "" for one in self.reports if one.attempt.step_id == step]

    async def reported(self, step: str, event: str) -> wire.AttemptReport:
        """Wait for a report."""
        await until(lambda: event in self.events(step))
        return next(one for one in self.reports if one.attempt.step_id == step and one.WhichOneof("event") == event)


class Stub(agent_service_pb2_grpc.AgentServiceServicer, definition_service_pb2_grpc.DefinitionServiceServicer):
    """The node. What it does with heartbeats and hellos can be changed while it runs."""

    def __init__(self, *, ttl_ms: int = 1_200, kill_grace_ms: int = 300) -> None:
        self.ttl_ms = ttl_ms
        self.kill_grace_ms = kill_grace_ms
        self.acknowledges = True
        self.welcomes = True
        self.refusal = ""
        """Name of the reason with which hellos are refused."""
        self.refused = 0
        """How many hellos were."""
        self.definition_refusal = ""
        self.node_addresses: list[str] = []
        """What it says of where the nodes of its cluster are."""
        self.streams: list[StubStream] = []
        self.definitions: list[definition_service_pb2.ApplyDefinitionRequest] = []
        self.port = 0
        self.credentials: grpc.ServerCredentials | None = None
        """For TLS."""
        self._server: grpc.aio.Server | None = None

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    async def start(self) -> None:
        """Listen, on the same port as before if there was one."""
        self._server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
        agent_service_pb2_grpc.add_AgentServiceServicer_to_server(self, self._server)
        definition_service_pb2_grpc.add_DefinitionServiceServicer_to_server(self, self._server)
        place = f"127.0.0.1:{self.port}"
        if self.credentials is None:
            self.port = self._server.add_insecure_port(place)
        else:
            self.port = self._server.add_secure_port(place, self.credentials)
        await self._server.start()

    async def stop(self) -> None:
        """End at once, as a killed node does."""
        if self._server is not None:
            await self._server.stop(None)
            self._server = None

    async def stream(self, number: int = 1) -> StubStream:
        """Wait for the agent's so-and-so-manyth stream, from 1."""
        await until(lambda: len(self.streams) >= number)
        return self.streams[number - 1]

    async def Work(  # type: ignore[explicit-override]  # typing.override came with Python 3.12
        self, requests: AsyncIterator[wire.WorkRequest], context: grpc.aio.ServicerContext[Any, Any]
    ) -> AsyncIterator[wire.WorkResponse]:
        first = await anext(requests)
        if self.refusal:
            self.refused += 1
            await refuse(context, self.refusal)
        stream = StubStream(first.hello)
        self.streams.append(stream)
        reader = asyncio.create_task(self._read(requests, stream))
        try:
            if self.welcomes:
                yield self._welcome(stream)
            while (message := await stream.outgoing.get()) is not None:
                yield message
            if stream.failure:
                await refuse(context, stream.failure)
        finally:
            reader.cancel()
            stream.closed = True

    def _welcome(self, stream: StubStream) -> wire.WorkResponse:
        same = [one for one in self.streams if one.hello.session_id == stream.hello.session_id]
        return wire.WorkResponse(
            welcome=wire.Welcome(
                session_id=stream.hello.session_id,
                # Another node may have given it one before.
                generation=max(len(same), stream.hello.generation + 1),
                ttl=duration(self.ttl_ms),
                heartbeat_interval=duration(self.ttl_ms // 6),
                kill_grace=duration(self.kill_grace_ms),
                payload_bytes_max=262_144,
                node_id="stub",
                node_addresses=self.node_addresses,
            )
        )

    async def _read(self, requests: AsyncIterator[wire.WorkRequest], stream: StubStream) -> None:
        async for request in requests:
            match request.WhichOneof("message"):
                case "heartbeat":
                    stream.heartbeats.append(request.heartbeat)
                    if self.acknowledges:
                        answer = wire.HeartbeatAnswer(number=request.heartbeat.number)
                        stream.outgoing.put_nowait(wire.WorkResponse(heartbeat=answer))
                case "report":
                    self._report(request.report, stream)
                case "drain":
                    stream.drained = True
        stream.end()

    def _report(self, report: wire.Report, stream: StubStream) -> None:
        stream.reports += report.attempts
        answers = [
            wire.ReportAnswer(attempt=one.attempt, result=wire.REPORT_RESULT_RECORDED)
            for one in report.attempts
            if one.WhichOneof("event") != "progress"
        ]
        stream.outgoing.put_nowait(wire.WorkResponse(answers=wire.ReportAnswers(answers=answers)))

    async def ApplyDefinition(  # type: ignore[explicit-override]  # as above
        self,
        request: definition_service_pb2.ApplyDefinitionRequest,
        context: grpc.aio.ServicerContext[Any, Any],
    ) -> definition_service_pb2.ApplyDefinitionResponse:
        if self.definition_refusal:
            await refuse(context, self.definition_refusal)
        self.definitions.append(request)
        return definition_service_pb2.ApplyDefinitionResponse(created=True)


async def refuse(context: grpc.aio.ServicerContext[Any, Any], reason: str) -> None:
    """End a call with a reason of the contract, and one violated field."""
    status = status_pb2.Status(code=grpc.StatusCode.FAILED_PRECONDITION.value[0], message=f"refused: {reason}")
    violation = error_details_pb2.BadRequest.FieldViolation(field="steps[0].id", description="is empty")
    for detail in (
        error_details_pb2.ErrorInfo(reason=reason, domain="stepward"),
        error_details_pb2.BadRequest(field_violations=[violation]),
    ):
        packed = AnyMessage()
        packed.Pack(detail)
        status.details.append(packed)
    metadata = (("grpc-status-details-bin", status.SerializeToString()),)
    await context.abort(grpc.StatusCode.FAILED_PRECONDITION, status.message, metadata)
