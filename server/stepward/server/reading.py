"""What who reads is given: committed rows, some of them kept decoded, and the rows of a batch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from stepward.server.core import keys

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from stepward.server.core.rows import Row
    from stepward.server.logbook.outbox import Applied
    from stepward.server.store.live import CommittedRows

# Definitions that are kept decoded for readers.
_DEFINITIONS_KEPT_MAX: Final = 256


class Reading:
    """Committed rows, with definitions decoded once: their key is their hash, so they cannot change."""

    def __init__(self, committed: CommittedRows, definitions: dict[bytes, Row]) -> None:
        self._committed = committed
        self._definitions = definitions
        self.scan = committed.scan
        self.count = committed.count
        self.head = committed.head

    def get(self, key: bytes) -> Row | None:
        """The row under `key`, decoded."""
        if key[:1] != keys.DEFINITION_BODY:
            return self._committed.get(key)
        row = self._definitions.get(key)
        if row is None:
            row = self._committed.get(key)
            if row is not None:
                if len(self._definitions) >= _DEFINITIONS_KEPT_MAX:
                    self._definitions.clear()
                self._definitions[key] = row
        return row


def changed(
    applied: Applied, kinds: bytes, is_wanted: Callable[[bytes], bool] | None = None
) -> Iterator[tuple[bytes, Row | None]]:
    """The rows of some kinds that a batch put (decoded) or deleted (None). `kinds`: first bytes of their keys.

    `is_wanted` tells by the key whether anybody here asks for a row: what another leader decided came as bytes, and a
    node that decoded all of it would do for nothing what its agents and callers are a part of.
    """
    for kind in kinds:
        for key, row in applied.rows_by_kind.get(kind, ()):
            if is_wanted is not None and not is_wanted(key):
                continue
            yield key, keys.decode_row(key, row) if isinstance(row, bytes) else row
