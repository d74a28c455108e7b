"""Streams of other nodes: what comes on them goes to the shard, while they are the newest of their node."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final, Protocol

import grpc.aio

from stepward.internal.v1 import peer_service_pb2 as pb
from stepward.server import observe
from stepward.server.config import FRAME_BYTES_MAX
from stepward.server.core.rejections import Reason, Refused, Rejection
from stepward.server.interceptor import parse
from stepward.server.peers.pieces import Joiner

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stepward.server.interceptor import Context
    from stepward.server.observe import Counters
    from stepward.server.peers.handshake import Doorkeeper

# How long a stream may be open before it says whose it is, and how many such may be: anybody can open one.
HELLO_MS_MAX: Final = 5_000
STRANGERS_MAX: Final = 64

_log = observe.logger("peers")


class Receiver(Protocol):
    """Who is given what other nodes send."""

    def arrived(self, peer_id: str, connection: int, contents: Sequence[bytes]) -> None:
        """Frames of one stream, in order."""
        ...


class Watcher(Protocol):
    """Who looks after the streams in the other direction."""

    def heard(self, peer_id: str) -> None:
        """A node has said something."""
        ...

    def hasten(self, peer_id: str) -> None:
        """A node has made a new stream."""
        ...


class _Incoming:
    """One stream of another node."""

    def __init__(self, hello: pb.Hello) -> None:
        self.peer_id: str = hello.node_id
        self.connection: int = hello.connection
        self.over = asyncio.Event()
        self.why: Rejection | None = None

    def end(self, why: Rejection | None) -> None:
        """Take nothing more of it. None: it is nobody's fault."""
        if not self.over.is_set():
            self.why = why
            self.over.set()


class Replicating:
    """Serves `Replicate`. Belongs to the thread of the event loop."""

    def __init__(self, doorkeeper: Doorkeeper, *, receiver: Receiver, watcher: Watcher, counters: Counters) -> None:
        self._doorkeeper = doorkeeper
        self._receiver = receiver
        self._watcher = watcher
        self._counters = counters
        self._incoming: dict[str, _Incoming] = {}
        self._strangers = 0
        self._told: dict[str, str] = {}
        self._drains = False

    async def replicate(self, _requests: object, context: Context) -> None:
        """Take a stream of another node, until it ends or a newer one replaces it.

        Raises:
            Refused: It does not fit, or sends what nobody can read.
        """
        # Apart from the first message: a status cannot follow a write that stalls when these travel together.
        await context.send_initial_metadata(())
        hello = await self._hello(context)
        if hello is None:
            return
        incoming = self._take(hello, context)
        welcome = pb.ReplicateResponse(welcome=self._doorkeeper.us.welcome())
        reader = asyncio.ensure_future(self._read(incoming, context))
        over = asyncio.ensure_future(incoming.over.wait())
        try:
            await context.write(welcome)
            await asyncio.wait((reader, over), return_when=asyncio.FIRST_COMPLETED)
            if reader.done():
                self._look_at_end(reader)
            if incoming.why is not None:
                raise Refused(incoming.why)
        finally:
            incoming.over.set()
            for task in (reader, over):
                task.cancel()
            await asyncio.gather(reader, over, return_exceptions=True)
            if self._incoming.get(incoming.peer_id) is incoming:
                del self._incoming[incoming.peer_id]

    def break_off(self, peer_id: str) -> None:
        """End the stream of a node that has sent what the logbook cannot read."""
        self._counters.frames_refused += 1
        _log.error("peer_unreadable", peer_id=peer_id)
        incoming = self._incoming.pop(peer_id, None)
        if incoming is not None:
            incoming.end(Rejection(Reason.INVALID_ARGUMENT, "a frame of this stream cannot be read; it is taken anew"))

    def drain(self) -> None:
        """End all streams, and take no more: this node stops."""
        self._drains = True
        for incoming in self._incoming.values():
            incoming.end(None)
        self._incoming.clear()

    def _look_at_end(self, reader: asyncio.Future[None]) -> None:
        """Raise what the other node did wrong, counted; a stream that it closed in order just ends."""
        try:
            reader.result()
        except Refused:
            self._counters.frames_refused += 1
            raise

    async def _hello(self, context: Context) -> pb.Hello | None:
        """Who speaks; None when nobody does."""
        if self._strangers >= STRANGERS_MAX:
            text = f"{self._strangers} streams here have not said whose they are, which is the most; come back"
            raise Refused(Rejection(Reason.OVERLOADED, text))
        self._strangers += 1
        try:
            async with asyncio.timeout(HELLO_MS_MAX / 1_000):
                raw: Any = await context.read()
        except TimeoutError:
            text = f"no hello within {HELLO_MS_MAX} ms; it must be the first message"
            raise Refused(Rejection(Reason.INVALID_ARGUMENT, text)) from None
        finally:
            self._strangers -= 1
        return None if raw is grpc.aio.EOF else parse(pb.ReplicateRequest, raw).hello

    def _take(self, hello: pb.Hello, context: Context) -> _Incoming:
        if self._drains:
            raise Refused(Rejection(Reason.NODE_DRAINING, "this node is shutting down"))
        try:
            self._doorkeeper.admit_stream(hello, context)
        except Refused as refused:
            self._counters.hellos_refused += 1
            self._tell(context, refused.rejection)
            raise
        incoming = _Incoming(hello)
        self._doorkeeper.presence.heard(incoming.peer_id)
        older = self._incoming.get(incoming.peer_id)
        if older is not None:
            older.end(Rejection(Reason.NODE_STATE, "a newer stream of this node has replaced this one"))
        self._incoming[incoming.peer_id] = incoming
        self._told.clear()
        self._watcher.hasten(incoming.peer_id)
        return incoming

    def _tell(self, context: Context, why: Rejection) -> None:
        """Log why somebody is refused: once for each machine and reason, however often it tries."""
        caller = context.peer().rpartition(":")[0]
        if self._told.get(caller) != why.message and len(self._told) < STRANGERS_MAX:
            self._told[caller] = why.message
            _log.warning("peer_refused", caller=caller, reason=why.message)

    async def _read(self, incoming: _Incoming, context: Context) -> None:
        """Hand on what comes, until the stream ends."""
        joiner, peer_id = Joiner(FRAME_BYTES_MAX), incoming.peer_id
        while True:
            raw: Any = await context.read()
            if raw is grpc.aio.EOF or incoming.over.is_set():
                return
            message = parse(pb.ReplicateRequest, raw)
            if message.HasField("hello"):
                raise Refused(Rejection(Reason.INVALID_ARGUMENT, "a second hello; it may only be the first message"))
            self._watcher.heard(peer_id)
            self._doorkeeper.presence.heard(peer_id)
            frames = joiner.frames(message)
            if frames:
                self._counters.frames_received += len(frames)
                self._counters.frame_bytes_received += sum(map(len, frames))
                self._receiver.arrived(peer_id, incoming.connection, frames)
