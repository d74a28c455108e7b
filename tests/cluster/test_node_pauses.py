"""Nodes of a cluster of three stand still (SIGSTOP) in the middle of many trips, and go on as if nothing had been.

Some steps fall due meanwhile, so that the leader that stood still and the next one both want to remedy them.
"""

from __future__ import annotations

import asyncio
import random
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import pytest

from stepward.client import AsyncClient, JobState
from stepward.client.errors import Unavailable
from tests.agents.test_agent_live import serving
from tests.cluster import remedy_witness
from tests.cluster.hurried import Hit, Hurried
from tests.cluster.long_form import run_rounds
from tests.cluster.nodes import NODE_IDS, Nodes, calls_made, judged
from tests.cluster.test_node_kills import SLOW_MS, TRIPS, UNFINISHED_MIN
from tests.cluster.traffic import Traffic, agents_connect, drawn_seed, trip_input

# Three times as long as the others need to miss a leader; a lease of an agent outlives it.
PAUSE_S = 2.0
# How often a leader stands still in the worst moment: its supervisor has decided, and nobody has heard of it. At any
# other time under load a batch is on its way, behind which a leader that wakes up can decide nothing more.
DECIDING_SHARE = 0.6
# Trips until then; on a machine that needs longer than that, those that were submitted last are open for longer, too.
TRIPS_A_LOT = 10
LOT_EVERY_S = 0.05
LOTS_MAX = 40
# No trip of this number was asked for before.
ASKED_MEANWHILE = 1_000_001


class Paused(NamedTuple):
    """One round: how many trips were open when a node stood still, which jobs hung, and the epoch that it knew."""

    unfinished: int
    hung: list[str]
    epoch: int


async def read_when_awake(nodes: Nodes, name: str, job_id: str) -> JobState | None:
    """What a node that has just woken up says of a job: nothing (None) until it knows better, never what it knew."""
    async with AsyncClient(nodes.addresses[name], timeout_s=1.0) as client:
        try:
            return (await client.get(job_id)).state
        except Unavailable:
            return None


async def pause_round(
    nodes: Nodes, traffic: Traffic, hurried: Hurried, chance: random.Random, *, leads: bool
) -> Paused:
    """Let the leader or a follower stand still in traffic, while steps fall due."""
    leader = await nodes.leader()
    victim = leader if leads else chance.choice(nodes.others(leader))
    status = await nodes.status(victim)
    assert status is not None
    submitting: asyncio.Task[list[str]] | asyncio.Task[None]
    if leads and chance.random() < DECIDING_SHARE:
        hurried.stop_next_decider()
        hung = await hurried.hang()
        stopped = asyncio.Event()
        submitting = asyncio.create_task(submit_until(stopped, traffic))
        victim = await hurried.decider_stopped()
        paused_at = datetime.now(UTC)
        stopped.set()
        await hurried.remedied_by_another(victim, hung)
    else:
        submitting = asyncio.create_task(traffic.submit(TRIPS))
        await calls_made(nodes, chance.randint(10, 2 * TRIPS))
        hung = await hurried.hang()
        nodes.nodes[victim].pause()
        paused_at = datetime.now(UTC)
    await stand_still(nodes, traffic, victim, leads=leads)
    async with asyncio.timeout(60):
        await submitting
    unfinished = traffic.unfinished_at(paused_at, await traffic.ended(seconds_max=60))
    return Paused(unfinished, hung, status.epoch)


async def submit_until(stopped: asyncio.Event, traffic: Traffic) -> None:
    """Submit trips all the time: when a leader decides is its own affair, and some have to be open then."""
    async with asyncio.TaskGroup() as lots:
        for _ in range(LOTS_MAX):
            lots.create_task(traffic.submit(TRIPS_A_LOT))
            with suppress(TimeoutError):
                async with asyncio.timeout(LOT_EVERY_S):
                    await stopped.wait()
            if stopped.is_set():
                return


async def stand_still(nodes: Nodes, traffic: Traffic, victim: str, *, leads: bool) -> None:
    """For so long that the others miss it for certain; then it knows nothing better than they do."""
    resumes_at = asyncio.get_running_loop().time() + PAUSE_S
    if leads:
        assert await nodes.leader(*nodes.others(victim)) != victim
    async with nodes.client(*nodes.others(victim)) as client:
        ended = await client.run("trip", trip_input(ASKED_MEANWHILE), wait_max_s=60)
    await asyncio.sleep(resumes_at - asyncio.get_running_loop().time())
    nodes.nodes[victim].resume()
    seen = await asyncio.gather(*(read_when_awake(nodes, victim, ended.job.job_id) for _ in range(10)))
    traffic.acknowledged[ended.job.job_id] = ended.job.state

    assert set(seen) <= {None, ended.job.state}


async def pause_rounds(folder: Path, rounds: list[bool], chance: random.Random) -> None:
    """Rounds on one cluster, of the leader or a follower; then everything is judged."""
    with Nodes(folder, modules=dict.fromkeys(NODE_IDS, (remedy_witness.MODULE, str(folder)))) as nodes:
        nodes.start_nodes()
        nodes.start_travel("--no-deduplication", "--slow-ms", str(SLOW_MS))
        for name in ("agent-1", "agent-2"):
            nodes.start_agent(name)
        async with nodes.client() as client:
            traffic, hurried = Traffic(client), Hurried(client, folder)
            await hurried.define()
            async with serving(hurried.agent, *nodes.addresses.values()):
                await agents_connect(client, 3)
                paused = [await pause_round(nodes, traffic, hurried, chance, leads=leads) for leads in rounds]
                figures = await judged(nodes, traffic)
                hits = [Hit(one.hung, one.epoch) for one, leads in zip(paused, rounds, strict=True) if leads]
                remedies = await hurried.judged(hits)
        epochs = len(nodes.terms_led())
    print(f"{len(rounds)} pauses, {[one.unfinished for one in paused]} jobs open at each; {figures}; {remedies}")

    # The pauses hit something, and the leader was missed each time.
    assert sum(one.unfinished >= UNFINISHED_MIN for one in paused) >= len(rounds) / 2
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
