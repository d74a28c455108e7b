"""The wall clock of the leader jumps while trips are made: nothing that lasts is measured by it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.cluster.nodes import NODE_IDS, Nodes, calls_made, judged
from tests.cluster.traffic import Traffic, agents_connect
from tests.faults.wall_clock import WallClock

TRIPS = 60
SLOW_MS = 30
HOUR_S = 3_600.0


@pytest.mark.slow
async def test_h007_jumps_of_the_leaders_wall_clock_change_nothing(tmp_path: Path) -> None:
    """An hour ahead, two back, then as before: no lease ends, nobody else is elected, every retry comes in time."""
    clocks = {name: WallClock(tmp_path, name) for name in NODE_IDS}
    with Nodes(tmp_path, prefixes={name: clock.prefix for name, clock in clocks.items()}) as nodes:
        nodes.start_nodes()
        nodes.start_travel("--no-deduplication", "--slow-ms", str(SLOW_MS))
        for name in ("agent-1", "agent-2"):
            nodes.start_agent(name)
        async with nodes.client() as client:
            traffic = Traffic(client)
            await agents_connect(client, 2)
            leader = await nodes.leader()
            term = (await nodes.statuses(leader))[leader].term
            for ahead_s in (HOUR_S, -HOUR_S, 0.0):
                submitting = asyncio.create_task(traffic.submit(TRIPS))
                await calls_made(nodes, TRIPS)
                clocks[leader].set(ahead_s)
                async with asyncio.timeout(60):
                    await submitting
                # A retry waits two seconds at most; an hour would be noticed.
                await traffic.ended(seconds_max=60)
            jobs = await traffic.jobs()
            after = await nodes.statuses()
            print(await judged(nodes, traffic))
    for clock in clocks.values():
        clock.close()

    assert {name: (status.term, status.leader_id) for name, status in after.items()} == dict.fromkeys(
        NODE_IDS, (term, leader)
    )
    # The jump was seen: the cluster's own wall clock, which dates jobs, goes ahead with it, and never back.
    dates = sorted(job.submitted_at for job in jobs.values() if job.submitted_at is not None)
    assert (dates[-1] - dates[0]).total_seconds() >= HOUR_S
