"""The deadline of a job: an instant of log time, fixed when the job was submitted, and what follows when it passes.

It has a timer row of its own, which is there until the deadline has passed or the job has ended.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from stepward.server.core import advance, compensation, incidents, keys, remediation, remedies, rows, termination
from stepward.server.core.parts import Remedy
from stepward.server.core.remedies import Facts, RemedyPolicy
from stepward.server.core.rows import EventType, Failure, JobState, Trouble

if TYPE_CHECKING:
    from stepward.server.core.batch import Batch
    from stepward.server.core.rows import Job, Progress


def begin(batch: Batch, job_id: str, job: Job, progress: Progress) -> Progress:
    """Let the deadline of a job count from now. The caller puts the row that this gives."""
    if not job.deadline_ms:
        return progress
    at_log_ms = batch.moment.log_ms + job.deadline_ms
    batch.draft.put(keys.deadline_timer(at_log_ms, job_id), rows.Timer())
    return replace(progress, deadline_log_ms=at_log_ms, deadline_passed=False)


def renew(batch: Batch, job_id: str) -> None:
    """Give a job all its time again, since a person had a part of it run again."""
    progress = batch.progress(job_id)
    if not progress.deadline_log_ms:
        return
    if not progress.deadline_passed:
        batch.draft.delete(keys.deadline_timer(progress.deadline_log_ms, job_id))
    job = batch.job(job_id)
    batch.put_progress(job_id, begin(batch, job_id, job, progress))
    batch.event(job_id, EventType.JobDeadlineRenewed, due_in_ms=job.deadline_ms)


def passed(batch: Batch, job_id: str) -> None:
    """The timer of a deadline is due. A job that is being undone already goes on with that."""
    progress = batch.progress(job_id)
    batch.draft.delete(keys.deadline_timer(progress.deadline_log_ms, job_id))
    progress = batch.put_progress(job_id, progress, deadline_passed=True)
    text = f"the job has not ended within its deadline of {batch.job(job_id).deadline_ms} ms"
    batch.event(job_id, EventType.JobDeadlinePassed, detail=text)
    failure = Failure("JOB_DEADLINE", text, retryable=False)
    policy = RemedyPolicy(on_deadline=batch.body(job_id).on_deadline)
    past_pivot = compensation.past_pivot(batch, job_id) is not None
    facts = Facts(None, wanted=advance.goes_forward(progress), past_pivot=past_pivot)
    decision = remedies.decide(Trouble.JOB_DEADLINE, policy, facts)
    remediation.record(batch, job_id, -1, decision, failure)
    _carry_out(batch, job_id, progress, decision.remedy, failure)


def _carry_out(batch: Batch, job_id: str, progress: Progress, remedy: Remedy, failure: Failure) -> None:
    """Do what was decided about a job that is late."""
    match remedy:
        case Remedy.NONE:
            # It is being undone already.
            pass
        case Remedy.COMPENSATE:
            compensation.begin(batch, job_id, batch.put_progress(job_id, progress, failure=failure))
        case Remedy.CANCEL:
            progress = batch.put_progress(job_id, progress, failure=failure, cancel_requested=True)
            compensation.begin(batch, job_id, progress)
        case Remedy.FAIL:
            termination.terminate(batch, job_id, failure)
        case Remedy.ESCALATE:
            call_a_person(batch, job_id, progress, failure)
        case _:
            msg = f"{remedy.name} is nothing that is done about a deadline"
            raise AssertionError(msg)


def call_a_person(batch: Batch, job_id: str, progress: Progress, failure: Failure) -> None:
    """A job that is late and turns back no more waits for a person to look, while what can go on goes on.

    A paused one calls when it goes on. Of one that waits for a person already, the incidents are enough.
    """
    if progress.state is JobState.PAUSED:
        batch.put_progress(job_id, progress, failure=failure)
    elif progress.state is JobState.RUNNING:
        number = incidents.opened(batch, job_id, -1, Trouble.JOB_DEADLINE, proposed=Remedy.NONE, failure=failure)
        batch.put_progress(job_id, progress, state=JobState.ESCALATED, failure=failure, incident=number)
        batch.event(job_id, EventType.JobEscalated, detail=failure.kind)
