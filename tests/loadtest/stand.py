"""A server and the benchmark's agent, as the tests of the load tools need them."""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from loadtest.bench import child, wait_for_agent
from stepward.client.demo.processes import Child

# From the root of the repository: `loadtest` is not installed.
ROOT = Path(__file__).resolve().parents[2]


@contextmanager
def stand(folder: Path) -> Iterator[tuple[Child, Child]]:
    """A server on any port and an agent that can be given work."""
    options = ("dev", "--data", str(folder / "data"), "--port", "0")
    with (
        child("server", "stepward.server", *options, folder=folder) as server,
        child("agent", "loadtest.agent", "--server", server.address, folder=folder) as agent,
    ):
        wait_for_agent(server.address)
        yield server, agent


def run_module(*words: str, seconds_max: float = 60) -> "subprocess.CompletedProcess[str]":
    """A Python module as a command, to its end."""
    command = [sys.executable, "-m", *words]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=seconds_max, check=False)


def last_json(output: str) -> dict[str, Any]:
    """The last line of an output as JSON."""
    said: dict[str, Any] = json.loads(output.splitlines()[-1])
    return said
