"""An agent made of nothing but generated stubs: what somebody without our library would write."""

import asyncio
import contextlib
import hashlib
import secrets
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Any

import grpc
import grpc.aio

from stepward.v1 import agent_service_pb2 as pb
from stepward.v1 import common_pb2
from tests.server.nodes import CALL_S_MAX, Stubs

Handler = Callable[[pb.Offer], pb.AttemptReport | None]


class PlainAgent:
    """One stream. `welcome` is what it was welcomed with; everything else that came stands in lists."""

    def __init__(self, call: Any, session_id: str, handler: Handler) -> None:
        self._call = call
        self._handler = handler
        self._lock = asyncio.Lock()
        self.session_id = session_id
        self.welcome = pb.Welcome()
        self.offers: list[pb.Offer] = []
        self.cancels: list[pb.Cancel] = []
        self.answers: list[pb.ReportAnswer] = []
        self.heartbeats: list[pb.HeartbeatAnswer] = []
        self.redirected = False
        self.held: set[tuple[str, str, int]] = set()
        self.ended: asyncio.Future[grpc.aio.AioRpcError | None] = asyncio.get_running_loop().create_future()
        self._came = asyncio.Condition()

    async def send(self, **message: Any) -> None:
        """Write one message; gRPC takes one at a time."""
        async with self._lock:
            await self._call.write(pb.WorkRequest(**message))

    async def report(self, *reports: pb.AttemptReport) -> None:
        """Report what became of attempts."""
        await self.send(report=pb.Report(attempts=reports))

    async def heartbeat(self, number: int, *, held: Iterable[pb.AttemptRef] | None = None) -> None:
        """Say that it lives, and what it holds."""
        beat = pb.Heartbeat(number=number, held_digest=digest(self.held))
        if held is not None:
            beat.held.extend(held)
            beat.held_is_complete = True
        await self.send(heartbeat=beat)

    async def read(self) -> None:
        """Take in messages until the stream ends."""
        try:
            while (message := await self._call.read()) is not grpc.aio.EOF:
                await self._take(message)
            error = None
            if await self._call.code() is not grpc.StatusCode.OK:
                error = grpc.aio.AioRpcError(
                    await self._call.code(),
                    await self._call.initial_metadata(),
                    await self._call.trailing_metadata(),
                    await self._call.details(),
                )
        except grpc.aio.AioRpcError as caught:
            error = caught
        self.ended.set_result(error)
        async with self._came:
            self._came.notify_all()

    async def _take(self, message: pb.WorkResponse) -> None:
        reports = []
        match message.WhichOneof("message"):
            case "welcome":
                self.welcome = message.welcome
            case "offers":
                self.offers += message.offers.offers
                for offer in message.offers.offers:
                    self.held.add(named(offer.attempt))
                    reports.append(self._handler(offer))
            case "cancels":
                self.cancels += message.cancels.cancels
            case "answers":
                self.answers += message.answers.answers
                self.held -= {named(answer.attempt) for answer in message.answers.answers}
            case "heartbeat":
                self.heartbeats.append(message.heartbeat)
            case "redirect":
                self.redirected = True
            case other:
                raise AssertionError(other)
        wanted = [report for report in reports if report is not None]
        if wanted:
            await self.report(*wanted)
        async with self._came:
            self._came.notify_all()

    async def until(self, condition: Callable[[], object]) -> None:
        """Wait until what has come fulfils a condition."""
        async with asyncio.timeout(CALL_S_MAX), self._came:
            await self._came.wait_for(condition)


def named(ref: pb.AttemptRef) -> tuple[str, str, int]:
    """An assignment's name as a value."""
    return ref.job_id, ref.step_id, ref.token


def digest(held: Iterable[tuple[str, str, int]]) -> int:
    """As the contract describes it."""
    lines = sorted("/".join(map(str, ref)) for ref in held)
    return int.from_bytes(hashlib.sha256("\n".join(lines).encode()).digest()[:8], "big")


def succeeds(offer: pb.Offer) -> pb.AttemptReport:
    """A handler that gives back its input."""
    return succeeded(offer, offer.input)


def succeeded(offer: pb.Offer, output: common_pb2.Payload) -> pb.AttemptReport:
    """A success."""
    return pb.AttemptReport(attempt=offer.attempt, succeeded=pb.Succeeded(output=output))


def failed(offer: pb.Offer, *, retryable: bool = False) -> pb.AttemptReport:
    """A failure."""
    failure = pb.Failed(kind="CarUnavailable", message="no car", retryable=retryable)
    return pb.AttemptReport(attempt=offer.attempt, failed=failure)


def silent(_offer: pb.Offer) -> None:
    """A handler that reports nothing by itself."""


@contextlib.asynccontextmanager
async def agent(
    stubs: Stubs,
    *actions: str,
    handler: Handler = succeeds,
    session_id: str = "",
    slots: int = 10,
    generation: int = 0,
    namespace: str = "",
) -> AsyncIterator[PlainAgent]:
    """An agent that was welcomed."""
    call = stubs.agents.Work()
    joined = PlainAgent(call, session_id or f"session-{secrets.token_hex(8)}", handler)
    hello = pb.Hello(
        protocol_version=1,
        session_id=joined.session_id,
        actions=actions,
        slots=slots,
        name="plain",
        generation=generation,
        namespace=namespace,
    )
    await joined.send(hello=hello)
    reading = asyncio.create_task(joined.read())
    try:
        await joined.until(lambda: joined.welcome.session_id or joined.ended.done())
        yield joined
    finally:
        call.cancel()
        await asyncio.wait((reading,), timeout=CALL_S_MAX)
