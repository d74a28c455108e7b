"""What a person does to a whole job: hold it, let it go on, or end it at once. Cancelling is `compensation`'s."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stepward.server.core import advance, deadlines, keys, passes, rows, termination
from stepward.server.core.commands import VerbDone
from stepward.server.core.rejections import Reason, Refused, refuse
from stepward.server.core.rows import EventType, Failure, JobState, PassKind
from stepward.server.core.step_verbs import open_job

if TYPE_CHECKING:
    from stepward.server.core.batch import Batch
    from stepward.server.core.commands import PauseJob, ResumeJob, TerminateJob
    from stepward.server.core.rows import Progress


def pause_job(batch: Batch, command: PauseJob) -> VerbDone:
    """Offer nothing more of a job. What runs goes on to its end, and counts.

    An undo is never held: what fails for good while its job is paused undoes it, and so do a cancel and a deadline.
    """
    job_id = command.job_id
    progress = open_job(batch, job_id, "it cannot be paused")
    if progress.state is JobState.PAUSED:
        return VerbDone(job_id, already=True)
    if not advance.goes_forward(progress):
        raise _being_undone(job_id, progress, "that cannot be paused")
    batch.event(job_id, EventType.JobPaused, detail=command.reason, actor=command.actor)
    batch.put_progress(job_id, progress, state=JobState.PAUSED)
    passes.begin(batch, job_id, PassKind.PAUSE)
    return VerbDone(job_id, already=False)


def resume_job(batch: Batch, command: ResumeJob) -> VerbDone:
    """Let a paused job go on: what was held back may be offered, and has its whole time in the queue."""
    job_id = command.job_id
    progress = open_job(batch, job_id, "it cannot go on")
    if not advance.goes_forward(progress):
        raise _being_undone(job_id, progress, "it is not paused")
    if progress.state is not JobState.PAUSED:
        return VerbDone(job_id, already=True)
    batch.event(job_id, EventType.JobResumed, detail=command.reason, actor=command.actor)
    state = JobState.ESCALATED if progress.waiting else JobState.RUNNING
    progress = batch.put_progress(job_id, progress, state=state)
    if progress.failure is not None:
        # It came to be late while it was paused, behind its point of no return.
        deadlines.call_a_person(batch, job_id, progress, progress.failure)
    passes.begin(batch, job_id, PassKind.RESUME)
    return VerbDone(job_id, already=False)


def terminate_job(batch: Batch, command: TerminateJob) -> VerbDone:
    """End a job at once, whatever it does."""
    job_id = command.job_id
    before = batch.draft.read(keys.progress(job_id), rows.Progress)
    if before is not None and before.terminating:
        return VerbDone(job_id, already=True)
    open_job(batch, job_id, "it cannot be terminated")
    batch.event(job_id, EventType.JobTerminated, detail=command.reason, actor=command.actor)
    termination.terminate(batch, job_id, Failure(termination.TERMINATED, command.reason, retryable=False))
    return VerbDone(job_id, already=False)


def _being_undone(job_id: str, progress: Progress, rule: str) -> Refused:
    text = f"job {job_id} is {progress.state.name}: it is being undone; {rule}"
    return refuse(Reason.JOB_STATE, text, job_id=job_id, state=progress.state.name)
