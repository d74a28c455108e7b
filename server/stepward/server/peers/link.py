"""The stream to one other node: made, filled, watched, and made again for as long as this node runs.

One task sends, and everything that waits goes into its next message; so a peer that does not read costs what may wait
for it and nothing more, and nobody waits for it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Any, Final, Protocol

import grpc
import grpc.aio
from google.protobuf.message import DecodeError
from google.rpc import error_details_pb2, status_pb2  # type: ignore[import-untyped]  # ships no types

from stepward.internal.v1 import peer_service_pb2 as pb
from stepward.server import observe
from stepward.server.api import errors
from stepward.server.peers.channels import open_channel
from stepward.server.peers.handshake import NEWEST_CONNECTION
from stepward.server.peers.pieces import Cutter

if TYPE_CHECKING:
    import random
    from collections.abc import Sequence

    from stepward.server.config import NodeConfig
    from stepward.server.observe import Counters
    from stepward.server.peers.handshake import Introduction

    Stream = grpc.aio.StreamStreamCall[bytes, bytes]

METHOD: Final = "/stepward.internal.v1.PeerService/Replicate"
_BEAT: Final = pb.ReplicateRequest().SerializeToString()
# Codes with which a node says that the two of us do not fit; trying again soon changes nothing.
_REFUSALS: Final = frozenset({grpc.StatusCode.FAILED_PRECONDITION, grpc.StatusCode.PERMISSION_DENIED})

_log = observe.logger("peers")


class Ends(Protocol):
    """Told how a stream to another node comes and goes."""

    def linked(self, peer_id: str) -> None:
        """A new stream stands: what is sent from now on arrives in order, or not at all."""
        ...

    def unlinked(self, peer_id: str) -> None:
        """It is gone."""
        ...


class Connections:
    """Numbers the streams of this node, each higher than the one before, also over restarts."""

    def __init__(self, wall_ms: int) -> None:
        self._last = wall_ms << 16

    def next(self) -> int:
        self._last += 1
        return self._last

    def above(self, newest: int) -> None:
        """A node knows a higher one, of a start of ours when the wall clock was ahead."""
        self._last = max(self._last, newest)


class _Lost(Exception):  # noqa: N818 - what became of a stream, named as such
    """The stream is gone, or was never made. `refused`: the other node has said why it takes none of ours."""

    def __init__(self, reason: str, *, refused: bool = False) -> None:
        super().__init__(reason)
        self.reason = reason
        self.refused = refused


class Link:
    """The stream to one other node. Belongs to the thread of the event loop."""

    def __init__(
        self,
        peer_id: str,
        address: str,
        *,
        us: Introduction,
        config: NodeConfig,
        counters: Counters,
        connections: Connections,
        rng: random.Random,
        ends: Ends,
    ) -> None:
        self.peer_id = peer_id
        self._address = address
        self._us = us
        self._config = config
        self._counters = counters
        self._connections = connections
        self._rng = rng
        self._ends = ends
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[bytes] = deque()
        self._waiting_bytes = 0
        self._cutter = Cutter(self._waiting)
        self._beat_is_due = False
        self._something_to_send = asyncio.Event()
        # Set while no stream stands, and nothing may be put on one.
        self._over = asyncio.Event()
        self._over.set()
        self._why_over = ""
        self._hurry = asyncio.Event()
        self._failures = 0
        self._told = ""
        self.refusal = ""
        """Why the other node takes no stream of ours. Empty: it does, or has not said it."""
        # When the last message left, when the one began that has not, and when the peer was last heard on a stream of
        # its own; 0: it has none.
        self._sent_at = self._writing_since = self._heard_at = 0.0

    @property
    def stands(self) -> bool:
        """Whether something can be sent."""
        return not self._over.is_set()

    @property
    def waiting_bytes(self) -> int:
        """What waits to be sent."""
        return self._waiting_bytes

    def send(self, frames: Sequence[bytes]) -> None:
        """Put frames on the stream, behind those before; dropped when there is none."""
        if not self.stands:
            self._counters.frames_dropped += len(frames)
            return
        self._waiting += frames
        self._waiting_bytes += sum(map(len, frames))
        self._something_to_send.set()
        count_max, bytes_max = self._config.peer_frames_waiting_max, self._config.peer_bytes_waiting_max
        if len(self._waiting) > count_max or self._waiting_bytes > bytes_max:
            waiting = f"{len(self._waiting)} frames of {self._waiting_bytes} bytes wait to be read"
            self._close(f"{waiting}; at most {count_max} (peer_frames_waiting_max) and {bytes_max} bytes may")

    def heard(self) -> None:
        """The peer has said something on its own stream."""
        self._heard_at = self._loop.time()

    def hasten(self) -> None:
        """The peer has come back: try now rather than when it is time."""
        self.heard()
        self._failures = 0
        self._hurry.set()

    def look(self) -> None:
        """Called often: says that the stream stands when nothing else does, and ends one that is not what it seems."""
        if not self.stands:
            return
        now, config = self._loop.time(), self._config
        if self._writing_since and (now - self._writing_since) * 1_000 > config.peer_stalled_ms_max:
            self._close(f"nothing was read for {config.peer_stalled_ms_max} ms")
        elif self._heard_at and (now - self._heard_at) * 1_000 > config.peer_silence_ms_max:
            # Until it is heard again nobody knows whether it has a stream of its own to speak on.
            self._heard_at = 0.0
            self._close(f"nothing was heard for {config.peer_silence_ms_max} ms")
        elif (now - self._sent_at) * 1_000 >= config.peer_beat_ms:
            self._beat_is_due = True
            self._something_to_send.set()

    async def run(self) -> None:
        """Keep a stream, until this is cancelled."""
        while True:
            lost = await self._one_stream()
            self._tell(lost)
            await self._wait()

    async def _one_stream(self) -> _Lost:
        """One stream from its making to its end, and why it ended."""
        channel = open_channel(self._address, self._config)
        try:
            stream = await self._made(channel)
            self._open()
            try:
                return await self._carry(stream)
            finally:
                self._close("this node stops")
                self._ends.unlinked(self.peer_id)
        except _Lost as lost:
            return lost
        finally:
            # Hard: what was sent and not taken is lost, as the other end's end of it is.
            await channel.close()

    async def _made(self, channel: grpc.aio.Channel) -> Stream:
        """A stream that the peer has taken.

        Raises:
            _Lost: There is none.
        """
        hello = self._us.hello(self.peer_id, self._connections.next())
        try:
            async with asyncio.timeout(self._config.peer_connect_ms_max / 1_000):
                stream: Stream = channel.stream_stream(METHOD)()
                await stream.write(pb.ReplicateRequest(hello=hello).SerializeToString())
                raw: Any = await stream.read()
                if raw is grpc.aio.EOF:
                    raise _Lost("the stream was closed before it was taken")
                welcome = pb.ReplicateResponse.FromString(raw).welcome
        except TimeoutError:
            raise _Lost(f"no answer within {self._config.peer_connect_ms_max} ms") from None
        except grpc.aio.AioRpcError as error:
            self._learn(error)
            raise _Lost(error.details() or error.code().name, refused=error.code() in _REFUSALS) from None
        except asyncio.InvalidStateError:
            raise _Lost("the stream ended while it was made") from None
        except DecodeError as error:
            raise _Lost(f"the answer is none of a node: {error}", refused=True) from None
        if welcome.node_id != self.peer_id:
            raise _Lost(f"{welcome.node_id or 'nobody of ours'} answers there: mend the addresses", refused=True)
        return stream

    def _learn(self, error: grpc.aio.AioRpcError) -> None:
        """Number the next stream above what the other node knows."""
        details: Any = dict(error.trailing_metadata() or ()).get(errors.DETAILS_KEY)
        if not isinstance(details, bytes):
            return
        info = error_details_pb2.ErrorInfo()
        try:
            for detail in status_pb2.Status.FromString(details).details:
                if detail.Unpack(info) and info.metadata.get(NEWEST_CONNECTION, "").isdecimal():
                    self._connections.above(int(info.metadata[NEWEST_CONNECTION]))
        except DecodeError:
            _log.warning("refusal_unreadable", peer_id=self.peer_id, address=self._address)

    def _open(self) -> None:
        self._waiting.clear()
        self._waiting_bytes, self._cutter = 0, Cutter(self._waiting)
        self._failures, self._told, self.refusal = 0, "", ""
        self._writing_since, self._sent_at = 0.0, self._loop.time()
        if self._heard_at:
            self._heard_at = self._sent_at
        self._over.clear()
        _log.info("peer_linked", peer_id=self.peer_id, address=self._address)
        self._ends.linked(self.peer_id)

    def _close(self, why: str) -> None:
        """Take nothing more; the task that sends lets go of the stream. The first reason counts."""
        if self._over.is_set():
            return
        self._why_over = why
        self._waiting.clear()
        self._waiting_bytes = 0
        self._over.set()

    async def _carry(self, stream: Stream) -> _Lost:
        """Send until the stream has ended; why it has."""
        sender, reader = asyncio.ensure_future(self._send(stream)), asyncio.ensure_future(_end(stream))
        over = asyncio.ensure_future(self._over.wait())
        tasks = (sender, reader, over)
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            if over.done():
                return _Lost(self._why_over)
            # The end that the other node has given says more than a write that failed because of it.
            return _Lost(reader.result() if reader.done() else sender.result())
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _send(self, stream: Stream) -> str:
        """Put what waits on the stream, until that fails; why it did."""
        while True:
            await self._something_to_send.wait()
            self._something_to_send.clear()
            while self._waiting or self._beat_is_due:
                self._beat_is_due = False
                raw = self._next_message() if self._waiting else _BEAT
                self._sent_at = self._writing_since = self._loop.time()
                try:
                    await stream.write(raw)
                except (grpc.aio.AioRpcError, asyncio.InvalidStateError) as error:
                    return f"a write failed: {type(error).__name__}"
                self._writing_since = 0.0

    def _next_message(self) -> bytes:
        before = len(self._waiting)
        message, size_bytes = self._cutter.next_message()
        self._waiting_bytes -= size_bytes
        self._counters.frame_bytes_sent += size_bytes
        self._counters.frames_sent += before - len(self._waiting)
        return message.SerializeToString()

    def _tell(self, lost: _Lost) -> None:
        """Log why there is no stream: once for each reason, however often it is tried."""
        self._counters.links_lost += 1
        self.refusal = lost.reason if lost.refused else ""
        if lost.reason != self._told:
            self._told = lost.reason
            event = "peer_refuses_us" if lost.refused else "peer_lost"
            _log.warning(event, peer_id=self.peer_id, address=self._address, reason=lost.reason)
        self._failures += 1

    async def _wait(self) -> None:
        """Wait before the next try: longer after each one that failed, never twice the same, and not once it came."""
        config = self._config
        longest_ms = min(config.peer_backoff_ms_min << min(self._failures - 1, 16), config.peer_backoff_ms_max)
        self._hurry.clear()
        try:
            async with asyncio.timeout(longest_ms / 1_000 * self._rng.uniform(0.5, 1.0)):
                await self._hurry.wait()
        except TimeoutError:
            return


async def _end(stream: Stream) -> str:
    """Wait until the other node ends the stream, on which it says nothing more; why it did."""
    try:
        answer: Any = await stream.read()
    except (grpc.aio.AioRpcError, asyncio.InvalidStateError) as error:
        return (error.details() or error.code().name) if isinstance(error, grpc.aio.AioRpcError) else str(error)
    return "the other node closed the stream" if answer is grpc.aio.EOF else "a second answer came"
