"""What who reads is given: committed rows, some of them kept decoded."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from stepward.server.core import keys

if TYPE_CHECKING:
    from stepward.server.core.rows import Row
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
