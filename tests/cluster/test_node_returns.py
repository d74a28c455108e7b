"""A node comes back to a cluster that has gone on: with nothing, or with less than the others' logs still tell."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.cluster.nodes import NODE_IDS, Nodes, calls_made, judged
from tests.cluster.traffic import Traffic, agents_connect

TRIPS = 60
SLOW_MS = 30
# A log that a second of traffic goes beyond.
ENTRIES_MAX = 16


def rows_were_fetched(nodes: Nodes, name: str) -> bool:
    return "rows_installed" in (nodes.folder / f"{name}.log").read_text()


@pytest.mark.parametrize("lost", ["nothing", "everything"])
@pytest.mark.slow
@pytest.mark.timeout(180)
async def test_node_that_comes_back_holds_what_the_others_hold(tmp_path: Path, lost: str) -> None:
    """It fetches all rows, takes part again, and can be relied on: the next to go is another, and trips go on."""
    modules = dict.fromkeys(NODE_IDS, ("tests.faults.small_journal", str(ENTRIES_MAX)))
    with Nodes(tmp_path, modules=modules) as nodes:
        nodes.start_nodes()
        nodes.start_travel("--no-deduplication", "--slow-ms", str(SLOW_MS))
        for name in ("agent-1", "agent-2"):
            nodes.start_agent(name)
        async with nodes.client() as client:
            traffic = Traffic(client)
            await agents_connect(client, 2)
            leader = await nodes.leader()
            gone, stays = nodes.others(leader)
            nodes.nodes[gone].kill()
            if lost == "everything":
                nodes.wipe(gone)
            await traffic.submit(TRIPS)
            await traffic.ended(seconds_max=60)
            submitting = asyncio.create_task(traffic.submit(TRIPS))
            await calls_made(nodes, TRIPS)
            await asyncio.to_thread(nodes.start_nodes, gone)
            await submitting
            await traffic.ended(seconds_max=60)
            await nodes.takes_part(gone)
            nodes.nodes[stays].kill()
            await traffic.submit(TRIPS)
            await traffic.ended(seconds_max=60)
            await nodes.level(leader, gone)
            await asyncio.to_thread(nodes.start_nodes, stays)
            print(await judged(nodes, traffic))

        assert rows_were_fetched(nodes, gone)
