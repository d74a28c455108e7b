"""What a person does to one step: have it tried again, or pass over it.

Both act on the action of a step, or on its undo once that has begun. Whatever is asked, a step that another attempt
could harm waits until no earlier one can still act, and an attempt that is at work keeps its slot until its agent is
heard of.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from stepward.server.core import advance, attempts, compensation, deadlines, keys, rows, states, verifying
from stepward.server.core.batch import NO_TIMER
from stepward.server.core.commands import VerbDone
from stepward.server.core.rejections import Reason, Refused, refuse
from stepward.server.core.rows import (
    JOB_STATES_FINAL,
    NO_OUTPUT,
    CancelReason,
    Clock,
    EventType,
    Failure,
    StartMode,
    StepState,
)

if TYPE_CHECKING:
    from stepward.server.core.batch import Batch
    from stepward.server.core.commands import RetryStep, SkipStep
    from stepward.server.core.rows import Progress, Step

# Kind of the failure of a step whose undo a person passed over; the message says who and why.
PASSED_OVER = "PASSED_OVER"
# Why nothing can be done to a step that the walk that stops its job has perhaps not come to yet.
_STOPPING = "its job is being undone, and what goes forward is stopped"


def retry_step(batch: Batch, command: RetryStep) -> VerbDone:
    """Try a step again, with all its attempts if it had waited for a person, or without waiting longer."""
    progress = open_job(batch, command.job_id, f"step {command.step_id!r} cannot be tried again")
    ordinal, step = _find(batch, command)
    job_id, phase = command.job_id, states.phase(step.state)
    goes_on = progress.undoing or advance.goes_forward(progress)
    if goes_on and step.state in (phase.ready, phase.offered, phase.running):
        return VerbDone(job_id, already=True)
    if goes_on and step.state is phase.retry_wait:
        # A fence is not a wait that a person may end: an earlier attempt can still act.
        if step.timer_clock is Clock.LED:
            return VerbDone(job_id, already=True)
        _retry_requested(batch, command, ordinal, undo=phase.undo)
        attempts.try_again(batch, job_id, ordinal, step)
    elif step.state is StepState.ESCALATED and goes_on:
        _check_input(batch, command, ordinal)
        _retry_requested(batch, command, ordinal, undo=False)
        deadlines.renew(batch, job_id)
        _rerun(batch, job_id, ordinal, step)
        compensation.no_longer_waits(batch, job_id)
    elif step.state in (StepState.UNDO_FAILED, StepState.UNDO_OUTCOME_UNKNOWN):
        _retry_requested(batch, command, ordinal, undo=True)
        compensation.start_undo(batch, job_id, ordinal, step)
        compensation.no_longer_waits(batch, job_id)
    else:
        rule = "only what waits for a person or for its next attempt is tried again" if goes_on else _STOPPING
        raise _wrong_state(command, step.state, rule)
    return VerbDone(job_id, already=False)


def _check_input(batch: Batch, command: RetryStep, ordinal: int) -> None:
    """Refuse to try a step whose input cannot be built: what other steps gave does not change."""
    failure = advance.input_failure(batch, command.job_id, ordinal)
    if failure is not None:
        rule = f"its input cannot be built, however often it is tried ({failure.told}); pass over it or end the job"
        raise _wrong_state(command, StepState.ESCALATED, rule)


def _retry_requested(batch: Batch, command: RetryStep, ordinal: int, *, undo: bool) -> None:
    type_ = EventType.UndoRetryRequested if undo else EventType.StepRetryRequested
    batch.event(command.job_id, type_, ordinal=ordinal, detail=command.reason, actor=command.actor)


def _rerun(batch: Batch, job_id: str, ordinal: int, step: Step) -> None:
    """Give a step all its attempts again, and all its time.

    Under its old key, since an attempt that may have happened must be found by the next one; only when surely none
    has happened is it a new generation with a key of its own.
    """
    step = batch.move(
        job_id,
        ordinal,
        step,
        StepState.RETRY_WAIT,
        batch.log_in(0),
        attempts=0,
        lease_losses=0,
        ready_log_ms=-1,
        generation=step.generation + (not step.maybe_done),
    )
    attempts.try_again(batch, job_id, ordinal, step)


def skip_step(batch: Batch, command: SkipStep) -> VerbDone:
    """Pass over a step, so that its dependents go on, or over its undo, so that what it needed is undone.

    Passing over twice is once, also when the first time was what ended the job.
    """
    ordinal, step = _find(batch, command)
    if _is_passed_over(step, undone=command.undone):
        return VerbDone(command.job_id, already=True)
    progress = open_job(batch, command.job_id, f"step {command.step_id!r} cannot be passed over")
    _check_is_meant(command, step.state)
    phase = states.phase(step.state)
    at_work = {phase.ready, phase.offered, phase.running, phase.retry_wait, StepState.ESCALATED}
    if step.state in states.UNDO_OPEN and step.state is not StepState.UNDO_SKIPPED:
        _skip_undo(batch, command, ordinal, step)
    elif step.state in at_work and advance.goes_forward(progress):
        _skip_action(batch, command, ordinal, step)
    else:
        stopping = step.state in at_work and not progress.undoing
        rule = _STOPPING if stopping else "only what has become ready and has not ended can be passed over"
        raise _wrong_state(command, step.state, rule)
    return VerbDone(command.job_id, already=False)


def _check_is_meant(command: SkipStep, state: StepState) -> None:
    """Refuse what belongs to an action when it is an undo that would be passed over, and the other way round.

    Dropped silently, it would leave a person with a wrong idea of what was done.
    """
    if state in states.UNDO_OPEN and command.output != NO_OUTPUT:
        rule = "it is its undo that would be passed over, in whose place no output can stand; leave out the output"
    elif command.undone and (state is StepState.SKIPPED or states.phase(state) is not states.UNDO):
        rule = "its undo has not begun, so there is none that could be done by other means; leave out undone"
    else:
        return
    raise _wrong_state(command, state, rule)


def _is_passed_over(step: Step, *, undone: bool) -> bool:
    """Whether a step stands where passing over would bring it."""
    if step.state is StepState.SKIPPED:
        return not undone
    return step.state is (StepState.COMPENSATED if undone else StepState.UNDO_SKIPPED)


def _skip_action(batch: Batch, command: SkipStep, ordinal: int, step: Step) -> None:
    job_id = command.job_id
    step = take_back(batch, job_id, ordinal, step, CancelReason.STALE)
    step = verifying.put_back(batch, job_id, ordinal, step)
    batch.draft.put(keys.output(job_id, ordinal), rows.Output(command.output, stand_in=True))
    advance.forget_progress(batch, job_id, ordinal)
    batch.event(job_id, EventType.StepSkipped, ordinal=ordinal, detail=command.reason, actor=command.actor)
    batch.move(job_id, ordinal, step, StepState.SKIPPED, NO_TIMER)
    compensation.no_longer_waits(batch, job_id)
    advance.step_succeeded(batch, job_id, ordinal)


def _skip_undo(batch: Batch, command: SkipStep, ordinal: int, step: Step) -> None:
    job_id = command.job_id
    step = take_back(batch, job_id, ordinal, step, CancelReason.STALE)
    what = "undone by other means" if command.undone else "what the step did remains done"
    detail = f"{what}: {command.reason}" if command.reason else what
    batch.event(job_id, EventType.UndoSkipped, ordinal=ordinal, detail=detail, actor=command.actor)
    if command.undone:
        batch.move(job_id, ordinal, step, StepState.COMPENSATED, NO_TIMER, maybe_done=False)
    else:
        by = f"passed over by {command.actor}" if command.actor else "passed over"
        text = f"{by}: {command.reason}" if command.reason else by
        failure = Failure(PASSED_OVER, text, command.step_id, retryable=False)
        batch.move(job_id, ordinal, step, StepState.UNDO_SKIPPED, NO_TIMER, failure=failure)
    compensation.no_longer_waits(batch, job_id)
    compensation.undo_ended(batch, job_id, ordinal)


def take_back(batch: Batch, job_id: str, ordinal: int, step: Step, why: CancelReason) -> Step:
    """Take a step out of its lane, or tell the agent that holds it to stop; its state is the caller's to change.

    An offer that surely has not started is gone at once. Anything else may have happened.
    """
    phase = states.phase(step.state)
    if step.state is phase.ready:
        advance.unready(batch, job_id, ordinal, step)
    if step.state not in states.HELD:
        return step
    key = keys.assignment(step.session_id, step.token, job_id, ordinal)
    assignment = batch.draft.read(key, rows.Assignment)
    if assignment is None:
        # A bug of ours, of the kind that `patrol` finds; it must not keep a person from ending it.
        return batch.keep(job_id, ordinal, step, maybe_done=True)
    if step.state is phase.offered and assignment.start is StartMode.ON_ACCEPT:
        batch.draft.delete(key)
        return step
    return attempts.let_go(batch, job_id, ordinal, step, why)


def open_job(batch: Batch, job_id: str, cannot: str) -> Progress:
    """How far a job is that has not ended.

    Raises:
        Refused: JOB_NOT_FOUND; JOB_ENDED, and what cannot be done therefore.
    """
    progress = batch.draft.read(keys.progress(job_id), rows.Progress)
    if progress is None:
        raise refuse(Reason.JOB_NOT_FOUND, f"there is no job {job_id!r}", job_id=job_id)
    if progress.state in JOB_STATES_FINAL:
        text = f"job {job_id} has ended {progress.state.name}; {cannot} any more"
        raise refuse(Reason.JOB_ENDED, text, job_id=job_id, state=progress.state.name)
    if progress.terminating:
        text = f"job {job_id} is being terminated; {cannot} any more"
        raise refuse(Reason.JOB_ENDED, text, job_id=job_id, state=progress.state.name)
    return progress


def _find(batch: Batch, command: RetryStep | SkipStep) -> tuple[int, Step]:
    """The step that is meant. One that has not become ready has no row, and reads as PENDING."""
    job_id, step_id = command.job_id, command.step_id
    if batch.draft.get(keys.progress(job_id)) is None:
        raise refuse(Reason.JOB_NOT_FOUND, f"there is no job {job_id!r}", job_id=job_id)
    ordinal = batch.places(job_id).by_id.get(step_id)
    if ordinal is not None:
        return ordinal, batch.step(job_id, ordinal) or rows.Step(StepState.PENDING, 0)
    raise refuse(Reason.STEP_NOT_FOUND, f"job {job_id} has no step {step_id!r}", job_id=job_id, step_id=step_id)


def _wrong_state(command: RetryStep | SkipStep, state: StepState, rule: str) -> Refused:
    text = f"step {command.step_id!r} of job {command.job_id} is {state.name}; {rule}"
    return refuse(Reason.STEP_STATE, text, job_id=command.job_id, step_id=command.step_id, state=state.name)
