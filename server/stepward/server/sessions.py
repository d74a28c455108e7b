"""The agents' streams of this node: what comes in becomes commands, what goes out comes from applied rows.

A stream sends nothing before the batch that binds it to this node is applied; then it sends every open assignment of
its session, and from then on follows the batches. There is no other way of delivery that could lose something; what
is sent twice, agents drop.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from stepward.server import observe
from stepward.server.agent_stream import AgentStream
from stepward.server.api import convert, validate
from stepward.server.core import keys, views
from stepward.server.core.commands import CloseStream, OpenSession, SessionOpened
from stepward.server.core.rejections import Reason, Refused, Rejection
from stepward.server.core.rows import Assignment, CancelReason, Session
from stepward.server.interceptor import parse
from stepward.server.shard import changed
from stepward.v1 import agent_service_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Iterable

    from stepward.server.admission import Admission
    from stepward.server.clock import Clock
    from stepward.server.config import NodeConfig
    from stepward.server.core.commands import Answer
    from stepward.server.core.limits import Limits
    from stepward.server.interceptor import Context
    from stepward.server.logbook.replica import Applied
    from stepward.server.observe import Counters
    from stepward.server.shard import Reading, Shard

HELLO_MS_MAX: Final = 10_000
_FOLLOWED: Final = keys.ASSIGNMENT + keys.SESSION

_log = observe.logger("sessions")


class Sessions:
    """All agents' streams that are open on this node, by session."""

    def __init__(
        self,
        shard: Shard,
        *,
        node_id: str,
        clock: Clock,
        limits: Limits,
        config: NodeConfig,
        counters: Counters,
        admission: Admission,
    ) -> None:
        self._shard = shard
        self._node_id = node_id
        self._clock = clock
        self._limits = limits
        self._config = config
        self._counters = counters
        self._admission = admission
        self._streams: dict[str, AgentStream] = {}
        self._count = 0
        self._draining = False
        shard.on_applied(self._on_applied)

    async def serve(self, context: Context) -> None:
        """Serve one stream until it ends.

        Raises:
            Refused: Why it ended, unless the agent closed it.
        """
        if self._draining:
            raise Refused(_draining())
        if self._count >= self._config.streams_max:
            text = f"{self._count} agents' streams are open on this node, which is the most; try another node"
            raise self._admission.overloaded(text)
        self._count += 1
        try:
            hello = await self._hello(context)
            opened = await self._open(hello)
            await self._follow(context, hello.session_id, opened)
        finally:
            self._count -= 1

    async def _hello(self, context: Context) -> pb.Hello:
        """The first message, which must be a hello."""
        try:
            async with asyncio.timeout(HELLO_MS_MAX / 1_000):
                raw = await context.read()
        except TimeoutError:
            text = f"no hello came within {HELLO_MS_MAX} ms of opening the stream"
            raise Refused(Rejection(Reason.INVALID_ARGUMENT, text)) from None
        if not isinstance(raw, bytes):
            raise Refused(Rejection(Reason.INVALID_ARGUMENT, "the stream was closed before its hello"))
        request = parse(pb.WorkRequest, raw)
        if request.WhichOneof("message") != "hello":
            text = f"the first message is {request.WhichOneof('message')}; it must be hello"
            raise Refused(Rejection(Reason.INVALID_ARGUMENT, text))
        refused = validate.hello(request.hello, self._limits)
        if refused is not None:
            raise Refused(refused)
        return request.hello

    async def _open(self, hello: pb.Hello) -> SessionOpened:
        """Bind the session to this node and to a new generation."""
        command = OpenSession(
            session_id=hello.session_id,
            namespace=hello.namespace or convert.DEFAULT_NAMESPACE,
            queue=hello.queue or convert.DEFAULT_QUEUE,
            actions=tuple(dict.fromkeys(hello.actions)),
            slots=hello.slots,
            name=hello.name,
            library=hello.library,
            node_id=self._node_id,
            known_generation=hello.generation,
        )
        ticket = OpenTicket(asyncio.get_running_loop().create_future(), self, hello.session_id)
        self._shard.propose(command, ticket)
        try:
            answer = await ticket.future
        except asyncio.CancelledError:
            ticket.abandon()
            raise
        if isinstance(answer, SessionOpened):
            return answer
        assert isinstance(answer, Rejection), answer
        raise Refused(answer)

    async def _follow(self, context: Context, session_id: str, opened: SessionOpened) -> None:
        """Welcome the agent, send what is open, and follow until the stream ends."""
        stream = AgentStream(
            session_id,
            opened,
            shard=self._shard,
            clock=self._clock,
            limits=self._limits,
            config=self._config,
            counters=self._counters,
        )
        # From here to the first await nothing can be applied: what is not in the rows now will be followed.
        self.register(stream)
        stream.send_welcome(self._node_id)
        with self._shard.committed() as reader:
            found = [(key, reader.get(key)) for key in list(reader.scan(keys.assignments(session_id)))]
            self._deliver(stream, [(key, row) for key, row in found if isinstance(row, Assignment)], reader)
        try:
            await stream.run(context)
        finally:
            if self._streams.get(session_id) is stream:
                del self._streams[session_id]
            self.close_stream(session_id, opened.generation)

    def register(self, stream: AgentStream) -> None:
        """Let the newest stream of a session be the only one."""
        other = self._streams.get(stream.session_id)
        if other is not None:
            older = other if other.generation < stream.generation else stream
            older.end(_replaced(stream.session_id, max(other.generation, stream.generation)))
            if older is stream:
                return
        self._streams[stream.session_id] = stream

    def close_stream(self, session_id: str, generation: int) -> None:
        """Tell the rules that a stream is gone, so that nothing more is offered to its session."""
        self._shard.propose(CloseStream(session_id, generation), _NobodyWaits())

    def drain(self) -> None:
        """The node is going down: send every agent to another one, and end all streams."""
        self._draining = True
        for stream in list(self._streams.values()):
            stream.send(pb.WorkResponse(redirect=pb.Redirect()), size_bytes=0)
            stream.end(_draining())

    def _on_applied(self, applied: Applied) -> None:
        """Deliver what a batch holds for the sessions of this node."""
        streams = self._streams
        if not streams:
            return
        assigned: dict[str, list[tuple[bytes, Assignment]]] = {}
        for key, row in changed(applied, _FOLLOWED):
            if isinstance(row, Assignment):
                session_id = key[1 : key.index(b"\0")].decode()
                if session_id in streams:
                    assigned.setdefault(session_id, []).append((key, row))
            elif key[:1] == keys.SESSION and (stream := streams.get(key[1:].decode())) is not None:
                assert row is None or isinstance(row, Session)
                _end_if_over(stream, row)
        if not assigned:
            return
        with self._shard.committed() as reader:
            for session_id, found in assigned.items():
                self._deliver(streams[session_id], found, reader)

    def _deliver(self, stream: AgentStream, assigned: Iterable[tuple[bytes, Assignment]], reader: Reading) -> None:
        """Send offers and cancels as the rows have them now: a batch's worth of each in one message."""
        offers: list[pb.Offer] = []
        cancels: list[pb.Cancel] = []
        size_bytes = 0
        for key, assignment in assigned:
            try:
                view = views.offer_view(reader, key, assignment, self._limits)
            except Exception:  # noqa: BLE001 - one offer that cannot be put together must not hold up the others
                self._counters.delivery_failures += 1
                _log.exception("offer_failed", session_id=stream.session_id, key=key.hex())
                continue
            if view is None:
                continue
            if view.cancel is not CancelReason.NONE:
                cancels.append(convert.cancel(view))
                continue
            size_bytes += len(view.input.data) + _OFFER_BYTES
            offers.append(convert.offer(view))
            if size_bytes >= _OFFERS_BYTES_MAX:
                stream.send(pb.WorkResponse(offers=pb.Offers(offers=offers)), size_bytes=size_bytes)
                offers, size_bytes = [], 0
        if cancels:
            stream.send(pb.WorkResponse(cancels=pb.Cancels(cancels=cancels)), size_bytes=_OFFER_BYTES * len(cancels))
        if offers:
            stream.send(pb.WorkResponse(offers=pb.Offers(offers=offers)), size_bytes=size_bytes)


# What an offer costs beside its input, and where a set of them is cut: a message must fit into the limit of clients
# that were told nothing, which is 4 MiB.
_OFFER_BYTES: Final = 512
_OFFERS_BYTES_MAX: Final = 1024 * 1024


class OpenTicket:
    """A stream that waits to be bound. If the agent has gone away meanwhile, the generation is closed at once."""

    __slots__ = ("_session_id", "_sessions", "future")

    def __init__(self, future: asyncio.Future[Answer], sessions: Sessions, session_id: str) -> None:
        self.future = future
        self._sessions = sessions
        self._session_id = session_id

    def answered(self, answer: Answer) -> None:
        """See `Ticket`."""
        if not self.future.done():
            self.future.set_result(answer)
        elif isinstance(answer, SessionOpened):
            self._sessions.close_stream(self._session_id, answer.generation)

    def abandon(self) -> None:
        """The agent has gone away; the answer may have come in the same moment."""
        if self.future.done() and not self.future.cancelled():
            answer = self.future.result()
            if isinstance(answer, SessionOpened):
                self._sessions.close_stream(self._session_id, answer.generation)


class _NobodyWaits:
    """The ticket of a command whose answer changes nothing."""

    def answered(self, answer: Answer) -> None:
        """See `Ticket`."""


def _end_if_over(stream: AgentStream, session: Session | None) -> None:
    if session is None or session.ending:
        text = f"session {stream.session_id} has ended; say hello with a new session id"
        stream.end(Rejection(Reason.SESSION_ENDED, text, {"session_id": stream.session_id}))
    elif session.generation > stream.generation:
        stream.end(_replaced(stream.session_id, session.generation))


def _replaced(session_id: str, generation: int) -> Rejection:
    text = f"session {session_id} has a newer stream, of generation {generation}"
    return Rejection(Reason.SESSION_ENDED, text, {"session_id": session_id, "generation": str(generation)})


def _draining() -> Rejection:
    return Rejection(Reason.NODE_DRAINING, "this node is shutting down; say hello to another one, the session stays")
