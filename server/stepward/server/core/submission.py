"""How a job begins: deduplication by key, its rows, and its first steps."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stepward.server.core import deadlines, keys, rows, spreads
from stepward.server.core.commands import DefinitionApplied, JobSubmitted
from stepward.server.core.rejections import Reason, refuse
from stepward.server.core.rows import EventType, JobState

if TYPE_CHECKING:
    from stepward.server.core.batch import Batch
    from stepward.server.core.commands import ApplyDefinition, SubmitJob


def submit_job(batch: Batch, command: SubmitJob) -> JobSubmitted:
    """Store a job and make its first steps ready, or answer with the first job of a known key.

    The key is looked up here and nowhere else, so of many submissions that race with one key exactly one makes a job.
    """
    known = _known(batch, command)
    if known is not None:
        return known
    version, hash_ = _resolve(batch, command)
    body = batch.draft.require(keys.definition_body(hash_), rows.DefinitionBody)
    moment, draft = batch.moment, batch.draft
    job = rows.Job(
        namespace=command.namespace,
        definition_name=command.definition_name,
        definition_version=version,
        definition_hash=hash_,
        input=command.input,
        idempotency_key=command.idempotency_key,
        labels=command.labels,
        caller_id=command.caller_id,
        submitted_wall_ms=moment.wall_ms,
        deadline_ms=command.deadline_ms or body.deadline_ms,
    )
    draft.put(keys.job(command.job_id), job)
    progress = rows.Progress(JobState.RUNNING, moment.sequence, moment.wall_ms, steps_open=len(body.steps))
    draft.put(keys.progress(command.job_id), deadlines.begin(batch, command.job_id, job, progress))
    batch.list_job(command.job_id, command.namespace, None, JobState.RUNNING)
    if command.idempotency_key:
        key_row = rows.IdempotencyKey(command.job_id, command.fingerprint)
        draft.put(keys.idempotency(command.namespace, command.idempotency_key), key_row)
    batch.event(command.job_id, EventType.JobSubmitted, detail=f"{command.definition_name} version {version}")
    spreads.begin(batch, command.job_id, spreads.SUBMISSION)
    return JobSubmitted(command.job_id, False, batch.progress(command.job_id).state, moment.sequence)


def _known(batch: Batch, command: SubmitJob) -> JobSubmitted | None:
    if not command.idempotency_key:
        return None
    first = batch.draft.read(keys.idempotency(command.namespace, command.idempotency_key), rows.IdempotencyKey)
    if first is None:
        return None
    if first.fingerprint != command.fingerprint:
        raise refuse(
            Reason.IDEMPOTENCY_CONFLICT,
            f"idempotency_key {command.idempotency_key!r} was used with another request, which made job "
            f"{first.job_id}; use another key, or repeat the first request unchanged",
            job_id=first.job_id,
            idempotency_key=command.idempotency_key,
        )
    progress = batch.progress(first.job_id)
    # The same command again, of a node that did not hear what became of it, is the first one still.
    duplicate = first.job_id != command.job_id
    return JobSubmitted(first.job_id, duplicate, progress.state, progress.revision)


def _resolve(batch: Batch, command: SubmitJob) -> tuple[int, bytes]:
    """Version and hash of the definition that was asked for; version 0 is the newest."""
    namespace, name, version = command.namespace, command.definition_name, command.definition_version
    head = batch.draft.read(keys.definition_head(namespace, name), rows.DefinitionHead)
    if head is None:
        raise refuse(
            Reason.DEFINITION_NOT_FOUND,
            f"there is no definition {name!r} in namespace {namespace!r}; apply it first",
            definition_name=name,
            namespace=namespace,
        )
    if version in (0, head.version):
        return head.version, head.hash
    record = batch.draft.read(keys.definition(namespace, name, version), rows.DefinitionRecord)
    if record is None:
        raise refuse(
            Reason.DEFINITION_NOT_FOUND,
            f"definition {name!r} has no version {version}; the newest is {head.version}",
            definition_name=name,
            namespace=namespace,
        )
    return version, record.hash


def apply_definition(batch: Batch, command: ApplyDefinition) -> DefinitionApplied:
    """Store a checked definition as a new version, unless the newest one is equal."""
    draft, name = batch.draft, command.body.name
    head = draft.read(keys.definition_head(command.namespace, name), rows.DefinitionHead)
    if head is not None and head.hash == command.hash:
        record = draft.require(keys.definition(command.namespace, name, head.version), rows.DefinitionRecord)
        return DefinitionApplied(head.version, False, record.created_wall_ms)
    version = 1 if head is None else head.version + 1
    wall_ms = batch.moment.wall_ms
    if draft.get(keys.definition_body(command.hash)) is None:
        draft.put(keys.definition_body(command.hash), command.body)
    draft.put(keys.definition(command.namespace, name, version), rows.DefinitionRecord(command.hash, wall_ms))
    draft.put(keys.definition_head(command.namespace, name), rows.DefinitionHead(version, command.hash))
    return DefinitionApplied(version, True, wall_ms)
