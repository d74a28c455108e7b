"""A node on a disk that is slow while it is told so: `python -m tests.faults.slow_disk FLUSH_MS dev --data ...`.

SIGUSR1 makes every flush take so long, SIGUSR2 ends that. The wait stands where the flush does, on the thread of the
node and inside its guard, so that everything waits for it that would wait for a real one.
"""

import signal
import sys
import time

from typing_extensions import override

from stepward.server import __main__, counted_store, node
from stepward.server.store.lmdb_store import LmdbStore


class SlowStore(counted_store.CountedStore):
    """A store whose flushes take `flush_ms` at least, while `slow`."""

    flush_ms = 0
    slow = False

    @override
    def commit(self) -> None:
        dirty = self._dirty
        super().commit()
        if dirty and SlowStore.slow:
            time.sleep(SlowStore.flush_ms / 1_000)


assert issubclass(SlowStore, LmdbStore)

if __name__ == "__main__":
    SlowStore.flush_ms = int(sys.argv[1])
    signal.signal(signal.SIGUSR1, lambda *_: setattr(SlowStore, "slow", True))
    signal.signal(signal.SIGUSR2, lambda *_: setattr(SlowStore, "slow", False))
    # The node asks for its store by this name.
    vars(node)["CountedStore"] = SlowStore
    sys.exit(__main__.main(sys.argv[2:]))
