"""Nodes behind which lie very many jobs that have ended: they start as quickly as others, and run nothing again."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import psutil
import pytest

from stepward.agents import Agent, Context
from stepward.client import AsyncClient, Definition, JobState
from stepward.server.logbook.outbox import ReplicaLimits
from tests.agents.test_agent_live import serving
from tests.cluster.long_past import ACTION, past_job_id, write_past
from tests.cluster.nodes import NODE_IDS, Nodes
from tests.cluster.rig import until
from tests.cluster.traffic import agents_connect

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

PAST = 100_000
LIVE = 100
CRASHES = 5
# The bound of the scenario, in which a busy machine has room.
READY_S_MAX = 30.0
# Against a node of a new cluster: most of a start is what every start is; to look at each row would cost twice as much.
CPU_TIMES_MAX = 2.0
# What is in memory beside that: the log, as long as it may be, and the pages that it was read from.
MORE_BYTES_MAX = 2 * ReplicaLimits().journal_bytes_max + (32 << 20)
S_MAX = 60.0


class Start(NamedTuple):
    """What a start has cost until the node said that it was ready."""

    took_s: float
    cpu_s: float
    memory_bytes: int


def start(nodes: Nodes, name: str) -> Start:
    """Start a node."""
    began_at = time.monotonic()
    nodes.start_nodes(name)
    process = psutil.Process(nodes.nodes[name].pid)
    times = process.cpu_times()
    took_s = time.monotonic() - began_at
    return Start(took_s, times.user + times.system, process.memory_full_info().uss)


class Hands:
    """An agent whose work lasts until it is let go; how often it began for each job."""

    def __init__(self) -> None:
        self.let_go = asyncio.Event()
        self.begun: Counter[str] = Counter()
        self.agent = Agent(slots=2 * LIVE)
        for action in ("hold", ACTION):
            self.agent.action(action)(self._work)

    async def _work(self, ctx: Context) -> None:
        self.begun[ctx.job_id] += 1
        await self.let_go.wait()


async def begin(client: AsyncClient, hands: Hands) -> list[str]:
    """Let so many jobs be at work. Returns their ids."""
    definition = Definition("hold")
    definition.step("hold")
    await client.apply_definition(definition)
    await agents_connect(client, 1)
    job_ids = [one.job_id for one in await asyncio.gather(*(client.submit("hold") for _ in range(LIVE)))]
    await until(lambda: len(hands.begun) >= LIVE, seconds_max=S_MAX, what=f"{LIVE} jobs are at work")
    return job_ids


async def test_h101_nodes_with_a_long_past_start_within_seconds_again_and_again(tmp_path: Path) -> None:
    """All three at first, then one that crashes whenever it is ready; nobody is disturbed, and nothing runs again."""
    with Nodes(tmp_path / "new") as new:
        fresh = start(new, NODE_IDS[0])
    await asyncio.to_thread(write_past, tmp_path / "old", PAST)
    hands = Hands()
    with Nodes(tmp_path / "old") as nodes:
        starts = list(await asyncio.gather(*(asyncio.to_thread(start, nodes, name) for name in NODE_IDS)))
        await nodes.whole()
        leader = await nodes.leader()
        crashing = nodes.others(leader)[0]
        async with nodes.client() as client, serving(hands.agent, *nodes.addresses.values()):
            job_ids = await begin(client, hands)
            term = (await nodes.statuses(leader))[leader].term
            for _ in range(CRASHES):
                nodes.nodes[crashing].kill()
                starts.append(await asyncio.to_thread(start, nodes, crashing))
            await nodes.whole()
            after = (await nodes.statuses(leader))[leader]
            hands.let_go.set()
            ends = [await client.wait(job_id, wait_max_s=S_MAX) for job_id in job_ids]
            counts = await client.count()
            old = await client.get(past_job_id(PAST // 2))
        await nodes.level()
        size_bytes = (nodes.directories[crashing] / "data.mdb").stat().st_size
    print(
        f"{size_bytes >> 20} MiB of data; "
        + "; ".join(f"{s:.1f} s, {c:.1f} s of CPU, {m >> 20} MiB" for s, c, m in (fresh, *starts))
    )

    assert max(one.took_s for one in starts) < READY_S_MAX
    assert max(one.cpu_s for one in starts) < CPU_TIMES_MAX * fresh.cpu_s
    assert max(one.memory_bytes for one in starts) < min(2 * size_bytes, fresh.memory_bytes + MORE_BYTES_MAX)
    # One that comes and goes has changed nothing for the others.
    assert (after.leader, after.term) == (True, term)
    assert hands.begun == Counter(job_ids)
    assert [(end.state, end.job.step("hold").attempts) for end in ends] == [(JobState.COMPLETED, 1)] * LIVE
    assert counts.by_state == {JobState.COMPLETED: PAST + LIVE}
    assert (old.state, old.output) == (JobState.COMPLETED, {"booking": "LHR-TRN"})
