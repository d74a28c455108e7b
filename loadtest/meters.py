"""Read what was used: processor time and memory of processes from /proc, and the counters of a server.

A server tells its counters in the trailing metadata of `ClusterService.GetStatus`, so that the contract stays free of
them: they change as the inside does.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import grpc.aio

from stepward.v1 import cluster_service_pb2, cluster_service_pb2_grpc
from stepward.v1.common_pb2 import JobState

TICKS_PER_S = os.sysconf("SC_CLK_TCK")

# A JSON object of numbers.
COUNTERS_KEY = "stepward-counters-bin"

CALL_S_MAX = 10.0

# A follower is behind by what is on its way; when nothing is submitted any more that has soon arrived.
EQUAL_S_MAX = 10.0
LOOK_EVERY_S = 0.02


@dataclass(frozen=True, kw_only=True)
class Reading:
    """What had been used at one moment, since each process began."""

    cpu_ms: Mapping[str, float]
    """By name of the process."""
    counters: Mapping[str, int]
    """Of the server."""


def cpu_ms(pid: int) -> float:
    """Processor time of a process with all its threads, in user and system mode."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_S * 1000


def peak_memory_mb(pid: int) -> float:
    """The most memory that a process ever held."""
    for line in Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1024
    return 0.0


async def status(channel: grpc.aio.Channel) -> tuple[cluster_service_pb2.GetStatusResponse, dict[str, int]]:
    """What a server says of itself, and its counters."""
    stub = cluster_service_pb2_grpc.ClusterServiceStub(channel)
    call = stub.GetStatus(cluster_service_pb2.GetStatusRequest(), timeout=CALL_S_MAX)
    response = await call
    counters: dict[str, int] = {}
    for key, value in await call.trailing_metadata() or ():
        if key == COUNTERS_KEY:
            counters.update(json.loads(value))
    return response, counters


async def read(channel: grpc.aio.Channel, pids: Mapping[str, int]) -> Reading:
    """All meters at this moment."""
    _, counters = await status(channel)
    return Reading(cpu_ms={name: cpu_ms(pid) for name, pid in pids.items()}, counters=counters)


async def elections(channels: Sequence[grpc.aio.Channel]) -> int:
    """In how many elections the nodes have stood, together."""
    statuses = [await status(channel) for channel in channels]
    return sum(shard.elections for response, _ in statuses for shard in response.shards)


async def become_equal(channels: Sequence[grpc.aio.Channel]) -> bool:
    """Whether all nodes hold the same batches within a bound; the supervisor writes one now and then."""
    until = time.monotonic() + EQUAL_S_MAX
    while time.monotonic() < until:
        statuses = await asyncio.gather(*(status(channel) for channel in channels))
        heads = {(shard.sequence, shard.hash) for response, _ in statuses for shard in response.shards}
        if len(heads) == 1:
            return True
        await asyncio.sleep(LOOK_EVERY_S)
    return False


def jobs_by_state(response: cluster_service_pb2.GetStatusResponse) -> dict[str, int]:
    """How many jobs a cluster of one node holds, by state."""
    return {
        JobState.Name(count.state).removeprefix("JOB_STATE_"): count.count
        for shard in response.shards
        for count in shard.jobs
        if count.count
    }
