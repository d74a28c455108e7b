"""A node that says that it has flushed and has not: `python -m tests.faults.lazy_disk run --data ...`.

What a test of power cuts must see red.
"""

import sys
from pathlib import Path

from stepward.server import __main__
from stepward.server.store import lmdb_store
from stepward.server.store.environment import Environment


class LazyEnvironment(Environment):
    """One whose commits stay in memory until the kernel finds the time."""

    def __init__(self, directory: Path, *, map_bytes: int, durable: bool) -> None:
        assert durable, "a node asks for a store that flushes"
        super().__init__(directory, map_bytes=map_bytes, durable=False)


if __name__ == "__main__":
    lmdb_store.Environment = LazyEnvironment  # type: ignore[attr-defined]  # the store asks for it by this name
    sys.exit(__main__.main(sys.argv[1:]))
