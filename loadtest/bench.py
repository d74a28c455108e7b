"""`python -m loadtest.bench`: start servers and an agent, put a load on them, and say what a job costs.

This process is the load. Everything runs on this machine over real sockets, and every write of the server is flushed.
The figures count only beside the yardstick of the same run.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path

import grpc

from loadtest import backlog, failover, fan, idle, rates
from loadtest.cluster import Cluster, ClusterError, channel, cluster, tls_options
from loadtest.load import add_pace_options
from loadtest.medians import medians
from loadtest.report import Report, Yardstick, report
from loadtest.shapes import QUEUE
from loadtest.stage import Played, Stage, routes_through
from loadtest.submitters import MODES
from stepward.client import StepwardError
from stepward.client.demo.processes import Child, ChildError
from stepward.client.tls import TlsFiles
from stepward.v1 import agent_service_pb2, agent_service_pb2_grpc

WAIT_S_MAX = 30.0

SHAPES = ("trip", "compensate", "wide", "deep", "idle-agents", "backlog", "failover")
# What stands in the report as it was asked for.
ASKED = ("shape", "mode", "nodes", "through", "agent_through", "tls", "inflight", "rate")
# In which the node that leads is killed.
ENDING = ("backlog", "failover")

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


async def measure(given: argparse.Namespace, folder: Path) -> Report:
    """One run from start to end."""
    yardstick = Yardstick(calls_per_s=calls_per_s(given.yardstick_seconds, folder), flush_ms=flush_ms(folder))
    with ExitStack() as processes:
        servers = processes.enter_context(cluster(folder, nodes=given.nodes, with_tls=given.tls))
        agent = processes.enter_context(_agent(given, servers, folder))
        wait_for_agent(servers.leader.address, servers.tls)
        async with Stage.open(servers.addresses, servers.tls, mode=given.mode, through=given.through) as stage:
            # This process is the load: it does nothing else meanwhile.
            stage.pids = {**servers.pids, "agent": agent.pid, "load": os.getpid()}
            played = await play(given, stage, servers, folder)
            judged = await stage.judged()
        agent.stop()
        counted = last_line(agent)
        log = servers.leader.tail()
    asked = {name: getattr(given, name) for name in ASKED}
    made = report(given=asked, played=played, judged=judged, counted=counted, yardstick=yardstick)
    if not made.sound:
        sys.stderr.write(f"The figures mean nothing, since jobs failed or were doubled. The server said last:\n{log}\n")
    return made


async def play(given: argparse.Namespace, stage: Stage, servers: Cluster, folder: Path) -> Played:
    """What the shape is."""
    match given.shape:
        case "trip":
            return await rates.trip(stage, given)
        case "compensate":
            return await rates.compensating(stage, given)
        case "deep":
            return await rates.chain(stage, given)
        case "wide":
            return await fan.play(stage, given)
        case "idle-agents":
            return await idle.play(stage, servers, given, folder)
        case "backlog":
            return await backlog.play(stage, servers, given)
        case "failover":
            return await failover.play(stage, servers, given)
    raise AssertionError(given.shape)


def _agent(given: argparse.Namespace, servers: Cluster, folder: Path) -> AbstractContextManager[Child]:
    """It speaks to one node; only where that ends, it knows the others, too."""
    route = routes_through(given.agent_through, servers.addresses)[0]
    known = route if given.shape in ENDING else route[:1]
    options = ("--server", ",".join(known), "--slots", str(given.slots), *tls_options(servers.tls))
    return child("agent", "loadtest.agent", *options, folder=folder)


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


def calls_per_s(seconds: float, folder: Path) -> float:
    """The yardstick of calls, with as many in flight as always: it is what runs are compared by."""
    with child("echo", "loadtest.echo", folder=folder) as echo:
        command = [sys.executable, "-m", "loadtest.echo", "--measure", echo.address, "--seconds", str(seconds)]
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


def _run(given: argparse.Namespace, number: int) -> Report:
    with tempfile.TemporaryDirectory(prefix="stepward-bench-", dir=given.data) as folder:
        made = asyncio.run(measure(given, Path(folder)))
    if given.runs > 1:
        latencies = f"p50 {made.p50_ms:.1f} ms, p99 {made.p99_ms:.1f} ms"
        sys.stderr.write(f"run {number} of {given.runs}: {made.jobs_per_s:,.0f} jobs/s, {latencies}\n")
    return made


def options() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m loadtest.bench", description=__doc__)
    parser.add_argument("--nodes", type=int, choices=(1, 3, 5), default=1, help="of the cluster (default: %(default)s)")
    parser.add_argument("--tls", action="store_true", help="mutual TLS between nodes and to the load and the agent")
    parser.add_argument("--shape", choices=SHAPES, default="trip", help="what is measured (default: %(default)s)")
    parser.add_argument(
        "--mode",
        choices=MODES,
        help="how jobs are submitted (default: run; of failover python-client, which alone goes on)",
    )
    add_pace_options(parser)
    parser.add_argument(
        "--agent-through",
        choices=("leader", "followers"),
        default="leader",
        help="where the agent is, the first of them (default: %(default)s)",
    )
    parser.add_argument("--links", type=int, help=f"steps of a wide job ({fan.LINKS:,}) or of a deep one (100)")
    parser.add_argument("--agents", type=int, help=f"idle agents ({idle.AGENTS:,})")
    parser.add_argument("--finished", type=int, help=f"jobs that have ended in a backlog ({backlog.FINISHED:,})")
    parser.add_argument("--waiting", type=int, help=f"jobs that wait in a backlog ({backlog.WAITING:,})")
    parser.add_argument("--yardstick-seconds", type=float, default=2.0, help="of it (default: %(default)s)")
    parser.add_argument("--slots", type=int, default=512, help="of the agent (default: %(default)s)")
    parser.add_argument(
        "--runs",
        type=int,
        default=1,
        help="so many, each with nodes of its own; told are medians (default: %(default)s)",
    )
    parser.add_argument("--data", type=Path, help="folder for the server's data (default: a temporary one)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures there")
    return parser


def main() -> int:
    """Entry of the command line: 0 when the figures are sound, 1 when jobs were lost or doubled, 2 when not run."""
    parser = options()
    given = parser.parse_args()
    given.mode = given.mode or ("python-client" if given.shape == "failover" else "run")
    if given.runs < 1:
        parser.error(f"--runs {given.runs}: at least 1")
    try:
        result = medians([_run(given, number) for number in range(1, given.runs + 1)])
    except (BenchError, ClusterError, ChildError, StepwardError, grpc.RpcError) as error:
        sys.stderr.write(f"the run could not be made: {error}\n")
        return 2
    print(result.table())
    if given.json:
        given.json.write_text(json.dumps(result.as_json(), indent=2) + "\n", encoding="utf-8")
    return 0 if result.sound else 1


if __name__ == "__main__":
    sys.exit(main())
