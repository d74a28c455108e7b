"""Incidents: what waits for a person.

One is opened when a step begins to wait for one, or a job is found stuck or late; whatever ends that resolves it.
Both happen in the one place where a step changes (`batch.Batch.move`), so there is an open incident for each step that
waits, and no other. Each opening and each resolution has a number of its own, by which others are told of it in order
(`notices`). An incident is kept until its job is removed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from stepward.server.core import keys, ledger, ledger_rows, notices
from stepward.server.core.ledger_rows import Incident, IncidentCounts
from stepward.server.core.parts import By, Remedy, Trouble
from stepward.server.core.rows import JobState, StepState

if TYPE_CHECKING:
    from stepward.server.core.batch import Batch
    from stepward.server.core.draft import Draft
    from stepward.server.core.reader import Reader
    from stepward.server.core.rows import Failure, Progress

S = StepState
# What a state says about how the wait of a step for a person has ended. A cancel, or the end of the job, says more.
_HOW = {
    S.RETRY_WAIT: Remedy.RETRY,
    S.UNDO_READY: Remedy.RETRY,
    S.UNDO_RETRY_WAIT: Remedy.RETRY,
    S.SKIPPED: Remedy.CONTINUE,
    S.COMPENSATED: Remedy.CONTINUE,
    S.UNDO_SKIPPED: Remedy.CONTINUE,
    S.OUTCOME_UNKNOWN: Remedy.COMPENSATE,
    S.FAILED: Remedy.COMPENSATE,
}


def opened(
    batch: Batch, job_id: str, ordinal: int, trouble: Trouble, *, proposed: Remedy, failure: Failure | None
) -> int:
    """A step, or with `ordinal` -1 a job, begins to wait for a person. The number of the incident."""
    draft, job, before = batch.draft, batch.job(job_id), counts(batch.draft)
    number = before.newest + 1
    notice = notices.add(batch, before, number, resolved=False)
    incident = Incident(
        opened_wall_ms=batch.moment.wall_ms,
        namespace=job.namespace,
        definition_name=job.definition_name,
        definition_version=job.definition_version,
        job_id=job_id,
        ordinal=ordinal,
        step_id=batch.spec(job_id, ordinal).id if ordinal >= 0 else "",
        trouble=trouble,
        proposed=proposed,
        failure=failure,
        opened_notice=notice,
    )
    draft.put(keys.incident(number), incident)
    draft.put(keys.incident_of(job_id, number), ledger_rows.IncidentIndex())
    draft.put(keys.incident_open(job.namespace, number), ledger_rows.IncidentIndex())
    draft.put(keys.INCIDENT_COUNTS, IncidentCounts(number, before.open + 1, notice))
    return number


def step_moves_on(batch: Batch, job_id: str, number: int, state: StepState) -> None:
    """A step is about to wait for a person no more, but to come to a state. 0: it is older than incidents."""
    if number:
        progress = batch.progress(job_id)
        _resolved(batch, number, _how(progress, _HOW[state], undoes=state in (S.OUTCOME_UNKNOWN, S.FAILED)))


def job_moves_on(batch: Batch, progress: Progress) -> None:
    """A job that was found stuck, or late, is moved on, or moves on by itself: `progress` is how it will be."""
    goes_on = progress.state in (JobState.RUNNING, JobState.PAUSED, JobState.COMPLETED)
    remedy = Remedy.NONE if goes_on else Remedy.COMPENSATE
    _resolved(batch, progress.incident, _how(progress, remedy, undoes=not goes_on))


def _how(progress: Progress, remedy: Remedy, *, undoes: bool) -> Remedy:
    if progress.terminating:
        return Remedy.FAIL
    return Remedy.CANCEL if undoes and progress.cancel_requested else remedy


def _resolved(batch: Batch, number: int, how: Remedy) -> None:
    """An incident has ended; what a person did about it stands in the ledger, too."""
    draft, before, cause = batch.draft, counts(batch.draft), batch.cause
    incident = draft.require(keys.incident(number), Incident)
    assert not incident.resolved_wall_ms, (number, incident)
    if cause.by is By.PERSON and how is not Remedy.NONE:
        ledger.record(batch, incident.job_id, incident.ordinal, incident.trouble, how, failure=incident.failure)
    after = replace(
        incident,
        resolved_wall_ms=batch.moment.wall_ms,
        how=how,
        by=cause.by,
        actor=cause.actor,
        reason=cause.reason,
    )
    draft.put(keys.incident(number), after)
    draft.remove(keys.incident_open(incident.namespace, number))
    notice = notices.add(batch, before, number, resolved=True)
    draft.put(keys.INCIDENT_COUNTS, IncidentCounts(before.newest, before.open - 1, notice))


def counts(reader: Reader | Draft) -> IncidentCounts:
    """How many incidents there have been, and how many are open."""
    row = reader.get(keys.INCIDENT_COUNTS)
    assert row is None or isinstance(row, IncidentCounts), row
    return row or IncidentCounts()


def find(reader: Reader | Draft, number: int) -> Incident | None:
    """An incident by its number; None when there is none, or it is not kept any more."""
    if not 0 < number < 1 << 63:
        return None
    row = reader.get(keys.incident(number))
    assert row is None or isinstance(row, Incident), row
    return row


def id_of(number: int, job_id: str) -> str:
    """The name of an incident: its shard, which is that of its job, and its number."""
    return f"i{job_id.partition('-')[0]}-{number}"
