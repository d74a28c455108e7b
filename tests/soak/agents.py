"""Agents of bad days: each holds offers, works on them for as long as chance says, and may crash, freeze or be cut off.

They speak the commands that a gateway makes of what real agents send. Until when an agent counts on a session is told
to nobody but the judge.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Final

from stepward.server.core import keys, rows
from stepward.server.core.commands import (
    Accepted,
    AttemptRef,
    AttemptReport,
    AttemptsReported,
    Declined,
    Failed,
    OpenSession,
    ProgressMade,
    RenewSession,
    ReportAttempts,
    SessionOpened,
    SessionRenewed,
    Started,
    Stopped,
    Succeeded,
    Unknown,
)
from stepward.server.core.rejections import Rejection
from stepward.server.core.rows import CancelReason, Payload, StartMode
from stepward.server.core.sessions import held_digest
from tests.simulation.agenda import MS

if TYPE_CHECKING:
    from collections.abc import Callable

    from stepward.server.core.commands import Answer, AttemptEvent
    from tests.soak.shard import Decided, Shard

_PROGRESS_MS: Final = 4_000
_RETRY_MS: Final = 700
_DONE: Final = Succeeded(Payload(b'{"id":1}'))


class Weather:
    """How the services are that handlers call, and the network."""

    def __init__(self) -> None:
        self.failing = 0.03
        self.slow = 1.0
        self.hanging = 0.01
        self.lossy = 0.005
        self.rare_is_offered = True


class SessionTruth:
    """What an agent knows of a session of its own, and nobody else."""

    def __init__(self, agent: Agent) -> None:
        self.agent = agent
        self.lease_until_ms = 0


class Work:
    """One attempt in an agent's hands. `outcome` None: it is at work."""

    def __init__(self, ref: AttemptRef, action: str) -> None:
        self.ref = ref
        self.action = action
        self.outcome: AttemptEvent | None = None


class Agent:
    """One machine; one process and session after the other."""

    def __init__(self, shard: Shard, name: str, actions: tuple[str, ...], *, slots: int, weather: Weather) -> None:
        self._shard = shard
        self.name = name
        self.actions = actions
        self._slots = slots
        self._weather = weather
        self._rng = random.Random(f"agent {name} {shard.rng.random()}")
        self.sessions: dict[str, SessionTruth] = {}
        self.session_id = ""
        self.alive = False
        self.silent = False
        self._generation = 0
        self._held: dict[AttemptRef, Work] = {}
        self._deferred: list[tuple[Callable[..., None], tuple[object, ...]]] = []
        self._life = 0
        self.start()

    # Life.

    def start(self) -> None:
        """A new process with a new session."""
        if self.alive:
            return
        self.alive, self.silent, self._deferred = True, False, []
        self._life += 1
        self._new_session()
        self._beat()

    def crash(self) -> None:
        """Its process ends, and what it held with it."""
        if self.alive:
            self.fall_silent()
            self.alive = False
            self._life += 1
            self._held = {}

    def fall_silent(self) -> None:
        """From now on nothing of it is heard: it stands still, or the network is cut."""
        self.silent = True

    def speak(self) -> None:
        """It goes on where it stood."""
        if self.alive and self.silent:
            self.silent = False
            deferred, self._deferred = self._deferred, []
            for act, arguments in deferred:
                self._now(self._life, act, arguments)

    def _after(self, ms: float, act: Callable[..., None], *arguments: object) -> None:
        self._shard.agenda.after(ms * MS, self._now, self._life, act, arguments)

    def _now(self, life: int, act: Callable[..., None], arguments: tuple[object, ...]) -> None:
        if life != self._life or not self.alive:
            return
        if self.silent:
            self._deferred.append((act, arguments))
        else:
            act(*arguments)

    def _new_session(self) -> None:
        self._held = {}
        self._generation = 0
        self.session_id = f"{self.name}-{self._life:04d}-{len(self.sessions):05d}"
        self.sessions[self.session_id] = SessionTruth(self)
        self._hello(self.session_id)

    def _hello(self, session_id: str) -> None:
        """Until it is welcomed."""
        if session_id != self.session_id or self._generation:
            return
        sent_ms = self._shard.steady_ms
        command = OpenSession(
            session_id, "default", "q", self.actions, self._slots, self.name, "soak", "n1", self._generation
        )

        def welcomed(answer: Answer) -> None:
            if session_id != self.session_id:
                return
            if isinstance(answer, Rejection):
                # It was welcomed before, did not hear of it, and was silent for too long.
                self._new_session()
            else:
                assert isinstance(answer, SessionOpened), answer
                self._generation = answer.generation
                self.sessions[session_id].lease_until_ms = sent_ms + answer.ttl_ms

        self._shard.send(command, lambda answer: self._now(self._life, welcomed, (answer,)))
        self._after(_RETRY_MS, self._hello, session_id)

    # Heartbeats.

    def _beat(self) -> None:
        self._renew(send_held=False)
        self._after(self._shard.limits.session_ttl_ms / 6 * self._rng.uniform(0.97, 1.0), self._beat)

    def _renew(self, *, send_held: bool) -> None:
        if not self._generation or self._is_lost():
            return
        session_id, sent_ms = self.session_id, self._shard.steady_ms
        held = tuple(sorted(self._held)) if send_held else None
        busy = sum(work.outcome is None for work in self._held.values())
        command = RenewSession(session_id, self._generation, held_digest(self._held), held, busy)
        self._shard.send(
            command, lambda answer: self._now(self._life, self._renewed, (answer, session_id, sent_ms, send_held))
        )

    def _renewed(self, answer: Answer, session_id: str, sent_ms: int, sent_held: bool) -> None:
        if session_id != self.session_id:
            return
        if isinstance(answer, Rejection):
            # The session is over. What was at work in it is stopped; nothing waits for that any more.
            for ref in list(self._held):
                self._tell(ref, Stopped(draining=False), session_id)
            self._new_session()
            return
        assert isinstance(answer, SessionRenewed), answer
        self.sessions[session_id].lease_until_ms = sent_ms + self._shard.limits.session_ttl_ms
        for ref in answer.unknown:
            self._held.pop(ref, None)
        if answer.send_held and not sent_held:
            self._renew(send_held=True)

    def _is_lost(self) -> bool:
        return self._rng.random() < self._weather.lossy

    # Work.

    def offered(self, ref: AttemptRef, ordinal_action: str, start: StartMode) -> None:
        """An offer is on its way."""
        if not self._is_lost():
            self._after(self._rng.uniform(1, 40), self._take, ref, ordinal_action, start, self.session_id)

    def cancelled(self, ref: AttemptRef) -> None:
        """Word that an attempt is not wanted any more is on its way."""
        self._after(self._rng.uniform(1, 40), self._cancel, ref)

    def _cancel(self, ref: AttemptRef) -> None:
        if ref in self._held:
            self._after(self._rng.uniform(0, 1_500), self._end, ref, Stopped(draining=False))
        else:
            self._tell(ref, Declined(handed_back=False), self.session_id)

    def _take(self, ref: AttemptRef, action: str, start: StartMode, session_id: str) -> None:
        if session_id != self.session_id or ref in self._held:
            return
        self._held[ref] = Work(ref, action)
        if start is StartMode.ON_ACCEPT:
            self._report(ref, Accepted(), lambda result: self._accepted(ref, result))
        else:
            self._report(ref, Started(), lambda _: None)
            self._work(ref)

    def _accepted(self, ref: AttemptRef, result: str) -> None:
        if result == "RECORDED":
            self._work(ref)
        else:
            self._held.pop(ref, None)

    def _work(self, ref: AttemptRef) -> None:
        work, rng = self._held.get(ref), self._rng
        if work is None:
            return
        if rng.random() < self._weather.hanging:
            # It never comes back, and says nothing.
            return
        ms = rng.uniform(2_000, 18_000) * self._weather.slow
        if work.action == "hotel":
            ms *= 2
            self._after(_PROGRESS_MS, self._progress, ref)
        self._after(ms, self._end, ref, self._outcome(work.action))

    def _outcome(self, action: str) -> AttemptEvent:
        if self._rng.random() < self._weather.failing:
            kinds: list[AttemptEvent] = [
                Failed("Busy", "the service is busy", retryable=True),
                Failed("Busy", "the service is busy", retryable=True, may_have_happened=True),
                Failed("SoldOut", "nothing is left", retryable=False),
                Unknown("TimedOut", "after sending"),
            ]
            return self._rng.choices(kinds, [6, 2, 1, 1])[0]
        if action.startswith("ask-"):
            happened = self._rng.choice(["true", "false", "null"])
            return Succeeded(Payload(f'{{"happened":{happened},"output":{{"id":2}}}}'.encode()))
        return _DONE

    def _progress(self, ref: AttemptRef) -> None:
        work = self._held.get(ref)
        if work is not None and work.outcome is None:
            self._tell(ref, ProgressMade(None), self.session_id)
            self._after(_PROGRESS_MS, self._progress, ref)

    def _end(self, ref: AttemptRef, outcome: AttemptEvent) -> None:
        work = self._held.get(ref)
        if work is not None and work.outcome is None:
            work.outcome = outcome
            self._report(ref, outcome, lambda _: self._forget(ref))

    def _forget(self, ref: AttemptRef) -> None:
        self._held.pop(ref, None)

    def _report(self, ref: AttemptRef, event: AttemptEvent, answered: Callable[[str], None]) -> None:
        """Report until there is an answer, for as long as the session lasts."""
        session_id, done = self.session_id, False

        def heard(answer: Answer) -> None:
            nonlocal done
            if not done and isinstance(answer, AttemptsReported) and answer.results:
                done = True
                answered(answer.results[0].result)

        def attempt() -> None:
            if done or session_id != self.session_id or ref not in self._held:
                return
            command = ReportAttempts(session_id, self._generation, (AttemptReport(ref, event),))
            if not self._is_lost():
                self._shard.send(command, lambda answer: self._now(self._life, heard, (answer,)))
            self._after(_RETRY_MS, attempt)

        self._after(self._rng.uniform(1, 30), attempt)

    def _tell(self, ref: AttemptRef, event: AttemptEvent, session_id: str) -> None:
        """Say something once, whether it is heard or not."""
        command = ReportAttempts(session_id, self._generation, (AttemptReport(ref, event),))
        self._shard.send(command, lambda _: None)


class Gateway:
    """Brings offers and cancels to whom they are for, as the rows have them."""

    def __init__(self, shard: Shard) -> None:
        self._shard = shard
        self.agents: list[Agent] = []
        shard.onlookers.append(self)

    def decided(self, decided: Decided) -> None:
        """See `shard.Onlooker`."""
        granted = [
            (key, row)
            for key, row in decided.changes.items()
            if key[:1] == keys.ASSIGNMENT and isinstance(row, rows.Assignment)
        ]
        if not granted:
            return
        by_session = {agent.session_id: agent for agent in self.agents if agent.alive and not agent.silent}
        for key, row in granted:
            session_id, token, job_id, ordinal = keys.parse_assignment(key)
            agent = by_session.get(session_id)
            if agent is None:
                continue
            spec = spec_of(self._shard, job_id, ordinal)
            ref = AttemptRef(job_id, spec.id, token)
            if row.cancel is not CancelReason.NONE:
                agent.cancelled(ref)
            else:
                part = {rows.Part.UNDO: "undo-", rows.Part.VERIFY: "ask-"}.get(row.part, "")
                agent.offered(ref, part + spec.action, row.start)


def spec_of(shard: Shard, job_id: str, ordinal: int) -> rows.StepSpec:
    """What the definition of a job says of a step."""
    job = shard.reader.get(keys.job(job_id))
    assert isinstance(job, rows.Job), job_id
    body = shard.reader.get(keys.definition_body(job.definition_hash))
    assert isinstance(body, rows.DefinitionBody)
    return body.steps[ordinal]
