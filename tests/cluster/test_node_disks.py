"""What the disks of a cluster of three can do: be slow, hang, and lose what was not flushed."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path

import pytest

from stepward.agents.examples.trip import DEFINITION
from stepward.client.definition_file import load
from stepward.server.flush_guard import EXIT_FLUSH_HANGS
from stepward.server.store.write_ahead import LOG_FILE
from tests.cluster.long_form import run_rounds
from tests.cluster.nodes import NODE_IDS, Nodes, calls_made, judged
from tests.cluster.rig import until
from tests.cluster.traffic import Traffic, agents_connect, drawn_seed
from tests.faults.powercut import PowerCutDisk

TRIPS = 60
SLOW_MS = 30
UNFINISHED_MIN = 10
ROUNDS = 2
# Longer than a leader may take for a flush (0.6 s), and as if for ever.
FLUSH_MS_SLOW = 800
FLUSH_MS_HANGING = 60_000
# A disk that hangs is given up after this; ten seconds by default.
FLUSH_MS_MAX = 3_000
# With less than 256 MiB of free space a node writes no log in front of its data. The rest is for what the rounds leave.
DISK_MIB = 384
DISK_MIB_A_ROUND = 8


async def with_slow_leader(nodes: Nodes, traffic: Traffic) -> str:
    """Trips on the way, the leader's disk slow, another leader at work. Returns who led."""
    leader = await nodes.leader()
    submitting = asyncio.create_task(traffic.submit(TRIPS))
    await calls_made(nodes, TRIPS)
    os.kill(nodes.nodes[leader].pid, signal.SIGUSR1)
    assert await nodes.leader(*nodes.others(leader)) != leader
    await calls_made(nodes, TRIPS)
    async with asyncio.timeout(60):
        await submitting
    return leader


@contextmanager
def at_work(folder: Path, flush_ms: int, *options: str) -> Iterator[Nodes]:
    """A cluster whose disks can be made slow, with agents."""
    modules = {name: ("tests.faults.slow_disk", str(flush_ms)) for name in NODE_IDS}
    with Nodes(folder, modules=modules, options=options) as nodes:
        nodes.start_nodes()
        nodes.start_travel("--no-deduplication", "--slow-ms", str(SLOW_MS))
        for name in ("agent-1", "agent-2"):
            nodes.start_agent(name)
        yield nodes


@pytest.mark.slow
async def test_h076_leader_with_a_slow_disk_lets_another_lead(tmp_path: Path) -> None:
    """It gives up by itself, goes on as a follower, and holds what the others hold when its disk is well again."""
    with at_work(tmp_path, FLUSH_MS_SLOW) as nodes:
        async with nodes.client() as client:
            traffic = Traffic(client)
            await agents_connect(client, 2)
            slow = await with_slow_leader(nodes, traffic)
            assert nodes.nodes[slow].running
            os.kill(nodes.nodes[slow].pid, signal.SIGUSR2)
            print(await judged(nodes, traffic))


@pytest.mark.slow
async def test_h076_leader_whose_disk_hangs_is_replaced_and_ends(tmp_path: Path) -> None:
    """Nothing can be written there, so another leads within moments; and the process ends with the reason."""
    configuration = tmp_path / "limits.toml"
    configuration.write_text(f"[limits]\nflush_ms_max = {FLUSH_MS_MAX}\n")
    with at_work(tmp_path, FLUSH_MS_HANGING, "--config", str(configuration)) as nodes:
        async with nodes.client() as client:
            traffic = Traffic(client)
            await agents_connect(client, 2)
            hung = await with_slow_leader(nodes, traffic)
            child = nodes.nodes[hung]
            await until(lambda: not child.running, seconds_max=3 * FLUSH_MS_MAX / 1_000, what="the process has ended")
            assert child.exit_code == EXIT_FLUSH_HANGS
            await asyncio.to_thread(nodes.start_nodes, hung)
            print(await judged(nodes, traffic))


def lose_power(nodes: Nodes, disks: Mapping[str, PowerCutDisk]) -> datetime:
    """Cut the power of all, and find the disks as machines do that start again. Returns the moment of the cut."""
    for disk in disks.values():
        disk.cut()
    cut_at = datetime.now(UTC)
    # What they do with disks that fail is their own affair; here the machines are gone.
    for name in NODE_IDS:
        nodes.nodes[name].kill()
    for disk in disks.values():
        disk.restore()
    return cut_at


async def cut_round(nodes: Nodes, disks: Mapping[str, PowerCutDisk], traffic: Traffic, chance: random.Random) -> int:
    """Cut the power of all in the middle of traffic, and start again. Returns how many jobs were open then."""
    submitting = asyncio.create_task(traffic.submit(TRIPS))
    await calls_made(nodes, chance.randint(10, 2 * TRIPS))
    cut_at = lose_power(nodes, disks)
    await asyncio.to_thread(nodes.start_nodes)
    async with asyncio.timeout(60):
        await submitting
    return traffic.unfinished_at(cut_at, await traffic.ended(seconds_max=60))


@contextmanager
def three_disks(folder: Path, *, mebibytes: int = DISK_MIB) -> Iterator[dict[str, PowerCutDisk]]:
    """A disk for each node whose power can be cut."""
    with ExitStack() as opened:
        disks = {}
        for name in NODE_IDS:
            workplace = folder / f"disk-{name}"
            workplace.mkdir()
            disks[name] = opened.enter_context(PowerCutDisk(workplace, mebibytes=mebibytes))
        yield disks


def write_logs(disks: dict[str, PowerCutDisk]) -> bool:
    """Whether every node has a log in front of its data: it has none where there is little room."""
    return all(any(disk.folder.rglob(LOG_FILE)) for disk in disks.values())


async def cut_rounds(folder: Path, rounds: int, chance: random.Random) -> None:
    """Power cuts of all three disks on one growing logbook; then everything is judged."""
    with (
        three_disks(folder, mebibytes=DISK_MIB + DISK_MIB_A_ROUND * rounds) as disks,
        Nodes(folder, disks={name: disk.folder for name, disk in disks.items()}) as nodes,
    ):
        nodes.start_nodes()
        nodes.start_travel("--no-deduplication", "--slow-ms", str(SLOW_MS))
        for name in ("agent-1", "agent-2"):
            nodes.start_agent(name)
        async with nodes.client() as client:
            traffic = Traffic(client)
            await agents_connect(client, 2)
            unfinished = [await cut_round(nodes, disks, traffic, chance) for _ in range(rounds)]
            figures = await judged(nodes, traffic)
            assert write_logs(disks)
    print(f"{rounds} cuts of all three, {unfinished} jobs open at each; {figures}")

    assert sum(count >= UNFINISHED_MIN for count in unfinished) > rounds / 2


@pytest.mark.root
@pytest.mark.timeout(300)
async def test_h081_power_cut_of_all_three_loses_nothing(tmp_path: Path, only_seed: int | None) -> None:
    """Whoever was told yes was told so when it was on the disks of two."""
    await cut_rounds(tmp_path, ROUNDS, drawn_seed(only_seed))


@pytest.mark.root
async def test_h081_power_cut_shows_what_was_not_flushed(tmp_path: Path) -> None:
    """The same with nodes that only say that they flush: what was acknowledged is gone."""
    with three_disks(tmp_path) as disks:
        lazy = dict.fromkeys(NODE_IDS, ("tests.faults.lazy_disk",))
        places = {name: disk.folder for name, disk in disks.items()}
        with Nodes(tmp_path, disks=places, modules=lazy) as nodes:
            nodes.start_nodes()
            async with nodes.client() as client:
                await client.apply_definition(load(DEFINITION))
                acknowledged = await Traffic(client).submit(TRIPS)
                lose_power(nodes, disks)
                nodes.modules.clear()
                await asyncio.to_thread(nodes.start_nodes)
                await nodes.leader()
                left = {job.job_id async for job in client.list()}

    assert not left.issuperset(acknowledged)


if __name__ == "__main__":
    run_rounds(__doc__, cut_rounds)
