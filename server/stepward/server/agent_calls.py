"""Agents without streaming: the calls that open a session and wait for work, renew it, and report.

The rules are those of a stream. A LeaseWork call is the ear of its session: work is offered while one waits, and
nothing is known to the agent that was not told to one. What is told is read from committed rows each time, so an answer
that was lost costs nothing but another call.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from stepward.server import agent_reports, deliveries, session_binding
from stepward.server.api import convert
from stepward.server.core import keys, views
from stepward.server.core.commands import AttemptsReported, CloseStream, RenewSession, SessionRenewed
from stepward.server.core.rejections import Reason, Refused, Rejection, refuse
from stepward.server.core.rows import Assignment, CancelReason, Session
from stepward.server.reading import changed
from stepward.server.reads import CurrentRows
from stepward.server.tickets import FutureTicket
from stepward.v1 import agent_service_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from stepward.server.admission import Admission
    from stepward.server.clock import Clock
    from stepward.server.config import NodeConfig
    from stepward.server.core.commands import Answer, AnyCommand, AttemptRef, AttemptReport, SessionOpened
    from stepward.server.core.limits import Limits
    from stepward.server.logbook.replica import Applied
    from stepward.server.observe import Counters
    from stepward.server.reading import Reading
    from stepward.server.shard import Shard

_FOLLOWED: Final = keys.ASSIGNMENT + keys.SESSION


class _Ear:
    """The calls of one session that ask for work at the moment."""

    __slots__ = ("calls", "generation", "waits")

    def __init__(self) -> None:
        # Calls that listen, also those whose session is still being opened; and the newest generation of any of them.
        self.calls = 0
        self.generation = 0
        self.waits: set[_Wait] = set()


class _Wait:
    """One call that waits for news of its session."""

    __slots__ = ("_news", "ended", "ends_at", "generation")

    def __init__(self, generation: int, ends_at: float) -> None:
        """`ends_at`: on the clock of the loop."""
        self.generation = generation
        self.ends_at = ends_at
        # Why it waits no longer.
        self.ended: Rejection | None = None
        self._news = asyncio.Event()

    def wake(self) -> None:
        """There may be news."""
        self._news.set()

    def end(self, why: Rejection) -> None:
        """Wait no longer, unless there is news."""
        self.ended = why
        self._news.set()

    async def over(self) -> bool:
        """Wait for news. True: there was none, and the time is over."""
        try:
            async with asyncio.timeout_at(self.ends_at):
                await self._news.wait()
        except TimeoutError:
            return True
        self._news.clear()
        return False


class _Told(NamedTuple):
    """What a call is answered. `news`: there is something in it that the agent does not know."""

    offers: list[pb.Offer]
    cancels: list[pb.Cancel]
    news: bool


class AgentCalls:
    """The calls of agents without streaming that this node serves."""

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
        self._ears: dict[str, _Ear] = {}
        self._calls = 0
        self._renewals: Counter[str] = Counter()
        self._report_bytes = 0
        self._draining = False
        shard.on_applied(self._on_applied)

    @property
    def count(self) -> int:
        """How many calls wait for work."""
        return self._calls

    def drain(self) -> None:
        """The node is going down: end all waits. What has been asked otherwise is still answered."""
        self._draining = True
        self.send_away(session_binding.draining())

    def send_away(self, why: Rejection) -> None:
        """End all waits of now: their agents are served better elsewhere."""
        for ear in self._ears.values():
            for wait in ear.waits:
                wait.end(why)

    def start_over(self) -> None:
        """Rows of another node are here, and no batch told what led to them: let every call look for itself."""
        for ear in self._ears.values():
            for wait in ear.waits:
                wait.wake()

    # Work.

    async def lease_work(self, request: pb.LeaseWorkRequest, *, wait_ms_max: int) -> pb.LeaseWorkResponse:
        """Open a session or go on with it, and wait until there is something that the agent does not know.

        Raises:
            Refused: By the rules; NODE_DRAINING; OVERLOADED, when too many wait.
        """
        self._require_room()
        session_id = request.hello.session_id
        # Listens from before its session is opened, so that the end of another call does not make the session deaf.
        ear = self._ears.setdefault(session_id, _Ear())
        ear.calls += 1
        self._calls += 1
        try:
            opened = await self._open(request.hello)
            ear.generation = max(ear.generation, opened.generation)
            told = await self._wait(request, ear, opened, wait_ms_max)
        finally:
            self._calls -= 1
            ear.calls -= 1
            if not ear.calls:
                del self._ears[session_id]
                self._close_if_deaf(session_id, ear.generation)
        welcome = deliveries.welcome(
            session_id,
            opened,
            node_id=self._node_id,
            node_addresses=self._node_addresses,
            limits=self._limits,
        )
        return pb.LeaseWorkResponse(welcome=welcome, offers=told.offers, cancels=told.cancels)

    def _require_room(self) -> None:
        if self._draining:
            raise Refused(session_binding.draining())
        if self._calls >= self._config.lease_waits_max:
            text = f"{self._calls} LeaseWork calls wait on this node, which is the most; try another node, or later"
            raise self._admission.overloaded(text)

    async def _open(self, hello: pb.Hello) -> SessionOpened:
        command = session_binding.opening(hello, node_id=self._node_id, goes_on=True)
        unwanted = partial(self._close_if_deaf, hello.session_id)
        ticket = session_binding.OpenTicket(asyncio.get_running_loop().create_future(), unwanted)
        return await session_binding.opened(self._shard, command, ticket)

    def _close_if_deaf(self, session_id: str, generation: int) -> None:
        """Offer nothing more to a session of which no call listens.

        It goes the way of commands, as the opening did, so the two cannot overtake each other.
        """
        if session_id not in self._ears and generation:
            self._shard.propose(CloseStream(session_id, generation), session_binding.NobodyWaits())

    async def _wait(self, request: pb.LeaseWorkRequest, ear: _Ear, opened: SessionOpened, wait_ms_max: int) -> _Told:
        """What to tell, as soon as there is something new in it, at latest when the wait is over.

        No longer than a third of the TTL: after that nothing would be offered to a session that says nothing.
        """
        wait_ms = min(wait_ms_max, opened.ttl_ms // 3)
        wait = _Wait(opened.generation, asyncio.get_running_loop().time() + wait_ms / 1_000)
        # Registered before it reads: whatever is applied in between is seen.
        ear.waits.add(wait)
        over = False
        try:
            while True:
                told = self._read(request, opened.generation)
                if told.news or over:
                    return told
                if wait.ended is not None:
                    raise Refused(wait.ended)
                over = await wait.over()
        finally:
            ear.waits.discard(wait)

    def _read(self, request: pb.LeaseWorkRequest, generation: int) -> _Told:
        """What there is to tell of a session now."""
        session_id = request.hello.session_id
        held = frozenset(convert.held(request.hello.held))
        known = frozenset(convert.held(request.cancelled))
        with self._shard.committed() as reader:
            _require_current(reader, session_id, generation)
            assigned = dict(_assignments(reader, session_id))
            wanted = [
                (key, row)
                for key, (ref, row) in assigned.items()
                if row.cancel is not CancelReason.NONE or ref not in held
            ]
            views_ = deliveries.offer_views(reader, wanted, limits=self._limits, counters=self._counters)
            offers, cancels, cancelled = [], [], set()
            size_bytes = 0
            for view in views_:
                if view.cancel is not CancelReason.NONE:
                    cancels.append(convert.cancel(view))
                    cancelled.add(view.attempt)
                elif size_bytes < deliveries.OFFERS_BYTES_MAX:
                    size_bytes += deliveries.offer_bytes(view)
                    offers.append(convert.offer(view))
        strangers = held - {ref for ref, _ in assigned.values()}
        cancels += [convert.stale(ref) for ref in sorted(strangers)]
        return _Told(offers, cancels, news=bool(offers or (cancelled | strangers) - known))

    def _on_applied(self, applied: Applied) -> None:
        """Wake the calls that a batch may have news for."""
        if not self._ears:
            return
        for key, row in changed(applied, _FOLLOWED, lambda key: keys.owner(key) in self._ears):
            session_id = keys.owner(key)
            ear = self._ears[session_id]
            if isinstance(row, Assignment):
                for wait in ear.waits:
                    wait.wake()
            elif key[:1] == keys.SESSION:
                assert row is None or isinstance(row, Session)
                for wait in ear.waits:
                    if session_binding.why_over(session_id, row, wait.generation) is not None:
                        wait.wake()

    # Renewals.

    async def renew_session(self, request: pb.RenewSessionRequest) -> pb.RenewSessionResponse:
        """Renew a session, and tell what is no longer wanted.

        Raises:
            Refused: By the rules; OVERLOADED, when too many renewals of this session wait.
        """
        session_id, arrived_ms = request.session_id, self._clock.steady_ms()
        if self._renewals[session_id] >= self._config.heartbeats_waiting_max:
            text = f"{self._renewals[session_id]} renewals of session {session_id} wait; send one after another"
            raise self._admission.overloaded(text)
        self._renewals[session_id] += 1
        try:
            renewed = await self._renew(request)
        finally:
            self._renewals[session_id] -= 1
            if not self._renewals[session_id]:
                del self._renewals[session_id]
        with self._shard.committed() as reader:
            session = _require_current(reader, session_id, request.generation)
            cancels = self._cancels(reader, session_id)
        if self._clock.steady_ms() - arrived_ms > session.ttl_ms // 3:
            # As on a stream, where such a heartbeat is met with silence: the lease that it would promise may be over.
            text = "the renewal took too long to be acknowledged; renew again"
            raise Refused(
                Rejection(Reason.NO_LEADER, text, retry_after_ms=session.ttl_ms // deliveries.HEARTBEATS_A_TTL)
            )
        answer = pb.HeartbeatAnswer(number=request.heartbeat.number, send_held=renewed.send_held)
        cancels += [convert.stale(ref) for ref in renewed.unknown]
        return pb.RenewSessionResponse(heartbeat=answer, cancels=cancels)

    async def _renew(self, request: pb.RenewSessionRequest) -> SessionRenewed:
        heartbeat = request.heartbeat
        command = RenewSession(
            request.session_id,
            request.generation,
            heartbeat.held_digest,
            convert.held(heartbeat.held) if heartbeat.held_is_complete else None,
            heartbeat.busy_slots,
            on_stream=False,
        )
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._shard.renew(command, FutureTicket(future))
        answer = await future
        if isinstance(answer, SessionRenewed):
            return answer
        assert isinstance(answer, Rejection), answer
        raise Refused(answer)

    def _cancels(self, reader: Reading, session_id: str) -> list[pb.Cancel]:
        """The open cancels of a session."""
        cancelled = [
            (key, row) for key, (_, row) in _assignments(reader, session_id) if row.cancel is not CancelReason.NONE
        ]
        found = deliveries.offer_views(reader, cancelled, limits=self._limits, counters=self._counters)
        return [convert.cancel(view) for view in found]

    # Reports.

    async def report_attempts(self, request: pb.ReportAttemptsRequest) -> pb.ReportAttemptsResponse:
        """Have reports recorded, each answered by its token.

        Raises:
            Refused: A newer generation of the session is open, or nothing was recorded, or nobody knows: report again.
        """
        reports = agent_reports.read(request.report, self._limits)
        await self._require_no_newer(request.session_id, request.generation)
        size_bytes = request.ByteSize()
        if self._report_bytes and self._report_bytes + size_bytes > self._config.report_bytes_waiting_max:
            text = (
                f"reports of {self._report_bytes} bytes wait to be recorded; "
                f"at most {self._config.report_bytes_waiting_max} may: report again"
            )
            raise self._admission.overloaded(text)
        self._report_bytes += size_bytes
        try:
            answers = await self._report(request, reports)
        finally:
            self._report_bytes -= size_bytes
        return pb.ReportAttemptsResponse(answers=pb.ReportAnswers(answers=answers))

    async def _require_no_newer(self, session_id: str, generation: int) -> None:
        """Refuse what an older generation of an open session says, as a stream of it would be closed.

        This node may not have heard of the newest yet; so only one that is newer proves something.

        Raises:
            Refused: SESSION_ENDED.
        """
        with self._shard.committed() as reader:
            session = _open_session(reader, session_id)
        if session is not None and session.generation < generation:
            async with CurrentRows(self._shard) as current:
                session = _open_session(current, session_id)
        if session is not None and session.generation != generation:
            text = f"session {session_id} is open with generation {session.generation}; this call says {generation}"
            raise refuse(Reason.SESSION_ENDED, text, session_id=session_id, generation=str(session.generation))

    async def _report(
        self, request: pb.ReportAttemptsRequest, reports: tuple[AttemptReport, ...]
    ) -> list[pb.ReportAnswer]:
        known = [one for one in reports if agent_reports.may_exist(one)]
        parts = agent_reports.commands(request.session_id, request.generation, known)
        answered = [self._propose(part) for part in parts]
        recorded: list[pb.ReportAnswer] = []
        again: Rejection | None = None
        for part, future in zip(parts, answered, strict=True):
            answer = await future
            if isinstance(answer, AttemptsReported):
                recorded += convert.report_answers(answer).answers
                continue
            assert isinstance(answer, Rejection), answer
            if answer.reason in agent_reports.REPORT_AGAIN:
                again = again or answer
            recorded += agent_reports.same_answer(part.reports, "INTERNAL", answer.message)
        if again is not None:
            raise Refused(again)
        return list(_in_order(reports, recorded))

    def _propose(self, command: AnyCommand) -> asyncio.Future[Answer]:
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._shard.propose(command, FutureTicket(future))
        return future


def _in_order(reports: Iterable[AttemptReport], recorded: Iterable[pb.ReportAnswer]) -> Iterator[pb.ReportAnswer]:
    """The answers in the order of the reports, with those that could not even be looked up."""
    answers = iter(recorded)
    for one in reports:
        refused = agent_reports.same_answer((one,), "NOT_FOUND", "no such job")
        if refused:
            yield next(answers) if agent_reports.may_exist(one) else refused[0]


def _assignments(reader: Reading, session_id: str) -> Iterator[tuple[bytes, tuple[AttemptRef, Assignment]]]:
    """What the rows say that a session holds, the oldest first."""
    for key in list(reader.scan(keys.assignments(session_id))):
        row = reader.get(key)
        assert isinstance(row, Assignment), key
        yield key, (views.attempt_ref(reader, key), row)


def _session(reader: Reading, session_id: str) -> Session | None:
    row = reader.get(keys.session(session_id))
    assert row is None or isinstance(row, Session), row
    return row


def _require_current(reader: Reading, session_id: str, generation: int) -> Session:
    """The session, unless it is over or has a newer generation.

    Raises:
        Refused: SESSION_ENDED.
    """
    session = _session(reader, session_id)
    over = session_binding.why_over(session_id, session, generation)
    if over is not None:
        raise Refused(over)
    assert session is not None
    return session


def _open_session(reader: Reading, session_id: str) -> Session | None:
    session = _session(reader, session_id)
    return None if session is None or session.ending else session
