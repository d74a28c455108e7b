"""The judge of bad days: holds what the ledger says against what truly happened, and raises at the first difference.

It knows when agents were heard last, when attempts began and spoke, and when steps began to wait, from what the
simulation itself did. Of the rules it knows none, only the promises: trouble is noticed within its time
(`core.latencies`) and written down exactly once, and nobody is bothered who is well and in time.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from typing import TYPE_CHECKING, Final

from stepward.server.core import keys, latencies, ledger_rows, rows, schedules, states
from stepward.server.core.commands import (
    AttemptRef,
    AttemptsReported,
    OpenSession,
    ProgressMade,
    RenewSession,
    ReportAttempts,
    Sweep,
)
from stepward.server.core.parts import By, Remedy, Trouble
from stepward.server.core.rejections import Rejection
from stepward.server.core.remedies import FAILURES, LOSSES
from stepward.server.core.rows import JOB_STATES_FINAL, JobState, Part
from tests.soak.agents import spec_of

if TYPE_CHECKING:
    from stepward.server.core.commands import AttemptEvent
    from stepward.server.core.ledger_rows import LedgerEntry
    from stepward.server.core.rows import Step
    from tests.soak.agents import Agent
    from tests.soak.shard import Decided, Shard

T = Trouble
_MINUTE_MS: Final = 60_000
# Remedies that change nothing, and take nothing from the brake.
_HARMLESS: Final = frozenset({Remedy.RESEND, Remedy.WITHDRAW})
# What a trouble is called that has come to be one of its undo.
_BY_KIND: Final = {
    "LEASE_LOST": T.LEASE_LOST,
    "POISON": T.POISON,
    "START_TO_CLOSE_TIMEOUT": T.START_TO_CLOSE,
    "HEARTBEAT_TIMEOUT": T.HEARTBEAT,
    "SCHEDULE_TO_CLOSE_TIMEOUT": T.SCHEDULE_TO_CLOSE,
    "QUEUE_TIMEOUT": T.QUEUE_TIME,
}
_FORWARD: Final = frozenset({JobState.RUNNING, JobState.PAUSED})


class Attempt:
    """One grant of a step, as it truly went."""

    def __init__(self, ref: AttemptRef, session_id: str, policy: schedules.Policy, led_ms: int) -> None:
        self.ref = ref
        self.session_id = session_id
        self.policy = policy
        self.unanswered_since_led_ms = led_ms
        self.withdrawn = False
        self.started_log_ms = -1
        self.heard_log_ms = 0
        self.first_log_ms = 0

    @property
    def asks(self) -> bool:
        """Whether it is a question about another one."""
        return isinstance(self.policy, rows.VerifySpec)

    def bounds(self, opened_log_ms: int) -> dict[Trouble, int]:
        """When what it may not go beyond is reached, on log time. It is at work."""
        heard_ms = max(self.started_log_ms, self.heard_log_ms, opened_log_ms)
        found = {T.START_TO_CLOSE: self.started_log_ms + self.policy.start_to_close_ms}
        if self.policy.heartbeat_ms:
            found[T.HEARTBEAT] = heard_ms + self.policy.heartbeat_ms
        if self.policy.schedule_to_close_ms:
            found[T.SCHEDULE_TO_CLOSE] = self.first_log_ms + self.policy.schedule_to_close_ms
        return found


class WrongError(AssertionError):
    """Something was noticed too late, twice, without a reason or not at all. `kind` is for counting."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(f"{kind}: {text}")
        self.kind = kind


class Judge:
    """See the module."""

    def __init__(self, shard: Shard, agents: list[Agent]) -> None:
        self._shard = shard
        self._agents = agents
        self.late_ms: dict[str, list[int]] = defaultdict(list)
        self.stated_ms: dict[str, int] = {}
        self.counts: Counter[str] = Counter()
        self.minute_most = 0
        self._attempts: dict[tuple[str, int], Attempt] = {}
        # Since when steps have been ready: this time, and first.
        self._waiting: dict[tuple[str, int], tuple[int, int, schedules.Policy]] = {}
        self._first: dict[tuple[str, int, Part], int] = {}
        self._deadlines: dict[str, int] = {}
        self._states: dict[str, JobState] = {}
        self._sessions: set[str] = set()
        # When the last heartbeat of a session truly came, recorded or not.
        self._heard_led_ms: dict[str, int] = {}
        self._lost_at_ms: dict[str, int] = {}
        self._serial = 0
        self._minute: deque[int] = deque()
        self._looked_ms = 0
        shard.onlookers.append(self)

    def red(self, kind: str, text: str) -> None:
        """Something is wrong."""
        raise WrongError(kind, f"{text} (at {self._shard.steady_ms} ms)")

    # Each batch.

    def decided(self, decided: Decided) -> None:
        """See `shard.Onlooker`."""
        changes = decided.changes
        reports = self._hear(decided)
        before = {job_id: self._states.get(job_id) for job_id in {owner_of(key) for key in changes}}
        for key, row in changes.items():
            if isinstance(row, rows.Progress):
                self._see_job(key, row, decided)
        self._see_sessions(decided)
        entries = self._entries(decided)
        for entry in entries.pop(("", -1), []):
            self._judge_job(entry)
        for key, row in changes.items():
            if key[:1] == keys.STEP and row is not None:
                assert isinstance(row, rows.Step)
                job_id, ordinal = keys.parse_subject(key[1:])
                unwanted = not {before.get(job_id), self._states[job_id]} <= _FORWARD
                self._see_step(decided, job_id, ordinal, row, entries, reports, unwanted=unwanted)
        if entries:
            self.red("without a change", f"{[(e.job_id, e.step_id, e.trouble.name) for _, e in _flat(entries)]}")
        if isinstance(decided.commands[0], Sweep) and self._shard.steady_ms - self._looked_ms >= _LOOK_MS:
            self._looked_ms = self._shard.steady_ms
            self._look_for_missed(decided)

    def _hear(self, decided: Decided) -> dict[AttemptRef, AttemptEvent]:
        """What agents reported that was taken. A sign of life counts for the attempt that is open."""
        taken: dict[AttemptRef, AttemptEvent] = {}
        for command, answer in zip(decided.commands, decided.answers, strict=True):
            if isinstance(command, OpenSession | RenewSession) and not isinstance(answer, Rejection):
                self._heard_led_ms[command.session_id] = decided.moment.led_ms
            if not isinstance(command, ReportAttempts) or not isinstance(answer, AttemptsReported):
                continue
            # With a message it was recorded before, as when a Started comes late.
            recorded = {one.attempt for one in answer.results if one.result == "RECORDED" and not one.message}
            for report in command.reports:
                ref = report.attempt
                if isinstance(report.event, ProgressMade):
                    for attempt in self._attempts.values():
                        if attempt.ref == ref and attempt.session_id == command.session_id:
                            attempt.heard_log_ms = decided.moment.log_ms
                elif ref in recorded:
                    taken[ref] = report.event
        return taken

    def _see_job(self, key: bytes, row: rows.Progress, decided: Decided) -> None:
        job_id = keys.progress_job_id(key)
        if job_id not in self._states and row.deadline_log_ms:
            job = self._shard.reader.get(keys.job(job_id))
            assert isinstance(job, rows.Job)
            self._deadlines[job_id] = decided.moment.log_ms + job.deadline_ms
        self._states[job_id] = row.state
        if row.state is not JobState.RUNNING:
            self._deadlines.pop(job_id, None) if row.state in JOB_STATES_FINAL else None
        self.counts[f"job {row.state.name}"] += row.state in JOB_STATES_FINAL

    # Sessions.

    def _see_sessions(self, decided: Decided) -> None:
        for key, row in decided.changes.items():
            if key[:1] != keys.SESSION:
                continue
            session_id = key[1:].decode()
            if isinstance(row, rows.Session) and not row.ending:
                self._sessions.add(session_id)
            elif session_id in self._sessions:
                self._sessions.remove(session_id)
                self._lost_at_ms[session_id] = self._shard.steady_ms
                self._judge_loss(session_id, decided.moment.led_ms)

    def _judge_loss(self, session_id: str, led_ms: int) -> None:
        """A session is given up: its agent must have been silent for long, and not for too long."""
        agent, heard_ms = self._agent(session_id), self._heard_led_ms.pop(session_id)
        truth = agent.sessions[session_id]
        if agent.alive and agent.session_id == session_id and truth.lease_until_ms > self._shard.steady_ms:
            self.red("healthy", f"session {session_id} is given up while its agent counts on it")
        if led_ms - heard_ms < self._shard.limits.session_ttl_ms:
            self.red("healthy", f"session {session_id} is given up {led_ms} although heard at {heard_ms}")
        self._note("agent lost", led_ms - heard_ms, latencies.lost_agent_ms(self._shard.limits))

    def _agent(self, session_id: str) -> Agent:
        return next(agent for agent in self._agents if session_id in agent.sessions)

    # Entries.

    def _entries(self, decided: Decided) -> dict[tuple[str, int], list[LedgerEntry]]:
        """Those of a batch by step; those of jobs under none. What people did is theirs."""
        found: dict[tuple[str, int], list[LedgerEntry]] = defaultdict(list)
        for key, row in decided.changes.items():
            if key[:1] != keys.LEDGER or not isinstance(row, ledger_rows.LedgerEntry):
                continue
            self._serial += 1
            if row.serial != self._serial:
                self.red("serial", f"{row.serial} follows {self._serial - 1}")
            self.counts[f"{row.trouble.name} {row.remedy.name}"] += 1
            if row.by is By.SUPERVISOR and row.remedy not in _HARMLESS:
                self._count_minute(row.led_ms)
            if row.by is not By.PERSON:
                found[("", -1) if row.ordinal < 0 else (row.job_id, row.ordinal)].append(row)
        return found

    def _count_minute(self, led_ms: int) -> None:
        minute = self._minute
        minute.append(led_ms)
        while minute[0] <= led_ms - _MINUTE_MS:
            minute.popleft()
        self.minute_most = max(self.minute_most, len(minute))
        if len(minute) > self._shard.limits.remediations_per_minute_max:
            self.red("brake", f"{len(minute)} remediations within a minute")

    def _judge_job(self, entry: LedgerEntry) -> None:
        due_ms = self._deadlines.pop(entry.job_id, None)
        if entry.trouble is not T.JOB_DEADLINE or due_ms is None:
            self.red("job", f"{entry.trouble.name} of {entry.job_id}, whose deadline is {due_ms}")
            return
        self._judge_bound("JOB_DEADLINE", entry.log_ms, due_ms, entry.job_id)

    def _judge_bound(self, name: str, now_ms: int, due_ms: int, what: object, *, waits_ms: int = 0) -> None:
        """Something was noticed that was due then, on log time, which is the true time here."""
        if now_ms < due_ms:
            self.red("early", f"{name} of {what} is noticed {due_ms - now_ms} ms before its end")
        blocked_ms = self._shard.blocked.within_ms(due_ms, now_ms)
        self.counts["held"] += blocked_ms > 0
        self._note(name, now_ms - due_ms - blocked_ms, waits_ms + latencies.SWEEP_MS)

    def _note(self, name: str, late_ms: int, stated_ms: int) -> None:
        self.late_ms[name].append(late_ms)
        self.stated_ms[name] = stated_ms
        if late_ms > stated_ms:
            self.red("late", f"{name} is noticed after {late_ms} ms; {stated_ms} is stated")

    # Steps.

    def _see_step(
        self,
        decided: Decided,
        job_id: str,
        ordinal: int,
        step: Step,
        entries: dict[tuple[str, int], list[LedgerEntry]],
        reports: dict[AttemptRef, AttemptEvent],
        *,
        unwanted: bool,
    ) -> None:
        """A step has changed: an attempt ended, or a wait, each for a reason that is true."""
        subject, log_ms = (job_id, ordinal), decided.moment.log_ms
        mine = entries.pop(subject, [])
        attempt = self._attempts.get(subject)
        open_ = attempt is not None and step.token == attempt.ref.token and step.state in states.HELD
        if attempt is not None and not open_:
            del self._attempts[subject]
            mine = self._judge_end(attempt, mine, reports.get(attempt.ref), log_ms, unwanted=unwanted)
        elif attempt is not None and mine:
            mine = self._judge_words(attempt, mine, decided.moment.led_ms)
        phase = states.phase(step.state)
        if self._waits_no_more(subject, step, phase):
            since_ms, first_ms, policy = self._waiting.pop(subject)
            mine = self._judge_wait(subject, mine, log_ms, since_ms, first_ms, policy)
        elif mine:
            mine = self._judge_retry_wait(subject, mine, log_ms)
        if mine:
            self.red("unexplained", f"{[(e.trouble.name, e.remedy.name) for e in mine]} of {subject}, {step}")
        self._note_step(decided, subject, step, phase)

    def _waits_no_more(self, subject: tuple[str, int], step: Step, phase: states.Phase) -> bool:
        """Whether a part of a step that was ready is not any more; in one batch its undo may have become ready."""
        if subject not in self._waiting:
            return False
        policy = schedules.policy_of(spec_of(self._shard, *subject), phase.part)
        return step.state is not phase.ready or self._waiting[subject][2] != policy

    def _note_step(self, decided: Decided, subject: tuple[str, int], step: Step, phase: states.Phase) -> None:
        job_id, ordinal = subject
        if step.state not in states.HELD and step.state is not phase.ready:
            return
        spec, log_ms = spec_of(self._shard, job_id, ordinal), decided.moment.log_ms
        policy = schedules.policy_of(spec, phase.part)
        first_ms = self._first.setdefault((*subject, phase.part), log_ms)
        if step.state is phase.ready:
            self._waiting.setdefault(subject, (log_ms, first_ms, policy))
            return
        attempt = self._attempts.get(subject)
        if attempt is None:
            ref = AttemptRef(job_id, spec.id, step.token)
            attempt = Attempt(ref, step.session_id, policy, decided.moment.led_ms)
            attempt.first_log_ms = first_ms
            self._attempts[subject] = attempt
        if step.state is phase.running and attempt.started_log_ms < 0:
            attempt.started_log_ms = log_ms

    def _judge_end(
        self,
        attempt: Attempt,
        entries: list[LedgerEntry],
        report: AttemptEvent | None,
        log_ms: int,
        *,
        unwanted: bool,
    ) -> list[LedgerEntry]:
        """An attempt has ended: by what its agent said, or by exactly one entry that is true. What is left of those."""
        said = None if report is None else type(report).__name__
        if not entries:
            if said not in ("Succeeded", "Declined", "Accepted") and not unwanted:
                self.red("not written down", f"{attempt.ref} has ended ({said}), and the ledger does not say so")
            return []
        entry, *others = entries
        kind = self._truth_of_question(attempt, log_ms) if attempt.asks else trouble_of(entry)
        if kind is None:
            # The question was answered, or its agent said that it cannot be.
            kind = T.ATTEMPT_FAILED
        if entry.evidence.token != attempt.ref.token:
            self.red("wrong attempt", f"{entry} is about {attempt.ref}")
        if kind in FAILURES:
            if said is None and entry.by is By.SUPERVISOR:
                self.red("false", f"{kind.name} of {attempt.ref}, which said nothing")
            self.counts["reported"] += 1
        elif kind in LOSSES:
            if attempt.session_id not in self._lost_at_ms:
                self.red("false", f"{kind.name} of {attempt.ref}, whose session is well")
            lost_ms, now_ms = self._lost_at_ms[attempt.session_id], self._shard.steady_ms
            waited_ms = now_ms - lost_ms - self._shard.blocked.within_ms(lost_ms, now_ms)
            self._note("LEASE_LOST", waited_ms, latencies.SWEEP_MS)
        elif kind is T.OFFER_UNANSWERED:
            self._judge_words(attempt, [entry], entry.led_ms)
        else:
            due_ms = attempt.bounds(self._shard.opened_log_ms).get(kind)
            if due_ms is None or (attempt.started_log_ms < 0 and kind is not T.SCHEDULE_TO_CLOSE):
                self.red("false", f"{kind.name} of {attempt.ref}, which has no such bound")
                return []
            if attempt.started_log_ms < 0:
                # An offer is only looked at when it should have been answered.
                waits_ms = self._shard.limits.accept_deadline_ms
                self._judge_bound(f"{kind.name} (offered)", log_ms, due_ms, attempt.ref, waits_ms=waits_ms)
            else:
                self._judge_bound(kind.name, log_ms, due_ms, attempt.ref)
        return others

    def _truth_of_question(self, attempt: Attempt, log_ms: int) -> Trouble | None:
        """What ended a question without an answer. What is decided then is about the attempt that it was about."""
        if attempt.session_id in self._lost_at_ms:
            return T.LEASE_LOST
        passed = [what for what, at_ms in attempt.bounds(self._shard.opened_log_ms).items() if at_ms <= log_ms]
        return passed[0] if passed and attempt.started_log_ms >= 0 else None

    def _judge_words(self, attempt: Attempt, entries: list[LedgerEntry], led_ms: int) -> list[LedgerEntry]:
        """An offer that stays open, and had no answer for a TTL."""
        entry, *others = entries
        if entry.trouble is not T.OFFER_UNANSWERED or attempt.started_log_ms >= 0 or attempt.withdrawn:
            self.red("false", f"{entry.trouble.name} {entry.remedy.name} of {attempt.ref}, which goes on")
        due_ms = attempt.unanswered_since_led_ms + self._shard.limits.accept_deadline_ms
        if led_ms < due_ms:
            self.red("early", f"{attempt.ref} had {due_ms - led_ms} ms left to be answered")
        now_ms = self._shard.steady_ms
        blocked_ms = self._shard.blocked.within_ms(now_ms - (led_ms - due_ms), now_ms)
        self._note("OFFER_UNANSWERED", led_ms - due_ms - blocked_ms, latencies.SWEEP_MS)
        attempt.unanswered_since_led_ms = led_ms
        attempt.withdrawn = entry.remedy is Remedy.WITHDRAW
        return others

    def _judge_wait(
        self,
        subject: tuple[str, int],
        entries: list[LedgerEntry],
        log_ms: int,
        since_ms: int,
        first_ms: int,
        policy: schedules.Policy,
    ) -> list[LedgerEntry]:
        """A ready step is not any more: it was offered, or not wanted, or it waited for too long."""
        if not entries:
            return []
        entry, *others = entries
        due_ms = {
            T.QUEUE_TIME: since_ms + policy.queue_ms,
            T.SCHEDULE_TO_CLOSE: first_ms + policy.schedule_to_close_ms if policy.schedule_to_close_ms else None,
        }.get(trouble_of(entry))
        if due_ms is None:
            self.red("false", f"{entry.trouble.name} of {subject}, which was ready")
            return []
        self._judge_bound(f"{trouble_of(entry).name} (waiting)", log_ms, due_ms, subject)
        return others

    def _judge_retry_wait(self, subject: tuple[str, int], entries: list[LedgerEntry], log_ms: int) -> list[LedgerEntry]:
        """No agent held a step and none could: while it waited to be tried again the time of all attempts ended."""
        entry, *others = entries
        first_ms = self._first.get((*subject, Part.ACTION))
        bound_ms = spec_of(self._shard, *subject).schedule_to_close_ms
        if entry.trouble is not T.SCHEDULE_TO_CLOSE or first_ms is None or not bound_ms:
            return entries
        self._judge_bound("SCHEDULE_TO_CLOSE (waiting)", log_ms, first_ms + bound_ms, subject)
        return others

    # What should have been noticed by now.

    def _look_for_missed(self, decided: Decided) -> None:
        """Level-triggered like the supervisor, and as patient as it promises to be."""
        shard, limits = self._shard, self._shard.limits
        led_ms, log_ms = decided.moment.led_ms, decided.moment.log_ms
        lost_ms = latencies.lost_agent_ms(limits)
        for session_id in self._sessions:
            heard_ms = self._heard_led_ms[session_id]
            if led_ms - heard_ms > lost_ms:
                self.red("missed", f"session {session_id} was heard last at {heard_ms}, now it is {led_ms}")
        due = [(job_id, due_ms) for job_id, due_ms in self._deadlines.items() if self._states[job_id] in _FORWARD]
        missed: list[tuple[object, int]] = [*due]
        for subject, (since_ms, _, policy) in self._waiting.items():
            if self._states[subject[0]] in _FORWARD:
                missed.append((subject, since_ms + policy.queue_ms))
        for subject, attempt in self._attempts.items():
            if attempt.started_log_ms >= 0 and self._states[subject[0]] in _FORWARD:
                missed.append((attempt.ref, min(attempt.bounds(shard.opened_log_ms).values())))
            lost_at_ms = self._lost_at_ms.get(attempt.session_id)
            if lost_at_ms is not None:
                missed.append((attempt.ref, lost_at_ms))
        for what, due_ms in missed:
            over_ms = log_ms - due_ms
            if over_ms > latencies.SWEEP_MS:
                over_ms -= shard.blocked.within_ms(due_ms, log_ms)
                if over_ms > latencies.SWEEP_MS:
                    self.red("missed", f"{what} was due at {due_ms}, now it is {log_ms}")


_LOOK_MS: Final = 500


def trouble_of(entry: LedgerEntry) -> Trouble:
    """What was met, where the entry says what it has come to."""
    if entry.trouble not in (T.UNDO_FAILED, T.UNDO_UNKNOWN):
        return entry.trouble
    return _BY_KIND.get(entry.evidence.failure.partition(":")[0], T.ATTEMPT_FAILED)


def owner_of(key: bytes) -> str:
    """The job of a step's row, or none."""
    return keys.parse_subject(key[1:])[0] if key[:1] == keys.STEP else ""


def _flat(entries: dict[tuple[str, int], list[LedgerEntry]]) -> list[tuple[tuple[str, int], LedgerEntry]]:
    return [(subject, entry) for subject, found in entries.items() if subject[1] >= 0 for entry in found]
