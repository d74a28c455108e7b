"""A cluster that has done much: the rows of trips that have ended, many times over, in the directories of its nodes.

They are what the shipped rules made of real trips, under other ids. No batch of the logbook holds them, so they are
made while no node runs, in all directories alike, and when the log begins later: whoever lacks them needs all rows.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from msgspec.structs import replace

from stepward.server.core import keys
from stepward.server.core.rows import JOB_STATES_FINAL, JobCounts, JobState
from stepward.server.store.lmdb_store import LmdbStore

NAMESPACE: Final = "default"
# Trips whose rows are written in one commit.
AT_ONCE: Final = 400
# Hexadecimal digits at the end of an id, which is chance there.
_DIGITS: Final = 10

Rows = list[tuple[bytes, bytes]]


def multiply(directory: Path, rows_min: int) -> int:
    """Write the rows of ended trips again and again, until there are so many rows; how many there are then."""
    store = LmdbStore(directory)
    try:
        trips = _ended_trips(store)
        assert trips, f"no trip has ended in {directory}"
        made: dict[JobState, int] = defaultdict(int)
        count, copies = store.count(b""), _copies(trips)
        while count < rows_min:
            rows: Rows = []
            for _ in range(AT_ONCE):
                state, copied = next(copies)
                made[state] += 1
                rows += copied
                if count + len(rows) >= rows_min:
                    break
            store.apply(sorted(rows), [])
            store.commit()
            count += len(rows)
        _count(store, made)
        assert store.count(b"") == count, "two jobs have one id"
        return count
    finally:
        store.close()


def _ended_trips(store: LmdbStore) -> dict[bytes, tuple[JobState, Rows]]:
    """By id: how it has ended, and its rows."""
    ended = {
        job_id.encode(): JobState(state)
        for _, state, job_id in map(keys.parse_job_index, store.scan(keys.JOB_INDEX))
        if state in JOB_STATES_FINAL
    }
    rows: dict[bytes, Rows] = {job_id: [] for job_id in ended}
    for key in store.scan(b""):
        for job_id in ended:
            if job_id in key:
                value = store.get(key)
                assert value is not None
                rows[job_id].append((key, value))
    return {job_id: (state, rows[job_id]) for job_id, state in ended.items()}


def _copies(trips: Mapping[bytes, tuple[JobState, Rows]]) -> Iterator[tuple[JobState, Rows]]:
    """One trip after the other, without end; ids rise, as real ones do."""
    number = 0
    while True:
        for job_id, (state, rows) in trips.items():
            number += 1
            copy = job_id[:-_DIGITS] + b"%0*x" % (_DIGITS, number)
            yield state, [(key.replace(job_id, copy), value.replace(job_id, copy)) for key, value in rows]


def _count(store: LmdbStore, made: Mapping[JobState, int]) -> None:
    """Let the cluster know how many jobs it has."""
    key = keys.job_counts(NAMESPACE)
    value = store.get(key)
    assert value is not None
    row = keys.decode_row(key, value)
    assert isinstance(row, JobCounts)
    counts = {state: row.counts.get(state, 0) + made.get(state, 0) for state in row.counts.keys() | made.keys()}
    store.apply([(key, keys.encode_row(replace(row, counts=counts)))], [])
    store.commit()
