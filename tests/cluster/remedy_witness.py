"""A node that writes down what its supervisor wants to do: `python -m tests.cluster.remedy_witness FOLDER run ...`.

Each remedy is noted when this node, as leader, puts it into a batch, so also when nobody ever commits that: the ledger
shows what was done, and this who wanted to do it. It goes into a file of the node in FOLDER. Everything else of the
node is the product.
"""

from __future__ import annotations

import json
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


def watch(path: Path) -> None:
    """Note in a file what supervisors of this process want."""
    propose = Replica._propose

    def noting(replica: Replica, *arguments: Any, changes: Mapping[bytes, Row | None], **options: Any) -> None:
        entries = [row for row in changes.values() if isinstance(row, LedgerEntry) and row.by is By.SUPERVISOR]
        if entries:
            with path.open("a") as file:
                for entry in entries:
                    attempt = (entry.job_id, entry.step_id, entry.evidence.token)
                    print(json.dumps({"epoch": entry.epoch, "attempt": attempt}), file=file)
        propose(replica, *arguments, changes=changes, **options)

    setattr(Replica, "_propose", noting)  # noqa: B010 - a method of another class is replaced


if __name__ == "__main__":
    name = sys.argv[sys.argv.index("--node-id") + 1]
    watch(Path(sys.argv[1]) / f"{name}.remedies")
    sys.exit(__main__.main(sys.argv[2:]))
