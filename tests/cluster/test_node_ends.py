"""A process that cannot go on ends, and says why; one whose trouble passes goes on, and is not started again."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from pathlib import Path

import pytest

from stepward.client import AsyncClient, Definition, JobState
from stepward.server.__main__ import EXIT_CANNOT_GO_ON
from tests.cluster.nodes import NODE_IDS, Nodes
from tests.cluster.rig import until
from tests.faults.broken_disk import TOLD

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

S_MAX = 30.0


async def canary(client: AsyncClient) -> None:
    """Something is decided."""
    submitted = await client.submit("waits")
    assert (await client.get(submitted.job_id)).state is JobState.RUNNING


async def define(client: AsyncClient) -> None:
    waits = Definition("waits")
    waits.step("waits", queue="nobody")
    await client.apply_definition(waits)


async def test_h088_node_with_an_unusable_store_ends_with_the_reason(tmp_path: Path) -> None:
    """H088: with another code than 0 and the reason in the last line, for whoever starts it again; others go on."""
    modules = dict.fromkeys(NODE_IDS, ("tests.faults.broken_disk",))
    with Nodes(tmp_path, modules=modules) as nodes:
        nodes.start_nodes()
        await nodes.whole()
        leader = await nodes.leader()
        broken = nodes.nodes[leader]
        os.kill(broken.pid, signal.SIGUSR1)
        await until(lambda: not broken.running, seconds_max=S_MAX, what="the process has ended")
        last = json.loads((tmp_path / f"{leader}.log").read_text().splitlines()[-1])
        async with nodes.client(*nodes.others(leader)) as client:
            await define(client)
            await canary(client)
        # What starts it again finds everything that it had promised.
        await asyncio.to_thread(nodes.start_nodes, leader)
        await nodes.level()

    assert broken.exit_code == last["code"] == EXIT_CANNOT_GO_ON
    assert TOLD in last["reason"]
    assert (last["event"], last["level"]) == ("node_failed", "critical")


async def test_h088_node_that_was_alone_for_a_while_goes_on_by_itself(tmp_path: Path) -> None:
    """H088: no leader, no majority, no supervisor, for as long as it takes; nobody starts the process again."""
    with Nodes(tmp_path) as nodes:
        nodes.start_nodes()
        async with nodes.client() as client:
            await define(client)
        await nodes.whole()
        leader = await nodes.leader()
        pid, others = nodes.nodes[leader].pid, nodes.others(leader)
        for _ in range(2):
            for name in others:
                nodes.nodes[name].pause()
            async with asyncio.timeout(S_MAX):
                while (status := await nodes.status(leader)) is None or status.leader:  # noqa: ASYNC110 - it is asked
                    await asyncio.sleep(0.05)
            # Longer than a leader may be without a beat.
            await asyncio.sleep(5.0)
            for name in others:
                nodes.nodes[name].resume()
            await nodes.whole()
            async with nodes.client(leader) as client:
                await canary(client)
        await nodes.level()
        still = nodes.nodes[leader].running

    assert still
    assert nodes.nodes[leader].pid == pid
