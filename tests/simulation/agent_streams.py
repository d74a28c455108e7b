"""The agents' streams of one process: the shipped stream object of the node, without its sockets."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from typing_extensions import override

from stepward.server import deliveries, session_binding
from stepward.server.agent_stream import AgentStream, Unanswered
from stepward.server.api import convert
from stepward.server.config import NodeConfig
from stepward.server.core import keys
from stepward.server.core.commands import CloseStream, SessionOpened
from stepward.server.core.rejections import Reason, Rejection
from stepward.server.core.rows import Assignment, CancelReason, Session
from stepward.server.observe import Counters
from stepward.server.reading import changed
from stepward.v1 import agent_service_pb2 as pb
from tests.simulation.agenda import MS
from tests.simulation.tickets import ShardTicket

if TYPE_CHECKING:
    from collections.abc import Iterable

    from stepward.server import tickets as server_tickets
    from stepward.server.core.commands import AnyCommand
    from stepward.server.logbook.outbox import Applied, Standing
    from stepward.server.store.live import CommittedRows
    from tests.simulation.network import Connection
    from tests.simulation.process import Process

_FOLLOWED: Final = keys.ASSIGNMENT + keys.SESSION
_MESSAGE_BYTES: Final = 400
_LOOK_US: Final = 100 * MS
_CONFIG: Final = NodeConfig(data=Path("nowhere"))


class AgentStreams:
    """By session, as the shipped `sessions.Sessions` keeps them."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._streams: dict[str, AgentStream] = {}
        self._by_connection: dict[Connection, AgentStream | None] = {}
        self._unanswered = Unanswered()
        self._counters = Counters()
        self._face = _ShardFace(process)
        self._look()

    def received(self, connection: Connection, message: bytes) -> None:
        """A message of an agent: the first is a hello."""
        if not connection.open:
            return
        request = pb.WorkRequest.FromString(message)
        if connection in self._by_connection:
            stream = self._by_connection[connection]
            if stream is not None:
                stream._take(request, len(message))
                self._flush(connection, stream)
            return
        self._by_connection[connection] = None
        hello = request.hello
        command = session_binding.opening(hello, node_id=self._process.name)
        self._process.propose(command, _Opening(self, connection, hello.session_id))

    def opened(self, connection: Connection, session_id: str, answer: Any) -> None:
        """The session is bound to this node, or refused."""
        if not isinstance(answer, SessionOpened):
            assert isinstance(answer, Rejection), answer
            self._refuse(connection, answer)
            return
        if not connection.open:
            self._close_stream(session_id, answer.generation)
            return
        process = self._process
        stream = AgentStream(
            session_id,
            answer,
            shard=self._face,  # type: ignore[arg-type]  # it has all that a stream asks of a shard
            clock=process.clock,
            limits=process.world.limits,
            config=_CONFIG,
            counters=self._counters,
            all_unanswered=self._unanswered,
            joins=False,
        )
        self._by_connection[connection] = stream
        self._register(stream)
        stream.send_welcome(process.name, ())
        self._deliver_all(stream)
        self.flush_all()

    def _deliver_all(self, stream: AgentStream) -> None:
        """Send everything that is open for a session."""
        with self._process.committed() as reader:
            found = [(key, reader.get(key)) for key in list(reader.scan(keys.assignments(stream.session_id)))]
            self._deliver(stream, [(key, row) for key, row in found if isinstance(row, Assignment)], reader)

    def start_over(self) -> None:
        """All rows have changed at once: nobody followed what lies between."""
        with self._process.committed() as reader:
            for stream in list(self._streams.values()):
                row = reader.get(keys.session(stream.session_id))
                assert row is None or isinstance(row, Session)
                over = session_binding.why_over(stream.session_id, row, stream.generation)
                if over is not None:
                    stream.end(over)
                else:
                    self._deliver_all(stream)
        self.flush_all()

    def _register(self, stream: AgentStream) -> None:
        """The newest stream of a session is the only one."""
        other = self._streams.get(stream.session_id)
        if other is not None:
            older = other if other.generation < stream.generation else stream
            older.end(session_binding.replaced(stream.session_id, max(other.generation, stream.generation)))
            if older is stream:
                return
        self._streams[stream.session_id] = stream

    def _close_stream(self, session_id: str, generation: int) -> None:
        self._process.propose(CloseStream(session_id, generation), ShardTicket(session_binding.NobodyWaits()))

    def applied(self, applied: Applied, reader: CommittedRows) -> None:
        """Deliver what a batch holds for the sessions of this node."""
        if not self._streams:
            return
        assigned: dict[str, list[tuple[bytes, Assignment]]] = {}
        for key, row in changed(applied, _FOLLOWED):
            if isinstance(row, Assignment):
                session_id = key[1 : key.index(b"\0")].decode()
                if session_id in self._streams:
                    assigned.setdefault(session_id, []).append((key, row))
            elif key[:1] == keys.SESSION and (stream := self._streams.get(key[1:].decode())) is not None:
                assert row is None or isinstance(row, Session)
                over = session_binding.why_over(stream.session_id, row, stream.generation)
                if over is not None:
                    stream.end(over)
        for session_id, found in assigned.items():
            # A later batch of the same step may have deleted it again.
            there = [(key, row) for key, row in found if reader.get(key) is not None]
            self._deliver(self._streams[session_id], there, reader)
        self.flush_all()

    def _deliver(
        self, stream: AgentStream, assigned: Iterable[tuple[bytes, Assignment]], reader: CommittedRows
    ) -> None:
        limits = self._process.world.limits
        offers, cancels = [], []
        for view in deliveries.offer_views(reader, assigned, limits=limits, counters=self._counters):  # type: ignore[arg-type]  # a reader is all that is used
            if view.cancel is not CancelReason.NONE:
                cancels.append(convert.cancel(view))
            else:
                offers.append(convert.offer(view))
        assert not self._counters.delivery_failures, "an offer could not be put together"
        if cancels:
            stream.send(pb.WorkResponse(cancels=pb.Cancels(cancels=cancels)), size_bytes=0)
        if offers:
            stream.send(pb.WorkResponse(offers=pb.Offers(offers=offers)), size_bytes=0)

    # Outwards.

    def flush_all(self) -> None:
        for connection, stream in list(self._by_connection.items()):
            if stream is not None:
                self._flush(connection, stream)

    def _flush(self, connection: Connection, stream: AgentStream) -> None:
        for message in stream.queued():
            connection.send(self._process, ("work", message.SerializeToString()), _MESSAGE_BYTES)
        stream._outgoing.clear()
        stream._outgoing_bytes = 0
        if stream.ending is not None:
            self._refuse(connection, stream.ending)

    def _refuse(self, connection: Connection, why: Rejection) -> None:
        """End a stream with a status; what is on its way to the agent arrives before it."""
        if connection.open:
            connection.send(self._process, ("status", why.reason.name), _MESSAGE_BYTES)
        self._forget(connection)

    def closed(self, connection: Connection) -> None:
        """The agent has gone away."""
        self._forget(connection)

    def _forget(self, connection: Connection) -> None:
        stream = self._by_connection.pop(connection, None)
        if stream is not None:
            if self._streams.get(stream.session_id) is stream:
                del self._streams[stream.session_id]
            self._close_stream(stream.session_id, stream.generation)

    def _look(self) -> None:
        """Send agents elsewhere when no leader has been heard of for a third of their lease."""
        process = self._process
        silent_ms = process.clock.steady_ms() - process.standing.contact_at_ms
        if self._streams and not process.leads and silent_ms > process.world.limits.session_ttl_ms // 3:
            for stream in list(self._streams.values()):
                stream.end(Rejection(Reason.NO_LEADER, f"no leader was heard of for {silent_ms} ms"))
            self.flush_all()
        process.agenda.after(_LOOK_US, process.when_awake, self._look)


class _Opening:
    """An agent that waits for its session."""

    def __init__(self, streams: AgentStreams, connection: Connection, session_id: str) -> None:
        self._streams = streams
        self._connection = connection
        self._session_id = session_id
        self.floor = 0

    def answered(self, answer: Any, sequence: int) -> None:
        """See `tickets.Ticket`."""
        self._streams.opened(self._connection, self._session_id, answer)


class _ShardFace:
    """What a stream asks of the shipped shard."""

    def __init__(self, process: Process) -> None:
        self._process = process

    @property
    def leads(self) -> bool:
        """A renewal is acknowledged by the leader alone, wherever the stream is: what it says counts here, too."""
        return True

    @property
    def standing(self) -> Standing:
        """What the replica was at the end of the last step."""
        return self._process.standing

    def propose(self, command: AnyCommand, ticket: server_tickets.Ticket, *, share: str = "") -> None:
        """See `shard.Shard`."""
        self._process.propose(command, self._flushing(ticket))

    def renew(self, command: AnyCommand, ticket: server_tickets.Ticket) -> None:
        """See `shard.Shard`."""
        self._process.renew(command, self._flushing(ticket))

    def _flushing(self, ticket: server_tickets.Ticket) -> ShardTicket:
        return _Flushing(ticket, self._process)


class _Flushing(ShardTicket):
    """After an answer, what the stream has to say about it leaves."""

    def __init__(self, ticket: server_tickets.Ticket, process: Process) -> None:
        super().__init__(ticket)
        self._process = process

    @override
    def answered(self, answer: Any, sequence: int) -> None:
        super().answered(answer, sequence)
        self._process.agent_streams.flush_all()
