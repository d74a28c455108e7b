"""The overlay in which one batch is decided: committed rows, plus what this batch has decided so far.

Every command is decided under a savepoint, so that one that fails leaves no trace.
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING, Final, TypeVar

from stepward.server.core import keys, rows

if TYPE_CHECKING:
    from collections.abc import Iterator

    from stepward.server.core.reader import Reader
    from stepward.server.core.rows import Row

R = TypeVar("R", bound=rows.Row)
T = TypeVar("T")
_ABSENT: Final = object()


class Draft:
    """Row changes on top of a reader. None stands for a deleted row."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        # Kept apart by kind (the first byte of the key), so that a scan looks only at changes of its own kind.
        self._changes: dict[int, dict[bytes, Row | None]] = {}
        # Every row that was looked at or written, as this batch leaves it so far.
        self._seen: dict[bytes, Row | None] = {}
        self._undo: list[tuple[bytes, object]] = []
        # Keys that the reader has and that this batch has removed, whatever became of them since.
        self._removed: set[bytes] = set()
        # What happened to each job, and the positions of its steps that changed their state.
        self._events: dict[str, list[rows.Event]] = {}
        self._event_log: list[str] = []
        self._moved: dict[str, list[int]] = {}
        self._moved_log: list[str] = []

    def get(self, key: bytes) -> Row | None:
        """The row under `key` as this batch leaves it so far."""
        row = self._seen.get(key, _ABSENT)
        if row is _ABSENT:
            row = self._seen[key] = self._reader.get(key)
        return row  # type: ignore[return-value]  # what is seen are rows and None; _ABSENT only stands in for a lack

    def committed(self, key: bytes) -> Row | None:
        """The row under `key` as it was before this batch."""
        return self._reader.get(key)

    def read(self, key: bytes, type_: type[R]) -> R | None:
        """The row under `key`, of a known type."""
        row = self.get(key)
        assert row is None or isinstance(row, type_), (key, type(row), type_)
        return row

    def require(self, key: bytes, type_: type[R]) -> R:
        """The row under `key`, which cannot be missing unless we are wrong."""
        row = self._seen.get(key) or self.get(key)
        assert isinstance(row, type_), (key, type(row), type_)
        return row

    def put(self, key: bytes, row: Row) -> None:
        """Write a row."""
        self._change(key, row)

    def delete(self, key: bytes) -> None:
        """Delete a row, if there is one. One that was born in this batch vanishes without a trace in the log."""
        if self.get(key) is None:
            return
        if self._reader.get(key) is not None:
            self._change(key, None)
            return
        self._take_out(key)

    def remove(self, key: bytes) -> None:
        """Delete an index row that is surely there: a timer, a place in a lane. Costs no look into the store.

        Such a row is never written over, so one that this batch has put is one that the reader lacks, unless this
        batch had removed it before.
        """
        kind = self._changes.get(key[0])
        if kind is None or kind.get(key) is None:
            self._removed.add(key)
            self._change(key, None)
        elif key in self._removed:
            self._change(key, None)
        else:
            self._take_out(key)

    def _change(self, key: bytes, row: Row | None) -> None:
        kind = self._changes.get(key[0])
        if kind is None:
            kind = self._changes[key[0]] = {}
        self._undo.append((key, kind.get(key, _ABSENT)))
        kind[key] = self._seen[key] = row

    def _take_out(self, key: bytes) -> None:
        """Forget a row that this batch has put and the reader lacks."""
        self._undo.append((key, self._changes[key[0]].pop(key)))
        self._seen[key] = None

    def keys(self, prefix: bytes, *, after: bytes = b"") -> Iterator[bytes]:
        """Keys that begin with `prefix`, in order, as this batch leaves them so far, behind `after`.

        What is written while the iterator is in use is not seen by it.
        """
        changed = {k: r for k, r in self._changes.get(prefix[0], {}).items() if k.startswith(prefix) and k > after}
        committed = self._reader.scan(prefix, after=after)
        if not changed:
            yield from committed
            return
        added = sorted(key for key, row in changed.items() if row is not None)
        previous = b""
        for key in heapq.merge((key for key in committed if key not in changed), added):
            if key != previous:
                yield key
            previous = key

    def last(self, prefix: bytes) -> bytes | None:
        """The last of the keys that begin with `prefix`, as this batch leaves them so far."""
        kind = self._changes.get(prefix[0], {})
        added = max((key for key, row in kind.items() if row is not None and key.startswith(prefix)), default=None)
        for key in self._reader.scan(prefix, reverse=True):
            if added is not None and key <= added:
                break
            if key not in kind:
                return key
        return added

    def count(self, prefix: bytes) -> int:
        """How many keys begin with `prefix`, as this batch leaves them so far."""
        total = self._reader.count(prefix)
        for key, row in self._changes.get(prefix[0], {}).items():
            if key.startswith(prefix):
                total += (row is not None) - (self._reader.get(key) is not None)
        return total

    def event(self, job_id: str, event: rows.Event) -> None:
        """Add to what this batch did to a job."""
        self._events.setdefault(job_id, []).append(event)
        self._event_log.append(job_id)

    def moved(self, job_id: str, ordinal: int) -> None:
        """A step of a job has changed its state, whether or not an event tells of it."""
        self._moved.setdefault(job_id, []).append(ordinal)
        self._moved_log.append(job_id)

    def savepoint(self) -> tuple[int, int, int]:
        """Where to go back to."""
        return len(self._undo), len(self._event_log), len(self._moved_log)

    def rollback(self, savepoint: tuple[int, int, int]) -> None:
        """Forget everything since `savepoint`."""
        changes, events, moved = savepoint
        while len(self._undo) > changes:
            key, before = self._undo.pop()
            kind = self._changes[key[0]]
            if before is _ABSENT:
                kind.pop(key, None)
                self._seen.pop(key, None)
            else:
                kind[key] = self._seen[key] = before  # type: ignore[assignment]  # rows and None, beside _ABSENT
        _take_back(self._events, self._event_log, events)
        _take_back(self._moved, self._moved_log, moved)

    @property
    def writes(self) -> int:
        """How much this batch has written so far, row by row."""
        return len(self._undo)

    def touched(self) -> tuple[str, ...]:
        """Jobs that this batch did something to."""
        return tuple(self._events | self._moved)

    def write_history(self, *, sequence: int, wall_ms: int, led_ms: int, log_ms: int) -> None:
        """Put one history row a job."""
        for job_id in self.touched():
            events, moved = self._events.get(job_id, []), self._moved.get(job_id, [])
            told = {event.ordinal for event in events}
            untold = tuple(sorted(set(moved) - told)) if any(one not in told for one in moved) else ()
            self.put(keys.history(job_id, sequence), rows.History(wall_ms, led_ms, log_ms, tuple(events), untold))

    def changes(self) -> dict[bytes, Row | None]:
        """All changes, in the order of the kinds' first change."""
        return {key: row for kind in self._changes.values() for key, row in kind.items()}


def _take_back(told: dict[str, list[T]], log: list[str], length: int) -> None:
    """Forget what was told of jobs since the log of it had this length."""
    while len(log) > length:
        job_id = log.pop()
        told[job_id].pop()
        if not told[job_id]:
            del told[job_id]
