"""Which jobs a list shows, and the walk over them: the newest first.

A job's place in a list is its id, which never changes, and a walk goes on behind an id. So whoever walks on, later or
on newer rows, meets a job that matches all the while exactly once: no other job can push it to a place that was passed.
One that begins or ceases to match meanwhile may be met or not, and never twice. Of a filter only the state can change.
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING, Final, NamedTuple

from msgspec import Struct

from stepward.server.core import keys, rows
from stepward.server.core.rows import JobState

if TYPE_CHECKING:
    from collections.abc import Iterator

    from stepward.server.core.reader import Reader
    from stepward.server.core.rows import DefinitionBody, Job

# What the time in an id can say (ms). A bound beyond it is none.
_ID_MS_MAX: Final = (1 << 48) - 1


class JobFilter(Struct, frozen=True):
    """Which jobs of a namespace. Everything that is said must hold; of `states` one. Labels are pairs, sorted."""

    namespace: str
    states: tuple[JobState, ...] = ()
    definition_name: str = ""
    labels: tuple[tuple[str, str], ...] = ()
    submitted_from_wall_ms: int | None = None
    submitted_before_wall_ms: int | None = None
    queue: str = ""

    @property
    def is_of_states_only(self) -> bool:
        """Whether the state alone says which jobs match."""
        return self == JobFilter(self.namespace, self.states)


class Met(NamedTuple):
    """A job that a walk has come to. `job` is None when it does not match."""

    job_id: str
    state: JobState
    job: Job | None


def walk(reader: Reader, filter_: JobFilter, *, before_job_id: str = "") -> Iterator[Met]:
    """All jobs in the states of the filter whose ids may lie in its time, the newest first, behind an id.

    Lazily, and also those that do not match: the caller stops when he has enough, or has looked at enough.
    """
    bounds = _bounds(reader, filter_)
    on_queue: dict[bytes, bool] = {}
    states = filter_.states or tuple(JobState)
    each = (_listed(reader, filter_.namespace, state, bounds, before_job_id) for state in states)
    for job_id, state in heapq.merge(*each, reverse=True):
        job = reader.get(keys.job(job_id))
        assert isinstance(job, rows.Job), job_id
        yield Met(job_id, state, job if _matches(reader, filter_, job, on_queue) else None)


class _Bounds(NamedTuple):
    """The times in the ids of jobs that can match: from `first_ms`, and before `end_ms`. None: no such bound."""

    first_ms: int | None
    end_ms: int | None


def _bounds(reader: Reader, filter_: JobFilter) -> _Bounds:
    """An id was drawn at most so long before and after its job's submission as the namespace's counts know."""
    known = reader.get(keys.job_counts(filter_.namespace))
    if not isinstance(known, rows.JobCounts):
        return _Bounds(None, None)
    first_ms, end_ms = filter_.submitted_from_wall_ms, filter_.submitted_before_wall_ms
    if first_ms is not None:
        first_ms -= known.submitted_late_ms_max
    if end_ms is not None:
        end_ms -= known.submitted_late_ms_min
    return _Bounds(first_ms, None if end_ms is None or end_ms > _ID_MS_MAX else end_ms)


def _listed(
    reader: Reader, namespace: str, state: JobState, bounds: _Bounds, before_job_id: str
) -> Iterator[tuple[str, JobState]]:
    """The jobs in one state within bounds and behind an id, the newest first."""
    prefix = keys.job_index(namespace, state)
    newest = next(reader.scan(prefix, reverse=True), None)
    if newest is None:
        return
    newest_id = newest[len(prefix) :].decode()
    end = before_job_id
    if bounds.end_ms is not None:
        bound = keys.job_id_from(newest_id, bounds.end_ms)
        end = min(bound, end) if end else bound
    first = "" if bounds.first_ms is None else keys.job_id_from(newest_id, min(bounds.first_ms, _ID_MS_MAX))
    for key in reader.scan(prefix, before=prefix + end.encode() if end else b"", reverse=True):
        job_id = key[len(prefix) :].decode()
        if job_id < first:
            return
        yield job_id, state


def _matches(reader: Reader, filter_: JobFilter, job: Job, on_queue: dict[bytes, bool]) -> bool:
    """Whether a job in one of the states is wanted. `on_queue` keeps what is known of its definition."""
    if filter_.definition_name and job.definition_name != filter_.definition_name:
        return False
    first_ms, end_ms = filter_.submitted_from_wall_ms, filter_.submitted_before_wall_ms
    if first_ms is not None and job.submitted_wall_ms < first_ms:
        return False
    if end_ms is not None and job.submitted_wall_ms >= end_ms:
        return False
    if any(job.labels.get(key) != value for key, value in filter_.labels):
        return False
    if not filter_.queue:
        return True
    found = on_queue.get(job.definition_hash)
    if found is None:
        body = reader.get(keys.definition_body(job.definition_hash))
        assert isinstance(body, rows.DefinitionBody)
        found = on_queue[job.definition_hash] = is_on_queue(body, filter_.queue)
    return found


def is_on_queue(body: DefinitionBody, queue: str) -> bool:
    """Whether an agent of this queue may be needed: for a step, for its undo, or to ask what became of it."""
    return any(
        queue == policy.queue for spec in body.steps for policy in (spec, spec.undo, spec.verify) if policy is not None
    )
