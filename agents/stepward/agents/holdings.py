"""What an agent holds, and the rules of attempts: what may start, what is answered, what is stopped. Pure.

The one thing to know: an attempt is in `active` while it takes a slot, then in `ended` until its outcome is answered.
Both together are what the agent holds, except strays, which the cluster no longer counts.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from typing import Final

from stepward.agents import outcomes, stopping
from stepward.agents.attempts import Attempt, AttemptKey, Phase
from stepward.agents.directives import CancelHandler, Directive, KillHandler, SetLeaseLost, StartHandler
from stepward.agents.memory import Memory, Past
from stepward.agents.outbox import PRELUDES, Outbox
from stepward.agents.stops import StopReason
from stepward.v1 import agent_service_pb2 as wire
from stepward.v1 import common_pb2

# A handler that ends sooner needs no `started`: its outcome says it.
START_REPORT_MS: Final = 500

# Progress of one attempt travels at most this often, unless its step asks for signs of life; then three times in the
# longest silence that is allowed, so that two may be lost.
PROGRESS_INTERVAL_MS: Final = 1_000
HEARTBEATS_PER_TIMEOUT: Final = 3

# What the contract's default is, until a welcome says it.
PAYLOAD_BYTES_MAX: Final = 262_144

_STOP_REASONS: Final[Mapping[int, StopReason]] = {
    wire.CANCEL_REASON_JOB_ENDING: StopReason.JOB_ENDING,
    wire.CANCEL_REASON_TIMEOUT: StopReason.TIMEOUT,
    wire.CANCEL_REASON_STALE: StopReason.STALE,
}

_GONE: Final = frozenset({wire.REPORT_RESULT_STALE_TOKEN, wire.REPORT_RESULT_NOT_FOUND})

_log = logging.getLogger("stepward.agents.session")


class Holdings:
    """Attempts from their offer until the answer to their outcome."""

    def __init__(
        self, *, actions: Collection[str], killable: Collection[str], slots: int, memory: Memory | None = None
    ) -> None:
        """The handlers of `killable` actions run in processes."""
        self.active: dict[AttemptKey, Attempt] = {}
        self.ended: set[AttemptKey] = set()
        self.outbox = Outbox()
        self.directives: list[Directive] = []
        self.payload_bytes_max = PAYLOAD_BYTES_MAX
        self.draining = False
        self._actions = frozenset(actions)
        self._killable = frozenset(killable)
        self._slots = slots
        self._memory = memory or Memory()
        self._told_silent: set[str] = set()

    @property
    def held(self) -> list[AttemptKey]:
        """What was received and whose outcome is not yet acknowledged."""
        return [*self.ended, *(key for key, attempt in self.active.items() if not attempt.stray)]

    # Offers and their start.

    def offered(self, now_ms: int, offer: wire.Offer, *, lease_runs: bool) -> None:
        """Take an offer, hand it back, or drop it because it was here before."""
        key = AttemptKey.of(offer.attempt)
        if key in self.active or key in self.ended:
            return
        match self._memory.recall(key):
            case Past.NEVER_STARTED:
                # It was refused, or its cancel came first; the cluster has that answer, or gets it again.
                self._report_refused(key, handed_back=False)
                return
            case Past.STARTED | Past.FORGOTTEN:
                return
            case None:
                pass
        if not lease_runs:
            # Not held, so the next digest shows that it is missing; it comes again if it is still meant.
            _log.info("offer_dropped_without_lease job=%s step=%s token=%s", *key)
            return
        if self.draining or len(self.active) >= self._slots:
            self._refuse(key, handed_back=True)
            return
        self._take(now_ms, Attempt(key, offer, Phase.ASKING))

    def _take(self, now_ms: int, attempt: Attempt) -> None:
        key, offer = attempt.key, attempt.offer
        if offer.action not in self._actions:
            text = f"this agent has no action {offer.action!r}"
            self.outbox.add(outcomes.report(key, outcomes.Failed("ACTION_NOT_FOUND", text), draining=False))
            self.ended.add(key)
            return
        self.active[key] = attempt
        if offer.start == wire.OFFER_START_ON_OFFER:
            self._start(now_ms, attempt)
        else:
            # Also for a way of starting that this version does not know: asking first is always allowed.
            attempt.start_reported = True
            self.outbox.add(wire.AttemptReport(attempt=offer.attempt, accepted=wire.Accepted()))

    def _start(self, now_ms: int, attempt: Attempt) -> None:
        attempt.phase = Phase.RUNNING
        attempt.started_at_ms = now_ms
        attempt.deadline_ms = now_ms + attempt.offer.start_to_close.ToMilliseconds()
        self.directives.append(StartHandler(attempt.key, attempt.offer, attempt.deadline_ms))

    def start_granted(self, now_ms: int) -> None:
        """Start what the cluster has granted, now that the lease runs."""
        for attempt in self.active.values():
            if attempt.phase is Phase.GRANTED:
                self._start(now_ms, attempt)

    def _refuse(self, key: AttemptKey, *, handed_back: bool) -> None:
        """Give up an attempt that has not started, and remember it, so that it never will."""
        self.active.pop(key, None)
        self._memory.remember(key, Past.NEVER_STARTED)
        self._report_refused(key, handed_back=handed_back)

    def _report_refused(self, key: AttemptKey, *, handed_back: bool) -> None:
        self.outbox.add(wire.AttemptReport(attempt=key.ref(), refused=wire.Refused(handed_back=handed_back)))

    def hand_back(self) -> None:
        """Give back what has not started."""
        for attempt in list(self.active.values()):
            if attempt.phase is not Phase.RUNNING:
                self._refuse(attempt.key, handed_back=True)

    # Cancels and answers.

    def cancelled(self, now_ms: int, cancel: wire.Cancel) -> None:
        """The cluster no longer wants an attempt. Only what surely never started is refused."""
        key = AttemptKey.of(cancel.attempt)
        attempt = self.active.get(key)
        if attempt is not None:
            if attempt.phase is Phase.RUNNING:
                self._stop(now_ms, attempt, _STOP_REASONS.get(cancel.reason, StopReason.STALE))
            else:
                self._refuse(key, handed_back=False)
            return
        if key in self.ended:
            return
        match self._memory.recall(key):
            case None | Past.NEVER_STARTED:
                self._refuse(key, handed_back=False)
            case Past.STARTED | Past.FORGOTTEN:
                # Its outcome was answered before; said again for a cluster that waits for a word.
                self.outbox.add(outcomes.report(key, outcomes.Stopped(), draining=False))

    def answered(self, now_ms: int, answer: wire.ReportAnswer, *, lease_runs: bool) -> None:
        """The cluster has recorded or refused a report. Then it is done with, unless it could not be recorded."""
        key = AttemptKey.of(answer.attempt)
        pending = self.outbox.answered(key)
        if pending is None:
            return
        event = pending.event
        if answer.result != wire.REPORT_RESULT_RECORDED:
            result = wire.ReportResult.Name(answer.result)
            _log.warning("report_refused event=%s result=%s job=%s step=%s token=%s", event, result, *key)
        if answer.result == wire.REPORT_RESULT_INTERNAL and event not in PRELUDES:
            # Nobody else knows what became of the attempt, and the fault may pass.
            if self.outbox.rest(pending, now_ms):
                return
            _log.error("report_dropped event=%s job=%s step=%s token=%s", event, *key)
        match event:
            case "accepted":
                self._accept_answered(now_ms, key, answer.result, lease_runs=lease_runs)
            case "started":
                self._start_answered(now_ms, key, answer.result)
            case "refused":
                pass
            case _:
                self.ended.discard(key)
                self._memory.remember(key, Past.STARTED)

    def _accept_answered(self, now_ms: int, key: AttemptKey, result: int, *, lease_runs: bool) -> None:
        attempt = self.active.get(key)
        if attempt is None or attempt.phase is not Phase.ASKING:
            return
        if result != wire.REPORT_RESULT_RECORDED:
            del self.active[key]
            self._memory.remember(key, Past.NEVER_STARTED)
            return
        attempt.phase = Phase.GRANTED
        if lease_runs:
            self._start(now_ms, attempt)

    def _start_answered(self, now_ms: int, key: AttemptKey, result: int) -> None:
        attempt = self.active.get(key)
        if attempt is None:
            return
        if result in _GONE:
            attempt.stray = True
            self._stop(now_ms, attempt, StopReason.STALE)
        elif result == wire.REPORT_RESULT_CANCELLED:
            self._stop(now_ms, attempt, StopReason.JOB_ENDING)

    # Handlers.

    def handler_ended(self, key: AttemptKey, outcome: outcomes.Outcome) -> None:
        """A handler has ended. Its outcome is reported in any case; the token decides whether it counts."""
        attempt = self.active.pop(key)
        if attempt.stray:
            self._memory.remember(key, Past.STARTED)
        else:
            self.ended.add(key)
        outcome = outcomes.bounded(outcome, payload_bytes_max=self.payload_bytes_max)
        last_words = None
        if attempt.progress and not isinstance(outcome, outcomes.Succeeded):
            # Beside a success nobody would read it: the cluster forgets the progress of what has succeeded.
            last_words = _progress_report(key, attempt.progress)
        draining = attempt.stop_reason is StopReason.DRAINING
        self.outbox.add(outcomes.report(key, outcome, draining=draining), progress=last_words)

    def progressed(self, key: AttemptKey, details: bytes) -> None:
        """A handler says how far it is; only the newest counts. Without details it is a mere sign of life."""
        attempt = self.active.get(key)
        if attempt is not None:
            attempt.progress = details or attempt.progress or b""
            attempt.has_spoken = True

    def warn_of_silence(self, now_ms: int) -> None:
        """Say, once for each action, that its step asks for signs of life and its handler gives none."""
        for attempt in self.active.values():
            timeout_ms, action = attempt.heartbeat_timeout_ms, attempt.offer.action
            if not timeout_ms or attempt.has_spoken or action in self._told_silent:
                continue
            if attempt.phase is Phase.RUNNING and now_ms - attempt.started_at_ms >= timeout_ms // 2:
                self._told_silent.add(action)
                _log.warning(
                    "heartbeat_missing action=%s job=%s step=%s token=%s heartbeat_timeout_ms=%s: half of it is over "
                    "and the handler has not called ctx.heartbeat(); after all of it the cluster gives the attempt up",
                    action,
                    *attempt.key,
                    timeout_ms,
                )

    def progress_reports(self, now_ms: int) -> wire.Report:
        """Progress that is due. It is sent once: what is lost with a stream is overtaken by the next."""
        report = wire.Report()
        for attempt in self.active.values():
            sent_at_ms = attempt.progress_sent_at_ms
            waits = sent_at_ms is not None and now_ms - sent_at_ms < _progress_interval_ms(attempt)
            if attempt.progress is None or not attempt.start_reported or attempt.stray or waits:
                continue
            report.attempts.append(_progress_report(attempt.key, attempt.progress))
            attempt.progress, attempt.progress_sent_at_ms = None, now_ms
        return report

    def report_starts(self, now_ms: int) -> None:
        """Say of handlers that take longer that they have started."""
        for attempt in self.active.values():
            if attempt.start_reported or attempt.stray or now_ms - attempt.started_at_ms < START_REPORT_MS:
                continue
            attempt.start_reported = True
            self.outbox.add(wire.AttemptReport(attempt=attempt.offer.attempt, started=wire.Started()))

    # Stops.

    def _stop(self, now_ms: int, attempt: Attempt, reason: StopReason) -> None:
        if attempt.stop_reason is None:
            attempt.stopped_at_ms = now_ms
            self.directives.append(CancelHandler(attempt.key, reason))
        attempt.stop_reason = reason

    def stop_running(self, now_ms: int, reason: StopReason) -> None:
        """Cancel every handler that is not cancelled yet."""
        for attempt in self.active.values():
            if attempt.stop_reason is None:
                self._stop(now_ms, attempt, reason)

    def lose_lease(self, ended_at_ms: int) -> None:
        """The lease that everything runs under has ended."""
        for attempt in self.active.values():
            if attempt.phase is Phase.RUNNING and attempt.lease_ended_at_ms is None:
                attempt.lease_ended_at_ms = ended_at_ms
                self.directives.append(SetLeaseLost(attempt.key, True))

    def regain_lease(self) -> None:
        """The session's lease runs again. What ran under another session's stays lost."""
        for attempt in self.active.values():
            if attempt.lease_ended_at_ms is not None and not attempt.stray:
                attempt.lease_ended_at_ms = None
                self.directives.append(SetLeaseLost(attempt.key, False))

    def stop_lost(self, now_ms: int, *, ttl_ms: int) -> None:
        """Cancel handlers that may no longer go on after the end of their lease."""
        for attempt in self.active.values():
            due_at_ms = stopping.stop_due_at_ms(attempt, ttl_ms=ttl_ms)
            if due_at_ms is not None and now_ms >= due_at_ms and attempt.stop_reason is None:
                self._stop(now_ms, attempt, StopReason.LEASE_LOST)

    def kill_deaf(self, now_ms: int, *, ttl_ms: int, kill_grace_ms: int) -> None:
        """End the processes of handlers that were cancelled and do not stop, before the agent itself would have to."""
        for attempt in self.active.values():
            if attempt.stop_reason is None or attempt.killed or attempt.offer.action not in self._killable:
                continue
            if now_ms >= stopping.kill_due_at_ms(attempt, ttl_ms=ttl_ms, kill_grace_ms=kill_grace_ms):
                attempt.killed = True
                self.directives.append(KillHandler(attempt.key))

    def forsake(self, ended_at_ms: int) -> None:
        """The session has ended: nothing here belongs to the next one. What becomes of it is still reported."""
        self.hand_back()
        self.lose_lease(ended_at_ms)
        for attempt in self.active.values():
            attempt.stray = True
        for key in self.ended:
            self._memory.remember(key, Past.STARTED)
        self.ended.clear()


def _progress_interval_ms(attempt: Attempt) -> int:
    timeout_ms = attempt.heartbeat_timeout_ms
    return timeout_ms // HEARTBEATS_PER_TIMEOUT if timeout_ms else PROGRESS_INTERVAL_MS


def _progress_report(key: AttemptKey, details: bytes) -> wire.AttemptReport:
    if not details:
        return wire.AttemptReport(attempt=key.ref(), progress=wire.Progress())
    payload = common_pb2.Payload(data=details, encoding=outcomes.JSON)
    return wire.AttemptReport(attempt=key.ref(), progress=wire.Progress(details=payload))
