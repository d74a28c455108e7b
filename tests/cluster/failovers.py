"""How long a cluster of three decides nothing when its leader is killed, or hands over: `make failovers KILLS=20`.

Trips are on their way, and probes submit at every node all the time. The gap is between two acknowledgements that
probes got, the last of the old leader's and the first of the new one's: what is acknowledged was committed.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import shutil
import statistics
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Final

import grpc
import grpc.aio

from stepward.v1 import cluster_service_pb2, cluster_service_pb2_grpc, job_service_pb2_grpc
from stepward.v1 import job_service_pb2 as pb
from tests.cluster.callers import DEFINITION, lasting
from tests.cluster.nodes import Nodes, judged
from tests.cluster.rig import until
from tests.cluster.traffic import Traffic, agents_connect

PROBES_A_NODE: Final = 2
PROBE_EVERY_S: Final = 0.02
CALL_S_MAX: Final = 3.0
# Trips that are open at any moment, more or less.
TRIPS: Final = 30
SLOW_MS: Final = 30
# Between two rounds, so that each begins with a cluster at work.
QUIET_S: Final = 1.5
ANSWERED_S_MAX: Final = 30.0
TRANSFER_S_MAX: Final = 5.0


class Probes:
    """Callers at every node who note when they were acknowledged."""

    def __init__(self) -> None:
        self.acknowledged_at: list[float] = []

    async def at_node(self, address: str) -> None:
        """Submit without end. A node that is away is asked again at once: what is measured is the others."""
        async with grpc.aio.insecure_channel(address) as channel:
            stub = job_service_pb2_grpc.JobServiceStub(channel)
            request = pb.SubmitJobRequest(job=pb.JobSubmission(definition_name=DEFINITION))
            while True:
                with suppress(grpc.aio.AioRpcError):
                    await stub.SubmitJob(request, timeout=CALL_S_MAX)
                    self.acknowledged_at.append(time.monotonic())
                await asyncio.sleep(PROBE_EVERY_S)

    async def gap_s(self, began_at: float) -> float:
        """The longest silence since a moment; waits until it is over for certain.

        Raises:
            AssertionError: Nobody was acknowledged any more.
        """
        await until(lambda: self.acknowledged_at[-1] > began_at + QUIET_S, seconds_max=ANSWERED_S_MAX, what="an answer")
        before = max(number for number, at in enumerate(self.acknowledged_at) if at <= began_at)
        since = self.acknowledged_at[before:]
        return max(later - earlier for earlier, later in itertools.pairwise(since))


class Trips:
    """Trips that are submitted again and again, so that about as many are open all the time."""

    def __init__(self, traffic: Traffic) -> None:
        self._traffic = traffic

    async def keep(self, over: asyncio.Event) -> None:
        """Submit until an event is set, and let all of them end."""
        while not over.is_set():
            await self._traffic.submit(TRIPS)
            await self._traffic.ended(seconds_max=60)


@asynccontextmanager
async def probed(nodes: Nodes) -> AsyncIterator[Probes]:
    """Probes that are answered."""
    probes = Probes()
    tasks = [
        asyncio.create_task(probes.at_node(address))
        for address in nodes.addresses.values()
        for _ in range(PROBES_A_NODE)
    ]
    try:
        await until(lambda: bool(probes.acknowledged_at), seconds_max=ANSWERED_S_MAX, what="a first answer")
        yield probes
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def kill(nodes: Nodes, probes: Probes) -> float:
    """Kill the leader; the gap, after which the node is started again."""
    await nodes.whole()
    leader = await nodes.leader()
    began_at = time.monotonic()
    nodes.nodes[leader].kill()
    gap_s = await probes.gap_s(began_at)
    await asyncio.to_thread(nodes.start_nodes, leader)
    return gap_s


async def transfer(nodes: Nodes, probes: Probes) -> float:
    """Ask the leader to hand over; the gap."""
    await nodes.whole()
    leader = await nodes.leader()
    target = nodes.others(leader)[0]
    began_at = time.monotonic()
    async with grpc.aio.insecure_channel(nodes.addresses[leader]) as channel:
        stub = cluster_service_pb2_grpc.ClusterServiceStub(channel)
        request = cluster_service_pb2.TransferLeaderRequest(node_id=target)
        await stub.TransferLeader(request, timeout=TRANSFER_S_MAX)
    gap_s = await probes.gap_s(began_at)
    assert await nodes.leader() == target
    return gap_s


async def measure(folder: Path, *, kills: int, transfers: int) -> dict[str, list[float]]:
    """The gaps of each kind, in the order in which they came; all that was acknowledged is judged at the end."""
    with Nodes(folder) as nodes:
        nodes.start_nodes()
        nodes.start_travel("--no-deduplication", "--slow-ms", str(SLOW_MS))
        for name in ("agent-1", "agent-2"):
            nodes.start_agent(name)
        async with nodes.client() as client:
            await client.apply_definition(lasting())
            traffic = Traffic(client)
            await agents_connect(client, 2)
            over = asyncio.Event()
            keeping = asyncio.create_task(Trips(traffic).keep(over))
            async with probed(nodes) as probes:
                gaps = {
                    "kill -9 of the leader": [await kill(nodes, probes) for _ in range(kills)],
                    "leadership transfer": [await transfer(nodes, probes) for _ in range(transfers)],
                }
            over.set()
            await keeping
            print(await judged(nodes, traffic))
    return gaps


def told(gaps_s: list[float]) -> str:
    """Figures of one kind, in one line."""
    each = " ".join(f"{gap_s:.2f}" for gap_s in sorted(gaps_s))
    return f"{len(gaps_s)} times: median {statistics.median(gaps_s):.2f} s, maximum {max(gaps_s):.2f} s ({each})"


def main() -> None:
    """Measure, and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--transfers", type=int, default=5)
    given = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="stepward-failovers-"))
    print(folder)
    found = asyncio.run(measure(folder, kills=given.kills, transfers=given.transfers))
    # Kept only when something was wrong.
    shutil.rmtree(folder)
    for kind, gaps_s in found.items():
        if gaps_s:
            print(f"{kind}, {told(gaps_s)}")


if __name__ == "__main__":
    main()
