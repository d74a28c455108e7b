"""How a job is undone.

Three parts: `begin` stops the forward attempts; `settle` waits until none of them can still act; then undos run in
reverse order of the dependencies, each when the undos of all its dependents have ended. Every step that succeeded or
may have happened is undone, and is told which of the two. What concerns all steps is a pass (`passes`): STOP, then
UNDO_COUNT, then UNDO_OPEN.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from stepward.server.core import advance, attempts, keys, leases, passes, rows, spreads, states, termination, verifying
from stepward.server.core.batch import NO_TIMER
from stepward.server.core.commands import JobCancelled
from stepward.server.core.rejections import Reason, refuse
from stepward.server.core.rows import (
    JOB_STATES_FINAL,
    CancelReason,
    Clock,
    EventType,
    Failure,
    JobState,
    Part,
    PassKind,
    StartMode,
    StepState,
    Trouble,
)

if TYPE_CHECKING:
    from stepward.server.core.batch import Batch
    from stepward.server.core.commands import CancelJob
    from stepward.server.core.remedies import Decision
    from stepward.server.core.rows import Progress, Step
    from stepward.server.core.states import Phase


def cancel_job(batch: Batch, command: CancelJob) -> JobCancelled:
    """Undo a job on request. One that is being undone already goes on, and undos that failed are tried again."""
    progress = batch.draft.read(keys.progress(command.job_id), rows.Progress)
    if progress is None:
        raise refuse(Reason.JOB_NOT_FOUND, f"there is no job {command.job_id!r}", job_id=command.job_id)
    if progress.state in JOB_STATES_FINAL or progress.terminating:
        if progress.cancel_requested:
            return JobCancelled(command.job_id, True)
        raise refuse(
            Reason.JOB_ENDED,
            f"job {command.job_id} {_how_it_ended(progress)}; it cannot be cancelled any more",
            job_id=command.job_id,
            state=progress.state.name,
        )
    if not advance.goes_forward(progress):
        if progress.waiting:
            _retry_failed_undos(batch, command)
        return JobCancelled(command.job_id, True)
    check_may_turn_back(batch, command.job_id, "it cannot be cancelled")
    batch.event(command.job_id, EventType.JobCancelRequested, detail=command.reason, actor=command.actor)
    failure = Failure("CANCELLED", command.reason or "cancelled on request", retryable=False)
    progress = batch.put_progress(command.job_id, progress, cancel_requested=True, failure=failure)
    begin(batch, command.job_id, progress)
    return JobCancelled(command.job_id, False)


def _how_it_ended(progress: Progress) -> str:
    if progress.state in JOB_STATES_FINAL:
        return f"has ended {progress.state.name}"
    return "is being terminated"


def _retry_failed_undos(batch: Batch, command: CancelJob) -> None:
    """A person asks again for a job to be undone, some of whose undos had failed for good."""
    job_id = command.job_id
    if passes.under_way(batch, job_id) is not None:
        raise refuse(
            Reason.OVERLOADED,
            f"the undos of job {job_id} are being started, {batch.limits.activation_slice} steps in each batch; "
            "ask again in a second for those that failed meanwhile",
            job_id=job_id,
        )
    batch.event(job_id, EventType.JobCancelRequested, detail=command.reason, actor=command.actor)
    passes.begin(batch, job_id, PassKind.UNDO_RETRY)


def retry_undo(batch: Batch, job_id: str, ordinal: int, step: Step) -> None:
    """Visit of UNDO_RETRY. What nobody knows the outcome of and may not be repeated waits to be named by a person."""
    if step.state is StepState.UNDO_FAILED:
        batch.event(job_id, EventType.UndoRetryRequested, ordinal=ordinal)
        start_undo(batch, job_id, ordinal, step)
        no_longer_waits(batch, job_id)


def step_failed(batch: Batch, job_id: str, ordinal: int, step: Step) -> None:
    """A step failed for good: undo its job."""
    progress = batch.progress(job_id)
    if not advance.goes_forward(progress):
        return
    failure = step.failure or Failure("FAILED")
    step_id = batch.spec(job_id, ordinal).id
    progress = batch.put_progress(job_id, progress, failure=replace(failure, step_id=step_id, retryable=False))
    begin(batch, job_id, progress)


def escalate(batch: Batch, job_id: str, ordinal: int, step: Step, failure: Failure, decision: Decision) -> None:
    """A step waits for a person. Branches that do not depend on it go on."""
    trouble, proposed = decision.trouble, decision.proposed
    escalated = StepState.ESCALATED
    batch.move(job_id, ordinal, step, escalated, NO_TIMER, trouble=trouble, proposed=proposed, failure=failure)
    batch.event(job_id, EventType.StepEscalated, ordinal=ordinal, detail=failure.told)
    _escalate_job(batch, job_id, failure)


def _escalate_job(batch: Batch, job_id: str, failure: Failure) -> None:
    progress = batch.progress(job_id)
    if progress.terminating:
        # Nobody is asked any more.
        return
    if progress.state is JobState.PAUSED:
        # It is escalated when it goes on.
        batch.put_progress(job_id, progress, failure=failure)
    elif progress.state is not JobState.ESCALATED:
        # Why a job is being undone matters more than why one of its undos did not work; that stands in the step.
        reason = progress.failure if progress.undoing and progress.failure is not None else failure
        batch.put_progress(job_id, progress, state=JobState.ESCALATED, failure=reason)
        batch.event(job_id, EventType.JobEscalated, detail=failure.kind)


def no_longer_waits(batch: Batch, job_id: str) -> None:
    """A step waits for a person no more: its job goes on when none of the others does."""
    progress = batch.progress(job_id)
    if progress.waiting:
        return
    match progress.state:
        case JobState.ESCALATED if progress.undoing:
            batch.put_progress(job_id, progress, state=JobState.COMPENSATING)
        case JobState.ESCALATED:
            batch.put_progress(job_id, progress, state=JobState.RUNNING, failure=None)
        case JobState.PAUSED:
            batch.put_progress(job_id, progress, failure=None)


def begin(batch: Batch, job_id: str, progress: Progress) -> None:
    """Stop what goes forward: what is ready or waits is taken back, what is held is cancelled."""
    batch.event(job_id, EventType.JobCompensationStarted, detail=progress.failure.kind if progress.failure else "")
    batch.put_progress(job_id, progress, state=JobState.COMPENSATING, settling=0)
    passes.begin(batch, job_id, PassKind.STOP)


def is_unwanted(batch: Batch, job_id: str, phase: Phase) -> bool:
    """Whether what a part of a step is at work for is being stopped. An undo never is, nor a question before one."""
    return phase.part is not Part.UNDO and advance.is_stopping(batch.progress(job_id))


def starts_nothing(progress: Progress, phase: Phase) -> bool:
    """Whether a part of a step may not start any more, although the walk that stops it may not have come to it."""
    return progress.terminating or (phase.part is not Part.UNDO and advance.is_stopping(progress))


def check_may_turn_back(batch: Batch, job_id: str, cannot: str, *, despite: int | None = None) -> None:
    """Refuse to undo a job whose point of no return has succeeded, or may have.

    `despite`: the step of which a person says that it has failed, whatever may have happened; it may be that point.

    Raises:
        Refused: JOB_STATE, which step that is, and what can be done instead.
    """
    ordinal = past_pivot(batch, job_id, despite=despite)
    if ordinal is None:
        return
    step_id, step = batch.spec(job_id, ordinal).id, batch.require_step(job_id, ordinal)
    if step.state is StepState.SUCCEEDED:
        text = f"has succeeded; {cannot} any more: what is left of it can be tried again, passed over, or terminated"
    else:
        text = f"may have happened ({step.state.name}); {cannot} until it is known to have failed, only terminated"
    state = batch.progress(job_id).state.name
    text = f"step {step_id!r} of job {job_id}, its point of no return, {text}"
    raise refuse(Reason.JOB_STATE, text, job_id=job_id, step_id=step_id, state=state)


def past_pivot(batch: Batch, job_id: str, *, despite: int | None = None) -> int | None:
    """Where the point of no return of a job stands, once it has succeeded or may have: the job turns back no more.

    `despite`: a step of which no attempt is open, although its state may not say so yet.
    """
    ordinal = batch.places(job_id).pivot
    step = None if ordinal is None else batch.step(job_id, ordinal)
    if ordinal is None or step is None:
        return None
    if step.state is StepState.SUCCEEDED:
        return ordinal
    if ordinal == despite:
        return ordinal if step.maybe_done and step.state is not StepState.ESCALATED else None
    at_work = step.state is StepState.RUNNING
    if step.state is StepState.OFFERED:
        key = keys.assignment(step.session_id, step.token, job_id, ordinal)
        assignment = batch.draft.read(key, rows.Assignment)
        at_work = assignment is None or assignment.start is StartMode.ON_OFFER
    return ordinal if at_work or step.maybe_done else None


def stop(batch: Batch, job_id: str, ordinal: int, step: Step) -> None:
    """Visit of STOP."""
    if _stop(batch, job_id, ordinal, step):
        progress = batch.progress(job_id)
        batch.put_progress(job_id, progress, settling=progress.settling + 1)


def stop_early(batch: Batch, job_id: str, ordinal: int, step: Step) -> None:
    """A step of a job that is stopping would go on before the walk has come to it. The walk counts it."""
    if batch.progress(job_id).terminating:
        termination.end_step(batch, job_id, ordinal, step)
    else:
        _stop(batch, job_id, ordinal, step)


def all_stopped(batch: Batch, job_id: str) -> None:
    """End of STOP."""
    if batch.progress(job_id).settling == 0:
        _begin_undos(batch, job_id)


def _stop(batch: Batch, job_id: str, ordinal: int, step: Step) -> bool:
    """Stop one step going forward. True: an attempt of it may still act, and a timer or its agent will tell."""
    state, phase = step.state, states.phase(step.state)
    if state in states.HELD:
        key = keys.assignment(step.session_id, step.token, job_id, ordinal)
        assignment = batch.draft.read(key, rows.Assignment)
        if assignment is None:
            # A bug of ours, of the kind that `patrol` finds; it must not keep a person from ending it.
            step = batch.keep(job_id, ordinal, step, maybe_done=True)
        elif state is phase.running or assignment.start is StartMode.ON_OFFER:
            batch.draft.put(key, replace(assignment, cancel=CancelReason.JOB_ENDING))
            return True
        else:
            # Nobody was told to start, and from now on nobody will be: there is no answer to wait for.
            batch.draft.delete(key)
    if state is phase.ready:
        advance.unready(batch, job_id, ordinal, step)
    step = verifying.put_back(batch, job_id, ordinal, step)
    if state in states.ACTIVE or state is StepState.ESCALATED:
        state = StepState.OUTCOME_UNKNOWN if step.maybe_done else StepState.CANCELLED
        if step.state is StepState.ESCALATED:
            state = StepState.OUTCOME_UNKNOWN if step.maybe_done else StepState.FAILED
        if state is StepState.CANCELLED:
            batch.event(job_id, EventType.StepCancelled, ordinal=ordinal)
    clear = leases.is_clear(step, led_ms=batch.moment.led_ms)
    batch.move(job_id, ordinal, step, state, NO_TIMER if clear else attempts.clear_at(batch, step))
    return not clear


def settle(batch: Batch, job_id: str, ordinal: int) -> None:
    """Look again whether a step of a job that is ending can still act. The last one to settle begins the undos.

    A step that is not held is still unsettled while it has a timer, and only then. One that the walk has not come to is
    not counted yet.
    """
    progress = batch.progress(job_id)
    if not advance.is_stopping(progress):
        return
    step = batch.step(job_id, ordinal)
    assert step is not None
    if step.state in states.ACTIVE:
        return
    if step.timer_clock is Clock.NONE:
        return
    if not leases.is_clear(step, led_ms=batch.moment.led_ms):
        batch.move(job_id, ordinal, step, step.state, attempts.clear_at(batch, step))
        return
    batch.move(job_id, ordinal, step, step.state, NO_TIMER)
    if not passes.reached(batch, job_id, ordinal):
        return
    progress = batch.put_progress(job_id, progress, settling=progress.settling - 1)
    if progress.settling == 0 and passes.under_way(batch, job_id) is None:
        _begin_undos(batch, job_id)


def _begin_undos(batch: Batch, job_id: str) -> None:
    """No forward attempt can act any more: start the undos that wait for nothing.

    Steps that never became ready have no row, and neither have their dependents, so rows alone are looked at. First
    every step learns how many undos it waits for: one that ended before would be counted, and not told any more.
    """
    batch.put_progress(job_id, batch.progress(job_id), undoing=True)
    passes.begin(batch, job_id, PassKind.UNDO_COUNT)


def count_waits(batch: Batch, job_id: str, ordinal: int, step: Step) -> None:
    """Visit of UNDO_COUNT."""
    waits = sum(batch.has_begun(job_id, dependent) for dependent in batch.spec(job_id, ordinal).dependents)
    if waits != step.undo_waits:
        batch.keep(job_id, ordinal, step, undo_waits=waits)
    progress = batch.progress(job_id)
    batch.put_progress(job_id, progress, undo_open=progress.undo_open + 1)


def all_counted(batch: Batch, job_id: str) -> None:
    """End of UNDO_COUNT."""
    if batch.progress(job_id).undo_open == 0:
        _end_job(batch, job_id)
    else:
        passes.begin(batch, job_id, PassKind.UNDO_OPEN)


def open_last(batch: Batch, job_id: str, ordinal: int, step: Step) -> None:
    """Visit of UNDO_OPEN: a step without a dependent that has begun waits for nothing.

    That never changes, unlike what steps wait for while others end; so no step is opened twice.
    """
    if step.undo_waits or any(batch.has_begun(job_id, other) for other in batch.spec(job_id, ordinal).dependents):
        return
    if not _open_undo(batch, job_id, ordinal):
        undo_ended(batch, job_id, ordinal)


def _open_undo(batch: Batch, job_id: str, ordinal: int) -> bool:
    """The undos of all dependents have ended: undo this step. False: there is nothing to undo, or no way to."""
    step = batch.step(job_id, ordinal)
    assert step is not None
    if not needs_undo(step):
        return False
    if verifying.should_ask(batch, job_id, ordinal, step):
        verifying.ask_before_undo(batch, job_id, ordinal, step)
        return True
    return undo_it(batch, job_id, ordinal, step)


def undo_it(batch: Batch, job_id: str, ordinal: int, step: Step) -> bool:
    """Undo a step that was done, or may have been. False: there is no way to."""
    if batch.spec(job_id, ordinal).undo is None:
        if step.state is StepState.OUTCOME_UNKNOWN or step.state in states.ACTIVE:
            batch.move(job_id, ordinal, step, StepState.FAILED, NO_TIMER)
        return False
    start_undo(batch, job_id, ordinal, step)
    return True


def start_undo(batch: Batch, job_id: str, ordinal: int, step: Step) -> None:
    """Make an undo ready, once no attempt that it could meet can still act. It counts its own attempts."""
    # What the action said of its progress is nothing that its undo could go on from.
    advance.forget_progress(batch, job_id, ordinal)
    step = batch.keep(job_id, ordinal, step, attempts=0, lease_losses=0, ready_log_ms=-1, avoid=None)
    if leases.is_clear(step, led_ms=batch.moment.led_ms):
        advance.make_ready(batch, job_id, ordinal, step, states.UNDO)
    else:
        batch.move(job_id, ordinal, step, StepState.UNDO_RETRY_WAIT, attempts.clear_at(batch, step))


def needs_undo(step: Step) -> bool:
    """Whether a step succeeded or may have happened, and is not undone."""
    if step.state is StepState.COMPENSATED:
        return False
    return step.state is StepState.SUCCEEDED or step.state in states.UNDO_OPEN or step.maybe_done


def undo_ended(batch: Batch, job_id: str, ordinal: int) -> None:
    """Nothing of this step is left to wait for: what it needed may be undone, and the job may have ended."""
    if batch.progress(job_id).terminating:
        return
    _count_ended(batch, job_id, ordinal)
    spreads.begin_undo(batch, job_id, ordinal)


def dependent_undone(batch: Batch, job_id: str, ordinal: int) -> bool:
    """The undo of a dependent has ended. True: this step has nothing to undo, so that its own has ended, too."""
    step = batch.step(job_id, ordinal)
    assert step is not None
    step = batch.keep(job_id, ordinal, step, undo_waits=step.undo_waits - 1)
    if step.undo_waits or _open_undo(batch, job_id, ordinal):
        return False
    _count_ended(batch, job_id, ordinal)
    return True


def _count_ended(batch: Batch, job_id: str, ordinal: int) -> None:
    step = batch.step(job_id, ordinal)
    assert step is not None
    progress = batch.progress(job_id)
    remaining = progress.remaining + needs_undo(step)
    progress = batch.put_progress(job_id, progress, undo_open=progress.undo_open - 1, remaining=remaining)
    if progress.undo_open == 0:
        _end_job(batch, job_id)


def undo_failed(batch: Batch, job_id: str, ordinal: int, step: Step, failure: Failure) -> None:
    """An undo failed for good: a person must look. It holds only what must come after it."""
    batch.move(job_id, ordinal, step, StepState.UNDO_FAILED, NO_TIMER, trouble=Trouble.UNDO_FAILED, failure=failure)
    batch.event(job_id, EventType.UndoFailed, ordinal=ordinal, detail=failure.told)
    _escalate_job(batch, job_id, replace(failure, step_id=batch.spec(job_id, ordinal).id))


def undo_unknown(batch: Batch, job_id: str, ordinal: int, step: Step, failure: Failure) -> None:
    """Nobody can tell whether an undo that may not be repeated has happened: a person must look."""
    unknown = StepState.UNDO_OUTCOME_UNKNOWN
    batch.move(job_id, ordinal, step, unknown, NO_TIMER, trouble=Trouble.UNDO_UNKNOWN, failure=failure)
    batch.event(job_id, EventType.UndoOutcomeUnknown, ordinal=ordinal, detail=failure.told)
    _escalate_job(batch, job_id, replace(failure, step_id=batch.spec(job_id, ordinal).id))


def _end_job(batch: Batch, job_id: str) -> None:
    """Every undo has ended."""
    progress = batch.progress(job_id)
    if progress.remaining:
        state, type_ = JobState.FAILED, EventType.JobFailed
    elif progress.cancel_requested:
        state, type_ = JobState.CANCELLED, EventType.JobCancelled
    else:
        state, type_ = JobState.COMPENSATED, EventType.JobCompensated
    passes.end(batch, job_id)
    # A success may still wait to be told to others, which will never begin.
    spreads.end(batch, job_id)
    batch.put_progress(job_id, progress, state=state, ended_wall_ms=batch.moment.wall_ms)
    batch.event(job_id, type_)
