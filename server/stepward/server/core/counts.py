"""How many jobs a namespace has in each state: one row, changed in the batch that changes a state.

It also keeps how far the times in the ids of its jobs were from the times of their submission. An id is drawn before
the batch of its job is decided, perhaps by another clock, so a walk that is bounded by time begins and ends that much
outside; with what was measured no job is missed, whatever the clocks did.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from stepward.server.core import keys, rows
from stepward.server.core.rows import JobCounts, JobState

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from stepward.server.core.draft import Draft
    from stepward.server.core.reader import Reader


def change(draft: Draft, namespace: str, job_id: str, before: JobState | None, after: JobState | None) -> None:
    """Count a job whose index row was moved from one state to another. None: it was not, or is no longer, there.

    A namespace without a row has no jobs, or they are older than this kind of row: it is counted from its index.
    """
    key = keys.job_counts(namespace)
    row = draft.read(key, JobCounts)
    if row is None:
        row = _recounted(draft, namespace)
    else:
        counts = dict(row.counts)
        if before is not None:
            counts[before] -= 1
            if not counts[before]:
                del counts[before]
        if after is not None:
            counts[after] = counts.get(after, 0) + 1
        row = replace(row, counts=counts)
    if before is None:
        row = _widened(draft, row, job_id)
    if row.counts:
        draft.put(key, row)
    else:
        draft.delete(key)


def _recounted(draft: Draft, namespace: str) -> JobCounts:
    row = JobCounts({})
    for state in JobState:
        prefix = keys.job_index(namespace, state)
        job_ids = [key[len(prefix) :].decode() for key in draft.keys(prefix)]
        if job_ids:
            row.counts[state] = len(job_ids)
        for job_id in job_ids:
            row = _widened(draft, row, job_id)
    return row


def _widened(draft: Draft, row: JobCounts, job_id: str) -> JobCounts:
    """The row, with room for the distance between the time in an id and that of its submission."""
    late_ms = draft.require(keys.job(job_id), rows.Job).submitted_wall_ms - keys.job_id_ms(job_id)
    if row.submitted_late_ms_min <= late_ms <= row.submitted_late_ms_max:
        return row
    return replace(
        row,
        submitted_late_ms_min=min(row.submitted_late_ms_min, late_ms),
        submitted_late_ms_max=max(row.submitted_late_ms_max, late_ms),
    )


def of_namespace(reader: Reader, namespace: str) -> Mapping[JobState, int]:
    """How many jobs a namespace has in each state; states without jobs are left out."""
    row = reader.get(keys.job_counts(namespace))
    return row.counts if isinstance(row, JobCounts) else {}


def of_all(reader: Reader) -> Mapping[JobState, int]:
    """How many jobs there are in each state, over all namespaces."""
    total: dict[JobState, int] = {}
    for key in reader.scan(keys.JOB_COUNTS):
        row = reader.get(key)
        assert isinstance(row, JobCounts), key
        _add(total, row.counts.items())
    return total


def _add(total: dict[JobState, int], counts: Iterable[tuple[JobState, int]]) -> None:
    for state, count in counts:
        total[state] = total.get(state, 0) + count
