"""A node on a disk that is slow while it is told so: `python -m tests.faults.slow_disk FLUSH_MS dev --data ...`.

SIGUSR1 makes every flush take so long, SIGUSR2 ends that. The wait stands where the flush does, on its thread and
inside its guard, so that everything waits for it that would wait for a real one, and its length is noticed.
"""

import signal
import sys
import time
from collections.abc import Callable

from stepward.server import __main__
from stepward.server.store.lmdb_store import LmdbStore

Flush = Callable[[LmdbStore, Callable[[], None]], None]


class Disk:
    """How slow it is."""

    flush_ms = 0
    slow = False


def slowed(flush: Flush) -> Flush:
    """A flush that takes as long as the disk says."""

    def flush_slowly(store: LmdbStore, work: Callable[[], None]) -> None:
        flush(store, work)
        if Disk.slow:
            time.sleep(Disk.flush_ms / 1_000)

    return flush_slowly


if __name__ == "__main__":
    Disk.flush_ms = int(sys.argv[1])
    signal.signal(signal.SIGUSR1, lambda *_: setattr(Disk, "slow", True))
    signal.signal(signal.SIGUSR2, lambda *_: setattr(Disk, "slow", False))
    LmdbStore._flush = slowed(LmdbStore._flush)  # type: ignore[method-assign,assignment]  # below all that counts and watches
    sys.exit(__main__.main(sys.argv[2:]))
