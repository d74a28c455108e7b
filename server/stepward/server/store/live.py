"""Decoded rows for those who decide and those who answer calls.

`LiveRows` is what a leader decides on: a cache above the store, dropped with its epoch. `CommittedRows` reads a snapshot.
Both implement `core.reader.Reader`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from stepward.server.core import keys, rows

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from stepward.server.core.rows import Row
    from stepward.server.store.interface import Rows

# Rows that a rule reads again soon. The others are written once (timers, indexes, history) and would only push
# these out.
_KEPT_KINDS: Final = frozenset(
    kind[0]
    for kind in (
        keys.JOB,
        keys.PROGRESS,
        keys.STEP,
        keys.OUTPUT,
        keys.JOIN,
        keys.ASSIGNMENT,
        keys.SESSION,
        keys.DEFINITION,
        keys.DEFINITION_HEAD,
        keys.BEAT,
    )
)
_BODY_KIND: Final = keys.DEFINITION_BODY[0]
_ASSIGNMENT_KIND: Final = keys.ASSIGNMENT[0]


class LiveRows:
    """The newest applied rows, decoded, with those of live jobs kept in memory.

    Holds between `rows_max` and twice as many rows, and `definitions_max` definitions: two generations, of which the
    older is thrown away when the younger is full. That is nearly as good as exact recency, and a hit costs one look
    into a dict.
    """

    def __init__(self, store: Rows, *, rows_max: int = 100_000, definitions_max: int = 1_000) -> None:
        self._store = store
        self._rows_max = rows_max
        self._definitions_max = definitions_max
        self._young: dict[bytes, Row] = {}
        self._old: dict[bytes, Row] = {}
        self._definitions: dict[bytes, Row] = {}
        # Sets of keys instead of numbers: a key that is added or removed twice cannot make them wrong.
        self._assignments: dict[bytes, set[bytes]] = {}
        self.rebuild()

    def get(self, key: bytes) -> Row | None:
        """The row under `key`, decoded."""
        row = self._young.get(key)
        return row if row is not None else self._fetch(key)

    def scan(self, prefix: bytes, *, after: bytes = b"", before: bytes = b"", reverse: bool = False) -> Iterator[bytes]:
        """See `core.reader.Reader`."""
        return self._store.scan(prefix, after=after, before=before, reverse=reverse)

    def count(self, prefix: bytes) -> int:
        """See `core.reader.Reader`. The assignments of one session are counted from memory."""
        raise NotImplementedError

    def applied(self, changes: Mapping[bytes, Row | None]) -> None:
        """Take over what a batch changed. Called after the store has it."""
        raise NotImplementedError

    def rebuild(self) -> None:
        """Forget everything and start again from rows: an epoch has opened."""

    def _fetch(self, key: bytes) -> Row | None:
        raise NotImplementedError


class CommittedRows:
    """The rows of one snapshot, decoded, without any memory: for calls that read."""

    def __init__(self, snapshot: Rows) -> None:
        self._snapshot = snapshot

    def get(self, key: bytes) -> Row | None:
        """The row under `key`, decoded."""
        value = self._snapshot.get(key)
        return None if value is None else keys.decode_row(key, value)

    def scan(self, prefix: bytes, *, after: bytes = b"", before: bytes = b"", reverse: bool = False) -> Iterator[bytes]:
        """See `core.reader.Reader`."""
        return self._snapshot.scan(prefix, after=after, before=before, reverse=reverse)

    def count(self, prefix: bytes) -> int:
        """See `core.reader.Reader`."""
        return self._snapshot.count(prefix)

    def head(self) -> rows.Head:
        """The last batch that this snapshot holds."""
        raise NotImplementedError
