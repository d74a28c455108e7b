"""One stream to one node: every gRPC setting and every gRPC call of the agent's work is here."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import grpc
from google.protobuf.message import DecodeError
from google.rpc import error_details_pb2, status_pb2  # type: ignore[import-untyped]  # it ships no types

from stepward.agents.errors import Violation
from stepward.v1 import agent_service_pb2 as wire
from stepward.v1 import agent_service_pb2_grpc as service

# Nodes allow a ping every 5 s; servers that were not told so close connections that ping more often than every 300 s.
# A connection that died without a word is noticed by the heartbeats long before, unless the TTL is long.
KEEPALIVE_TIME_MS: Final = 10_000
KEEPALIVE_TIMEOUT_MS: Final = 5_000

# Offers come in messages of about 1 MiB with at most one payload more; reports leave in the same size.
MESSAGE_BYTES_MAX: Final = 16 * 1024 * 1024

CHANNEL_OPTIONS: Final[tuple[tuple[str, int], ...]] = (
    ("grpc.keepalive_time_ms", KEEPALIVE_TIME_MS),
    ("grpc.keepalive_timeout_ms", KEEPALIVE_TIMEOUT_MS),
    # The ping's own timer decides, and is a minute unless told; the option above alone changes nothing in grpcio 1.85.
    ("grpc.http2.ping_timeout_ms", KEEPALIVE_TIMEOUT_MS),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.max_send_message_length", MESSAGE_BYTES_MAX),
    ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
    # Each stream has a connection of its own, so that dropping it hard drops nothing else and leaves nothing behind.
    ("grpc.use_local_subchannel_pool", 1),
    # When to try again, and where, is decided here and not by gRPC.
    ("grpc.enable_retries", 0),
)

# How long a node may take to end a stream that the agent has closed in order.
CLOSE_S_MAX: Final = 2.0

_DETAILS_KEY: Final = "grpc-status-details-bin"
_DOMAIN: Final = "stepward"

_log = logging.getLogger("stepward.agents.connection")


# Opens a channel to an address, on the running loop.
Dial: TypeAlias = Callable[[str], grpc.aio.Channel]


def open_channel(address: str, *, credentials: grpc.ChannelCredentials | None) -> grpc.aio.Channel:
    """A channel with our settings, secured when there are credentials. Nothing is sent yet."""
    if credentials is None:
        return grpc.aio.insecure_channel(address, options=CHANNEL_OPTIONS)
    return grpc.aio.secure_channel(address, credentials, options=CHANNEL_OPTIONS)


@dataclass(frozen=True, slots=True)
class Ending:
    """Why a call or a stream has ended."""

    reason: str
    """Name of the ErrorReason without its prefix. Empty: none was given."""
    message: str
    violations: tuple[Violation, ...] = ()


def read_ending(failed: grpc.aio.AioRpcError) -> Ending:
    """What a node, or gRPC itself, says about the end. Never read from the text."""
    reason = ""
    violations: tuple[Violation, ...] = ()
    for detail in _details(failed.trailing_metadata() or ()):
        info, request = error_details_pb2.ErrorInfo(), error_details_pb2.BadRequest()
        if detail.Unpack(info):
            reason = info.reason if info.domain == _DOMAIN else reason
        elif detail.Unpack(request):
            violations = tuple(Violation(one.field, one.description) for one in request.field_violations)
    return Ending(reason, failed.details() or failed.code().name, violations)


def _details(metadata: Iterable[tuple[str, str | bytes]]) -> Iterable[Any]:
    for key, value in metadata:
        if key == _DETAILS_KEY and isinstance(value, bytes):
            try:
                yield from status_pb2.Status.FromString(value).details
            except DecodeError:
                return


class Connection:
    """One Work stream. Lives on the I/O loop."""

    def __init__(self, address: str, dial: Dial, on_message: Callable[[wire.WorkResponse], None]) -> None:
        self.address = address
        self._dial = dial
        self._on_message = on_message
        self._outgoing: deque[wire.WorkRequest] = deque()
        self._something_to_write = asyncio.Event()
        self._closing = False
        self._dropped = asyncio.Event()

    def send(self, message: wire.WorkRequest) -> None:
        """Queue a message. Bounded by what the session lets wait: its slots, and a heartbeat until it drops us."""
        self._outgoing.append(message)
        self._something_to_write.set()

    def close(self) -> None:
        """Send what is queued and end the stream in order."""
        self._closing = True
        self._something_to_write.set()

    def drop(self) -> None:
        """End it at once, whatever is on its way."""
        self._dropped.set()

    async def run(self) -> Ending:
        """Exchange messages until the stream ends. Returns why."""
        channel = self._dial(self.address)
        call = service.AgentServiceStub(channel).Work()
        reader = asyncio.create_task(self._read(call))
        writer = asyncio.create_task(self._write(call))
        dropped = asyncio.create_task(self._dropped.wait())
        try:
            await asyncio.wait((reader, writer, dropped), return_when=asyncio.FIRST_COMPLETED)
            if writer.done():
                # Raises what is wrong with a message of ours; what is wrong with the stream the reader knows.
                writer.result()
            if not dropped.done() and not reader.done():
                # All is written; the node now ends the stream.
                await asyncio.wait((reader, dropped), timeout=CLOSE_S_MAX, return_when=asyncio.FIRST_COMPLETED)
            return reader.result() if reader.done() else Ending("", "the agent has dropped the connection")
        finally:
            for task in (reader, writer, dropped):
                task.cancel()
            await asyncio.gather(reader, writer, dropped, return_exceptions=True)
            call.cancel()
            await channel.close()

    async def _read(self, call: Any) -> Ending:
        try:
            while (response := await call.read()) is not grpc.aio.EOF:
                self._on_message(response)
        except grpc.aio.AioRpcError as failed:
            return read_ending(failed)
        return Ending("", "the node has closed the stream")

    async def _write(self, call: Any) -> None:
        """Returns when the stream was closed in order; ends silently when it broke, since the reader knows why."""
        try:
            while True:
                while self._outgoing:
                    await call.write(self._outgoing.popleft())
                if self._closing:
                    await call.done_writing()
                    return
                self._something_to_write.clear()
                await self._something_to_write.wait()
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError) as error:
            _log.debug("write_failed address=%s error=%r", self.address, error)
