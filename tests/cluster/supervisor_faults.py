"""A node whose supervisor can be broken while it runs: `python -m tests.cluster.supervisor_faults FAULT run ...`.

The fault holds while the file exists that STEPWARD_FAULT_FILE names, in the nodes that stand in it; in all when it is
empty. A supervisor that hangs stays hung. Everything else of the node is the product.

FAULT is one of `raises-once`, `raises-always`, `hangs`, `cancelled`, `not-started` and `start-hangs`.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from stepward.server import __main__
from stepward.server.supervisor import Supervisor

FAULT_FILE: Final = "STEPWARD_FAULT_FILE"
FAULTS: Final = ("raises-once", "raises-always", "hangs", "cancelled", "not-started", "start-hangs")


class FaultPlanted(Exception):  # noqa: N818 - it is no error
    """What a test wants a supervisor to meet with."""


class Faults:
    """Stands in front of the supervisors of this process."""

    def __init__(self, fault: str, path: Path, node_id: str) -> None:
        self._fault = fault
        self._path = path
        self._node_id = node_id
        self._has_raised = False
        self._run = Supervisor.run
        self._sweep = Supervisor._sweep

    @property
    def holds(self) -> bool:
        """Whether the fault is there at this moment, in this node."""
        try:
            names = self._path.read_text().split()
        except FileNotFoundError:
            self._has_raised = False
            return False
        return not names or self._node_id in names

    async def sweep(self, supervisor: Supervisor) -> int:
        """In place of a sweep."""
        if self.holds:
            await self._meet()
        return await self._sweep(supervisor)

    async def _meet(self) -> None:
        match self._fault:
            case "raises-once" if not self._has_raised:
                self._has_raised = True
                raise FaultPlanted
            case "raises-always":
                raise FaultPlanted
            case "hangs":
                await asyncio.get_running_loop().create_future()
            case "cancelled" | "not-started" | "start-hangs":
                task = asyncio.current_task()
                assert task is not None
                task.cancel()
                await asyncio.sleep(0)

    async def run(self, supervisor: Supervisor, **options: Any) -> None:
        """In place of a supervisor's life."""
        if self.holds and self._fault == "not-started":
            raise FaultPlanted
        if self.holds and self._fault == "start-hangs":
            await asyncio.get_running_loop().create_future()
        await self._run(supervisor, **options)


def plant(fault: str, path: Path, node_id: str) -> None:
    """Put a fault in front of all supervisors of this process."""
    assert fault in FAULTS, fault
    faults = Faults(fault, path, node_id)
    for name, method in (("_sweep", faults.sweep), ("run", faults.run)):
        setattr(Supervisor, name, _as_method(method))


def _as_method(method: Callable[..., Any]) -> Callable[..., Any]:
    """A bound method in the place of one of another class."""

    def called(supervisor: Supervisor, **options: Any) -> Any:
        return method(supervisor, **options)

    return called


if __name__ == "__main__":
    plant(sys.argv[1], Path(os.environ[FAULT_FILE]), sys.argv[sys.argv.index("--node-id") + 1])
    sys.exit(__main__.main(sys.argv[2:]))
