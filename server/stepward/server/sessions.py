"""The agents' streams of this node: what comes in becomes commands, what goes out comes from applied rows.

A stream sends nothing before the batch that binds it to this node is applied; then it sends every open assignment of
its session, and from then on follows the batches. There is no other way of delivery that could lose something; what
is sent twice, agents drop.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Final

from stepward.server import deliveries, session_binding
from stepward.server.agent_stream import AgentStream, Unanswered
from stepward.server.api import convert, validate
from stepward.server.core import keys
from stepward.server.core.commands import CloseStream, SessionOpened
from stepward.server.core.rejections import Reason, Refused, Rejection
from stepward.server.core.rows import Assignment, CancelReason, Session
from stepward.server.interceptor import parse
from stepward.server.reading import changed
from stepward.v1 import agent_service_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from stepward.server.admission import Admission
    from stepward.server.clock import Clock
    from stepward.server.config import NodeConfig
    from stepward.server.core.limits import Limits
    from stepward.server.interceptor import Context
    from stepward.server.logbook.replica import Applied
    from stepward.server.observe import Counters
    from stepward.server.reading import Reading
    from stepward.server.shard import Shard

HELLO_MS_MAX: Final = 10_000
_FOLLOWED: Final = keys.ASSIGNMENT + keys.SESSION


class Sessions:
    """All agents' streams that are open on this node, by session."""

    def __init__(
        self,
        shard: Shard,
        *,
        node_id: str,
        node_addresses: Sequence[str] = (),
        clock: Clock,
        limits: Limits,
        config: NodeConfig,
        counters: Counters,
        admission: Admission,
    ) -> None:
        """`node_addresses`: where all nodes of the cluster are reached, which agents are told."""
        self._shard = shard
        self._node_id = node_id
        self._node_addresses = tuple(node_addresses)
        self._clock = clock
        self._limits = limits
        self._config = config
        self._counters = counters
        self._admission = admission
        self._streams: dict[str, AgentStream] = {}
        self._unanswered = Unanswered()
        self._count = 0
        self._draining = False
        shard.on_applied(self._on_applied)

    @property
    def count(self) -> int:
        """How many streams are open."""
        return self._count

    async def serve(self, context: Context) -> None:
        """Serve one stream until it ends.

        Raises:
            Refused: Why it ended, unless the agent closed it.
        """
        if self._draining:
            raise Refused(session_binding.draining())
        if self._count >= self._config.streams_max:
            text = f"{self._count} agents' streams are open on this node, which is the most; try another node"
            raise self._admission.overloaded(text)
        self._count += 1
        try:
            hello = await self._hello(context)
            opened = await self._open(hello)
            await self._follow(context, hello, opened)
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
        command = session_binding.opening(hello, node_id=self._node_id)
        unwanted = partial(self.close_stream, hello.session_id)
        ticket = session_binding.OpenTicket(asyncio.get_running_loop().create_future(), unwanted)
        return await session_binding.opened(self._shard, command, ticket)

    async def _follow(self, context: Context, hello: pb.Hello, opened: SessionOpened) -> None:
        """Welcome the agent, send what is open, and follow until the stream ends."""
        session_id = hello.session_id
        stream = AgentStream(
            session_id,
            opened,
            shard=self._shard,
            clock=self._clock,
            limits=self._limits,
            config=self._config,
            counters=self._counters,
            all_unanswered=self._unanswered,
            joins=hello.reads_together,
        )
        # From here to the first await nothing can be applied: what is not in the rows now will be followed.
        self.register(stream)
        stream.send_welcome(self._node_id, self._node_addresses)
        with self._shard.committed() as reader:
            # A batch that has bound the session elsewhere may have been told between the answer and this moment.
            self._go_on(stream, reader)
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
            older.end(session_binding.replaced(stream.session_id, max(other.generation, stream.generation)))
            if older is stream:
                return
        self._streams[stream.session_id] = stream

    def close_stream(self, session_id: str, generation: int) -> None:
        """Tell the rules that a stream is gone, so that nothing more is offered to its session."""
        self._shard.propose(CloseStream(session_id, generation), session_binding.NobodyWaits())

    def drain(self) -> None:
        """The node is going down: send every agent to another one, and end all streams."""
        self._draining = True
        self.send_away(session_binding.draining())

    def send_away(self, why: Rejection) -> None:
        """Send every agent of now to another node: this one can do nothing for it."""
        for stream in list(self._streams.values()):
            stream.send(pb.WorkResponse(redirect=pb.Redirect()), size_bytes=0)
            stream.end(why)

    def start_over(self) -> None:
        """Rows of another node are here, and no batch told what led to them: send every stream what is open now."""
        with self._shard.committed() as reader:
            for stream in list(self._streams.values()):
                self._go_on(stream, reader)

    def _go_on(self, stream: AgentStream, reader: Reading) -> None:
        """End a stream that is over; else send everything that its session holds. Agents drop what they know."""
        row = reader.get(keys.session(stream.session_id))
        assert row is None or isinstance(row, Session)
        over = session_binding.why_over(stream.session_id, row, stream.generation)
        if over is not None:
            stream.end(over)
            return
        found = [(key, reader.get(key)) for key in list(reader.scan(keys.assignments(stream.session_id)))]
        self._deliver(stream, [(key, row) for key, row in found if isinstance(row, Assignment)], reader)

    def _on_applied(self, applied: Applied) -> None:
        """Deliver what a batch holds for the sessions of this node."""
        streams = self._streams
        if not streams:
            return
        assigned: dict[str, list[tuple[bytes, Assignment]]] = {}
        for key, row in changed(applied, _FOLLOWED, lambda key: keys.owner(key) in streams):
            stream = streams[keys.owner(key)]
            if isinstance(row, Assignment):
                assigned.setdefault(stream.session_id, []).append((key, row))
            elif key[:1] == keys.SESSION:
                assert row is None or isinstance(row, Session)
                over = session_binding.why_over(stream.session_id, row, stream.generation)
                if over is not None:
                    stream.end(over)
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
        for view in deliveries.offer_views(reader, assigned, limits=self._limits, counters=self._counters):
            if view.cancel is not CancelReason.NONE:
                cancels.append(convert.cancel(view))
                continue
            size_bytes += deliveries.offer_bytes(view)
            offers.append(convert.offer(view))
            if size_bytes >= deliveries.OFFERS_BYTES_MAX:
                stream.send(pb.WorkResponse(offers=pb.Offers(offers=offers)), size_bytes=size_bytes)
                offers, size_bytes = [], 0
        if cancels:
            size = deliveries.OFFER_BYTES * len(cancels)
            stream.send(pb.WorkResponse(cancels=pb.Cancels(cancels=cancels)), size_bytes=size)
        if offers:
            stream.send(pb.WorkResponse(offers=pb.Offers(offers=offers)), size_bytes=size_bytes)
