"""What the rules may read: rows by key and in key order. A store or a cache above one implements it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterator

    from stepward.server.core.rows import Row


class Reader(Protocol):
    """Committed rows."""

    def get(self, key: bytes) -> Row | None:
        """The row under `key`, decoded."""
        ...

    def scan(self, prefix: bytes, *, after: bytes = b"", before: bytes = b"", reverse: bool = False) -> Iterator[bytes]:
        """The keys that begin with `prefix`, in order, lazily.

        `after` (forward) leaves out keys up to and including it; `before` (reverse) leaves out keys from it on. The
        caller stops when it has enough; nothing may be written while the iterator is in use.
        """
        ...

    def count(self, prefix: bytes) -> int:
        """How many keys begin with `prefix`."""
        ...
