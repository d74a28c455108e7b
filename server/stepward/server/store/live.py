"""Decoded rows for those who decide and those who answer calls.

`LiveRows` is what a leader decides on: a cache above the store, dropped with its epoch. `CommittedRows` reads a
snapshot. Both implement `core.reader.Reader`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from stepward.server.core import keys, rows
from stepward.server.store import facts

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from stepward.server.core.rows import Row
    from stepward.server.store.interface import Rows

# Rows that a rule reads again soon. The others are written once (timers, indexes, history) and would only push
# these out.
_SMALL_KINDS: Final = frozenset(
    kind[0]
    for kind in (
        keys.PROGRESS,
        keys.STEP,
        keys.JOIN,
        keys.ASSIGNMENT,
        keys.SESSION,
        keys.DEFINITION,
        keys.DEFINITION_HEAD,
        keys.BEAT,
        keys.EPOCH,
        keys.BRAKE,
        keys.BREAKER,
        keys.JOB_COUNTS,
    )
)
# Those of them in which a caller's payload lies.
_PAYLOAD_KINDS: Final = frozenset((keys.JOB[0], keys.OUTPUT[0]))
_BODY_KIND: Final = keys.DEFINITION_BODY[0]
_ASSIGNMENT_KIND: Final = keys.ASSIGNMENT[0]
# Kinds of which there are few, and whose number is asked for often.
_COUNTED_KINDS: Final = (keys.SESSION, keys.BREAKER)
_COUNTED_INTS: Final = frozenset(kind[0] for kind in _COUNTED_KINDS)
_KEPT_KINDS: Final = _SMALL_KINDS | _PAYLOAD_KINDS | {_BODY_KIND}


class LiveRows:
    """The newest applied rows, decoded, with those of live jobs kept in memory. Made for one epoch.

    Two generations, of which the older is thrown away when the younger is full: nearly as good as exact recency, and
    a hit costs one look into a dict. So there are at most twice as many rows and payload bytes as the bounds say.
    Definitions are kept apart, since every job of theirs reads them.
    """

    def __init__(
        self,
        store: Rows,
        *,
        rows_max: int = 50_000,
        payload_bytes_max: int = 64 << 20,
        definitions_max: int = 256,
    ) -> None:
        self._store = store
        self._rows_max = rows_max
        self._payload_bytes_max = payload_bytes_max
        self._definitions_max = definitions_max
        self._young: dict[bytes, Row] = {}
        self._young_payload_bytes = 0
        self._old: dict[bytes, Row] = {}
        self._definitions: dict[bytes, Row] = {}
        # Sets of keys instead of numbers: a key that is added or removed twice cannot make them wrong.
        self._assignments: dict[bytes, set[bytes]] = {}
        for key in store.scan(keys.ASSIGNMENT):
            self._note_assignment(key, there=True)
        self._counted = {kind: set(store.scan(kind)) for kind in _COUNTED_KINDS}

    def get(self, key: bytes) -> Row | None:
        """The row under `key`, decoded."""
        row = self._young.get(key) or self._definitions.get(key)
        return self._fetch(key) if row is None else row

    def known(self, key: bytes) -> Row | None:
        """The row under `key`, if it is in memory; who asks for others leaves no trace here."""
        return self._young.get(key) or self._old.get(key) or self._definitions.get(key)

    def scan(self, prefix: bytes, *, after: bytes = b"", before: bytes = b"", reverse: bool = False) -> Iterator[bytes]:
        """See `core.reader.Reader`."""
        return self._store.scan(prefix, after=after, before=before, reverse=reverse)

    def count(self, prefix: bytes) -> int:
        """See `core.reader.Reader`. Assignments of one session, all sessions and breakers are counted from memory."""
        if prefix[0] == _ASSIGNMENT_KIND and prefix.endswith(b"\0"):
            return len(self._assignments.get(prefix, ()))
        if prefix in self._counted:
            return len(self._counted[prefix])
        return self._store.count(prefix)

    def applied(self, changes: Mapping[bytes, Row | None]) -> None:
        """Take over what a batch changed. Called after the store has it; safe to repeat."""
        for key, row in changes.items():
            kind = key[0]
            if kind not in _KEPT_KINDS:
                continue
            if kind == _ASSIGNMENT_KIND:
                self._note_assignment(key, there=row is not None)
            elif kind in _COUNTED_INTS:
                counted = self._counted[key[:1]]
                (counted.discard if row is None else counted.add)(key)
            if row is None:
                self._forget(key)
            else:
                self._keep(key, row)

    def _fetch(self, key: bytes) -> Row | None:
        row = self._old.get(key)
        if row is None:
            if key[0] == _ASSIGNMENT_KIND and key not in self._assignments.get(key[: key.index(b"\0") + 1], ()):
                return None
            value = self._store.get(key)
            if value is None:
                return None
            row = keys.decode_row(key, value)
        self._keep(key, row)
        return row

    def _keep(self, key: bytes, row: Row) -> None:
        kind = key[0]
        if kind in _SMALL_KINDS:
            if len(self._young) >= self._rows_max:
                self._age()
            self._young[key] = row
        elif kind in _PAYLOAD_KINDS:
            if len(self._young) >= self._rows_max or self._young_payload_bytes >= self._payload_bytes_max:
                self._age()
            self._young[key] = row
            self._young_payload_bytes += _payload_bytes(row)
        elif kind == _BODY_KIND and key not in self._definitions:
            if len(self._definitions) >= self._definitions_max:
                del self._definitions[next(iter(self._definitions))]
            self._definitions[key] = row

    def _age(self) -> None:
        """Begin a new generation, and throw the older one away."""
        self._old, self._young, self._young_payload_bytes = self._young, {}, 0

    def _forget(self, key: bytes) -> None:
        self._young.pop(key, None)
        self._old.pop(key, None)
        self._definitions.pop(key, None)

    def _note_assignment(self, key: bytes, *, there: bool) -> None:
        prefix = key[: key.index(b"\0") + 1]
        if there:
            self._assignments.setdefault(prefix, set()).add(key)
        elif prefix in self._assignments:
            self._assignments[prefix].discard(key)
            if not self._assignments[prefix]:
                del self._assignments[prefix]


def _payload_bytes(row: Row) -> int:
    """The part of a row that may be large."""
    if isinstance(row, rows.Output):
        return len(row.payload.data)
    assert isinstance(row, rows.Job), type(row)
    return len(row.input.data)


class CommittedRows:
    """The rows of one moment, decoded, for calls that read; it remembers none itself.

    `live`: what a leader holds decoded of that same moment, since it changes with the store batch by batch.
    """

    def __init__(self, snapshot: Rows, live: LiveRows | None = None) -> None:
        self._snapshot = snapshot
        self._live = live

    def get(self, key: bytes) -> Row | None:
        """The row under `key`, decoded."""
        if self._live is not None and (row := self._live.known(key)) is not None:
            return row
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
        return facts.read_head(self._snapshot)
