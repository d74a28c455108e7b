"""`python -m loadtest.bench`: start a server, an agent and a load, and say what a job costs.

Everything runs on this machine over real sockets, and every write of the server is flushed. The figures count only
beside the yardstick of the same run.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from loadtest.cluster import Cluster, ClusterError, channel, cluster, tls_options
from loadtest.report import Report, Yardstick, report
from loadtest.shapes import QUEUE, SHAPES
from loadtest.submitters import MODES
from stepward.client.demo.processes import Child, ChildError
from stepward.client.tls import TlsFiles
from stepward.v1 import agent_service_pb2, agent_service_pb2_grpc

WAIT_S_MAX = 30.0

# Beyond the seconds asked for: start, connect, drain.
LOAD_EXTRA_S_MAX = 120.0

FLUSHES = 100


class BenchError(Exception):
    """The run could not be made. The message says why."""


@contextmanager
def child(name: str, module: str, *arguments: str, folder: Path) -> Iterator[Child]:
    """A Python module in a process of its own, for a while."""
    process = Child.start(name, [sys.executable, "-m", module, *arguments], folder=folder)
    try:
        yield process
    finally:
        process.stop()


def measure(given: argparse.Namespace, folder: Path) -> Report:
    """One run from start to end."""
    yardstick = Yardstick(calls_per_s=calls_per_s(given.inflight, folder), flush_ms=flush_ms(folder))
    with ExitStack() as processes:
        enter = processes.enter_context
        servers = enter(cluster(folder, nodes=given.nodes, with_tls=given.tls))
        files, leader = tls_options(servers.tls), servers.leader
        options = ("--server", leader.address, "--slots", str(given.slots), *files)
        agent = enter(child("agent", "loadtest.agent", *options, folder=folder))
        wait_for_agent(leader.address, servers.tls)
        said = load(given, servers, {**servers.pids, "agent": agent.pid})
        agent.stop()
        counted = last_line(agent)
        log = leader.tail()
    asked = {name: getattr(given, name) for name in ("shape", "mode", "nodes", "tls", "inflight", "rate")}
    steps = len(SHAPES[given.shape]().steps)
    made = report(given=asked, said=said, counted=counted, yardstick=yardstick, steps=steps)
    if not made.sound:
        sys.stderr.write(f"The figures mean nothing, since jobs failed or were doubled. The server said last:\n{log}\n")
    return made


def load(given: argparse.Namespace, servers: Cluster, pids: dict[str, int]) -> dict[str, Any]:
    """Run the load process and return what it says."""
    options = {name: getattr(given, name) for name in ("mode", "inflight", "rate", "warmup", "seconds")}
    command = [sys.executable, "-m", "loadtest.load", "--server", ",".join(servers.addresses)]
    command += ["--pids", json.dumps(pids), *tls_options(servers.tls)]
    command += [word for name, figure in options.items() for word in (f"--{name}", str(figure))]
    ended = subprocess.run(
        command, stdout=subprocess.PIPE, check=False, timeout=given.warmup + given.seconds + LOAD_EXTRA_S_MAX
    )
    if ended.returncode != 0:
        raise BenchError(f"the load process ended with {ended.returncode}; see what it said above")
    said: dict[str, Any] = json.loads(ended.stdout)
    return said


def wait_for_agent(server: str, tls: TlsFiles | None = None) -> None:
    """Wait until the agent can be given work: the first seconds are not what is measured."""
    until = time.monotonic() + WAIT_S_MAX
    with channel(server, tls) as opened:
        stub = agent_service_pb2_grpc.AgentServiceStub(opened)
        while time.monotonic() < until:
            listed = stub.ListAgents(agent_service_pb2.ListAgentsRequest(), timeout=WAIT_S_MAX)
            if any(agent.connected and agent.queue == QUEUE for agent in listed.agents):
                return
            time.sleep(0.05)
    raise BenchError(f"no agent for queue {QUEUE!r} within {WAIT_S_MAX:.0f} s")


def last_line(agent: Child) -> dict[str, int]:
    """What the agent counted."""
    said: dict[str, int] = json.loads(agent.log.with_suffix(".out").read_text().splitlines()[-1])
    if "runs" not in said:
        raise BenchError(f"the agent ended without saying what it did; {agent.log}:\n{agent.tail()}")
    return said


def calls_per_s(in_flight: int, folder: Path) -> float:
    """The yardstick of calls."""
    with child("echo", "loadtest.echo", folder=folder) as echo:
        command = [sys.executable, "-m", "loadtest.echo", "--measure", echo.address, "--inflight", str(in_flight)]
        ended = subprocess.run(command, stdout=subprocess.PIPE, check=True, timeout=WAIT_S_MAX)
    return float(json.loads(ended.stdout)["calls_per_s"])


def flush_ms(folder: Path) -> float:
    """The yardstick of the disk."""
    took = []
    with (folder / "flush").open("wb", buffering=0) as file:
        for _ in range(FLUSHES):
            began = time.perf_counter()
            file.write(b"x" * 4096)
            os.fdatasync(file.fileno())
            took.append((time.perf_counter() - began) * 1000)
    return statistics.median(took)


def options() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m loadtest.bench", description=__doc__)
    parser.add_argument("--nodes", type=int, choices=(1, 3, 5), default=1, help="of the cluster (default: %(default)s)")
    parser.add_argument("--tls", action="store_true", help="mutual TLS between nodes and to the load and the agent")
    parser.add_argument("--shape", choices=SHAPES, default="trip", help="what a job is (default: %(default)s)")
    parser.add_argument("--mode", choices=MODES, default="run", help="how jobs are submitted (default: %(default)s)")
    parser.add_argument("--inflight", type=int, default=64, help="jobs at once (default: %(default)s)")
    parser.add_argument("--rate", type=float, default=0.0, help="begin so many jobs a second, whatever is in flight")
    parser.add_argument("--warmup", type=float, default=2.0, help="seconds before (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=10.0, help="seconds measured (default: %(default)s)")
    parser.add_argument("--slots", type=int, default=512, help="of the agent (default: %(default)s)")
    parser.add_argument("--data", type=Path, help="folder for the server's data (default: a temporary one)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures there")
    return parser


def main() -> int:
    """Entry of the command line: 0 when the figures are sound, 1 when jobs were lost or doubled, 2 when not run."""
    given = options().parse_args()
    with tempfile.TemporaryDirectory(prefix="stepward-bench-", dir=given.data) as folder:
        try:
            result = measure(given, Path(folder))
        except (BenchError, ClusterError, ChildError) as error:
            sys.stderr.write(f"{error}\n")
            return 2
    print(result.table())
    if given.json:
        given.json.write_text(json.dumps(result.as_json(), indent=2) + "\n", encoding="utf-8")
    return 0 if result.sound else 1


if __name__ == "__main__":
    sys.exit(main())
