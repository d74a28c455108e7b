"""How a job is ended at once: nothing more is tried, and nothing more is undone.

What is ready or waits is taken back. What is held is told to stop; its agent may speak of it later, which is kept as an
observation, and keeps its slot until then. What had been done remains done, and the answer about the job says so.

A job too large for one batch is COMPENSATING, and `terminating`, until the walk over its steps has come to the end.
Meanwhile nothing of it starts, and no outcome leads to anything.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from stepward.server.core import passes, spreads, step_verbs, verifying
from stepward.server.core.batch import NO_TIMER
from stepward.server.core.rows import CancelReason, EventType, JobState, PassKind, StepState
from stepward.server.core.states import UNDO_OPEN

if TYPE_CHECKING:
    from stepward.server.core.batch import Batch
    from stepward.server.core.rows import Failure, Step

# Kind of the failure of a job that a person ended.
TERMINATED = "TERMINATED"

# What becomes of a step that goes forward. Any other has ended, or is being undone.
_ENDS = {
    StepState.READY: StepState.CANCELLED,
    StepState.OFFERED: StepState.CANCELLED,
    StepState.RUNNING: StepState.CANCELLED,
    StepState.RETRY_WAIT: StepState.CANCELLED,
    StepState.OUTCOME_UNKNOWN: StepState.FAILED,
    StepState.ESCALATED: StepState.FAILED,
    StepState.VERIFY_READY: StepState.FAILED,
    StepState.VERIFY_OFFERED: StepState.FAILED,
    StepState.VERIFY_RUNNING: StepState.FAILED,
    StepState.VERIFY_RETRY_WAIT: StepState.FAILED,
}
_EVENTS = {
    StepState.CANCELLED: EventType.StepCancelled,
    StepState.FAILED: EventType.StepFailed,
    StepState.UNDO_SKIPPED: EventType.UndoSkipped,
}


def terminate(batch: Batch, job_id: str, failure: Failure) -> None:
    """End a job that has not ended, as FAILED, with why."""
    progress = batch.progress(job_id)
    batch.put_progress(job_id, progress, state=JobState.COMPENSATING, terminating=True, failure=failure, settling=0)
    passes.begin(batch, job_id, PassKind.TERMINATE)


def end_step(batch: Batch, job_id: str, ordinal: int, step: Step) -> None:
    """Visit of TERMINATE. A step that would go on before the walk has come to it is ended then."""
    failure = batch.progress(job_id).failure
    state = StepState.UNDO_SKIPPED if step.state in UNDO_OPEN else _ENDS.get(step.state, step.state)
    if step.aside is not None and step.aside.state in (StepState.FAILED, StepState.SKIPPED):
        # Only whether there was anything to undo was asked.
        state = step.aside.state
    step = step_verbs.take_back(batch, job_id, ordinal, step, CancelReason.JOB_ENDING)
    step = verifying.put_back(batch, job_id, ordinal, step)
    if state is not step.state and state in _EVENTS:
        batch.event(job_id, _EVENTS[state], ordinal=ordinal, detail="" if failure is None else failure.kind)
    if state is not step.state or step.timer_clock is not NO_TIMER.clock:
        # One that had ended may have waited until nothing of it could act any more.
        batch.move(job_id, ordinal, step, state, NO_TIMER)


def all_ended(batch: Batch, job_id: str) -> None:
    """End of TERMINATE."""
    spreads.end(batch, job_id)
    progress = batch.progress(job_id)
    kind = "" if progress.failure is None else progress.failure.kind
    batch.put_progress(job_id, progress, state=JobState.FAILED, ended_wall_ms=batch.moment.wall_ms)
    batch.event(job_id, EventType.JobFailed, detail=kind)
