"""A node whose disk takes nothing any more when it is told so: `python -m tests.faults.broken_disk run --data ...`.

SIGUSR1 makes every flush fail from then on, as one does whose disk has gone read-only.
"""

import signal
import sys
from collections.abc import Callable

from stepward.server import __main__
from stepward.server.store.errors import StoreFailed
from stepward.server.store.lmdb_store import LmdbStore

TOLD = "the disk took nothing: Input/output error"


Flush = Callable[[LmdbStore, Callable[[], None]], None]


class Disk:
    """Whether it is broken."""

    broken = False


def breakable(flush: Flush) -> Flush:
    """A flush that fails when the disk is broken."""

    def flush_or_fail(store: LmdbStore, work: Callable[[], None]) -> None:
        def fail() -> None:
            raise StoreFailed(TOLD)

        flush(store, fail if Disk.broken else work)

    return flush_or_fail


if __name__ == "__main__":
    signal.signal(signal.SIGUSR1, lambda *_: setattr(Disk, "broken", True))
    LmdbStore._flush = breakable(LmdbStore._flush)  # type: ignore[method-assign,assignment]  # below all that counts and watches
    sys.exit(__main__.main(sys.argv[1:]))
