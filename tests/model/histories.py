"""Random histories of one job in a world where everything goes wrong, and what must be true at their ends.

A history is a seed. It draws a definition, agents, failures, partitions, pauses, people and restarts; every batch is
held against the invariants and the plain model, and at the end the rows are held against what really stands outside.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from stepward.server.core import compensation, invariants, keys, rows
from stepward.server.core.commands import (
    AttemptsReported,
    CancelJob,
    PauseJob,
    ProgressMade,
    ReportAttempts,
    ResumeJob,
    RetryStep,
    SkipStep,
    Sweep,
    TerminateJob,
    VerbDone,
)
from stepward.server.core.limits import Limits
from stepward.server.core.rows import (
    JOB_STATES_FINAL,
    DefinitionBody,
    Effect,
    JobState,
    OnDeadline,
    OnUnknown,
    Payload,
    RetrySpec,
    StartMode,
    StepSpec,
    StepState,
    UndoSpec,
    VerifySpec,
)
from stepward.server.store.live import LiveRows
from tests.core.world import DAY_MS, World
from tests.model.model import Model
from tests.model.remote import Remote
from tests.model.workers import Worker

if TYPE_CHECKING:
    from collections.abc import Callable

    from stepward.server.core.commands import Answer, AnyCommand
    from stepward.server.core.rows import Step

JOB = "0-00000000000000000000000000000001"
TTL_MS = 3_000
STORM_TICKS_MAX = 120
# Ticks after which a job that good agents and a good person look after must have ended.
CALM_TICKS_MAX = 3_000


def make_definition(rng: random.Random) -> DefinitionBody:
    """A random graph, in any order, of steps that can be repeated, undone and asked about, or not."""
    count = rng.choice([1, 2, 3, 3, 4, 5, 8, 12])
    order = rng.sample(range(count), count)
    density = rng.choice([0.2, 0.5, 0.9])
    needs = [tuple(k for k in range(count) if order[k] < order[n] and rng.random() < density) for n in range(count)]
    steps = tuple(_step(rng, n, needs[n], tuple(k for k in range(count) if n in needs[k])) for n in range(count))
    deadline_ms = rng.choice([0, 0, 0, 20_000])
    return DefinitionBody("graph", steps, b"", b"", deadline_ms, rng.choice(list(OnDeadline)))


def _step(rng: random.Random, number: int, needs: tuple[int, ...], dependents: tuple[int, ...]) -> StepSpec:
    retry = RetrySpec(
        attempts_max=rng.choice([1, 2, 3, 3]),
        initial_ms=rng.choice([0, 100, 1_000]),
        cap_ms=2_000,
        non_retryable_kinds=("Declined",),
        time_ms_max=rng.choice([0, 0, 0, 15_000]),
    )
    effect = rng.choice([Effect.IDEMPOTENT, Effect.IDEMPOTENT, Effect.NON_IDEMPOTENT])
    bounds = (rng.choice([0, 0, 2_500]), rng.choice([0, 0, 0, 12_000]))
    name = f"s{number}"
    undo_effect = rng.choice([Effect.IDEMPOTENT] * 4 + [Effect.NON_IDEMPOTENT])
    verify = VerifySpec(f"verify-{name}", "q", retry, 6_000, DAY_MS, *bounds)
    undo = UndoSpec(f"undo-{name}", "q", retry, 6_000, DAY_MS, *bounds, effect=undo_effect)
    return StepSpec(
        id=name,
        action=name,
        queue="q",
        needs=needs,
        dependents=dependents,
        input=b"",
        retry=retry,
        start_to_close_ms=6_000,
        queue_ms=rng.choice([DAY_MS, DAY_MS, 20_000]),
        effect=effect,
        start=rng.choice(list(StartMode)),
        on_unknown=rng.choice(list(OnUnknown)),
        undo=undo if rng.random() < 0.8 else None,
        verify=verify if rng.random() < 0.35 else None,
        heartbeat_ms=bounds[0],
        schedule_to_close_ms=bounds[1],
    )


class History:
    """One random history."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.rng = rng = random.Random(seed)
        slice_max, writes_max = rng.choice([(500, 4_000), (500, 4_000), (1, 4_000), (2, 4_000), (500, 10)])
        limits = Limits(
            session_ttl_ms=TTL_MS, activation_slice=slice_max, batch_writes_max=writes_max, told_least=min(slice_max, 2)
        )
        self.world = World(limits=limits, seed=seed)
        self.body = make_definition(rng)
        # A process that is paused may act once more when it wakes; only tokens stop that.
        self.fenced = rng.random() < 0.5
        idempotent = {spec.id: spec.effect is Effect.IDEMPOTENT for spec in self.body.steps}
        self.remote = Remote(idempotent=idempotent, fenced=self.fenced)
        self.actions = tuple(
            policy.action for spec in self.body.steps for policy in (spec, spec.undo, spec.verify) if policy is not None
        )
        # Often nobody interferes, so that the ends which the rules alone lead to are met, too.
        self.cancels, self.people = rng.choice([0, 0, 1]), rng.choice([0, 0, 3])
        self.model = Model(self.body, limits)
        self.workers: list[Worker] = []
        self.helped_by_hand: set[str] = set()
        self._seen_sequence = 0

    def run(self) -> JobState:
        """Storm, then calm. Returns how the job ended."""
        self.world.define(self.body)
        self._watch()
        self.world.submit(JOB, "graph")
        self._look()
        for _ in range(self.rng.randint(5, STORM_TICKS_MAX)):
            self._tick(self.rng.choice([1, 50, 100, 250, 400]))
            self.rng.choices([act for act, _ in self._acts], [weight for _, weight in self._acts])[0]()
            if self.state in JOB_STATES_FINAL:
                break
        self._calm()
        self._judge()
        return self.state

    @property
    def state(self) -> JobState:
        """The job's state."""
        return self.world.progress(JOB).state

    @property
    def _acts(self) -> list[tuple[Callable[[], None], int]]:
        return [
            (lambda: None, 20),
            (self._new_worker, 5),
            (self._kill, 2),
            (self._cut_off, 2),
            (self._freeze, 2),
            (self._mend, 4),
            (self._restart, 1),
            (self._cancel, self.cancels),
            (self._person, self.people),
            (self._hold, self.people),
        ]

    def _watch(self) -> None:
        """Let the model and the invariants see every batch."""
        do = self.world.do

        def watched(*commands: AnyCommand) -> list[Answer]:
            answers = do(*commands)
            for command, answer in zip(commands, answers, strict=True):
                if isinstance(answer, AttemptsReported):
                    assert isinstance(command, ReportAttempts)
                    self._hear(command, answer)
            self._look()
            return answers

        self.world.do = watched  # type: ignore[method-assign]  # a wrapper of the same shape

    def _hear(self, command: ReportAttempts, answer: AttemptsReported) -> None:
        """Tell the model what agents said, in the order of the answers."""
        asked = [report for report in command.reports if not isinstance(report.event, ProgressMade)]
        for report, result in zip(asked, answer.results, strict=True):
            if result.result in ("RECORDED", "TOO_LARGE"):
                self.model.heard(report)

    def _look(self) -> None:
        """After each batch: nothing that must hold is broken, and the model agrees."""
        if self.world.sequence == self._seen_sequence:
            return
        self._seen_sequence = self.world.sequence
        found = invariants.violations(self.world.reader, led_ms=self.world.now_ms)
        assert not found, found
        if self.world.reader.get(keys.job(JOB)) is not None:
            history = self.world.changes.get(keys.history(JOB, self.world.sequence))
            assert history is None or isinstance(history, rows.History)
            self.model.saw(self.world.now_ms, history.events if history else ())
            for key, row in self.world.changes.items():
                if key.startswith(keys.SESSION) and (row is None or (isinstance(row, rows.Session) and row.ending)):
                    self.model.session_ended(self.world.now_ms, key[1:].decode())
            self.model.compare(self.state, [self._row(n) for n in range(len(self.body.steps))])

    def _row(self, ordinal: int) -> Step | None:
        row = self.world.reader.get(keys.step(JOB, ordinal))
        assert row is None or isinstance(row, rows.Step)
        return row

    def _tick(self, ms: int) -> None:
        self.world.now_ms += ms
        for worker in self.workers:
            worker.tick()
        self.world.one(Sweep(self.rng.choice([1, 100])))

    def _new_worker(self, *, good: bool = False) -> None:
        session_id = f"worker-{len(self.workers):04d}"
        self.world.open(session_id, self.actions, slots=100 if good else self.rng.randint(1, 3))
        worker = Worker(self.world, self.remote, self.rng, session_id, ttl_ms=TTL_MS)
        worker.good = good
        self.workers.append(worker)

    def _some_worker(self) -> Worker | None:
        alive = [worker for worker in self.workers if worker.alive and not worker.good]
        return self.rng.choice(alive) if alive else None

    def _kill(self) -> None:
        if worker := self._some_worker():
            worker.alive = False

    def _cut_off(self) -> None:
        if worker := self._some_worker():
            worker.cut_off = True

    def _freeze(self) -> None:
        worker = self._some_worker()
        if worker is not None and self.fenced:
            worker.frozen = True

    def _mend(self) -> None:
        for worker in self.workers:
            worker.cut_off = worker.frozen = False

    def _restart(self) -> None:
        """Another leadership: all that was in memory is gone."""
        self.world.epoch += 1
        self.world.reader = LiveRows(self.world.store)

    def _cancel(self) -> None:
        self.world.one(CancelJob(JOB, "no longer wanted", "ada"))

    def _person(self) -> None:
        """Somebody does something by hand, whatever state the job is in."""
        step_id = self.rng.choice(self.body.steps).id
        undone = self.rng.random() < 0.5
        verbs: list[RetryStep | SkipStep] = [
            RetryStep(JOB, step_id, "it works again", "ada"),
            SkipStep(JOB, step_id, Payload(b"null"), undone, "done by hand", "ada"),
        ]
        self._by_hand(self.rng.choice(verbs))

    def _hold(self) -> None:
        """Somebody holds the job, lets it go on, or ends it."""
        wish: list[AnyCommand] = [PauseJob(JOB, "wait", "ada"), ResumeJob(JOB, "go on", "ada")]
        if self.rng.random() < 0.1:
            wish = [TerminateJob(JOB, "enough", "ada")]
        self.world.one(self.rng.choice(wish))

    def _by_hand(self, verb: RetryStep | SkipStep) -> None:
        before = self._row(self.world.ordinal(JOB, verb.step_id))
        answer = self.world.one(verb)
        if not isinstance(answer, VerbDone) or answer.already:
            return
        self.helped_by_hand.add(verb.step_id)
        if isinstance(verb, SkipStep) and verb.undone and before is not None and before.state in UNDOING:
            self.remote.clean_up(verb.step_id)

    def _calm(self) -> None:
        """Everything works again, and a person looks after what waits for one."""
        self._mend()
        for worker in self.workers:
            worker.good = True
        self._new_worker(good=True)
        for _ in range(CALM_TICKS_MAX):
            self._tick(300)
            if self.state in JOB_STATES_FINAL and not any(worker.handlers for worker in self.workers if worker.alive):
                return
            if self.state in (JobState.ESCALATED, JobState.PAUSED):
                self._help()
        raise AssertionError(f"the job does not end: {self.state.name}")

    def _help(self) -> None:
        if self.state is JobState.PAUSED:
            self.world.one(ResumeJob(JOB, "go on", "ada"))
        for ordinal, spec in enumerate(self.body.steps):
            step = self._row(ordinal)
            if step is not None and step.state in WAITING:
                self._by_hand(RetryStep(JOB, spec.id, "look again", "ada"))

    def _judge(self) -> None:
        """What stands outside is what the job says."""
        self.model.judge(self.state)
        for ordinal, spec in enumerate(self.body.steps):
            step = self._row(ordinal)
            standing = self.remote.standing(spec.id)
            listed = step is not None and compensation.needs_undo(step)
            where = f"step {spec.id} {'PENDING' if step is None else step.state.name}, job {self.state.name}"
            if self.state in (JobState.COMPENSATED, JobState.CANCELLED):
                assert standing == 0, f"{where}: an effect is left"
            if self.state is JobState.COMPLETED and step is not None and step.state is StepState.SUCCEEDED:
                assert standing >= 1, f"{where}: no effect"
            if self.state is JobState.FAILED and standing:
                assert listed, f"{where}: an effect is left and not listed"
            self._judge_acts(spec, where, standing)

    def _judge_acts(self, spec: StepSpec, where: str, standing: int) -> None:
        done, undone = self.remote.of(spec.id, "ACTION"), self.remote.of(spec.id, "UNDO")
        if spec.id not in self.helped_by_hand:
            assert standing <= 1, f"{where}: {standing} effects"
            if spec.effect is Effect.NON_IDEMPOTENT and spec.verify is None:
                assert len(done) <= 1, f"{where}: done {len(done)} times"
            if done and undone:
                assert max(act.at_ms for act in done) <= min(act.at_ms for act in undone), f"{where}: done after undone"
        for dependent in spec.dependents:
            later = self.remote.of(self.body.steps[dependent].id, "UNDO")
            if undone and later and self.body.steps[dependent].id not in self.helped_by_hand:
                first = min(act.at_ms for act in undone)
                assert max(act.at_ms for act in later) <= first, f"{where}: undone before what needs it"


WAITING = frozenset({StepState.ESCALATED, StepState.UNDO_FAILED, StepState.UNDO_OUTCOME_UNKNOWN})
UNDOING = frozenset(state for state in StepState if state.name.startswith("UNDO_"))
