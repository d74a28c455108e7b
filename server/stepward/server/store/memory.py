"""A store in memory: the twin of `LmdbStore` for tests and simulations, under the same contract test."""

from __future__ import annotations

import heapq
from bisect import bisect_left, bisect_right, insort
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from stepward.server.store import facts as fact_names
from stepward.server.store.interface import KEY_BYTES_MAX, successor

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from stepward.server.store.interface import Incoming

# There is no disk that could be full.
_FREE_BYTES: Final = 1 << 40


class _Space:
    """Committed pairs in key order, and what was written since. None stands for a deleted one."""

    def __init__(self, committed: dict[bytes, bytes]) -> None:
        self.committed = committed
        self.pending: dict[bytes, bytes | None] = {}
        self._order = sorted(committed)

    def get(self, key: bytes) -> bytes | None:
        return self.pending[key] if key in self.pending else self.committed.get(key)

    def scan(self, prefix: bytes, after: bytes, before: bytes, reverse: bool) -> Iterator[bytes]:
        order = self._order
        end = successor(prefix)
        first = bisect_right(order, after) if after >= prefix and after else bisect_left(order, prefix)
        last = len(order) if end is None else bisect_left(order, end)
        if before:
            last = min(last, bisect_left(order, before))
        places = range(last - 1, first - 1, -1) if reverse else range(first, last)
        if not self.pending:
            return (order[place] for place in places)
        added = sorted(
            (
                key
                for key, value in self.pending.items()
                if value is not None and key.startswith(prefix) and key > after and (not before or key < before)
            ),
            reverse=reverse,
        )
        kept = (order[place] for place in places if order[place] not in self.pending)
        return heapq.merge(kept, added, reverse=reverse)

    def merged(self) -> dict[bytes, bytes]:
        """All pairs, in a dict of their own."""
        merged = self.committed | self.pending
        return {key: value for key, value in merged.items() if value is not None}

    def commit(self) -> None:
        for key, value in self.pending.items():
            if value is None:
                if self.committed.pop(key, None) is not None:
                    del self._order[bisect_left(self._order, key)]
            else:
                if key not in self.committed:
                    insort(self._order, key)
                self.committed[key] = value
        self.pending.clear()


class _Snapshot:
    """Rows and facts of one moment."""

    def __init__(self, rows: _Space, facts: _Space) -> None:
        self._rows = rows
        self._facts = facts

    def get(self, key: bytes) -> bytes | None:
        return self._rows.get(key)

    def scan(self, prefix: bytes, *, after: bytes = b"", before: bytes = b"", reverse: bool = False) -> Iterator[bytes]:
        return self._rows.scan(prefix, after, before, reverse)

    def count(self, prefix: bytes) -> int:
        return sum(1 for _ in self.scan(prefix))

    def fact(self, name: bytes) -> bytes | None:
        return self._facts.get(name)


class _Export:
    """See `interface.Export`."""

    def __init__(self, snapshot: _Snapshot) -> None:
        self._snapshot = snapshot
        self.head = fact_names.raw_head(snapshot)
        self.applied_index, self.applied_term = fact_names.read_applied(snapshot)
        keys = list(snapshot.scan(b""))
        self.rows = len(keys)
        self.size_bytes = sum(len(key) + len(snapshot.get(key) or b"") for key in keys)

    def chunks(self, bytes_max: int) -> Iterator[list[tuple[bytes, bytes]]]:
        """See `interface.Export`."""
        chunk: list[tuple[bytes, bytes]] = []
        chunk_bytes = 0
        for key in self._snapshot.scan(b""):
            value = self._snapshot.get(key)
            assert value is not None, key
            chunk.append((key, value))
            chunk_bytes += len(key) + len(value)
            if chunk_bytes >= bytes_max:
                yield chunk
                chunk, chunk_bytes = [], 0
        if chunk:
            yield chunk


class MemoryIncoming:
    """See `interface.Incoming`."""

    def __init__(self) -> None:
        self.rows: dict[bytes, bytes] = {}
        self.complete = True
        self.discarded = False
        self._last_key = b""

    def put(self, rows: Sequence[tuple[bytes, bytes]]) -> None:
        """See `interface.Incoming`."""
        for key, _ in rows:
            assert self._last_key < key, "rows come in the order of their keys"
            self._last_key = key
        self.rows.update(rows)
        self.complete = False

    def commit(self) -> None:
        """See `interface.Incoming`."""
        self.complete = True

    def discard(self) -> None:
        """See `interface.Incoming`."""
        self.discarded = True


class MemoryStore(_Snapshot):
    """Rows, entries and facts in dicts. Survives nothing but `lose_uncommitted`."""

    def __init__(self) -> None:
        super().__init__(_Space({}), _Space({}))
        self._entries = _Space({})
        # Whether something that was written has to be durable, and whether what is written now follows from an entry.
        self._dirty = self._applies = False
        self._incoming: MemoryIncoming | None = None

    @property
    def durable(self) -> bool:
        """Durable as far as a test can tell: a power cut is `lose_uncommitted`."""
        return True

    def apply(self, puts: Iterable[tuple[bytes, bytes]], deletes: Iterable[bytes], *, entry: int | None = None) -> None:
        """See `interface.Store`. `entry` spares nothing here: values in memory are shared anyway."""
        for key, value in puts:
            assert 0 < len(key) <= KEY_BYTES_MAX, key
            self._rows.pending[key] = value
        for key in deletes:
            self._rows.pending[key] = None
        self._dirty = self._dirty or not self._applies

    @contextmanager
    def applying(self) -> Iterator[None]:
        """See `interface.Store`."""
        self._applies = True
        try:
            yield
        finally:
            self._applies = False

    def put_fact(self, name: bytes, value: bytes) -> None:
        """See `interface.Store`."""
        self._facts.pending[name] = value
        self._dirty = self._dirty or not self._applies

    def put_entry(self, index: int, value: bytes) -> None:
        """See `interface.Store`."""
        key = index.to_bytes(8, "big")
        assert next(self._entries.scan(b"", b"", b"", True), b"") < key, index
        self._entries.pending[key] = value
        self._dirty = True

    def delete_entries(self, first: int, last: int) -> None:
        """See `interface.Store`."""
        for index in range(first, last + 1):
            self._entries.pending[index.to_bytes(8, "big")] = None

    def entries(self) -> Iterator[tuple[int, bytes]]:
        """See `interface.Store`."""
        for key in self._entries.scan(b"", b"", b"", False):
            value = self._entries.get(key)
            assert value is not None, key
            yield int.from_bytes(key, "big"), value

    def commit(self) -> None:
        """See `interface.Store`."""
        if self._dirty:
            self._keep()

    def _keep(self) -> None:
        self._dirty = False
        for space in self._spaces():
            space.commit()

    def commit_apart(self) -> None:
        """See `interface.Store`. There is no disk to wait for."""

    @contextmanager
    def snapshot(self) -> Iterator[_Snapshot]:
        """See `interface.Store`."""
        rows, facts = ((s.committed if self._dirty else s.merged()) for s in (self._rows, self._facts))
        yield _Snapshot(_Space(dict(rows)), _Space(dict(facts)))

    @contextmanager
    def export(self) -> Iterator[_Export]:
        """See `interface.Store`."""
        with self.snapshot() as snapshot:
            yield _Export(snapshot)

    def incoming(self, size_bytes: int = 0) -> MemoryIncoming:
        """See `interface.Store`. There is always room."""
        assert self._incoming is None or self._incoming.discarded, "rows of another node come in already"
        self._incoming = MemoryIncoming()
        return self._incoming

    def install(
        self, incoming: Incoming, *, facts: Mapping[bytes, bytes], entries: Iterable[tuple[int, bytes]]
    ) -> None:
        """See `interface.Store`."""
        assert incoming is self._incoming, "rows that came in belong to the store that began them"
        assert isinstance(incoming, MemoryIncoming)
        assert incoming.complete, "rows were put and not committed"
        assert not incoming.discarded, "rows were thrown away"
        assert not self._dirty, "something is written and not committed"
        self._rows, self._facts = _Space(incoming.rows), _Space(dict(facts))
        self._entries = _Space({index.to_bytes(8, "big"): value for index, value in entries})
        self._incoming = None

    def free_bytes(self) -> int:
        """See `interface.Store`."""
        return _FREE_BYTES

    def close(self) -> None:
        """See `interface.Store`. What was committed stays, for the next one that is given this object."""
        self.lose_uncommitted()

    def lose_uncommitted(self) -> None:
        """What a crash does."""
        self._incoming = None
        self._dirty = False
        for space in self._spaces():
            space.pending.clear()

    def _spaces(self) -> tuple[_Space, ...]:
        return self._rows, self._facts, self._entries
