"""What a person does about an incident. Each is a verb on its step or its job; what waited for nobody else goes on.

An incident is named by its number, so a decision never meets another incident of the same step than the one that was
looked at.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, assert_never

from stepward.server.core import advance, compensation, deadlines, incidents, job_verbs, remediation, step_verbs
from stepward.server.core.commands import IncidentResolved, RetryStep, SkipStep, TerminateJob
from stepward.server.core.parts import Remedy, Resolution, Trouble
from stepward.server.core.rejections import Reason, Refused, refuse
from stepward.server.core.rows import EventType, Failure, JobState, StepState

if TYPE_CHECKING:
    from stepward.server.core.batch import Batch
    from stepward.server.core.commands import ResolveIncident
    from stepward.server.core.ledger_rows import Incident

# What approving a remedy that was proposed comes to.
_APPROVED = {
    Remedy.RETRY: Resolution.RETRY,
    Remedy.CONTINUE: Resolution.SKIP,
    Remedy.COMPENSATE: Resolution.COMPENSATE,
    Remedy.FAIL: Resolution.FAIL,
}


def resolve(batch: Batch, command: ResolveIncident) -> IncidentResolved:
    """Resolve an incident. One that was resolved before stays as it is.

    Raises:
        Refused: INCIDENT_NOT_FOUND; INCIDENT_STATE; and what the verb is refused for.
    """
    incident = incidents.find(batch.draft, command.number)
    if incident is None:
        text = f"there is no incident of number {command.number}, or it was removed with its job"
        raise refuse(Reason.INCIDENT_NOT_FOUND, text, incident_id=str(command.number))
    if incident.resolved_wall_ms:
        return IncidentResolved(incident.job_id, already=True)
    if incident.ordinal < 0:
        _resolve_job(batch, command, incident)
    else:
        _resolve_step(batch, command, incident)
    return IncidentResolved(incident.job_id, already=False)


def _meant(command: ResolveIncident, incident: Incident) -> Resolution:
    if command.resolution is not Resolution.APPROVE:
        return command.resolution
    if incident.proposed not in _APPROVED:
        raise _unfit(command, incident, "no remedy of it waits for approval; say what is to be done")
    return _APPROVED[incident.proposed]


def _resolve_step(batch: Batch, command: ResolveIncident, incident: Incident) -> None:
    job_id, step_id = incident.job_id, incident.step_id
    match _meant(command, incident):
        case Resolution.RETRY:
            step_verbs.retry_step(batch, RetryStep(job_id, step_id, command.reason, command.actor))
        case Resolution.SKIP:
            skip = SkipStep(job_id, step_id, command.output, command.undone, command.reason, command.actor)
            step_verbs.skip_step(batch, skip)
        case Resolution.COMPENSATE:
            _compensate(batch, command, incident)
        case Resolution.FAIL:
            job_verbs.terminate_job(batch, TerminateJob(job_id, command.reason, command.actor))
        case Resolution.APPROVE as never:
            raise AssertionError(never)
        case never:
            assert_never(never)


def _compensate(batch: Batch, command: ResolveIncident, incident: Incident) -> None:
    """A step counts as failed for good, and its job is undone."""
    job_id, ordinal = incident.job_id, incident.ordinal
    step, progress = batch.require_step(job_id, ordinal), batch.progress(job_id)
    if step.state is not StepState.ESCALATED or not advance.goes_forward(progress):
        raise _unfit(command, incident, "it is its undo that waits: have that tried again, passed over, or end the job")
    compensation.check_may_turn_back(batch, job_id, "it cannot be undone", despite=ordinal)
    batch.event(job_id, EventType.IncidentResolved, ordinal=ordinal, detail=command.reason, actor=command.actor)
    failure = step.failure or incident.failure or Failure(incident.trouble.name)
    remediation.carry_out(batch, job_id, ordinal, step, Remedy.COMPENSATE, failure)


def _resolve_job(batch: Batch, command: ResolveIncident, incident: Incident) -> None:
    """A job that nothing would ever move, whose rows are known to be wrong, can only be undone or ended.

    One that is late behind its point of no return can be given all its time again (RETRY), or let go on without a bound
    (SKIP).
    """
    job_id, progress = incident.job_id, batch.progress(incident.job_id)
    match _meant(command, incident):
        case Resolution.COMPENSATE if advance.goes_forward(progress):
            compensation.check_may_turn_back(batch, job_id, "it cannot be undone")
            batch.event(job_id, EventType.IncidentResolved, detail=command.reason, actor=command.actor)
            failure = progress.failure or incident.failure or Failure("STUCK")
            compensation.begin(batch, job_id, batch.put_progress(job_id, progress, failure=failure))
        case Resolution.FAIL:
            job_verbs.terminate_job(batch, TerminateJob(job_id, command.reason, command.actor))
        case Resolution.RETRY | Resolution.SKIP as more if incident.trouble is Trouble.JOB_DEADLINE:
            batch.event(job_id, EventType.IncidentResolved, detail=command.reason, actor=command.actor)
            if more is Resolution.RETRY:
                deadlines.renew(batch, job_id)
            progress = batch.put_progress(job_id, batch.progress(job_id), state=JobState.RUNNING, failure=None)
            if progress.waiting:
                batch.put_progress(job_id, progress, state=JobState.ESCALATED, failure=incident.failure)
        case Resolution.COMPENSATE:
            raise _unfit(command, incident, "its job is being undone already, and is stuck there; it can only be ended")
        case _:
            raise _unfit(command, incident, "it is about the job as a whole, which can only be undone or ended")


def _unfit(command: ResolveIncident, incident: Incident, rule: str) -> Refused:
    name = incidents.id_of(command.number, incident.job_id)
    what = f"step {incident.step_id!r} of job {incident.job_id}" if incident.step_id else f"job {incident.job_id}"
    text = (
        f"incident {name} ({incident.trouble.name}) of {what} cannot be resolved by {command.resolution.name}; {rule}"
    )
    return refuse(Reason.INCIDENT_STATE, text, incident_id=name, job_id=incident.job_id)
