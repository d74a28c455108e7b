"""Three agents without streaming and without our library, a server that is killed, and agents that are."""

from __future__ import annotations

import asyncio
import random
import sys
from pathlib import Path

import pytest

from stepward.agents.examples.trip import DEFINITION
from stepward.client import AsyncClient
from stepward.client.definition_file import load
from stepward.client.demo.processes import Child
from tests.cluster.rig import Rig, until
from tests.cluster.traffic import Traffic, drawn_seed

ROOT = Path(__file__).parents[2]
AGENTS = 3
SLOTS = 6
TRIPS = 80
SLOW_MS = 30
ROUNDS = 2


def start_worker(rig: Rig, number: int) -> Child:
    """An agent that nothing starts again."""
    name = f"unary-{number}"
    command = [sys.executable, "-m", "tests.cluster.unary_worker", rig.address, rig.travel.address, str(SLOTS)]
    rig.agents[name] = Child.launch(name, command, folder=rig.folder, inside=ROOT)
    return rig.agents[name]


async def called(rig: Rig, count: int) -> None:
    """Wait until the travel service has had so many calls more."""
    wanted = rig.calls() + count
    await until(lambda: rig.calls() >= wanted, seconds_max=60, what=f"{wanted} calls of the travel service")


async def serving(rig: Rig, client: AsyncClient, traffic: Traffic, chance: random.Random, *, kills: str) -> None:
    """Trips, in the middle of which the server or an agent is killed and started again."""
    await client.apply_definition(load(DEFINITION))
    for number in range(AGENTS):
        start_worker(rig, number)
    for number in range(ROUNDS):
        submitting = asyncio.create_task(traffic.submit(TRIPS))
        await called(rig, chance.randint(20, 200))
        if kills == "server":
            rig.server.kill()
            await asyncio.to_thread(rig.start_server)
        else:
            rig.agents[f"unary-{number}"].kill()
            start_worker(rig, number)
        async with asyncio.timeout(60):
            await submitting
        await traffic.ended(seconds_max=60)


@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.parametrize(
    ("kills", "options"),
    [
        # The service remembers no keys, so what runs twice books twice: nobody may begin again what is at work.
        ("server", ("--no-deduplication",)),
        ("agent", ()),
    ],
)
async def test_nothing_is_lost_or_done_twice(
    tmp_path: Path, only_seed: int | None, kills: str, options: tuple[str, ...]
) -> None:
    """Every acknowledged trip ends as it must, no key takes effect twice, and only dead agents lose leases."""
    chance = drawn_seed(only_seed)
    with Rig(tmp_path) as rig:
        rig.start_server()
        rig.start_travel("--slow-ms", str(SLOW_MS), *options)
        async with AsyncClient(rig.address, timeout_s=30) as client:
            traffic = Traffic(client)
            await serving(rig, client, traffic, chance, kills=kills)
            jobs = await traffic.ended(seconds_max=10)
            losses = await traffic.losses()
        report = rig.judge({job_id: str(job.state) for job_id, job in jobs.items()})
        alive = [name for name, agent in rig.agents.items() if agent.running]
    print(f"{len(jobs)} jobs, {report.calls} calls, {report.repeats} repeats, {len(losses)} attempts lost")

    assert len(alive) == AGENTS
    assert jobs.keys() == traffic.acknowledged.keys()
    assert traffic.wrong_ends(jobs) == {}
    assert report.breaches == []
    assert bool(losses) is (kills == "agent")
