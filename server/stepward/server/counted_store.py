"""The store of a node, whose work is counted, and whose flushes are looked at."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from stepward.server.logbook.journal import rows_of_entry
from stepward.server.store.lmdb_store import LOG_BYTES_DEFAULT, LmdbStore

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from stepward.server.flush_guard import FlushGuard
    from stepward.server.observe import Counters


class CountedStore(LmdbStore):
    """A store that counts its flushes and the bytes of its log, and whose flushes are looked at."""

    def __init__(self, directory: Path, counters: Counters, guard: FlushGuard) -> None:
        self._counters = counters
        self._guard = guard
        # Told how many milliseconds each flush took.
        self.on_flush: Callable[[float], None] = lambda _took_ms: None
        # Flushes already, when there is a log to take over.
        super().__init__(directory, log_bytes=LOG_BYTES_DEFAULT, rows_of_entry=rows_of_entry)

    def put_entry(self, index: int, value: bytes) -> None:  # type: ignore[explicit-override]  # `override` is of 3.12
        """See `store.interface.Store`."""
        self._counters.log_bytes += len(value)
        super().put_entry(index, value)

    def _flush(self, work: Callable[[], None]) -> None:  # type: ignore[explicit-override]  # `override` is of 3.12
        # On whichever thread waits for the disk; never on two at once.
        self._counters.flushes += 1
        self._guard.enter()
        began = time.perf_counter()
        try:
            super()._flush(work)
        finally:
            self._guard.leave()
        took_s = time.perf_counter() - began
        self._counters.flush_s.note(took_s)
        self.on_flush(took_s * 1_000)
