"""One stream of commands and questions to the node that leads."""

from __future__ import annotations

import asyncio
import itertools
from typing import TYPE_CHECKING, Final, Protocol

import grpc

from stepward.internal.v1 import peer_service_pb2 as pb
from stepward.server import observe
from stepward.server.peers.errors import PeerRefused

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stepward.server.peers.errands import Errand, Errands, Question

# How long the other node may take to welcome the stream. It is made while callers wait, and another may lead soon.
WELCOME_MS_MAX: Final = 1_000

_log = observe.logger("forwarding")


class ForwardCall(Protocol):
    """The call as gRPC makes it."""

    async def write(self, request: pb.ForwardRequest) -> None:
        """Send a message; waits while the other side takes none."""
        ...

    async def read(self) -> object:
        """The next message, or something else at the end."""
        ...

    def cancel(self) -> object:
        """End the call."""
        ...


class Desk(Protocol):
    """Who has something to send on a link, and hears what comes back."""

    errands: Errands

    @property
    def questions(self) -> list[Question]:
        """Readers who wait for the next question."""
        ...

    @property
    def may_send(self) -> bool:
        """Whether the node that leads is worth asking just now."""
        ...

    def now_ms(self) -> int:
        """The steady clock."""
        ...

    def sending(self, commands: int) -> None:
        """So many commands leave this node."""
        ...

    def welcomed(self, link: ForwardLink) -> None:
        """The link stands."""
        ...

    def came(self, link: ForwardLink, response: pb.ForwardResponse) -> None:
        """The other node has answered something."""
        ...

    def ended(self, link: ForwardLink, why: str) -> None:
        """The link is gone, and was not closed by us."""
        ...


class ForwardLink:
    """A stream to one node. What was sent on it and not answered stands in `sent`, questions in `asked`."""

    def __init__(self, peer_id: str, call: ForwardCall, hello: pb.Hello, desk: Desk) -> None:
        self.peer_id = peer_id
        self.sent: dict[int, Errand] = {}
        self.asked: dict[int, tuple[int, Sequence[Question]]] = {}
        self.asked_at_ms = 0
        self.stands = False
        self._call = call
        self._hello = hello
        self._desk = desk
        self._numbers = itertools.count(1)
        self._work = asyncio.Event()
        self._asks = False
        self._closed = False
        self._task = asyncio.get_running_loop().create_task(self._run())
        self._task.add_done_callback(self._ended)

    def wake(self) -> None:
        """There is something to send."""
        self._work.set()

    def ask(self) -> None:
        """Ask which batch is the newest, also when no reader waits for the answer."""
        self._asks = True
        self._work.set()

    def close(self) -> None:
        """Send and hear no more. Safe to repeat."""
        self.stands = False
        self._closed = True
        self._task.cancel()

    async def _run(self) -> str:
        """Serve the stream until it ends; why it did."""
        try:
            return await self._live()
        except (grpc.RpcError, asyncio.InvalidStateError, PeerRefused) as error:
            return f"{type(error).__name__}: {error}"
        except TimeoutError:
            return f"it did not welcome the stream within {WELCOME_MS_MAX} ms"
        finally:
            self.stands = False
            self._call.cancel()

    def _ended(self, task: asyncio.Task[str]) -> None:
        """However it has ended: what was sent on it must be taken back."""
        if self._closed:
            return
        if task.cancelled():
            why = "the connection was closed"
        elif (error := task.exception()) is not None:
            _log.error("forwarding_failed", node_id=self.peer_id, exc_info=error)
            why = f"{type(error).__name__}: {error}"
        else:
            why = task.result()
        self._desk.ended(self, why)

    async def _live(self) -> str:
        """Serve the stream; why it ended."""
        async with asyncio.timeout(WELCOME_MS_MAX / 1_000):
            await self._call.write(pb.ForwardRequest(hello=self._hello))
            first = await self._call.read()
        if not isinstance(first, pb.ForwardResponse) or not first.HasField("welcome"):
            raise PeerRefused(self.peer_id, "it ended the stream without a welcome")
        self.stands = True
        self._desk.welcomed(self)
        self._work.set()
        reader = asyncio.create_task(self._read())
        writer = asyncio.create_task(self._write())
        try:
            await asyncio.wait((reader, writer), return_when=asyncio.FIRST_COMPLETED)
            for task in (reader, writer):
                if task.done():
                    task.result()
        finally:
            for task in (reader, writer):
                task.cancel()
            await asyncio.gather(reader, writer, return_exceptions=True)
        return "it ended the stream"

    async def _read(self) -> None:
        while isinstance(response := await self._call.read(), pb.ForwardResponse):
            self._desk.came(self, response)

    async def _write(self) -> None:
        while True:
            await self._work.wait()
            self._work.clear()
            while (request := self._next_request()) is not None:
                await self._call.write(request)

    def _next_request(self) -> pb.ForwardRequest | None:
        """What waits, as far as one message carries it. From here on nobody knows what becomes of it."""
        desk = self._desk
        # A link that was closed may write for one turn more; what it took then nobody would ask it back for.
        if not self.stands or not desk.may_send:
            return None
        now_ms = desk.now_ms()
        request = pb.ForwardRequest()
        for errand in desk.errands.take():
            number = next(self._numbers)
            self.sent[number] = errand
            request.commands.append(
                pb.ForwardedCommand(
                    id=number,
                    command=errand.encoded,
                    urgent=errand.urgent,
                    share=errand.share,
                    hops=errand.hops,
                    wait_ms=max(1, errand.ends_at_ms - now_ms),
                )
            )
        desk.sending(len(request.commands))
        if desk.questions or self._asks:
            number = next(self._numbers)
            self.asked[number] = (now_ms, tuple(desk.questions))
            self.asked_at_ms, self._asks = now_ms, False
            desk.questions.clear()
            request.reads.add(id=number)
        return request if request.commands or request.reads else None
