"""Three nodes on three hosts whose wires are cut, in one direction too, and slow and lossy, in the middle of trips."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.cluster.nodes import NODE_IDS, Nodes, calls_made, judged
from tests.cluster.traffic import Traffic, agents_connect, expected, trip_input
from tests.faults.network import OUTSIDE, Network

pytestmark = [pytest.mark.root, pytest.mark.timeout(180)]

PORT = 7_654
TRIPS = 60
SLOW_MS = 30
UNFINISHED_MIN = 10
# Longer than it takes to miss a leader twice, and shorter than a lease.
CUT_S = 3.0
# What a follower hears of the leader comes so late.
LAG_MS = 300
READS = 20


class Stage(NamedTuple):
    """Three nodes on hosts of their own; the travel service, agents and clients are outside."""

    network: Network
    nodes: Nodes
    traffic: Traffic


@asynccontextmanager
async def on_three_hosts(folder: Path, *, agents: bool = True) -> AsyncIterator[Stage]:
    """All of it, with agents that are connected unless a test has its own."""
    configuration = folder / "network.toml"
    configuration.write_text("[node]\ntrusted_network = true\n")
    with Network(NODE_IDS) as network:
        addresses = {name: f"{network.addresses[name]}:{PORT}" for name in NODE_IDS}
        prefixes = {name: network.inside(name) for name in NODE_IDS}
        options = ("--config", str(configuration))
        with Nodes(folder, addresses=addresses, prefixes=prefixes, options=options) as nodes:
            nodes.start_nodes()
            nodes.start_travel("--no-deduplication", "--slow-ms", str(SLOW_MS))
            names = ("agent-1", "agent-2") if agents else ()
            for name in names:
                nodes.start_agent(name)
            async with nodes.client() as client:
                await agents_connect(client, len(names))
                yield Stage(network, nodes, Traffic(client))


async def faulty_round(stage: Stage, leader: str, spoil: Callable[[], None]) -> int:
    """Spoil the wires in the middle of traffic, for a while. Returns how many jobs were open at that moment."""
    submitting = asyncio.create_task(stage.traffic.submit(TRIPS))
    await calls_made(stage.nodes, TRIPS)
    spoil()
    spoiled_at = datetime.now(UTC)
    await asyncio.sleep(CUT_S)
    stage.network.heal()
    async with asyncio.timeout(60):
        await submitting
    return stage.traffic.unfinished_at(spoiled_at, await stage.traffic.ended(seconds_max=60))


async def test_partitions_lose_nothing(tmp_path: Path) -> None:
    """The leader alone with those outside, then a follower; each is a member again when the wire is whole."""
    async with on_three_hosts(tmp_path) as stage:
        network, nodes = stage.network, stage.nodes
        first = await nodes.leader()
        unfinished = [await faulty_round(stage, first, lambda: network.part([first], nodes.others(first)))]
        second = await nodes.leader()
        follower = nodes.others(second)[0]
        unfinished.append(await faulty_round(stage, second, lambda: network.part([follower], nodes.others(follower))))
        third = await nodes.leader()
        figures = await judged(nodes, stage.traffic)
        print(f"{unfinished} jobs open at each cut, led by {first}, {second}, {third}; {figures}")

        assert second != first
        # One that comes back disturbs nobody.
        assert third == second
        assert min(network.lost(first, second), network.lost(follower, second)) > 0
        assert max(unfinished) >= UNFINISHED_MIN


async def test_wires_that_carry_one_way_lose_nothing(tmp_path: Path) -> None:
    """A leader that is not heard is replaced; one that hears nothing knows that it leads no more."""
    async with on_three_hosts(tmp_path) as stage:
        network, nodes = stage.network, stage.nodes
        mute = await nodes.leader()
        unfinished = [await faulty_round(stage, mute, lambda: network.silence([mute], nodes.others(mute)))]
        deaf = await nodes.leader()
        unfinished.append(await faulty_round(stage, deaf, lambda: network.silence(nodes.others(deaf), [deaf])))
        last = await nodes.leader()
        figures = await judged(nodes, stage.traffic)
        print(f"{unfinished} jobs open at each cut, led by {mute}, {deaf}, {last}; {figures}")

        assert mute != deaf != last
        assert max(unfinished) >= UNFINISHED_MIN


async def test_slow_and_lossy_wires_lose_nothing(tmp_path: Path) -> None:
    """Forty milliseconds each way, and one packet in twenty is lost, between all nodes and to those outside."""
    async with on_three_hosts(tmp_path) as stage:
        network, nodes = stage.network, stage.nodes

        def spoil() -> None:
            for sender in (*NODE_IDS, OUTSIDE):
                for to in (*NODE_IDS, OUTSIDE):
                    if sender != to:
                        network.wire(sender, to, lost=0.05, delay_ms=40, jitter_ms=10)

        unfinished = await faulty_round(stage, await nodes.leader(), spoil)
        print(f"{unfinished} jobs open; {await judged(nodes, stage.traffic)}")

        assert unfinished >= UNFINISHED_MIN
        assert network.lost("n1", "n2") > 0


async def test_h005_h106_follower_that_lags_says_nothing_of_its_own(tmp_path: Path) -> None:
    """Whatever it has not yet heard of it asks the leader: its agent loses no lease, its callers find what is there."""
    async with on_three_hosts(tmp_path, agents=False) as stage:
        network, nodes, traffic = stage
        leader = await nodes.leader()
        slow, quick = nodes.others(leader)
        network.wire(leader, slow, delay_ms=LAG_MS)
        nodes.start_agent("agent-1", at=nodes.addresses[slow])
        async with nodes.client(quick) as near, nodes.client(slow) as far:
            await agents_connect(near, 1)
            submitting = asyncio.create_task(traffic.submit(TRIPS))
            for number in range(READS):
                submitted = await near.submit("trip", trip_input(number), idempotency_key=f"read-{number}")
                traffic.acknowledged[submitted.job_id] = expected(number)
                assert (await far.get(submitted.job_id)).job_id == submitted.job_id
            await submitting
            behind = (await nodes.statuses(leader))[leader].sequence - (await nodes.statuses(slow))[slow].sequence
            await traffic.ended(seconds_max=90)
            network.heal()
            print(f"{behind} batches behind; {await judged(nodes, traffic)}")

            assert behind > 0
            assert await nodes.leader() == leader
