"""Agents of a simulated world: they obey the protocol, and everything else goes wrong around them.

An agent counts its lease on a clock of its own, which is a little fast or slow. Its network may fail, its process may
be paused or killed, and its handlers do what chance says: succeed, refuse, break before or after their effect, hang.
They are honest: who says that nothing happened has done nothing.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, NamedTuple

from stepward.server.core import keys, rows, views
from stepward.server.core.commands import (
    Accepted,
    AttemptReport,
    AttemptsReported,
    Declined,
    Failed,
    ProgressMade,
    RenewSession,
    ReportAttempts,
    SessionRenewed,
    Started,
    Stopped,
    Succeeded,
    Unknown,
)
from stepward.server.core.rows import CancelReason, Payload, StartMode
from stepward.server.core.sessions import held_digest
from tests.model.remote import Act

if TYPE_CHECKING:
    import random

    from stepward.server.core.commands import AttemptEvent, AttemptRef
    from stepward.server.core.views import OfferView
    from tests.core.world import World
    from tests.model.remote import Remote

FATES = {
    "ACTION": (
        "ok",
        "ok",
        "ok",
        "refuse",
        "refuse_for_good",
        "broken",
        "broken_done",
        "unknown",
        "unknown_done",
        "hang",
    ),
    "UNDO": ("ok", "ok", "ok", "refuse", "broken", "broken_done", "unknown_done", "hang"),
    "VERIFY": ("ok", "ok", "ok", "cannot_tell", "nonsense", "refuse", "hang"),
}
DONE_FIRST = frozenset({"ok", "broken_done", "unknown_done", "hang_done"})


class Handler:
    """One handler at work on one attempt."""

    def __init__(self, offer: OfferView, part: str, fate: str, *, acts_at_ms: int, reports_at_ms: int) -> None:
        self.offer = offer
        self.part = part
        self.fate = fate
        self.acts_at_ms = acts_at_ms
        self.reports_at_ms = reports_at_ms
        self.acted = False
        self.refused = False
        self.verdict: bool | None = None


class Told(NamedTuple):
    """A report that was sent, and what was answered."""

    report: AttemptReport
    result: str


class Worker:
    """One agent process with one session."""

    def __init__(self, world: World, remote: Remote, rng: random.Random, session_id: str, *, ttl_ms: int) -> None:
        self.session_id = session_id
        self.good = False
        self.alive = True
        self.frozen = False
        self.cut_off = False
        self.told: list[Told] = []
        self.handlers: dict[AttemptRef, Handler] = {}
        self._world = world
        self._remote = remote
        self._rng = rng
        self._ttl_ms = ttl_ms
        # Two clocks may drift apart by one in a hundred.
        self._rate = rng.uniform(0.995, 1.005)
        self._acknowledged_ms = world.now_ms
        self._next_heartbeat_ms = world.now_ms
        self._send_held = False
        self._over = False
        self._seen: set[AttemptRef] = set()
        self._outbox: list[AttemptReport] = []
        self._waiting_for_accept: dict[AttemptRef, OfferView] = {}

    @property
    def lease_over_ms(self) -> float:
        """When its lease ends as things stand, on the world's clock."""
        return self._acknowledged_ms + self._ttl_ms / self._rate

    @property
    def lease_runs(self) -> bool:
        """Whether it may start anything."""
        return not self._over and self._world.now_ms < self.lease_over_ms

    def tick(self) -> None:
        """Do what is due."""
        if not self.alive or self.frozen:
            return
        self._stop_what_is_over()
        for ref, handler in list(self.handlers.items()):
            self._work(ref, handler)
        if not self.cut_off and not self._over:
            self._heartbeat()
            self._receive()
            self._send()

    def _stop_what_is_over(self) -> None:
        """The lease is over: idempotent handlers go on for one more TTL, and all are stopped within the kill grace."""
        if self.lease_runs:
            return
        self._waiting_for_accept.clear()
        for ref, handler in list(self.handlers.items()):
            more_ms = self._ttl_ms / self._rate if handler.offer.idempotent else 0
            if self._world.now_ms >= self.lease_over_ms + more_ms + self._world.limits.kill_grace_ms * 0.9:
                self._finish(ref, Stopped(draining=False))

    def _work(self, ref: AttemptRef, handler: Handler) -> None:
        now_ms = self._world.now_ms
        if not handler.acted and now_ms >= handler.acts_at_ms:
            handler.acted = True
            self._act(ref, handler)
        if now_ms >= handler.reports_at_ms and not handler.fate.startswith("hang"):
            self._finish(ref, self._outcome(handler))

    def _act(self, ref: AttemptRef, handler: Handler) -> None:
        """Ask the outside world, where the fate says so."""
        offer = handler.offer
        key = offer.idempotency_key.removesuffix("/undo")
        act = Act(self._world.now_ms, ref.step_id, handler.part, key, ref.token)
        if handler.part == "VERIFY":
            handler.verdict = self._remote.ask(act)
        elif handler.fate in DONE_FIRST:
            undoes = handler.part == "UNDO"
            told = json.loads(offer.input.data)["idempotency_keys"] if undoes else []
            admitted = self._remote.undo(act, told) if undoes else self._remote.do(act)
            handler.refused = not admitted

    def _outcome(self, handler: Handler) -> AttemptEvent:
        if handler.refused:
            return Failed("StaleToken", "the service has seen a newer token", retryable=True)
        match handler.fate:
            case "ok" if handler.part == "VERIFY":
                return Succeeded(Payload(json.dumps({"happened": handler.verdict, "output": {"id": 1}}).encode()))
            case "ok":
                return Succeeded(Payload(b'{"id":1}'))
            case "cannot_tell":
                return Succeeded(Payload(b'{"happened":null}'))
            case "nonsense":
                return Succeeded(Payload(self._rng.choice([b"7", b"{}", b'{"happened":"yes"}'])))
            case "refuse":
                return Failed("Busy", "come back", retryable=True, retry_after_ms=self._rng.choice([None, 100, 5_000]))
            case "refuse_for_good":
                return Failed(self._rng.choice(["Declined", "Busy"]), "no", retryable=self._rng.random() < 0.3)
            case "broken" | "broken_done":
                return Failed("KeyError", "'x'", self._rng.random() < 0.9, None, may_have_happened=True)
            case "unknown" | "unknown_done":
                return Unknown("Timeout", "no answer of the service")
            case fate:
                raise AssertionError(fate)

    def _finish(self, ref: AttemptRef, event: AttemptEvent) -> None:
        del self.handlers[ref]
        self._outbox.append(AttemptReport(ref, event))

    def _heartbeat(self) -> None:
        now_ms = self._world.now_ms
        if now_ms < self._next_heartbeat_ms:
            return
        self._next_heartbeat_ms = now_ms + self._ttl_ms // 6
        held = {*self.handlers, *self._waiting_for_accept, *(report.attempt for report in self._outbox)}
        whole = tuple(sorted(held)) if self._send_held else None
        answer = self._world.one(RenewSession(self.session_id, 1, held_digest(held), whole, len(self.handlers)))
        if not isinstance(answer, SessionRenewed):
            self._over = True
            return
        self._acknowledged_ms = now_ms
        self._send_held = answer.send_held
        for ref in answer.unknown:
            if ref in self.handlers:
                self._finish(ref, Stopped(draining=False))

    def _receive(self) -> None:
        """Read what a stream would bring: every open offer and cancel of the session, over and over."""
        for key in list(self._world.reader.scan(keys.assignments(self.session_id))):
            row = self._world.reader.get(key)
            assert isinstance(row, rows.Assignment)
            offer = views.offer_view(self._world.reader, key, row, self._world.limits)
            if offer is None:
                continue
            if offer.cancel is not CancelReason.NONE:
                self._cancelled(offer)
            elif offer.attempt not in self._seen and self.lease_runs and self._rng.random() < 0.9:
                self._seen.add(offer.attempt)
                self._offered(offer)

    def _offered(self, offer: OfferView) -> None:
        if not self.good and self._rng.random() < 0.05:
            self._outbox.append(AttemptReport(offer.attempt, Declined(handed_back=False)))
        elif offer.start is StartMode.ON_OFFER:
            self._start(offer)
        else:
            self._waiting_for_accept[offer.attempt] = offer
            self._outbox.append(AttemptReport(offer.attempt, Accepted()))

    def _cancelled(self, offer: OfferView) -> None:
        ref = offer.attempt
        if ref in self.handlers:
            # Handlers need not listen; the lease or the person waits for them.
            if self.good or self._rng.random() < 0.5:
                self._finish(ref, Stopped(draining=False))
        elif ref not in self._seen:
            self._seen.add(ref)
            self._outbox.append(AttemptReport(ref, Declined(handed_back=False)))

    def _start(self, offer: OfferView) -> None:
        rng, now_ms = self._rng, self._world.now_ms
        part = offer.part.name
        fate = "ok" if self.good else rng.choice(FATES[part])
        if fate == "hang" and rng.random() < 0.5:
            fate = "hang_done"
        acts_at_ms = now_ms + rng.choice([0, 0, 200, 1_500])
        reports_at_ms = acts_at_ms + rng.choice([0, 0, 400, 2_000])
        self.handlers[offer.attempt] = Handler(offer, part, fate, acts_at_ms=acts_at_ms, reports_at_ms=reports_at_ms)
        if rng.random() < 0.5:
            self._outbox.append(AttemptReport(offer.attempt, Started()))
        if rng.random() < 0.2:
            self._outbox.append(AttemptReport(offer.attempt, ProgressMade(Payload(b"1"))))

    def _send(self) -> None:
        """Report everything at once or one by one; now and then say again what was said before."""
        if not self._outbox:
            return
        reports = tuple(self._outbox)
        self._outbox.clear()
        if self.told and self._rng.random() < 0.1:
            reports += (self._rng.choice(self.told).report,)
        answer = self._world.one(ReportAttempts(self.session_id, 1, reports))
        assert isinstance(answer, AttemptsReported), answer
        asked = [report for report in reports if not isinstance(report.event, ProgressMade)]
        for report, result in zip(asked, answer.results, strict=True):
            if result.result == "INTERNAL":
                # Too much for one batch: keep it, and say it again.
                self._outbox.append(report)
                continue
            self.told.append(Told(report, result.result))
            if isinstance(report.event, Accepted):
                offer = self._waiting_for_accept.pop(report.attempt, None)
                if offer is not None and result.result == "RECORDED" and self.lease_runs:
                    self._start(offer)
