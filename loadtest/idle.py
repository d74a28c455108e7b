"""`idle-agents`: what nodes spend on agents that are connected and have nothing to do, and how trips go beside them."""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import sys
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

from loadtest.cluster import Cluster, tls_options
from loadtest.crowd import QUEUE
from loadtest.shapes import PLAIN
from loadtest.stage import CALL_S_MAX, Played, Stage, Window
from loadtest.tally import Pace
from stepward.client.demo.processes import Child, stop_all
from stepward.v1 import agent_service_pb2, agent_service_pb2_grpc

AGENTS = 1_000
# Many streams a process; several processes, so that none of them is what is measured.
PROCESSES = 4
READY_S_MAX = 120.0


async def play(stage: Stage, servers: Cluster, given: argparse.Namespace, folder: Path) -> Played:
    """Measure with nothing but agents, and then trips."""
    with ExitStack() as started:
        crowds: list[Child] = []
        started.callback(stop_all, crowds)
        await asyncio.to_thread(_start, crowds, servers, given.agents or AGENTS, folder)
        stage.pids |= {crowd.name: crowd.pid for crowd in crowds}
        await asyncio.sleep(given.warmup)
        idle = await stage.measured(stage.tally(PLAIN), lambda: asyncio.sleep(given.seconds))
        pace = Pace(inflight=given.inflight, rate=given.rate)
        trips = await stage.window(PLAIN, pace, warmup=given.warmup, seconds=given.seconds)
        connected = await _connected(stage)
        await asyncio.to_thread(stop_all, crowds)
        stage.pids = {name: pid for name, pid in stage.pids.items() if not name.startswith("crowd")}
    said = [_said(crowd) for crowd in crowds]
    lost = sum(round(one["lost"]) for one in said)
    if lost:
        stage.failures["stream lost"] += lost
    figures = {"connected": connected, "heartbeats_per_s": sum(one["heartbeats_per_s"] for one in said)}
    return Played(window=trips, steps=PLAIN.steps, figures=figures | cpu_percents(idle, servers.pids))


def cpu_percents(window: Window, pids: Mapping[str, int]) -> dict[str, float]:
    """Of one processor, by node."""
    return {f"cpu_percent_{name}": window.cpu_ms[name] / window.seconds / 10 for name in pids}


def _start(crowds: list[Child], servers: Cluster, agents: int, folder: Path) -> None:
    """As many agents in all, spread evenly over processes and over nodes."""
    ends = [agents * number // PROCESSES for number in range(PROCESSES + 1)]
    for number, (first, end) in enumerate(itertools.pairwise(ends)):
        # Each begins with another node.
        turned = (*servers.addresses[number % len(servers.addresses) :], *servers.addresses)[: len(servers.addresses)]
        command = [sys.executable, "-m", "loadtest.crowd", "--server", ",".join(turned), "--agents", str(end - first)]
        crowds.append(Child.launch(f"crowd-{number}", [*command, *tls_options(servers.tls)], folder=folder))
    for crowd in crowds:
        crowd.wait_until_ready(READY_S_MAX)


async def _connected(stage: Stage) -> int:
    """How many of them the cluster holds to be connected."""
    stub = agent_service_pb2_grpc.AgentServiceStub(stage.channel)
    token, connected = "", 0
    while True:
        request = agent_service_pb2.ListAgentsRequest(page_size=1_000, page_token=token)
        listed = await stub.ListAgents(request, timeout=CALL_S_MAX)
        connected += sum(agent.connected and agent.queue == QUEUE for agent in listed.agents)
        token = listed.next_page_token
        if not token:
            return connected


def _said(crowd: Child) -> Mapping[str, float]:
    said: Mapping[str, float] = json.loads(crowd.log.with_suffix(".out").read_text().splitlines()[-1])
    return said
