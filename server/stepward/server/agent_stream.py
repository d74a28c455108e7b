"""One open stream of one agent: its messages become commands, and what is sent to it waits in a bounded queue."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Final, NamedTuple, assert_never

from stepward.server import agent_reports, deliveries
from stepward.server.api import convert, validate
from stepward.server.core.commands import AttemptsReported, DrainSession, RenewSession, SessionOpened, SessionRenewed
from stepward.server.core.rejections import Reason, Refused, Rejection
from stepward.server.interceptor import parse
from stepward.v1 import agent_service_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stepward.server.clock import Clock
    from stepward.server.config import NodeConfig
    from stepward.server.core.commands import Answer, AttemptReport
    from stepward.server.core.limits import Limits
    from stepward.server.interceptor import Context
    from stepward.server.observe import Counters
    from stepward.server.shard import Shard

# After a stream was told to end, so long may what stands in its queue take to be sent.
_LAST_WORDS_MS_MAX: Final = 1_000
_ANSWER_BYTES: Final = 128
# Messages are joined up to this size, as offers are, so that agents which were told of no limit can read them.
JOINED_BYTES_MAX: Final = deliveries.OFFERS_BYTES_MAX

# Answers that say that this node cannot serve the session any more, whatever it does.
_STREAM_ENDS: Final = frozenset(
    {Reason.SESSION_ENDED, Reason.NOT_LEADER, Reason.NO_LEADER, Reason.COMMIT_UNKNOWN, Reason.NODE_DRAINING}
)
# Of a heartbeat: one that found no leader, or was lost with it, is met with silence, and the next one goes to the next
# leader. A node that finds none for long ends its streams itself.
_HEARTBEAT_ENDS: Final = frozenset({Reason.SESSION_ENDED, Reason.NODE_DRAINING})


class _Outgoing(NamedTuple):
    message: pb.WorkResponse
    size_bytes: int


class Unanswered:
    """Bytes of reports that wait to be recorded, of all streams of a node."""

    __slots__ = ("size_bytes",)

    def __init__(self) -> None:
        self.size_bytes = 0


class AgentStream:
    """One stream, bound to a generation of its session."""

    def __init__(
        self,
        session_id: str,
        opened: SessionOpened,
        *,
        shard: Shard,
        clock: Clock,
        limits: Limits,
        config: NodeConfig,
        counters: Counters,
        all_unanswered: Unanswered,
        joins: bool,
    ) -> None:
        """`joins`: its agent reads several messages as one."""
        self.session_id = session_id
        self.generation = opened.generation
        self.ttl_ms = opened.ttl_ms
        self._shard = shard
        self._clock = clock
        self._limits = limits
        self._config = config
        self._counters = counters
        self._joins = joins
        self._outgoing: deque[_Outgoing] = deque()
        self._outgoing_bytes = 0
        self._something_to_do = asyncio.Event()
        self._over = asyncio.Event()
        self.ending: Rejection | None = None
        self._heartbeats_waiting = 0
        # Of this stream, and of all streams of the node.
        self._unanswered_bytes = 0
        self._all_unanswered = all_unanswered
        self._room = asyncio.Event()
        self._room.set()

    # Outwards.

    def queued(self) -> list[pb.WorkResponse]:
        """What waits to be written."""
        return [outgoing.message for outgoing in self._outgoing]

    def send(self, message: pb.WorkResponse, *, size_bytes: int) -> None:
        """Queue a message. An agent that does not read loses its stream rather than fill our memory."""
        if self._over.is_set():
            return
        self._outgoing.append(_Outgoing(message, size_bytes))
        self._outgoing_bytes += size_bytes
        self._something_to_do.set()
        if self._outgoing_bytes > self._config.stream_bytes_waiting_max:
            self._counters.slow_streams += 1
            bound = self._config.stream_bytes_waiting_max
            text = f"{self._outgoing_bytes} bytes wait to be read on this stream; at most {bound} may: read, or resume"
            self._outgoing.clear()
            self.end(Rejection(Reason.OVERLOADED, text, retry_after_ms=self._config.overload_retry_after_ms))

    def end(self, why: Rejection) -> None:
        """End the stream when what is queued has been sent. The first reason counts."""
        if self.ending is None:
            self.ending = why
            self._close()

    def _close(self) -> None:
        """Let nothing more be queued, and the writer end behind what is."""
        self._over.set()
        self._something_to_do.set()

    def send_welcome(self, node_id: str, node_addresses: Sequence[str]) -> None:
        """The first message on every stream."""
        welcome = deliveries.welcome(
            self.session_id,
            SessionOpened(self.generation, self.ttl_ms),
            node_id=node_id,
            node_addresses=node_addresses,
            limits=self._limits,
        )
        self.send(pb.WorkResponse(welcome=welcome), size_bytes=0)

    async def run(self, context: Context) -> None:
        """Read and write until one of both ends.

        Raises:
            Refused: Why the stream ended, unless the agent closed it.
        """
        # Apart from the first message: a status cannot follow a write that stalls when these travel together.
        await context.send_initial_metadata(())
        reader = asyncio.create_task(self._read(context))
        writer = asyncio.create_task(self._write(context))
        over = asyncio.create_task(self._over.wait())
        try:
            await asyncio.wait((reader, writer, over), return_when=asyncio.FIRST_COMPLETED)
            if reader.done():
                self._close()
            # A write that the agent does not take never returns. The status goes behind it, for when the agent reads.
            await asyncio.wait((writer,), timeout=_LAST_WORDS_MS_MAX / 1_000)
            if reader.done():
                # Raises what the agent did wrong; a stream that the agent closed in order just ends.
                reader.result()
                return
            if writer.done():
                writer.result()
        finally:
            for task in (reader, writer, over):
                task.cancel()
            await asyncio.gather(reader, writer, over, return_exceptions=True)
        assert self.ending is not None
        raise Refused(self.ending)

    async def _write(self, context: Context) -> None:
        """Write what is queued, until the stream was told to end and nothing is left."""
        while not self._over.is_set() or self._outgoing:
            await self._something_to_do.wait()
            self._something_to_do.clear()
            await self._write_queued(context)

    async def _write_queued(self, context: Context) -> None:
        while self._outgoing:
            await context.write(self._next())

    def _next(self) -> pb.WorkResponse:
        """The oldest message that waits, joined with those behind it that fit, if the agent reads that.

        A write costs more than most of what it carries. What one batch has for a stream is queued before the writer
        runs, so it leaves as one message; and the slower an agent reads, the more is joined.
        """
        outgoing = self._outgoing
        first, size_bytes = outgoing.popleft()
        # The contract's first message stands alone, so that every agent knows how to begin.
        if self._joins and outgoing and not first.HasField("welcome"):
            joined = [first]
            while outgoing and size_bytes + outgoing[0].size_bytes <= JOINED_BYTES_MAX:
                message, added_bytes = outgoing.popleft()
                joined.append(message)
                size_bytes += added_bytes
            if len(joined) > 1:
                first = pb.WorkResponse(together=pb.Together(responses=joined))
        self._outgoing_bytes -= size_bytes
        return first

    # Inwards.

    async def _read(self, context: Context) -> None:
        """Take in messages until the agent closes its side.

        An agent that reports faster than the disk takes it is read no further until there is room.
        """
        while True:
            raw = await context.read()
            if not isinstance(raw, bytes):
                return
            self._take(parse(pb.WorkRequest, raw), len(raw))
            if not self._room.is_set():
                await self._room.wait()

    def _take(self, request: pb.WorkRequest, size_bytes: int) -> None:
        match request.WhichOneof("message"):
            case "report":
                self._report(request.report, size_bytes)
            case "heartbeat":
                self._heartbeat(request.heartbeat)
            case "drain":
                command = DrainSession(self.session_id, self.generation)
                self._shard.propose(command, _DrainTicket(self))
            case "hello":
                raise Refused(Rejection(Reason.INVALID_ARGUMENT, "a second hello came on one stream; open another"))
            case None:
                # Of a newer protocol, which must work without being understood.
                pass
            case never:
                assert_never(never)

    def _heartbeat(self, heartbeat: pb.Heartbeat) -> None:
        validate.require(validate.held("heartbeat.held", heartbeat.held, self._limits))
        if self._heartbeats_waiting >= self._config.heartbeats_waiting_max:
            return
        command = RenewSession(
            self.session_id,
            self.generation,
            heartbeat.held_digest,
            convert.held(heartbeat.held) if heartbeat.held_is_complete else None,
            heartbeat.busy_slots,
        )
        self._heartbeats_waiting += 1
        self._shard.renew(command, _HeartbeatTicket(self, heartbeat.number, self._clock.steady_ms()))

    def heartbeat_answered(self, answer: Answer, *, number: int, arrived_ms: int) -> None:
        """Acknowledge a heartbeat, unless that would promise a lease that we may not keep.

        Whoever decided it led when he did; here only its age is judged. An acknowledgement that comes late would say
        that the agent was heard when the rules may already have begun to count it as lost; silence is safe, since the
        agent then counts from an older heartbeat.
        """
        self._heartbeats_waiting -= 1
        if isinstance(answer, SessionRenewed):
            if self._clock.steady_ms() - arrived_ms <= self.ttl_ms // 3:
                said = pb.HeartbeatAnswer(number=number, send_held=answer.send_held)
                self.send(pb.WorkResponse(heartbeat=said), size_bytes=_ANSWER_BYTES)
            if answer.unknown:
                cancels = [convert.stale(ref) for ref in answer.unknown]
                message = pb.WorkResponse(cancels=pb.Cancels(cancels=cancels))
                self.send(message, size_bytes=_ANSWER_BYTES * len(cancels))
            return
        assert isinstance(answer, Rejection), answer
        if answer.reason in _HEARTBEAT_ENDS:
            self.end(answer)

    def _report(self, report: pb.Report, size_bytes: int) -> None:
        reports = agent_reports.read(report, self._limits)
        known = [one for one in reports if agent_reports.may_exist(one)]
        if len(known) < len(reports):
            strangers = [one for one in reports if not agent_reports.may_exist(one)]
            self._answer_all(strangers, "NOT_FOUND", "no such job")
        if not known:
            return
        self._unanswered_bytes += size_bytes
        self._all_unanswered.size_bytes += size_bytes
        all_are_many = self._all_unanswered.size_bytes > self._config.report_bytes_waiting_max
        if all_are_many or self._unanswered_bytes > self._config.stream_bytes_waiting_max:
            self._room.clear()
        parts = agent_reports.commands(self.session_id, self.generation, known)
        part_bytes = size_bytes // len(parts)
        for number, command in enumerate(parts):
            bytes_ = part_bytes if number else size_bytes - part_bytes * (len(parts) - 1)
            self._shard.propose(command, _ReportTicket(self, command.reports, bytes_))

    def reports_answered(self, answer: Answer, reports: tuple[AttemptReport, ...], size_bytes: int) -> None:
        """Tell the agent what its reports came to."""
        self._unanswered_bytes -= size_bytes
        self._all_unanswered.size_bytes -= size_bytes
        self._room.set()
        if isinstance(answer, AttemptsReported):
            if answer.results:
                message = pb.WorkResponse(answers=convert.report_answers(answer))
                self.send(message, size_bytes=_ANSWER_BYTES * len(answer.results))
            return
        assert isinstance(answer, Rejection), answer
        if answer.reason in agent_reports.REPORT_AGAIN:
            # On its next stream.
            self.end(answer)
            return
        self._answer_all(list(reports), "INTERNAL", answer.message)

    def _answer_all(self, reports: list[AttemptReport], result: str, message: str) -> None:
        answers = agent_reports.same_answer(reports, result, message)
        if answers:
            said = pb.WorkResponse(answers=pb.ReportAnswers(answers=answers))
            self.send(said, size_bytes=_ANSWER_BYTES * len(answers))


class _HeartbeatTicket:
    """A heartbeat that waits to be acknowledged."""

    __slots__ = ("_arrived_ms", "_number", "_stream")

    def __init__(self, stream: AgentStream, number: int, arrived_ms: int) -> None:
        self._stream = stream
        self._number = number
        self._arrived_ms = arrived_ms

    def answered(self, answer: Answer) -> None:
        """See `Ticket`."""
        self._stream.heartbeat_answered(answer, number=self._number, arrived_ms=self._arrived_ms)


class _ReportTicket:
    """Reports that wait to be answered."""

    __slots__ = ("_reports", "_size_bytes", "_stream")

    def __init__(self, stream: AgentStream, reports: tuple[AttemptReport, ...], size_bytes: int) -> None:
        self._stream = stream
        self._reports = reports
        self._size_bytes = size_bytes

    def answered(self, answer: Answer) -> None:
        """See `Ticket`."""
        self._stream.reports_answered(answer, self._reports, self._size_bytes)


class _DrainTicket:
    """A drain, which is answered only when it ends the stream."""

    __slots__ = ("_stream",)

    def __init__(self, stream: AgentStream) -> None:
        self._stream = stream

    def answered(self, answer: Answer) -> None:
        """See `Ticket`."""
        if isinstance(answer, Rejection) and answer.reason in _STREAM_ENDS:
            self._stream.end(answer)
