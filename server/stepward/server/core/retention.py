"""Ended jobs are kept for a time, and then removed with everything that is theirs.

An ended job has one row in a queue of its own, apart from the timers: what removes old jobs must not stand before what
moves others on. First, while the job can still be read, what its steps have left elsewhere is taken away; then the job
vanishes in one batch, with its progress, its places in the lists and its idempotency key; then its other rows go, some
in each sweep. So nothing ever makes it look as if it had not run.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Final, NamedTuple

from msgspec.structs import replace

from stepward.server.core import caller_ends, keys, rows, slice_rows, states
from stepward.server.core.rows import Clock

if TYPE_CHECKING:
    from stepward.server.core.batch import Batch
    from stepward.server.core.rows import Step
    from stepward.server.core.slice_rows import Purge

# Kinds of rows of which a job has many, under its own id.
_OF_STEPS: Final = (keys.STEP, keys.OUTPUT, keys.STEP_PROGRESS, keys.JOIN, keys.HISTORY)
# Jobs whose time is over are counted up to here; how late the first is says the rest.
_BACKLOG_COUNTED_MAX: Final = 10_000


class Backlog(NamedTuple):
    """Ended jobs whose time is over, counted up to a bound, and since when that of the first is (ms)."""

    jobs: int
    late_ms: int


def purge_due(batch: Batch) -> int:
    """Remove ended jobs whose time is over, at most so many of them and so many rows. How many have vanished."""
    limits, begun, purged = batch.limits, batch.draft.writes, 0
    for number, key in enumerate(_due(batch, limits.purges_max + 1)):
        if number == limits.purges_max or batch.draft.writes - begun >= limits.purge_writes_max or batch.full:
            batch.unfinished = True
            break
        savepoint = batch.draft.savepoint()
        try:
            purged += _purge(batch, key, begun + limits.purge_writes_max)
        except Exception as error:  # noqa: BLE001 - a rule of ours is wrong: one job must not keep the others
            batch.draft.rollback(savepoint)
            batch.failures.append((key, error))
    return purged


def backlog(batch: Batch) -> Backlog:
    """How far behind the removal of ended jobs is."""
    due = _due(batch, _BACKLOG_COUNTED_MAX)
    return Backlog(len(due), batch.moment.log_ms - keys.parse_purge(due[0])[0] if due else 0)


def _due(batch: Batch, count_max: int) -> list[bytes]:
    found: list[bytes] = []
    for key in islice(batch.draft.keys(keys.PURGE), count_max):
        if keys.parse_purge(key)[0] > batch.moment.log_ms:
            break
        found.append(key)
    return found


def _purge(batch: Batch, key: bytes, writes_max: int) -> bool:
    """Remove one job as far as there is room, and remember how far that was. True: it has vanished."""
    job_id = keys.parse_purge(key)[1]
    if job_id in batch.draft.touched():
        # A late report is written down in this batch: next time.
        return False
    before = purge = batch.draft.require(key, slice_rows.Purge)
    if not purge.hidden:
        purge = _take_back(batch, job_id, purge)
    if purge.hidden and _remove(batch, job_id, writes_max):
        batch.draft.remove(key)
    elif purge != before:
        batch.draft.put(key, purge)
        batch.unfinished = True
    return purge.hidden and not before.hidden


def _take_back(batch: Batch, job_id: str, purge: Purge) -> Purge:
    """Take away what a slice of the steps has left with agents and in queues. Behind the last one the job vanishes."""
    after = b"" if purge.after < 0 else keys.step(job_id, purge.after)
    slice_max = batch.limits.activation_slice
    found = list(islice(batch.draft.keys(keys.steps(job_id), after=after), slice_max + 1))
    for key in found[:slice_max]:
        _take_back_step(batch, job_id, keys.parse_subject(key[1:])[1], batch.draft.require(key, rows.Step))
    if len(found) > slice_max:
        return replace(purge, after=keys.parse_subject(found[slice_max - 1][1:])[1])
    _hide(batch, job_id)
    return replace(purge, hidden=True)


def _take_back_step(batch: Batch, job_id: str, ordinal: int, step: Step) -> None:
    """An attempt that timed out holds its slot while its agent says nothing. A timer is there only if a rule failed."""
    for attempt in step.lingering:
        if not (attempt.lost or attempt.closed):
            batch.draft.delete(keys.assignment(attempt.session_id, attempt.token, job_id, ordinal))
    if step.timer_clock is not Clock.NONE:
        batch.draft.delete(states.timer_key(job_id, ordinal, step))


def _hide(batch: Batch, job_id: str) -> None:
    """From now on there is no such job, and its idempotency key is free."""
    draft, job, progress = batch.draft, batch.job(job_id), batch.progress(job_id)
    batch.list_job(job_id, job.namespace, progress.state, None)
    caller_ends.remove(batch, job_id, job, progress)
    if job.idempotency_key:
        key = keys.idempotency(job.namespace, job.idempotency_key)
        named = draft.read(key, rows.IdempotencyKey)
        if named is not None and named.job_id == job_id:
            draft.delete(key)
    draft.delete(keys.progress(job_id))
    draft.delete(keys.job(job_id))


def _remove(batch: Batch, job_id: str, writes_max: int) -> bool:
    """Remove rows of a job that has vanished, while there is room. True: none is left."""
    for key in batch.draft.keys(keys.incidents_of(job_id)):
        if batch.draft.writes >= writes_max:
            return False
        batch.draft.remove(keys.incident(keys.parse_number(key)))
        batch.draft.remove(key)
    for kind in _OF_STEPS:
        for key in batch.draft.keys(kind + keys.steps(job_id)[1:]):
            if batch.draft.writes >= writes_max:
                return False
            batch.draft.remove(key)
    return True
