"""A process that installs rows of another node, and ends as kill -9 does at one point of it.

    python -m tests.store.installing_node DIRECTORY POINT [--no-name-flush]

A point is before or after anything that changes what a restart finds: a commit, a rename, a flush, a removal. What it
has done so far it prints: "begun" (the rows come in), "installed". With a point that is never reached it waits, after
everything, for the end of its input.
"""

import argparse
import os
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from stepward.server.store import facts, incoming
from stepward.server.store.lmdb_store import LmdbStore
from tests.store.standing import head_of

ROWS = 3_000
# More than one commit of the rows that come in.
ROW_BYTES = 3_000


class Killer:
    """Counts the points, and ends this process at one of them."""

    def __init__(self, point: int) -> None:
        self._left = point

    def pass_point(self) -> None:
        """One more."""
        self._left -= 1
        if self._left < 0:
            os.kill(os.getpid(), signal.SIGKILL)

    def around(self, owner: Any, name: str) -> None:
        """Points before and after each call of a function."""
        called: Callable[..., Any] = getattr(owner, name)

        def instead(*arguments: Any, **options: Any) -> Any:
            self.pass_point()
            result = called(*arguments, **options)
            self.pass_point()
            return result

        setattr(owner, name, instead)


def their_rows() -> list[tuple[bytes, bytes]]:
    """What is installed."""
    return [(b"O%06d" % number, b"their %d" % number * (ROW_BYTES // 8)) for number in range(ROWS)]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("directory", type=Path)
    parser.add_argument("point", type=int)
    parser.add_argument("--no-name-flush", action="store_true")
    arguments = parser.parse_args()
    store = LmdbStore(arguments.directory)
    killer = Killer(arguments.point)
    killer.around(incoming.LmdbIncoming, "commit")
    if arguments.no_name_flush:
        vars(incoming)["flush_names"] = lambda folders: None
    killer.around(incoming, "flush_names")
    for name in ("mkdir", "replace", "rmdir"):
        killer.around(Path, name)
    killer.around(shutil, "rmtree")
    sys.stdout.write("begun\n")
    sys.stdout.flush()
    coming = store.incoming()
    rows = their_rows()
    for first in range(0, len(rows), 100):
        coming.put(rows[first : first + 100])
    coming.commit()
    beside = {facts.HEAD: facts.encode_head(head_of(7)), facts.APPLIED: facts.encode_applied(70, 3)}
    store.install(coming, facts=beside, entries=[(70, b"seventy")])
    sys.stdout.write("installed\n")
    sys.stdout.flush()
    sys.stdin.read()


if __name__ == "__main__":
    main()
