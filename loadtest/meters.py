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
    written_bytes: Mapping[str, int]
    """What each process has given to its disk, in whole pages."""
    counters: Mapping[str, int]
    """Of the server at which jobs are submitted."""


def cpu_ms(pid: int) -> float:
    """Processor time of a process with all its threads, in user and system mode."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS_PER_S * 1000


def written_bytes(pid: int) -> int:
    """What a process has given to disks. A page counts each time that it becomes dirty, and as a whole."""
    return _field(Path(f"/proc/{pid}/io"), "write_bytes:")


def peak_memory_mb(pid: int) -> float:
    """The most memory that a process ever held; the pages of files that it has mapped count, too."""
    return _field(Path(f"/proc/{pid}/status"), "VmHWM:") / 1024


def resident_mb(pid: int) -> float:
    """The memory that a process holds; the pages of files that it has mapped count, too."""
    return _field(Path(f"/proc/{pid}/status"), "VmRSS:") / 1024


def own_memory_mb(pid: int) -> float:
    """What a process holds of its own: no pages of files, which the system takes back when it needs them."""
    return _field(Path(f"/proc/{pid}/status"), "RssAnon:") / 1024


def _field(path: Path, name: str) -> int:
    """The number that stands behind a name."""
    for line in path.read_text(encoding="utf-8").splitlines():
        if line.startswith(name):
            return int(line.split()[1])
    raise LookupError(f"{path} has no {name}")


async def status(channel: grpc.aio.Channel) -> tuple[cluster_service_pb2.GetStatusResponse, dict[str, int]]:
    """What a server says of itself, and its counters."""
    stub = cluster_service_pb2_grpc.ClusterServiceStub(channel)
    # A node that was started again is only there when the channel looks again.
    call = stub.GetStatus(cluster_service_pb2.GetStatusRequest(), timeout=CALL_S_MAX, wait_for_ready=True)
    response = await call
    counters: dict[str, int] = {}
    for key, value in await call.trailing_metadata() or ():
        if key == COUNTERS_KEY:
            counters.update(json.loads(value))
    return response, counters


async def read(channel: grpc.aio.Channel, pids: Mapping[str, int]) -> Reading:
    """All meters at this moment."""
    _, counters = await status(channel)
    return Reading(
        cpu_ms={name: cpu_ms(pid) for name, pid in pids.items()},
        written_bytes={name: written_bytes(pid) for name, pid in pids.items()},
        counters=counters,
    )


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
    """How many jobs a node holds, by state."""
    return {
        JobState.Name(count.state).removeprefix("JOB_STATE_"): count.count
        for shard in response.shards
        for count in shard.jobs
        if count.count
    }
