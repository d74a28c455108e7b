"""The ledger: every remedy, with why it was chosen and on what evidence, in the batch that carries it out.

One row a remedy, and none while all is well. A rule records a remedy before it carries it out; what came of it is added
when everything else of the batch is decided. Entries outlive their jobs: they go by their age and their number.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

from msgspec.structs import replace

from stepward.server.core import keys, leases, ledger_rows, limits, rows, states
from stepward.server.core.ledger_rows import Evidence
from stepward.server.core.parts import Trouble
from stepward.server.core.rows import Clock

if TYPE_CHECKING:
    from stepward.server.core.batch import Batch
    from stepward.server.core.ledger_rows import LedgerEntry
    from stepward.server.core.parts import Remedy
    from stepward.server.core.reader import Reader
    from stepward.server.core.rows import Failure, JobState, Step

# Troubles of an attempt whose session was lost: what had passed is the lease of the session.
_LOST = frozenset({Trouble.LEASE_LOST, Trouble.POISON})
# The number within a batch has two bytes in the key; a batch writes far fewer rows.
_NUMBER_MAX = 0xFFFF


def record(
    batch: Batch,
    job_id: str,
    ordinal: int,
    trouble: Trouble,
    remedy: Remedy,
    *,
    rule: str = "",
    failure: Failure | None = None,
    proposed: bool = False,
) -> None:
    """Write down a remedy that is about to be carried out, or only proposed. `ordinal` -1: it is the job's.

    Everything else is read from the rows as they are now, so nothing of the remedy may have been done yet. `failure` is
    why the attempt ended, or what the job or the incident says.
    """
    job, moment = batch.job(job_id), batch.moment
    while batch.recorded and batch.draft.get(batch.recorded[-1]) is None:
        # Its rule was rolled back, and leaves no trace.
        batch.recorded.pop()
    step = batch.step(job_id, ordinal) if ordinal >= 0 else None
    entry = ledger_rows.LedgerEntry(
        serial=_next_serial(batch),
        wall_ms=moment.wall_ms,
        led_ms=moment.led_ms,
        log_ms=moment.log_ms,
        epoch=moment.epoch,
        namespace=job.namespace,
        definition_name=job.definition_name,
        definition_version=job.definition_version,
        job_id=job_id,
        ordinal=ordinal,
        step_id=batch.spec(job_id, ordinal).id if ordinal >= 0 else "",
        part=None if step is None else states.phase(step.state).part,
        trouble=trouble,
        remedy=remedy,
        by=batch.cause.by,
        actor=batch.cause.actor,
        reason=batch.cause.reason,
        evidence=_evidence(batch, job_id, ordinal, step, trouble, failure),
        proposed=proposed,
        rule=rule,
        step_before=None if step is None else step.state,
        job_before=_job_before(batch, job_id),
        step_after=None,
        job_after=batch.progress(job_id).state,
    )
    assert len(batch.recorded) <= _NUMBER_MAX, len(batch.recorded)
    key = keys.ledger(moment.sequence, len(batch.recorded))
    batch.recorded.append(key)
    batch.draft.put(key, entry)


def _job_before(batch: Batch, job_id: str) -> JobState:
    """Before this batch, since a verb on a job changes its state first and comes to its steps then."""
    committed = batch.draft.committed(keys.progress(job_id))
    return (committed if isinstance(committed, rows.Progress) else batch.progress(job_id)).state


def _next_serial(batch: Batch) -> int:
    """Rises by one. Those of a rule that was rolled back are given again."""
    newest = batch.recorded[-1] if batch.recorded else batch.draft.last(keys.LEDGER)
    return 1 if newest is None else batch.draft.require(newest, ledger_rows.LedgerEntry).serial + 1


def _evidence(
    batch: Batch, job_id: str, ordinal: int, step: Step | None, trouble: Trouble, failure: Failure | None
) -> Evidence:
    told = "" if failure is None else limits.cut(failure.told, batch.limits.ledger_failure_bytes_max)
    if step is None:
        deadline_log_ms = batch.progress(job_id).deadline_log_ms if trouble is Trouble.JOB_DEADLINE else 0
        clock = Clock.LOG if deadline_log_ms else Clock.NONE
        return Evidence(failure=told, due_clock=clock, due_at_ms=deadline_log_ms)
    evidence = Evidence(step.attempts, step.lease_losses, step.token, step.session_id, told)
    session = batch.draft.read(keys.session(step.session_id), rows.Session) if trouble in _LOST else None
    if session is not None:
        ended_led_ms = leases.session_end_led_ms(
            renewed_led_ms=session.renewed_led_ms, ttl_ms=session.ttl_ms, kill_grace_ms=batch.limits.kill_grace_ms
        )
        return replace(
            evidence,
            due_clock=Clock.LED,
            due_at_ms=ended_led_ms,
            heard_clock=Clock.LED,
            heard_at_ms=session.renewed_led_ms,
        )
    said = batch.draft.read(keys.step_progress(job_id, ordinal), rows.StepProgress)
    if said is not None and said.heard_log_ms:
        evidence = replace(evidence, heard_clock=Clock.LOG, heard_at_ms=said.heard_log_ms)
    return replace(evidence, due_clock=step.timer_clock, due_at_ms=step.timer_at_ms)


def complete(batch: Batch) -> None:
    """Everything of a batch is decided but its offers: add to its entries what came of them."""
    for key in batch.recorded:
        entry = batch.draft.read(key, ledger_rows.LedgerEntry)
        if entry is None:
            # Its rule was rolled back.
            continue
        step = batch.step(entry.job_id, entry.ordinal) if entry.ordinal >= 0 else None
        state = None if step is None else step.state
        batch.draft.put(key, replace(entry, step_after=state, job_after=batch.progress(entry.job_id).state))


def recorded(reader: Reader) -> int:
    """How many remedies there have ever been: the serial of the newest, which is never removed."""
    newest = next(reader.scan(keys.LEDGER, reverse=True), None)
    return 0 if newest is None else _entry(reader, newest).serial


def _entry(reader: Reader, key: bytes) -> LedgerEntry:
    entry = reader.get(key)
    assert isinstance(entry, ledger_rows.LedgerEntry), key
    return entry


def purge_due(batch: Batch) -> None:
    """Remove entries that are too old, or too many, some in each sweep. The newest stays, since it counts them all."""
    newest = batch.draft.last(keys.LEDGER)
    if newest is None:
        return
    bounds = batch.limits
    keep_from = batch.draft.require(newest, ledger_rows.LedgerEntry).serial - bounds.ledger_entries_max
    kept_log_ms = batch.moment.log_ms - bounds.ledger_retention_ms
    for number, key in enumerate(islice(batch.draft.keys(keys.LEDGER), bounds.ledger_purges_max + 1)):
        entry = batch.draft.require(key, ledger_rows.LedgerEntry)
        if key == newest or (entry.serial > keep_from and entry.log_ms > kept_log_ms):
            return
        if number == bounds.ledger_purges_max or batch.full:
            batch.unfinished = True
            return
        batch.draft.remove(key)
