"""Nodes of a cluster of three are killed (SIGKILL) in the middle of many trips, one or all, and started again.

The travel service remembers no keys here, so that a step which runs twice books twice: nothing but the cluster's own
order of write and act keeps the record clean. No agent is ever hit, so that no attempt may be given up.
"""

from __future__ import annotations

import asyncio
import random
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.cluster.long_form import run_rounds
from tests.cluster.nodes import NODE_IDS, Nodes, calls_made, judged
from tests.cluster.traffic import Traffic, agents_connect, drawn_seed

TRIPS = 60
SLOW_MS = 30
# A kill while hardly anything is open shows nothing: such a round does not count.
UNFINISHED_MIN = 10
REPEATS_MAX = 3


async def kill_round(nodes: Nodes, traffic: Traffic, chance: random.Random, whom: str) -> int:
    """Kill in the middle of traffic and start again. Returns how many jobs were open at that moment."""
    submitting = asyncio.create_task(traffic.submit(TRIPS))
    await calls_made(nodes, chance.randint(10, 2 * TRIPS))
    leader = await nodes.leader()
    victims = {"leader": [leader], "follower": [chance.choice(nodes.others(leader))], "all": list(NODE_IDS)}[whom]
    for name in victims:
        nodes.nodes[name].kill()
    killed_at = datetime.now(UTC)
    if whom == "leader":
        assert await nodes.leader(*nodes.others(leader)) != leader
    await asyncio.to_thread(nodes.start_nodes, *victims)
    async with asyncio.timeout(60):
        await submitting
    return traffic.unfinished_at(killed_at, await traffic.ended(seconds_max=60))


async def kill_rounds(folder: Path, rounds: list[str], chance: random.Random) -> None:
    """Rounds on one growing logbook; then everything is judged."""
    with Nodes(folder) as nodes:
        nodes.start_nodes()
        nodes.start_travel("--no-deduplication", "--slow-ms", str(SLOW_MS))
        for name in ("agent-1", "agent-2"):
            nodes.start_agent(name)
        async with nodes.client() as client:
            traffic = Traffic(client)
            await agents_connect(client, 2)
            unfinished = []
            for whom in rounds:
                for _ in range(1 + REPEATS_MAX):
                    unfinished.append(await kill_round(nodes, traffic, chance, whom))
                    if unfinished[-1] >= UNFINISHED_MIN:
                        break
                else:
                    pytest.fail(f"no kill of {whom} came while {UNFINISHED_MIN} jobs were open: {unfinished}")
            figures = await judged(nodes, traffic)
    print(f"{len(unfinished)} kills, {unfinished} jobs open at each; {figures}")


@pytest.mark.timeout(180)
async def test_h051_h079_h082_h105_kills_of_one_and_of_all_lose_nothing(tmp_path: Path, only_seed: int | None) -> None:
    """Leader, follower, all at once: what was acknowledged ends as it must, and no term has two leaders."""
    await kill_rounds(tmp_path, ["leader", "follower", "all"], drawn_seed(only_seed))


if __name__ == "__main__":
    run_rounds(__doc__, lambda folder, rounds, chance: kill_rounds(folder, ["all"] * rounds, chance))
