"""What three nodes cost while nothing happens: `make idle MINUTES=10`.

Nobody calls them. What is measured is processor time, resident memory, and the blocks that each node's directory has on
disk, all as the kernel tells them. The log grows until it is as long as it may be; a few calls bring it there, and only
what happens behind that counts.
"""

from __future__ import annotations

import argparse
import asyncio
import shutil
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psutil

from stepward.client.definition import Definition
from stepward.server.logbook.outbox import ReplicaLimits
from tests.cluster.nodes import NODE_IDS, Nodes

# Of one processor.
CPU_PERCENT_MAX: Final = 3.0
EVERY_S: Final = 10.0
BLOCK_BYTES: Final = 512
# Between the last call and the first look: connections are gone, and at the pace of rest the log was cut once, for
# which the store may need another page.
QUIET_S: Final = 30.0
# One to fill the log, and one for what it needs while it is cut.
CALLS: Final = 2 * ReplicaLimits().held_entries_max


@dataclass(frozen=True)
class Look:
    """What one node has used up to a moment, and has then."""

    at_s: float
    cpu_s: float
    rss_bytes: int
    disk_bytes: int


@dataclass(frozen=True)
class Cost:
    """What one node used between two looks."""

    cpu_percent: float
    rss_bytes: int
    disk_bytes: int
    disk_grown_bytes: int


def look(pid: int, directory: Path) -> Look:
    """What a process has used, and its directory has on disk."""
    process = psutil.Process(pid)
    with process.oneshot():
        times, memory = process.cpu_times(), process.memory_info()
    blocks = sum(path.stat().st_blocks for path in directory.rglob("*") if path.is_file())
    return Look(time.monotonic(), times.user + times.system, memory.rss, blocks * BLOCK_BYTES)


def between(before: Look, after: Look) -> Cost:
    """What was used from one look to another."""
    cpu_percent = 100 * (after.cpu_s - before.cpu_s) / (after.at_s - before.at_s)
    return Cost(cpu_percent, after.rss_bytes, after.disk_bytes, after.disk_bytes - before.disk_bytes)


def looks(nodes: Nodes) -> dict[str, Look]:
    return {name: look(nodes.nodes[name].pid, nodes.directories[name]) for name in NODE_IDS}


async def settle(nodes: Nodes, quiet_s: float) -> str:
    """Let the log become as long as it may be, and everybody go; returns who leads."""
    async with nodes.client() as client:
        for number in range(CALLS):
            definition = Definition("idle")
            # Each is another version, and so a batch.
            definition.step("wait", queue=f"nobody-{number}")
            await client.apply_definition(definition)
    await nodes.whole()
    await nodes.level()
    for name, status in (await nodes.statuses()).items():
        assert status.log_first_index > 1, f"{name} has kept its whole log, up to {status.log_last_index}"
    await asyncio.sleep(quiet_s)
    return await nodes.leader()


def told(costs: Mapping[str, Cost], leader: str) -> str:
    """One row of the table."""
    each = (
        f"{name}{'*' if name == leader else ' '} {cost.cpu_percent:4.1f}% {cost.rss_bytes >> 20:4d} MiB "
        f"{cost.disk_bytes >> 10:6d} kB {cost.disk_grown_bytes >> 10:+4d}"
        for name, cost in costs.items()
    )
    return " | ".join(each)


async def measure(
    nodes: Nodes, seconds: float, *, every_s: float = EVERY_S, quiet_s: float = QUIET_S
) -> dict[str, Cost]:
    """What each node costs for so long, told in between; and how many elections there were.

    Those are no fault of a node's when all processes of the machine stood still at once, which a busy one's do.
    """
    leader = await settle(nodes, quiet_s)
    elections = await elections_of(nodes)
    first = before = looks(nodes)
    began_at_s = time.monotonic()
    print("     (* leads; processor, resident, on disk, grown since the row before)")
    while (left_s := began_at_s + seconds - time.monotonic()) > 0:
        await asyncio.sleep(min(every_s, left_s))
        now = looks(nodes)
        print(f"{time.monotonic() - began_at_s:4.0f} s {told(_costs(before, now), leader)}", flush=True)
        before, leader = now, await nodes.leader()
    found = _costs(first, before)
    print(f"whole  {told(found, leader)}; {await elections_of(nodes) - elections} elections")
    return found


async def elections_of(nodes: Nodes) -> int:
    """In how many all nodes have stood since they started."""
    return sum(status.elections for status in (await nodes.statuses(*NODE_IDS)).values())


def _costs(before: Mapping[str, Look], after: Mapping[str, Look]) -> dict[str, Cost]:
    return {name: between(before[name], after[name]) for name in NODE_IDS}


def breaches(
    costs: Mapping[str, Cost], *, cpu_percent_max: float = CPU_PERCENT_MAX, grown_bytes_max: int = 0
) -> Sequence[str]:
    """What is over its bound, in words."""
    found = [
        f"{name} took {cost.cpu_percent:.1f}% of a processor while nothing happened; at most {cpu_percent_max:g} may be"
        for name, cost in costs.items()
        if cost.cpu_percent > cpu_percent_max
    ]
    found += [
        f"{name} has {cost.disk_grown_bytes} bytes more on disk than before, and nothing had happened"
        for name, cost in costs.items()
        if cost.disk_grown_bytes > grown_bytes_max
    ]
    return found


async def run(folder: Path, seconds: float) -> Sequence[str]:
    with Nodes(folder) as nodes:
        nodes.start_nodes()
        return breaches(await measure(nodes, seconds))


def main() -> None:
    """Measure, and fail when something is over its bound."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    given = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="stepward-idle-"))
    print(folder)
    found = asyncio.run(run(folder, given.minutes * 60))
    if found:
        raise SystemExit("\n".join(found))
    # Kept only when something was wrong.
    shutil.rmtree(folder)


if __name__ == "__main__":
    main()
