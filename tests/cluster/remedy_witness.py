"""A node that writes down what its supervisor wants to do: `python -m tests.cluster.remedy_witness FOLDER run ...`.

Each remedy is noted when this node, as leader, puts it into a batch, so also when nobody ever commits that: the ledger
shows what was done, and this who wanted to do it. It goes into a file of the node in FOLDER. When it is asked to, a
node stands still at that moment, in which nobody has heard of the remedy yet. Everything else is the product.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from stepward.server import __main__
from stepward.server.core.ledger_rows import LedgerEntry
from stepward.server.core.parts import By
from stepward.server.core.rows import Row
from stepward.server.logbook.replica import Replica

MODULE: Final = "tests.cluster.remedy_witness"


_STOP: Final = "stop"
_STOPPED: Final = "stopped"


class Attempt(NamedTuple):
    """What a remedy is about."""

    job_id: str
    step_id: str
    token: int


def wanted(folder: Path) -> dict[Attempt, set[tuple[str, int]]]:
    """By attempt: the leaders whose supervisors wanted to remedy it, each a node and its epoch."""
    found = defaultdict[Attempt, set[tuple[str, int]]](set)
    for path in folder.glob("*.remedies"):
        # A node that is stopped may have written half of a line.
        for line in path.read_text().splitlines(keepends=True):
            if line.endswith("\n"):
                said = json.loads(line)
                found[Attempt(*said["attempt"])].add((path.stem, said["epoch"]))
    return dict(found)


def stop_next(folder: Path) -> None:
    """Let the node that wants the next remedy stand still (SIGSTOP) in that moment."""
    (folder / _STOP).touch()


def stopped(folder: Path) -> str:
    """The node that stands still since then; empty: none yet. To be asked until it is told, once."""
    found = next(folder.glob(f"*.{_STOPPED}"), None)
    if found is None:
        return ""
    found.unlink()
    return found.stem


def _stop_if_wanted(folder: Path, node_id: str) -> None:
    try:
        # Only one of those that want something at the same time can do this.
        (folder / _STOP).rename(folder / f"{node_id}.{_STOPPED}")
    except FileNotFoundError:
        return
    os.kill(os.getpid(), signal.SIGSTOP)


def watch(folder: Path, node_id: str) -> None:
    """Note what supervisors of this process want."""
    propose = Replica._propose
    path = folder / f"{node_id}.remedies"

    def noting(replica: Replica, *arguments: Any, changes: Mapping[bytes, Row | None], **options: Any) -> None:
        entries = [row for row in changes.values() if isinstance(row, LedgerEntry) and row.by is By.SUPERVISOR]
        if entries:
            with path.open("a") as file:
                for entry in entries:
                    attempt = (entry.job_id, entry.step_id, entry.evidence.token)
                    print(json.dumps({"epoch": entry.epoch, "attempt": attempt}), file=file)
            _stop_if_wanted(folder, node_id)
        propose(replica, *arguments, changes=changes, **options)

    setattr(Replica, "_propose", noting)  # noqa: B010 - a method of another class is replaced


if __name__ == "__main__":
    name = sys.argv[sys.argv.index("--node-id") + 1]
    watch(Path(sys.argv[1]), name)
    sys.exit(__main__.main(sys.argv[2:]))
