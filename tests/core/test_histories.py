"""Random histories of one shard: whatever agents, people and clocks do, the rows keep their promises.

Each seed makes a definition of its own and a few hundred commands: submissions, sessions that come, go silent, drain
and return, reports true, late, repeated and wrong, cancels, sweeps of any size. After each batch every counter, index
and timer is recounted; at the end one good agent works off what is left, and every job must have ended.
"""

from __future__ import annotations

import random
from collections import Counter
from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from stepward.server.core import invariants, keys, rows
from stepward.server.core.commands import (
    Accepted,
    AttemptRef,
    AttemptReport,
    CancelJob,
    CloseStream,
    Declined,
    DrainSession,
    Failed,
    IncidentResolved,
    PauseJob,
    ProgressMade,
    RenewSession,
    ReportAttempts,
    ResolveIncident,
    ResumeJob,
    RetryStep,
    SkipStep,
    Started,
    Stopped,
    Succeeded,
    Sweep,
    Swept,
    TerminateJob,
    Unknown,
    VerbDone,
)
from stepward.server.core.graph import ancestors
from stepward.server.core.ledger_rows import LedgerEntry
from stepward.server.core.limits import Limits
from stepward.server.core.parts import Remedy, Resolution
from stepward.server.core.rows import (
    JOB_STATES_FINAL,
    Approval,
    DefinitionBody,
    Effect,
    EventType,
    JobState,
    OnDeadline,
    OnExhausted,
    OnUnknown,
    Payload,
    Reassign,
    RetrySpec,
    StartMode,
    StepSpec,
    StepState,
)
from tests.core.world import DAY_MS, World, actions_of, step_spec

if TYPE_CHECKING:
    from collections.abc import Callable

    from stepward.server.core.commands import AnyCommand, AttemptEvent

# Who submits, in turns; the first is nobody.
CALLERS = ("", "ann", "bob")
DONE = Succeeded(Payload(b'{"id":1}'))
# What a question is answered; any other part of a step may give the same.
VERDICTS = [
    Succeeded(Payload(b'{"happened":true,"output":{"id":2}}')),
    Succeeded(Payload(b'{"happened":false}')),
    Succeeded(Payload(b'{"happened":null}')),
]
# What histories must have met: kinds of failures, answers, and what follows.
MEANT = (
    "HEARTBEAT_TIMEOUT",
    "START_TO_CLOSE_TIMEOUT",
    "SCHEDULE_TO_CLOSE_TIMEOUT",
    "LEASE_LOST",
    "JOB_DEADLINE",
    EventType.JobDeadlinePassed.name,
    EventType.StepFoundDone.name,
    EventType.StepFoundNotDone.name,
    EventType.StepNotTold.name,
    EventType.VerifyAttemptFailed.name,
    EventType.VerifyAttemptLost.name,
    EventType.VerifyAttemptTimedOut.name,
    EventType.VerifyAttemptUnknown.name,
    EventType.VerifyHandedBack.name,
    EventType.VerifyRetryScheduled.name,
    EventType.UndoOutcomeUnknown.name,
)
# These change nothing, so they stand in the history alone.
WRITTEN_NOWHERE = (Remedy.NONE, Remedy.RESEND, Remedy.WITHDRAW)
COMMANDS = 250
JOBS_MAX = 25


def make_definition(rng: random.Random) -> DefinitionBody:
    """A random graph of up to six steps, in any order."""
    count = rng.randint(1, 6)
    order = list(range(count))
    if rng.random() < 0.5:
        rng.shuffle(order)
    needs = [tuple(j for j in range(count) if order[j] < order[i] and rng.random() < 0.4) for i in range(count)]
    steps = tuple(
        step_spec(
            f"s{i}",
            needs=needs[i],
            dependents=tuple(k for k in range(count) if i in needs[k]),
            undo=rng.random() < 0.8,
            effect=rng.choice([Effect.IDEMPOTENT] * 3 + [Effect.NON_IDEMPOTENT]),
            start=rng.choice(list(StartMode)),
            on_unknown=rng.choice(list(OnUnknown)),
            retry=RetrySpec(attempts_max=3, time_ms_max=rng.choice([0, 0, 0, 20_000])),
            verify=rng.random() < 0.4,
            undo_effect=rng.choice([Effect.IDEMPOTENT] * 3 + [Effect.NON_IDEMPOTENT]),
            start_to_close_ms=rng.choice([3_000, 10_000]),
            heartbeat_ms=rng.choice([0, 0, 2_000]),
            schedule_to_close_ms=rng.choice([0, 0, 0, 15_000]),
        )
        for i in range(count)
    )
    deadline_ms, on_deadline = rng.choice([0, 0, 30_000]), rng.choice(list(OnDeadline))
    return DefinitionBody("graph", with_policies(rng, steps), b"", b"", deadline_ms, on_deadline)


def with_policies(rng: random.Random, steps: tuple[StepSpec, ...]) -> tuple[StepSpec, ...]:
    """The same graph with what is to be done about trouble, and perhaps with a point of no return, by the rules.

    There is one at most; what comes before it can be undone or repeated, and neither it nor what is irreversible has
    an undo.
    """
    pivot = rng.randrange(len(steps)) if rng.random() < 0.4 else None
    before = 0 if pivot is None else ancestors([spec.needs for spec in steps])[pivot]
    changed = []
    for ordinal, drawn in enumerate(steps):
        spec = replace(
            drawn,
            on_exhausted=rng.choice([*[OnExhausted.COMPENSATE] * 3, *OnExhausted]),
            reassign=rng.choice(list(Reassign)),
            approval=rng.choice([*[Approval.NOT_REQUIRED] * 3, Approval.REQUIRED]),
        )
        if ordinal == pivot:
            spec = replace(spec, effect=Effect.PIVOT, undo=None, on_unknown=OnUnknown.ESCALATE)
        elif before >> ordinal & 1:
            if spec.undo is None:
                spec = replace(spec, effect=Effect.IDEMPOTENT)
        elif rng.random() < 0.15:
            spec = replace(spec, effect=Effect.IRREVERSIBLE, undo=None)
        changed.append(spec)
    return tuple(changed)


class History:
    """One random history."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.rng = random.Random(seed)
        # Slices as small as they can be, so that few steps are as many as thousands are in earnest.
        slice_, writes_max = self.rng.choice([(500, 4_000), (1, 4_000), (2, 4_000), (500, 10)])
        limits = Limits(
            session_ttl_ms=3_000,
            activation_slice=slice_,
            batch_writes_max=writes_max,
            told_least=min(slice_, 2),
            retention_ms=self.rng.choice([DAY_MS, 20_000]),
            purge_writes_max=self.rng.choice([1_000, 3]),
        )
        self.world = World(limits=limits, seed=seed)
        self.body = make_definition(self.rng)
        self.actions = actions_of(self.body)
        self.world.define(self.body)
        self.jobs: list[str] = []
        self.sessions: list[str] = []
        self.ended: dict[str, JobState] = {}
        self.tokens: dict[bytes, int] = {}
        self.coverage: Counter[str] = Counter()

    def run(self) -> None:
        """Do random things, then let a good agent finish."""
        acts: list[tuple[Callable[[], None], int]] = [
            (self._submit, 12),
            (self._open, 8),
            (self._reopen, 5),
            (self._renew, 15),
            (self._sweep, 10),
            (self._cancel, 3),
            (self._operate, 10),
            (self._resolve, 4),
            (self._close_or_drain, 3),
            (self._report, 44),
        ]
        for _ in range(COMMANDS):
            self.world.now_ms += self.rng.choice([0, 1, 50, 300, 800, 4_000])
            act = self.rng.choices([a for a, _ in acts], [w for _, w in acts])[0]
            act()
            self._check()
        self._finish()

    def _submit(self) -> None:
        if len(self.jobs) < JOBS_MAX:
            self.jobs.append(f"j{len(self.jobs):03d}")
            self.world.submit(self.jobs[-1], "graph", caller=CALLERS[len(self.jobs) % len(CALLERS)])

    def _open(self) -> None:
        self.sessions.append(f"session-{len(self.sessions):03d}")
        self.world.open(self.sessions[-1], self.actions, slots=self.rng.randint(1, 3))

    def _session(self) -> tuple[str, int] | None:
        if not self.sessions:
            return None
        session_id = self.rng.choice(self.sessions)
        row = self.world.reader.get(keys.session(session_id))
        return session_id, row.generation if isinstance(row, rows.Session) else 1

    def _reopen(self) -> None:
        found = self._session()
        if found is not None and self.world.reader.get(keys.session(found[0])) is not None:
            row = self.world.reader.get(keys.session(found[0]))
            assert isinstance(row, rows.Session)
            if not row.ending:
                self.world.open(found[0], self.actions, slots=row.slots)

    def _renew(self) -> None:
        found = self._session()
        if found is not None:
            held = () if self.rng.random() < 0.2 else None
            self.world.one(RenewSession(*found, 0, held))

    def _sweep(self) -> None:
        self.world.one(Sweep(self.rng.choice([1, 3, 100])))

    def _cancel(self) -> None:
        if self.jobs:
            self.world.one(CancelJob(self.rng.choice(self.jobs), "no longer wanted"))

    def _operate(self) -> None:
        """Somebody acts on a step of a job by hand, whatever state both are in."""
        if not self.jobs:
            return
        job_id, step_id = self.rng.choice(self.jobs), self.rng.choice(self.body.steps).id
        verbs: list[AnyCommand] = [
            PauseJob(job_id, "the service is down", "ada"),
            ResumeJob(job_id, "the service is up", "ada"),
            ResumeJob(job_id, "the service is up", "ada"),
            RetryStep(job_id, step_id, "it works again", "ada"),
            SkipStep(job_id, step_id, Payload(b"null"), self.rng.random() < 0.5, "done by hand", "ada"),
        ]
        verb: AnyCommand = self.rng.choice(verbs)
        if self.rng.random() < 0.05:
            verb = TerminateJob(job_id, "we give up", "ada")
        answer = self.world.one(verb)
        if isinstance(answer, VerbDone) and not answer.already:
            self.coverage[type(verb).__name__] += 1

    def _resolve(self) -> None:
        """Somebody decides about an incident, open or not, in a way that may not be open to it."""
        number = self.rng.randint(1, 1 + self.world.reader.count(keys.INCIDENT))
        resolution = self.rng.choice([*Resolution, Resolution.APPROVE])
        undone = self.rng.random() < 0.5
        answer = self.world.one(ResolveIncident(number, resolution, Payload(b"null"), undone, "looked at it", "ada"))
        if isinstance(answer, IncidentResolved) and not answer.already:
            self.coverage[resolution.name] += 1

    def _close_or_drain(self) -> None:
        found = self._session()
        if found is not None:
            self.world.one(CloseStream(*found) if self.rng.random() < 0.5 else DrainSession(*found))

    def _report(self) -> None:
        """Report on an assignment, or one time in five on any token that there ever was."""
        held = [keys.parse_assignment(key) for key in self.world.reader.scan(keys.ASSIGNMENT)]
        if self.sessions and self.rng.random() < 0.2:
            held += [
                (self.rng.choice(self.sessions), token, *keys.parse_subject(key[1:]))
                for key, token in self.tokens.items()
            ]
        if held:
            session_id, token, job_id, ordinal = self.rng.choice(held)
            ref = AttemptRef(job_id, self.body.steps[ordinal].id, token)
            self.world.one(ReportAttempts(session_id, 1, (AttemptReport(ref, self._event()),)))

    def _event(self) -> AttemptEvent:
        rng = self.rng
        events: list[AttemptEvent] = [
            rng.choice(VERDICTS),
            DONE,
            DONE,
            DONE,
            Started(),
            Accepted(),
            Failed("Refused", "by the service", rng.random() < 0.7),
            Unknown("TimedOut", "after sending"),
            Declined(rng.random() < 0.5),
            Stopped(rng.random() < 0.5),
            ProgressMade(rng.choice([None, Payload(b"1")])),
        ]
        return rng.choice(events)

    def _check(self) -> None:
        """Every invariant, and what no batch may take back."""
        found = invariants.violations(self.world.reader, led_ms=self.world.now_ms)
        assert not found, (self.seed, found)
        self._note_ends()
        for key, row in self.world.changes.items():
            if isinstance(row, rows.Step):
                assert row.token >= self.tokens.get(key, 0), (self.seed, key, row.token)
                self.tokens[key] = row.token

    def _note_ends(self) -> None:
        """Remember how jobs ended: none ends twice, and only those vanish."""
        for job_id in self._kept():
            state = self.world.progress(job_id).state
            assert self.ended.get(job_id, state) is state, (self.seed, job_id, self.ended[job_id], state)
            if state in JOB_STATES_FINAL:
                self.ended[job_id] = state

    def _kept(self) -> list[str]:
        """Jobs that are still there. Only those that had ended are not."""
        kept = [job_id for job_id in self.jobs if self.world.reader.get(keys.job(job_id)) is not None]
        assert set(self.jobs) - set(kept) <= self.ended.keys(), self.seed
        return kept

    def _finish(self) -> None:
        """A good agent with room for everything does what is left. Only what waits for a person may stay."""
        for job_id in self.jobs:
            self.world.one(ResumeJob(job_id, "to be finished", "ada"))
            self._check()
        good = "good-agent-000000"
        self.world.open(good, self.actions, slots=100)
        states: set[JobState] = set()
        for _ in range(3_000):
            self.world.now_ms += 900
            swept = self.world.do(RenewSession(good, 1, 0), Sweep(100))[1]
            # As a supervisor does: what did not fit into a batch goes on at once, before more falls due.
            while isinstance(swept, Swept) and swept.unfinished:
                swept = self.world.one(Sweep(100))
            for key in list(self.world.reader.scan(keys.assignments(good))):
                self._do_well(good, key)
            self._check()
            states = {self.world.progress(job_id).state for job_id in self._kept()}
            if states <= JOB_STATES_FINAL | {JobState.ESCALATED} and not self.world.reader.count(keys.ASSIGNMENT):
                break
        else:
            pytest.fail(f"seed {self.seed}: not all jobs ended: {states}")
        for job_id in self._kept():
            self._check_order(job_id)
            self.coverage.update(event.type.name for _, event in self.world.events(job_id))
            self.coverage.update(event.detail.partition(":")[0] for _, event in self.world.events(job_id))
        for job_id in self.jobs:
            state = self.ended.get(job_id) or self.world.progress(job_id).state
            self.coverage[state.name] += 1
            self.coverage["PURGED"] += self.world.reader.get(keys.job(job_id)) is None
        for key in self.world.reader.scan(keys.LEDGER):
            entry = self.world.reader.get(key)
            assert isinstance(entry, LedgerEntry)
            self.coverage[f"remedy {entry.remedy.name}"] += 1

    def _do_well(self, session_id: str, key: bytes) -> None:
        _, token, job_id, ordinal = keys.parse_assignment(key)
        ref = AttemptRef(job_id, self.body.steps[ordinal].id, token)
        reports = tuple(AttemptReport(ref, event) for event in (Accepted(), self.rng.choice([DONE, *VERDICTS])))
        self.world.one(ReportAttempts(session_id, 1, reports))

    def _check_order(self, job_id: str) -> None:
        """Undos run against the edges, only after every forward attempt, and never of what has surely not happened."""
        began: dict[int, int] = {}
        ended: dict[int, int] = {}
        forward_last = -1
        stopping = False
        for place, (_, event) in enumerate(self.world.events(job_id)):
            stopping = stopping or event.type is EventType.JobCompensationStarted
            begins = event.type in (EventType.StepReady, EventType.StepOffered, EventType.StepRetryScheduled)
            assert not (stopping and begins), (self.seed, job_id, event)
            if event.type is EventType.UndoReady:
                began.setdefault(event.ordinal, place)
            elif event.type in (EventType.UndoSucceeded, EventType.UndoFailed, EventType.UndoSkipped):
                ended[event.ordinal] = place
            elif event.type in (EventType.StepOffered, EventType.StepStarted, EventType.StepSucceeded):
                forward_last = place
        if not began:
            return
        assert forward_last < min(began.values()), (self.seed, job_id)
        for ordinal, spec in enumerate(self.body.steps):
            for dependent in spec.dependents:
                if ordinal in began and dependent in began:
                    assert ended[dependent] < began[ordinal], (self.seed, job_id, ordinal, dependent)
        never_offered = {ordinal for ordinal in began if not self._was_offered(job_id, ordinal)}
        assert not never_offered, (self.seed, job_id, never_offered)

    def _was_offered(self, job_id: str, ordinal: int) -> bool:
        return any(e.type is EventType.StepOffered and e.ordinal == ordinal for _, e in self.world.events(job_id))


def run_seeds(first: int, count: int, only: int | None) -> Counter[str]:
    """Run many histories and add up how their jobs ended."""
    total: Counter[str] = Counter()
    for seed in [only] if only is not None else range(first, first + count):
        history = History(seed)
        history.run()
        total += history.coverage
    return total


def test_random_histories(only_seed: int | None) -> None:
    """All promises hold, every way in which a job can end is met, and each thing that a person can do was done."""
    met = run_seeds(0, 40, only_seed)

    if only_seed is None:
        ends = [state.name for state in (*JOB_STATES_FINAL, JobState.ESCALATED)]
        verbs = [verb.__name__ for verb in (TerminateJob, PauseJob, ResumeJob, RetryStep, SkipStep)]
        remedies = [f"remedy {one.name}" for one in Remedy if one not in WRITTEN_NOWHERE]
        decided = [one.name for one in Resolution]
        assert [name for name in (*ends, *verbs, *remedies, *decided, *MEANT, "PURGED") if not met[name]] == []


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_many_random_histories(only_seed: int | None) -> None:
    """The same, for longer."""
    run_seeds(1_000, 250, only_seed)


def test_a_step_that_has_not_begun_is_pending() -> None:
    """What has no row yet reads as PENDING."""
    world = World()
    world.define(DefinitionBody("two", (step_spec("a", dependents=(1,)), step_spec("b", needs=(0,))), b"", b""))
    world.submit("j1", "two")

    assert world.step_state("j1", "b") == StepState.PENDING.name
