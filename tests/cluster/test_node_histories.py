"""Whoever calls whichever node sees one cluster: all answers fit one order of calls, whatever happens to nodes."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from tests.cluster.callers import CALLERS_A_NODE, Callers, lasting
from tests.cluster.long_form import run_rounds
from tests.cluster.nodes import NODE_IDS, Nodes
from tests.cluster.traffic import drawn_seed

# Between two faults: long enough that all callers are answered again.
QUIET_S = 1.0
PAUSE_S = 1.5
# Of each kind of answer, at least: a run in which hardly anything was answered shows nothing.
ANSWERS_MIN = 50

Fault = Callable[[Nodes, str], Awaitable[None]]


async def kill(nodes: Nodes, name: str) -> None:
    nodes.nodes[name].kill()
    await nodes.leader(*nodes.others(name))
    await asyncio.to_thread(nodes.start_nodes, name)


async def kill_all(nodes: Nodes, name: str) -> None:
    for one in NODE_IDS:
        nodes.nodes[one].kill()
    await asyncio.to_thread(nodes.start_nodes)


async def pause(nodes: Nodes, name: str) -> None:
    nodes.nodes[name].pause()
    await asyncio.sleep(PAUSE_S)
    nodes.nodes[name].resume()


async def histories(folder: Path, faults: list[Fault], chance: random.Random) -> None:
    """Calls on all nodes while faults befall whoever leads; then every key's history is judged."""
    with Nodes(folder) as nodes:
        nodes.start_nodes()
        async with nodes.client() as client:
            await client.apply_definition(lasting())
        callers, over = Callers(nodes, chance), asyncio.Event()
        calling = asyncio.create_task(callers.call(over))
        for fault in faults:
            await asyncio.sleep(QUIET_S)
            await fault(nodes, await nodes.leader())
        await asyncio.sleep(QUIET_S)
        over.set()
        await calling
        await nodes.level()
    found = callers.findings()
    longest = max(len(history) for history in callers.histories.values())
    print(f"{len(callers.histories)} keys, {longest} calls on one at most, {dict(callers.answers)}")

    assert {key: (callers.histories[key], finding.longest) for key, finding in found.items()} == {}
    assert min(callers.answers[kind] for kind in ("Submitted", "Seen", "Listed", "Cancelled")) >= ANSWERS_MIN
    # The faults hit calls on their way.
    assert callers.answers["Unreachable"] + callers.answers["NoAnswerInTime"] >= CALLERS_A_NODE


@pytest.mark.timeout(180)
async def test_h048_h050_h098_h106_calls_on_all_nodes_fit_one_order(tmp_path: Path, only_seed: int | None) -> None:
    """One key makes one job; what was acknowledged is found and listed at once, at every node; nothing old is shown."""
    await histories(tmp_path, [kill, pause, kill_all], drawn_seed(only_seed))


async def many(folder: Path, rounds: int, chance: random.Random) -> None:
    """Rounds of every fault."""
    await histories(folder, [kill, pause, pause, kill_all] * rounds, chance)


if __name__ == "__main__":
    run_rounds(__doc__, many)
