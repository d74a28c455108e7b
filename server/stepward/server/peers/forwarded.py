"""What other nodes send to the one that leads: their callers' commands, and questions of their readers."""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from typing import TYPE_CHECKING, Final, Protocol

from stepward.internal.v1 import peer_service_pb2 as pb
from stepward.server import observe
from stepward.server.core.commands import Sweep, WatchSilence
from stepward.server.core.rejections import Reason, Refused, Rejection
from stepward.server.interceptor import parse
from stepward.server.peers import encoding
from stepward.server.peers.errands import Errand
from stepward.server.peers.errors import MessageUnreadable
from stepward.server.peers.forwarding import HOPS_MAX

if TYPE_CHECKING:
    from stepward.server.admission import Admission
    from stepward.server.clock import Clock
    from stepward.server.config import NodeConfig
    from stepward.server.core.commands import Answer, AnyCommand
    from stepward.server.interceptor import Context
    from stepward.server.peers.forwarding import Forwarding, Host

# How long the hello may take after the stream was opened.
HELLO_MS_MAX: Final = 5_000
# Answers that one message carries at most, unless one alone is larger.
MESSAGE_BYTES_MAX: Final = 1 << 20
# For so long a node is taken for one that serves clients or agents after it has sent a command on; agents give signs of
# life more often than that.
SERVES_MS: Final = 60_000
# And after it has asked what a reader must see. Short, since each node asks once a second for itself, to know how old
# its rows are; a question alone is enough for what is put off to be told at once.
SERVES_READERS_MS: Final = 100

# Said by a node that has decided nothing: there is nothing that the other one must see before it may say so.
_NOT_DECIDED: Final = frozenset(
    {
        Reason.NOT_LEADER,
        Reason.NO_LEADER,
        Reason.NODE_DRAINING,
        Reason.COMMIT_UNKNOWN,
        Reason.OVERLOADED,
        Reason.DISK_FULL,
    }
)

_log = observe.logger("forwarding")


class Door(Protocol):
    """Who may speak to this node as another node."""

    def admit(self, hello: pb.Hello, context: Context) -> None:
        """Let a node in, or raise `Refused`."""
        ...


class ForwardedCalls:
    """Serves the Forward streams of other nodes."""

    def __init__(
        self,
        host: Host,
        forwarding: Forwarding,
        *,
        door: Door,
        welcome: pb.Welcome,
        admission: Admission,
        clock: Clock,
        config: NodeConfig,
    ) -> None:
        self._host = host
        self._forwarding = forwarding
        self._door = door
        self._welcome = welcome
        self._admission = admission
        self._clock = clock
        self._config = config
        self._numbers = itertools.count()
        self._draining: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        # By node, its newest stream: what still comes on an older one was given up by the node that sent it.
        self._newest: dict[str, _Stream] = {}

    def drain(self) -> None:
        """The node is going down: end all streams. What they still wait for has an outcome that nobody here knows."""
        if not self._draining.done():
            self._draining.set_result(None)

    async def forward(self, request_iterator: object, context: Context) -> None:
        """Serve one stream until it ends.

        Raises:
            Refused: By the door; INVALID_ARGUMENT for what is no message of the protocol; OVERLOADED, when the other
                node does not read its answers.
        """
        hello = await self._hello(context)
        self._door.admit(hello, context)
        await context.write(pb.ForwardResponse(welcome=self._welcome))
        stream = _Stream(self._config.stream_bytes_waiting_max)
        if hello.node_id in self._newest:
            self._newest[hello.node_id].over = True
        self._newest[hello.node_id] = stream
        reader = asyncio.create_task(self._read(context, stream, _Served(self._host, hello.node_id, self._clock)))
        writer = asyncio.create_task(stream.write(context))
        try:
            await asyncio.wait((reader, writer, self._draining), return_when=asyncio.FIRST_COMPLETED)
            for task in (reader, writer):
                if task.done():
                    task.result()
        finally:
            stream.over = True
            if self._newest.get(hello.node_id) is stream:
                del self._newest[hello.node_id]
            for task in (reader, writer):
                task.cancel()
            await asyncio.gather(reader, writer, return_exceptions=True)

    async def _hello(self, context: Context) -> pb.Hello:
        if self._draining.done():
            raise Refused(Rejection(Reason.NODE_DRAINING, "this node is shutting down; another one will lead"))
        try:
            async with asyncio.timeout(HELLO_MS_MAX / 1_000):
                raw = await context.read()
        except TimeoutError:
            text = f"no hello came within {HELLO_MS_MAX} ms of opening the stream"
            raise Refused(Rejection(Reason.INVALID_ARGUMENT, text)) from None
        if not isinstance(raw, bytes):
            raise Refused(Rejection(Reason.INVALID_ARGUMENT, "the stream was closed before its hello"))
        request = parse(pb.ForwardRequest, raw)
        if not request.HasField("hello"):
            raise Refused(Rejection(Reason.INVALID_ARGUMENT, "the first message of a stream must be a hello"))
        return request.hello

    async def _read(self, context: Context, stream: _Stream, served: _Served) -> None:
        while isinstance(raw := await context.read(), bytes) and not stream.over:
            request = parse(pb.ForwardRequest, raw)
            served.for_ms(SERVES_MS if request.commands else SERVES_READERS_MS)
            for forwarded in request.commands:
                self._take(forwarded, stream)
            for question in request.reads:
                self._host.confirm(_Reader(question.id, stream))

    def _take(self, forwarded: pb.ForwardedCommand, stream: _Stream) -> None:
        """Let one command be decided, or say why not."""
        host, ticket = self._host, _Ticket(forwarded.id, stream, self._host)
        try:
            command = encoding.decode_command(forwarded.command)
        except MessageUnreadable as error:
            _log.error("command_unreadable", message=str(error))
            ticket.answered(Rejection(Reason.UNIMPLEMENTED, str(error)))
            return
        if isinstance(command, Sweep | WatchSilence):
            ticket.answered(Rejection(Reason.NOT_ALLOWED, "only the leader's own node looks after what is due"))
        elif forwarded.hops >= HOPS_MAX:
            text = (
                f"this command was sent on {forwarded.hops} times, which is the most; come back when there is a leader"
            )
            ticket.answered(Rejection(Reason.NO_LEADER, text))
        elif host.leads:
            if self._admit(forwarded, ticket):
                host.decide(command, ticket, urgent=forwarded.urgent, share=forwarded.share)
        elif host.standing.leader_id and host.standing.leader_id == self._forwarding.node_id:
            # It was elected, and decides as soon as its epoch is open.
            if self._admit(forwarded, ticket):
                self._forwarding.hold(self._errand(command, forwarded, ticket))
        else:
            ticket.answered(self._forwarding.not_leader())

    def _admit(self, forwarded: pb.ForwardedCommand, ticket: _Ticket) -> bool:
        """Whether there is room for a command here; only new work needs any."""
        try:
            if forwarded.share:
                self._admission.admit(forwarded.share, len(forwarded.command))
                ticket.admitted = (self._admission, forwarded.share, len(forwarded.command))
        except Refused as refused:
            ticket.answered(refused.rejection)
            return False
        return True

    def _errand(self, command: AnyCommand, forwarded: pb.ForwardedCommand, ticket: _Ticket) -> Errand:
        wait_ms = min(forwarded.wait_ms or self._config.leader_wait_ms_max, self._config.leader_wait_ms_max)
        return Errand(
            command,
            ticket,
            lambda errand, answer: errand.ticket.answered(answer),
            number=next(self._numbers),
            urgent=forwarded.urgent,
            share=forwarded.share,
            ends_at_ms=self._clock.steady_ms() + wait_ms,
        )


class _Served:
    """Lets this node's replica know that another node serves somebody; at most twice while it counts, each a step."""

    def __init__(self, host: Host, node_id: str, clock: Clock) -> None:
        self._host = host
        self._node_id = node_id
        self._clock = clock
        self._until_ms = 0

    def for_ms(self, for_ms: int) -> None:
        """Somebody there waits, and will for so long."""
        now_ms = self._clock.steady_ms()
        if self._until_ms < now_ms + for_ms // 2:
            self._until_ms = now_ms + for_ms
            self._host.serves(self._node_id, for_ms)


class _Stream:
    """What waits to be written to one node. One that does not read loses its stream rather than fill our memory."""

    def __init__(self, bytes_max: int) -> None:
        self.over = False
        self._bytes_max = bytes_max
        self._answers: deque[pb.ForwardedAnswer] = deque()
        self._reads: deque[pb.ReadAnswer] = deque()
        self._size_bytes = 0
        self._work = asyncio.Event()

    def answer(self, answered: pb.ForwardedAnswer) -> None:
        """Queue an answer to a command."""
        if not self.over:
            self._answers.append(answered)
            self._size_bytes += len(answered.answer)
            self._work.set()

    def answer_read(self, answered: pb.ReadAnswer) -> None:
        """Queue an answer to a question."""
        if not self.over:
            self._reads.append(answered)
            self._work.set()

    async def write(self, context: Context) -> None:
        """Write what is queued, for as long as the stream stands."""
        while True:
            await self._work.wait()
            self._work.clear()
            while self._answers or self._reads:
                if self._size_bytes > self._bytes_max:
                    text = f"{self._size_bytes} bytes of answers wait to be read; at most {self._bytes_max} may"
                    raise Refused(Rejection(Reason.OVERLOADED, text))
                await context.write(self._next())

    def _next(self) -> pb.ForwardResponse:
        response = pb.ForwardResponse(reads=self._reads)
        self._reads.clear()
        size_bytes = 0
        while self._answers and (not size_bytes or size_bytes + len(self._answers[0].answer) <= MESSAGE_BYTES_MAX):
            answered = self._answers.popleft()
            response.answers.append(answered)
            size_bytes += len(answered.answer)
        self._size_bytes -= size_bytes
        return response


class _Ticket:
    """A caller of another node. `admitted`: the room that its new work has here, which it gives back."""

    __slots__ = ("_host", "_id", "_stream", "admitted")

    def __init__(self, id_: int, stream: _Stream, host: Host) -> None:
        self.admitted: tuple[Admission, str, int] | None = None
        self._id = id_
        self._stream = stream
        self._host = host

    def answered(self, answer: Answer) -> None:
        """See `Ticket`."""
        if self.admitted is not None:
            admission, share, size_bytes = self.admitted
            admission.decided(share, size_bytes)
        undecided = isinstance(answer, Rejection) and answer.reason in _NOT_DECIDED
        sequence = 0 if undecided else self._host.standing.head.sequence
        encoded = encoding.encode_answer(answer)
        self._stream.answer(pb.ForwardedAnswer(id=self._id, answer=encoded, sequence=sequence))


class _Reader:
    """A reader of another node."""

    __slots__ = ("_id", "_stream")

    def __init__(self, id_: int, stream: _Stream) -> None:
        self._id = id_
        self._stream = stream

    def confirmed(self, sequence: int) -> None:
        """See `ReaderTicket`."""
        self._stream.answer_read(pb.ReadAnswer(id=self._id, sequence=sequence))

    def refused(self, rejection: Rejection) -> None:
        """See `ReaderTicket`."""
        self._stream.answer_read(pb.ReadAnswer(id=self._id, rejection=encoding.encode_answer(rejection)))
