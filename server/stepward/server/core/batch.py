"""One batch in the making, and the only way in which a step changes its state."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from msgspec.structs import replace

from stepward.server.core import (
    caller_ends,
    counts,
    incidents,
    keys,
    ordinals,
    rows,
    schedules,
    slice_rows,
    states,
    system,
)
from stepward.server.core.parts import By, Remedy
from stepward.server.core.rows import Clock, Event, EventType, JobState

if TYPE_CHECKING:
    from random import Random

    from stepward.server.core.decide import Moment
    from stepward.server.core.draft import Draft
    from stepward.server.core.limits import Limits
    from stepward.server.core.ordinals import Places
    from stepward.server.core.parts import Trouble
    from stepward.server.core.rows import DefinitionBody, Progress, Step, StepSpec, StepState
    from stepward.server.core.schedules import Policy
    from stepward.server.core.states import Phase


class TimerAt(NamedTuple):
    """When a step is looked at again, and on which clock."""

    clock: Clock
    at_ms: int


NO_TIMER = TimerAt(Clock.NONE, 0)


class Cause(NamedTuple):
    """What led to a change; a person has a name and a reason."""

    by: By
    actor: str = ""
    reason: str = ""


class Batch:
    """What every rule works on: the draft, the moment, the bounds and the chance.

    `failures` collects what raised and was rolled back alone, for the shell to log. `unfinished`: something was
    cut into slices, and the next sweep is to follow at once. `cause` is that of the command that is being decided, and
    `recorded` are the keys of the remedies of this batch, also of those that were rolled back. `place` is which one a
    step is of those that its job makes ready in one go; whoever goes through them sets it, and sets it back.
    """

    __slots__ = ("_bodies", "cause", "draft", "failures", "limits", "moment", "place", "recorded", "rng", "unfinished")

    def __init__(self, draft: Draft, moment: Moment, limits: Limits, rng: Random) -> None:
        self.draft = draft
        self.moment = moment
        self.limits = limits
        self.rng = rng
        self.failures: list[tuple[object, BaseException]] = []
        self.unfinished = False
        self.cause = Cause(By.SUPERVISOR)
        self.recorded: list[bytes] = []
        self.place = 0
        # A job's definition never changes, and every rule asks for it.
        self._bodies: dict[str, DefinitionBody] = {}

    def job(self, job_id: str) -> rows.Job:
        """What a job was submitted with."""
        return self.draft.require(keys.job(job_id), rows.Job)

    def progress(self, job_id: str) -> Progress:
        """How far a job is."""
        return self.draft.require(keys.progress(job_id), rows.Progress)

    def body(self, job_id: str) -> DefinitionBody:
        """The snapshot of its definition that a job keeps."""
        body = self._bodies.get(job_id)
        if body is None:
            key = keys.definition_body(self.job(job_id).definition_hash)
            body = self._bodies[job_id] = self.draft.require(key, rows.DefinitionBody)
        return body

    def places(self, job_id: str) -> Places:
        """Where the steps of a job's definition stand."""
        return ordinals.places(self.job(job_id).definition_hash, self.body(job_id))

    def spec(self, job_id: str, ordinal: int) -> StepSpec:
        """A step as the definition has it."""
        return self.body(job_id).steps[ordinal]

    def policy(self, job_id: str, ordinal: int, phase: Phase) -> Policy:
        """Where action, queue, timeouts and retries of a part of a step are written."""
        return schedules.policy_of(self.spec(job_id, ordinal), phase.part)

    def step(self, job_id: str, ordinal: int) -> Step | None:
        """A step that has become ready at least once."""
        return self.draft.read(keys.step(job_id, ordinal), rows.Step)

    def has_begun(self, job_id: str, ordinal: int) -> bool:
        """Whether a step has become ready at least once."""
        return self.draft.get(keys.step(job_id, ordinal)) is not None

    @property
    def full(self) -> bool:
        """Whether what goes through many subjects should leave the rest to the next batch."""
        return self.draft.writes > self.limits.batch_writes_max

    def require_step(self, job_id: str, ordinal: int) -> Step:
        """A step that is known to have become ready."""
        return self.draft.require(keys.step(job_id, ordinal), rows.Step)

    def event(self, job_id: str, type_: EventType, **fields: Any) -> None:
        """Tell what happened to a job."""
        self.draft.event(job_id, Event(type_, **fields))

    def put_progress(self, job_id: str, progress: Progress, **changes: Any) -> Progress:
        """Change how far a job is, and move its index row when its state changes."""
        moment = self.moment
        after = replace(progress, revision=moment.sequence, updated_wall_ms=moment.wall_ms, **changes)
        if after.incident and after.state is not JobState.ESCALATED:
            incidents.job_moves_on(self, after)
            after = replace(after, incident=0)
        if after.state is not progress.state:
            self.list_job(job_id, self.job(job_id).namespace, progress.state, after.state)
            if after.state in rows.JOB_STATES_FINAL:
                self._end(job_id, after)
            if after.state in rows.JOB_STATES_AWAITED:
                after = caller_ends.add(self, job_id, self.job(job_id), after)
        self.draft.put(keys.progress(job_id), after)
        return after

    def _end(self, job_id: str, progress: Progress) -> None:
        """A job has ended: nothing of it is due any more but that it is removed, in its time."""
        if progress.deadline_log_ms and not progress.deadline_passed:
            self.draft.delete(keys.deadline_timer(progress.deadline_log_ms, job_id))
        kept_ms = system.retention_ms(self.job(job_id).namespace, self.limits.retention_ms)
        self.draft.put(keys.purge(self.moment.log_ms + kept_ms, job_id), slice_rows.Purge())

    def list_job(self, job_id: str, namespace: str, before: JobState | None, after: JobState | None) -> None:
        """Move a job from the list of one state to that of another, and count it there. None: in no list.

        Nothing else changes index and counts. A job that comes into its first list must have its own row already.
        """
        if before is not None:
            self.draft.remove(keys.job_index(namespace, before, job_id))
        if after is not None:
            self.draft.put(keys.job_index(namespace, after, job_id), rows.JobIndex())
        counts.change(self.draft, namespace, job_id, before, after)

    def touch(self, job_id: str) -> None:
        """Raise a job's revision, so that those who watch it look again."""
        progress = self.progress(job_id)
        if progress.revision != self.moment.sequence:
            self.put_progress(job_id, progress)

    def move(
        self,
        job_id: str,
        ordinal: int,
        step: Step,
        state: StepState,
        timer: TimerAt,
        *,
        trouble: Trouble | None = None,
        proposed: Remedy = Remedy.NONE,
        held: bool = False,
        **changes: Any,
    ) -> Step:
        """Give a step a state and its one timer. Every change of a step's state goes through here.

        One that begins to wait for a person opens an incident, for which there is `trouble`, and perhaps a remedy that
        waits for approval; whatever ends the wait resolves it.
        """
        assert state is step.state or state in states.MOVES[step.state], (job_id, ordinal, step.state, state)
        waits = (state in states.WAIT_FOR_PERSON) - (step.state in states.WAIT_FOR_PERSON)
        if waits > 0:
            failure = changes.get("failure", step.failure)
            assert trouble is not None, (job_id, ordinal, state)
            number = incidents.opened(self, job_id, ordinal, trouble, proposed=proposed, failure=failure)
            changes["incident"] = number
        elif waits < 0:
            incidents.step_moves_on(self, job_id, step.incident, state)
            changes["incident"] = 0
        after = replace(
            step,
            state=state,
            updated_wall_ms=self.moment.wall_ms if state is not step.state else step.updated_wall_ms,
            timer_clock=timer.clock,
            timer_at_ms=timer.at_ms,
            held=held,
            **changes,
        )
        is_same = step.timer_at_ms == timer.at_ms and step.timer_clock is timer.clock
        is_kept = state is step.state and held is step.held
        if not (is_same and (is_kept or states.duty(after) is states.duty(step))):
            self._move_timer(job_id, ordinal, step, after)
        self.draft.put(keys.step(job_id, ordinal), after)
        if waits:
            progress = self.progress(job_id)
            self.put_progress(job_id, progress, waiting=progress.waiting + waits)
        if state is not step.state:
            self.draft.moved(job_id, ordinal)
        return after

    def keep(self, job_id: str, ordinal: int, step: Step, **changes: Any) -> Step:
        """Change a step without changing its state or its timer."""
        after = replace(step, **changes)
        self.draft.put(keys.step(job_id, ordinal), after)
        return after

    def _move_timer(self, job_id: str, ordinal: int, before: Step, after: Step) -> None:
        """What a timer is for follows from the step, so another state may move it at one and the same instant."""
        if before.timer_clock is not Clock.NONE:
            self.draft.remove(states.timer_key(job_id, ordinal, before))
        if after.timer_clock is not Clock.NONE:
            self.draft.put(states.timer_key(job_id, ordinal, after), rows.Timer())

    def led_in(self, ms: int) -> TimerAt:
        """A timer on led time."""
        return TimerAt(Clock.LED, self.moment.led_ms + ms)

    def log_in(self, ms: int) -> TimerAt:
        """A timer on log time."""
        return TimerAt(Clock.LOG, self.moment.log_ms + ms)
