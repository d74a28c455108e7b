"""One process of an agent on a bench: it holds a session, takes what it is told, and may die."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Final

from stepward.agents import outcomes
from stepward.agents.attempts import AttemptKey
from stepward.agents.context import AttemptFacts, Context
from stepward.agents.testing import sources
from stepward.agents.testing.calls import call_handler
from stepward.agents.testing.errors import BenchError
from stepward.agents.testing.faults import AnswerLost, Crash, Hangs, Instead, Takes
from stepward.agents.testing.results import Call
from stepward.v1 import agent_service_pb2 as wire
from stepward.v1 import common_pb2

if TYPE_CHECKING:
    from stepward.agents.agent import Agent
    from stepward.agents.testing.faults import Fault, FaultPlan
    from stepward.agents.testing.rules import Rules

# The contract: a handler that still runs after this says that it has started.
START_TOLD_MS: Final = 500
# Signs of life that fit into the time in which one must come.
BEATS_A_TIMEOUT: Final = 3

Plan = Callable[[int, Callable[[], Coroutine[Any, Any, None]]], None]


class Worker:
    """A session, and what its process knows."""

    def __init__(
        self,
        session_id: str,
        agent: Agent,
        *,
        rules: Rules,
        faults: FaultPlan,
        calls: list[Call],
        plan: Plan,
        on_death: Callable[[Worker], None],
        seconds_max: float,
    ) -> None:
        """`plan` has something done later; `calls` is where attempts are noted."""
        self.session_id = session_id
        self.agent = agent
        self._rules = rules
        self._faults = faults
        self._calls = calls
        self._plan = plan
        self._on_death = on_death
        self._seconds_max = seconds_max
        self._known: set[AttemptKey] = set()
        self._cancelled: set[AttemptKey] = set()
        # What has begun and is not over, with its outcome when that is only late.
        self._at_work: dict[AttemptKey, wire.AttemptReport | None] = {}

    def is_news(self, offer: wire.Offer, cancel: wire.Cancel | None) -> bool:
        """Whether this is told for the first time. Agents drop what they know by job, step and token."""
        key = AttemptKey.of(offer.attempt)
        return key not in (self._known if cancel is None else self._cancelled)

    async def take(self, offer: wire.Offer, cancel: wire.Cancel | None) -> None:
        """Do what an offer or a cancel asks for."""
        key = AttemptKey.of(offer.attempt)
        if cancel is not None:
            self._stop(key)
            return
        self._known.add(key)
        if offer.start == wire.OFFER_START_ON_ACCEPT and self._report_of(key, accepted=wire.Accepted()) != "RECORDED":
            return
        fault = self._faults.next(offer.action)
        self._at_work[key] = None
        self._note(offer, called=not isinstance(fault, Instead | Hangs) and fault != Crash(after=False))
        await self._begin(key, offer, fault)

    async def _begin(self, key: AttemptKey, offer: wire.Offer, fault: Fault | None) -> None:
        match fault:
            case Instead(outcome=outcome):
                self._end(key, outcome)
            case Hangs():
                self._plan(START_TOLD_MS, lambda: self._tell_started(key))
            case Crash(after=False):
                self._die()
            case Crash():
                await self._call(key, offer)
                self._die()
            case AnswerLost(kind=kind):
                await self._call(key, offer)
                self._end(key, outcomes.Unknown(kind, "the answer was lost"))
            case Takes(duration_ms=duration_ms) if duration_ms > 0:
                self._end_later(key, offer, await self._call(key, offer), duration_ms)
            case _:
                self._end(key, await self._call(key, offer))

    async def _call(self, key: AttemptKey, offer: wire.Offer) -> outcomes.Outcome:
        """Call the handler. What it says of its progress is heard before its outcome."""
        said: list[bytes] = []
        deadline_ms = self._rules.now_ms + offer.start_to_close.ToMilliseconds()
        context = Context(
            AttemptFacts.of(offer, deadline_ms), steady_ms=lambda: self._rules.now_ms, on_progress=said.append
        )
        outcome = await call_handler(
            self.agent.actions[offer.action],
            key,
            context,
            data=offer.input.data,
            encoding=offer.input.encoding,
            seconds_max=self._seconds_max,
        )
        for details in said:
            payload = common_pb2.Payload(data=details) if details else None
            self._report_of(key, progress=wire.Progress(details=payload))
        return outcome

    def _end_later(self, key: AttemptKey, offer: wire.Offer, outcome: outcomes.Outcome, duration_ms: int) -> None:
        """Hold an outcome back, as if the handler were at work so long; it gives its signs of life meanwhile."""
        self._at_work[key] = outcomes.report(key, outcome, draining=False)
        if duration_ms > START_TOLD_MS:
            self._plan(START_TOLD_MS, lambda: self._tell_started(key))
        beat_ms = offer.heartbeat_timeout.ToMilliseconds() // BEATS_A_TIMEOUT
        if beat_ms:
            self._plan(beat_ms, lambda: self._beat(key, beat_ms))
        self._plan(duration_ms, lambda: self._deliver(key))

    async def _tell_started(self, key: AttemptKey) -> None:
        if key in self._at_work:
            self._report_of(key, started=wire.Started())

    async def _beat(self, key: AttemptKey, beat_ms: int) -> None:
        if key in self._at_work:
            self._report_of(key, progress=wire.Progress())
            self._plan(beat_ms, lambda: self._beat(key, beat_ms))

    async def _deliver(self, key: AttemptKey) -> None:
        if key in self._at_work:
            report = self._at_work.pop(key)
            assert report is not None
            self._report(report)

    def _end(self, key: AttemptKey, outcome: outcomes.Outcome) -> None:
        del self._at_work[key]
        self._report(outcomes.report(key, outcome, draining=False))

    def _stop(self, key: AttemptKey) -> None:
        """Answer a cancel. What hangs stops, as a handler does that is cancelled; what is only late, is late."""
        self._cancelled.add(key)
        if key not in self._known:
            self._report_of(key, refused=wire.Refused())
        elif key in self._at_work and self._at_work[key] is None:
            del self._at_work[key]
            self._report_of(key, stopped=wire.Stopped())

    def _die(self) -> None:
        """What was at work is not, and will not be heard of."""
        self._at_work.clear()
        self._on_death(self)

    def _report_of(self, key: AttemptKey, **event: Any) -> str:
        return self._report(wire.AttemptReport(attempt=key.ref(), **event))

    def _report(self, report: wire.AttemptReport) -> str:
        result = self._rules.report(self.session_id, report)
        if result == "INTERNAL":
            raise BenchError(f"a report could not be recorded, which is a bug of stepward: {report}")
        return result

    def _note(self, offer: wire.Offer, *, called: bool) -> None:
        progress = offer.last_progress
        self._calls.append(
            Call(
                action=offer.action,
                step_id=offer.attempt.step_id,
                job_id=offer.attempt.job_id,
                input=sources.decode(offer.input.data, offer.input.encoding),
                idempotency_key=offer.idempotency_key,
                token=offer.attempt.token,
                attempt=offer.attempt_number,
                undo=offer.undo,
                at_seconds=self._rules.now_ms / 1_000,
                called=called,
                verify=offer.verify,
                last_progress=sources.decode(progress.data, progress.encoding),
            )
        )
