"""How a job moves forward: steps become ready when what they need has succeeded.

Work per outcome is in the step's own out-degree. Rows of a step appear when it becomes ready; a step with two needs
or more has a counter before that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from stepward.server.core import inputs, keys, rows, schedules, spreads, states
from stepward.server.core.batch import NO_TIMER, TimerAt
from stepward.server.core.mapping import MappingError
from stepward.server.core.rows import Clock, EventType, Failure, JobState, StepState

if TYPE_CHECKING:
    from stepward.server.core.batch import Batch
    from stepward.server.core.rows import Payload, Progress, Step
    from stepward.server.core.states import Phase

# Of steps that a job makes ready in one go each stands in its lane as if it had become ready so much later than the one
# before. So what other jobs make ready meanwhile does not wait behind all of a wide job; and no step of that one stands
# behind what comes later than the width of the largest definition, ten seconds.
READY_APART_MS: Final = 1


def goes_forward(progress: Progress) -> bool:
    """Whether new forward steps may become ready. An escalated branch does not hold the others.

    In a paused job they become ready, and are held back.
    """
    if progress.state is JobState.ESCALATED:
        return not progress.undoing
    return progress.state in (JobState.RUNNING, JobState.PAUSED)


def is_stopping(progress: Progress) -> bool:
    """Whether what goes forward is being stopped: nothing of it may start any more."""
    return progress.state is JobState.COMPENSATING and not progress.undoing


def is_given_up(progress: Progress) -> bool:
    """Whether no forward step will ever become ready again: the job is being undone, or has ended."""
    return progress.undoing or progress.state is JobState.COMPENSATING or progress.state in rows.JOB_STATES_FINAL


def activate(batch: Batch, job_id: str, ordinal: int) -> None:
    """Make a step ready for the first time. One whose input cannot be built is in trouble at once."""
    step = rows.Step(StepState.PENDING, batch.moment.wall_ms)
    failure = input_failure(batch, job_id, ordinal)
    if failure is None:
        make_ready(batch, job_id, ordinal, step, states.FORWARD)
        return
    from stepward.server.core import remediation  # noqa: PLC0415 - the two rules call each other

    remediation.no_input(batch, job_id, ordinal, step, failure)


def input_failure(batch: Batch, job_id: str, ordinal: int) -> Failure | None:
    """Why the input of a step cannot be built, if so."""
    spec = batch.spec(job_id, ordinal)
    if not spec.input:
        return None
    try:
        inputs.step_input(batch.draft, job_id, batch.job(job_id), batch.body(job_id), ordinal, batch.limits)
    except MappingError as error:
        return Failure(error.kind, error.message, spec.id, retryable=False)
    return None


def make_ready(batch: Batch, job_id: str, ordinal: int, step: Step, phase: Phase) -> Step:
    """Put a step, or its undo, where agents are given work from; in a paused job it is held back from there."""
    log_ms = batch.moment.log_ms
    first_log_ms = log_ms if step.ready_log_ms < 0 else step.ready_log_ms
    if phase.ready in states.HELD_BACK_IN_PAUSED and batch.progress(job_id).state is JobState.PAUSED:
        batch.event(job_id, phase.became_ready, ordinal=ordinal, detail="held back: the job is paused")
        return batch.move(job_id, ordinal, step, phase.ready, NO_TIMER, ready_log_ms=first_log_ms)
    # A place in a line and nothing else: how long the step waits, and may wait, counts from the batch's own moment.
    order = log_ms + batch.place * READY_APART_MS
    batch.draft.put(keys.ready(_lane(batch, job_id, ordinal, phase), order, job_id, ordinal), rows.Ready(phase.part))
    batch.event(job_id, phase.became_ready, ordinal=ordinal)
    bound = schedules.waiting(batch.policy(job_id, ordinal, phase), first_log_ms=first_log_ms, ready_log_ms=log_ms)
    timer = TimerAt(Clock.LOG, bound.at_log_ms)
    avoid = step.avoid
    if avoid is not None:
        # Another agent is waited for as long as one that is alive needs to be heard of.
        avoid = replace(avoid, until_log_ms=log_ms + batch.limits.session_ttl_ms)
    return batch.move(
        job_id, ordinal, step, phase.ready, timer, ready_order=order, ready_log_ms=first_log_ms, avoid=avoid
    )


def unready(batch: Batch, job_id: str, ordinal: int, step: Step) -> None:
    """Take a ready step back out of its lane. One that is held back stands in none."""
    if step.timer_clock is Clock.NONE:
        return
    lane = _lane(batch, job_id, ordinal, states.phase(step.state))
    batch.draft.remove(keys.ready(lane, step.ready_order, job_id, ordinal))


def _lane(batch: Batch, job_id: str, ordinal: int, phase: Phase) -> bytes:
    policy = batch.policy(job_id, ordinal, phase)
    return keys.lane(batch.job(job_id).namespace, policy.queue, policy.action)


def succeed(batch: Batch, job_id: str, ordinal: int, step: Step, output: Payload, *, attempts: int) -> None:
    """A step has given an output, with so many attempts."""
    forget_progress(batch, job_id, ordinal)
    batch.draft.put(keys.output(job_id, ordinal), rows.Output(output))
    # While its job is stopping the timer marks the step as not yet settled; `settle` takes it away.
    stopping = is_stopping(batch.progress(job_id))
    timer = batch.led_in(0) if stopping else NO_TIMER
    batch.move(job_id, ordinal, step, StepState.SUCCEEDED, timer, failure=None, attempts=attempts)
    step_succeeded(batch, job_id, ordinal)
    if stopping:
        from stepward.server.core import compensation  # noqa: PLC0415 - the two rules call each other

        compensation.settle(batch, job_id, ordinal)


def forget_progress(batch: Batch, job_id: str, ordinal: int) -> None:
    """What was said of how far an attempt is: no other attempt will go on from there."""
    key = keys.step_progress(job_id, ordinal)
    if batch.draft.get(key) is not None:
        batch.draft.delete(key)


def step_succeeded(batch: Batch, job_id: str, ordinal: int, *, tell_later: bool = False) -> None:
    """Count a success: its dependents may become ready, and the job may be complete.

    Deriving the successors belongs to the same batch as the success, so there is no moment at which a job has
    nothing to do although steps are left. (Of a very wide step a row says which ones are still to be told; and of one
    that is passed over as soon as it would begin, since its dependents may have to be passed over like it.)
    """
    progress = batch.progress(job_id)
    steps_open = progress.steps_open - 1
    if not steps_open and goes_forward(progress):
        ended_wall_ms, completed = batch.moment.wall_ms, JobState.COMPLETED
        batch.put_progress(job_id, progress, steps_open=0, state=completed, ended_wall_ms=ended_wall_ms, failure=None)
        batch.event(job_id, EventType.JobCompleted)
        return
    progress = batch.put_progress(job_id, progress, steps_open=steps_open)
    if not goes_forward(progress):
        return
    if tell_later:
        spreads.begin_later(batch, job_id, ordinal)
    else:
        spreads.begin(batch, job_id, ordinal)


def need_met(batch: Batch, job_id: str, ordinal: int) -> None:
    """Something that a step waits for has happened; with the last of its needs it becomes ready."""
    needs = len(batch.spec(job_id, ordinal).needs)
    if needs > 1:
        key = keys.join(job_id, ordinal)
        join = batch.draft.read(key, rows.Join) or rows.Join(needs)
        if join.remaining > 1:
            batch.draft.put(key, replace(join, remaining=join.remaining - 1))
            return
        batch.draft.delete(key)
    activate(batch, job_id, ordinal)
