"""How rows on disk are read: through a transaction, in the order of their keys."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from stepward.server.store import facts as fact_names
from stepward.server.store.interface import successor

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from stepward.server.store.environment import Environment

# Rows that were walked over for another node and are still mapped, at most.
_EXPORTED_BYTES_MAPPED_MAX: Final = 16 << 20
# Stands before the head in the data while a log is ahead of it. A version that knows of no log cannot read such a head
# and says so, instead of going on without what the log holds.
AHEAD: Final = b"\xc1"


class LmdbReading:
    """Reading through whatever transaction is the one at the moment."""

    def __init__(self, transaction: Callable[[], Any], rows: Any, facts: Any) -> None:
        self._transaction = transaction
        self._rows = rows
        self._facts = facts

    def get(self, key: bytes) -> bytes | None:
        """See `interface.Rows`."""
        value: bytes | None = self._transaction().get(key, db=self._rows)
        return value

    def scan(self, prefix: bytes, *, after: bytes = b"", before: bytes = b"", reverse: bool = False) -> Iterator[bytes]:
        """See `interface.Rows`."""
        cursor = self._transaction().cursor(self._rows)
        if reverse:
            return _backward(cursor, prefix, after, before)
        return _forward(cursor, prefix, after, before)

    def count(self, prefix: bytes) -> int:
        """See `interface.Rows`."""
        return sum(1 for _ in self.scan(prefix))

    def fact(self, name: bytes) -> bytes | None:
        """See `interface.Rows`."""
        value: bytes | None = self._transaction().get(name, db=self._facts)
        if name == fact_names.HEAD and value is not None:
            return value.removeprefix(AHEAD)
        return value


def _forward(cursor: Any, prefix: bytes, after: bytes, before: bytes) -> Iterator[bytes]:
    found = cursor.set_range(max(prefix, after))
    if found and after and cursor.key() == after:
        found = cursor.next()
    if not found:
        return
    for key in cursor.iternext(keys=True, values=False):
        if not key.startswith(prefix) or (before and key >= before):
            return
        yield key


def _backward(cursor: Any, prefix: bytes, after: bytes, before: bytes) -> Iterator[bytes]:
    end = successor(prefix)
    if before and (end is None or before < end):
        end = before
    found = cursor.prev() if end is not None and cursor.set_range(end) else cursor.last()
    if not found:
        return
    for key in cursor.iterprev(keys=True, values=False):
        if not key.startswith(prefix) or (after and key <= after):
            return
        yield key


class LmdbExport:
    """See `interface.Export`."""

    def __init__(self, environment: Environment, transaction: Any) -> None:
        self._environment = environment
        self._transaction = transaction
        stand = LmdbReading(lambda: transaction, environment.rows, environment.facts)
        self.head = fact_names.raw_head(stand)
        self.applied_index, self.applied_term = fact_names.read_applied(stand)
        stat = transaction.stat(environment.rows)
        self.rows: int = stat["entries"]
        # Without the pages that wait to be used again: they are not sent.
        self.size_bytes: int = (stat["branch_pages"] + stat["leaf_pages"] + stat["overflow_pages"]) * stat["psize"]

    def chunks(self, bytes_max: int) -> Iterator[list[tuple[bytes, bytes]]]:
        """See `interface.Export`."""
        chunk: list[tuple[bytes, bytes]] = []
        chunk_bytes = mapped_bytes = 0
        for row in self._transaction.cursor(self._environment.rows):
            chunk.append(row)
            chunk_bytes += len(row[0]) + len(row[1])
            if chunk_bytes >= bytes_max:
                yield chunk
                mapped_bytes += chunk_bytes
                chunk, chunk_bytes = [], 0
                if mapped_bytes >= _EXPORTED_BYTES_MAPPED_MAX:
                    self._environment.forget_pages()
                    mapped_bytes = 0
        if chunk:
            yield chunk
        self._environment.forget_pages()
