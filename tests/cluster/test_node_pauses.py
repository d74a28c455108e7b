"""Nodes of a cluster of three stand still (SIGSTOP) in the middle of many trips, and go on as if nothing had been."""

from __future__ import annotations

import asyncio
import random
from datetime import UTC, datetime
from pathlib import Path

import pytest

from stepward.client import AsyncClient, JobState
from stepward.client.errors import Unavailable
from tests.cluster.long_form import run_rounds
from tests.cluster.nodes import Nodes, calls_made, judged
from tests.cluster.test_node_kills import SLOW_MS, TRIPS, UNFINISHED_MIN
from tests.cluster.traffic import Traffic, agents_connect, drawn_seed, trip_input

# Three times as long as the others need to miss a leader; a lease of an agent outlives it.
PAUSE_S = 2.0
# No trip of this number was asked for before.
ASKED_MEANWHILE = 1_000_001


async def read_when_awake(nodes: Nodes, name: str, job_id: str) -> JobState | None:
    """What a node that has just woken up says of a job: nothing (None) until it knows better, never what it knew."""
    async with AsyncClient(nodes.addresses[name], timeout_s=1.0) as client:
        try:
            return (await client.get(job_id)).state
        except Unavailable:
            return None


async def pause_round(nodes: Nodes, traffic: Traffic, chance: random.Random, *, leads: bool) -> int:
    """Let the leader or a follower stand still in traffic. Returns how many jobs were open at that moment."""
    leader = await nodes.leader()
    victim = leader if leads else chance.choice(nodes.others(leader))
    submitting = asyncio.create_task(traffic.submit(TRIPS))
    await calls_made(nodes, chance.randint(10, 2 * TRIPS))
    nodes.nodes[victim].pause()
    paused_at = datetime.now(UTC)
    resumes_at = asyncio.get_running_loop().time() + PAUSE_S
    if leads:
        assert await nodes.leader(*nodes.others(victim)) != victim
    async with nodes.client(*nodes.others(victim)) as client:
        ended = await client.run("trip", trip_input(ASKED_MEANWHILE), wait_max_s=60)
    await asyncio.sleep(resumes_at - asyncio.get_running_loop().time())
    nodes.nodes[victim].resume()
    seen = await asyncio.gather(*(read_when_awake(nodes, victim, ended.job.job_id) for _ in range(10)))
    traffic.acknowledged[ended.job.job_id] = ended.job.state
    async with asyncio.timeout(60):
        await submitting

    assert set(seen) <= {None, ended.job.state}
    return traffic.unfinished_at(paused_at, await traffic.ended(seconds_max=60))


async def pause_rounds(folder: Path, rounds: list[bool], chance: random.Random) -> None:
    """Rounds on one cluster, of the leader or a follower; then everything is judged."""
    with Nodes(folder) as nodes:
        nodes.start_nodes()
        nodes.start_travel("--no-deduplication", "--slow-ms", str(SLOW_MS))
        for name in ("agent-1", "agent-2"):
            nodes.start_agent(name)
        async with nodes.client() as client:
            traffic = Traffic(client)
            await agents_connect(client, 2)
            unfinished = [await pause_round(nodes, traffic, chance, leads=leads) for leads in rounds]
            figures = await judged(nodes, traffic)
        epochs = len(nodes.terms_led())
    print(f"{len(rounds)} pauses, {unfinished} jobs open at each; {figures}")

    # The pauses hit something, and the leader was missed each time.
    assert sum(count >= UNFINISHED_MIN for count in unfinished) >= len(rounds) / 2
    assert epochs > sum(rounds)


@pytest.mark.slow
@pytest.mark.timeout(180)
async def test_h103_leader_that_stood_still_decides_nothing_and_tells_nothing_old(
    tmp_path: Path, only_seed: int | None
) -> None:
    """It wakes up in a term that is over: nothing that it proposes counts, and no read shows what was."""
    await pause_rounds(tmp_path, [True, False, True], drawn_seed(only_seed))


if __name__ == "__main__":
    run_rounds(__doc__, lambda folder, rounds, chance: pause_rounds(folder, [True] * rounds, chance))
