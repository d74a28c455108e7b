"""A server, a travel service and agents as real processes, which tests kill, stop and start again.

Everything that waits does so for a condition, with a bound. The server keeps its port over restarts, as real ones do.
"""

import asyncio
import signal
import sys
import textwrap
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

import psutil

from stepward.agents.examples.ledger import Entry, read
from stepward.agents.examples.travel_record import Report, check
from stepward.client.demo.processes import Child, stop_all

LOOK_EVERY_S = 0.02
SESSION_TTL_MS = 3_000

# What the cluster waits for an agent that says nothing more, and some time for a busy machine.
LEASE_LOSS_S_MAX = 15.0


class Rig:
    """Processes that share a folder. Use it as a context manager: it ends them all."""

    def __init__(
        self,
        folder: Path,
        *,
        data: Path | None = None,
        session_ttl_ms: int = SESSION_TTL_MS,
        module: str = "stepward.server",
    ) -> None:
        """`module` is what the server runs as."""
        self.folder = folder
        self._module = module
        self.session_ttl_ms = session_ttl_ms
        self.agents: dict[str, Child] = {}
        self._data = data or folder / "data"
        self._port = "0"
        self._server: Child | None = None
        self._travel: Child | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        others = self.children()
        for child in (*self.agents.values(), *others):
            # One that a failed test has left paused would not hear that it is to end.
            child.resume()
        stop_all(list(self.agents.values()))
        stop_all(others)

    def children(self) -> list[Child]:
        """All but the agents, which end first."""
        return [child for child in (self._server, self._travel) if child]

    @property
    def address(self) -> str:
        """What agents are told of where the cluster is."""
        return self.server.address

    @property
    def server(self) -> Child:
        assert self._server is not None, "no server was started"
        return self._server

    @property
    def travel(self) -> Child:
        assert self._travel is not None, "no travel service was started"
        return self._travel

    @property
    def ledger(self) -> Path:
        return self.folder / "travel.jsonl"

    def start_server(self) -> None:
        """Start the server, the second time on the same data and port."""
        options = ("--port", self._port, "--session-ttl-ms", str(self.session_ttl_ms))
        command = [sys.executable, "-m", self._module, "dev", "--data", str(self._data), *options]
        self._server = Child.start("server", command, folder=self.folder)
        self._port = self._server.address.rpartition(":")[2]

    def start_travel(self, *options: str) -> None:
        command = [sys.executable, "-m", "stepward.agents.examples.travel_service", "--port", "0"]
        self._travel = Child.start("travel", [*command, "--ledger", str(self.ledger), *options], folder=self.folder)

    def start_agent(self, name: str, *, slots: int = 16, at: str = "") -> Child:
        """A trip agent that nothing starts again; it knows the cluster by all addresses, or by the one given."""
        there = ("--server", at or self.address, "--travel", self.travel.address, "--no-service")
        command = [sys.executable, "-m", "stepward.agents.examples", *there, "--slots", str(slots), "--name", name]
        self.agents[name] = Child.launch(name, command, folder=self.folder)
        return self.agents[name]

    def start_supervised_agent(self, name: str, *, slots: int = 16) -> Child:
        """A trip agent under `stepward agent run`, whose parent starts it again."""
        call = f'trip_agent(travel="{self.travel.address}", slots={slots}, starts_service=False)'
        return self.start_module(name, f"from stepward.agents.examples.trip import trip_agent\n\nagent = {call}\n")

    def start_module(self, name: str, text: str) -> Child:
        """Whatever agent a module makes, under `stepward agent run`."""
        module = f"module_{name.replace('-', '_')}"
        (self.folder / f"{module}.py").write_text(textwrap.dedent(text))
        entry = "import sys; from stepward.client.cli import main; sys.exit(main())"
        command = [sys.executable, "-c", entry, "agent", "run", module, "--server", self.address]
        self.agents[name] = Child.launch(name, command, folder=self.folder, inside=self.folder)
        return self.agents[name]

    def entries(self) -> list[Entry]:
        """What the travel service has recorded so far."""
        return read(self.ledger)

    def calls(self) -> int:
        """How many calls it has recorded so far; cheaper than reading them."""
        return self.ledger.read_bytes().count(b"\n") if self.ledger.exists() else 0

    def judge(self, states: Mapping[str, str]) -> Report:
        """What the record shows, given how the jobs ended."""
        return check(self.entries(), states)


def worker_of(parent: Child) -> int | None:
    """The process that does the work of an agent under `stepward agent run`; None while there is none."""
    try:
        children = psutil.Process(parent.pid).children()
    except psutil.NoSuchProcess:
        return None
    return children[0].pid if children else None


def kill_worker(pid: int) -> None:
    """End a process of ours with SIGKILL."""
    psutil.Process(pid).send_signal(signal.SIGKILL)


async def until(holds: Callable[[], bool], *, seconds_max: float, what: str) -> None:
    """Wait for a condition.

    Raises:
        AssertionError: It did not come to hold in time.
    """
    ends_at = time.monotonic() + seconds_max
    while not holds():
        assert time.monotonic() < ends_at, f"after {seconds_max:.0f} s still not: {what}"
        await asyncio.sleep(LOOK_EVERY_S)
