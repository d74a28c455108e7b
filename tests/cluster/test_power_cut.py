"""The power of the server's disk is cut under load: what was acknowledged was on it."""

import asyncio
import random
from pathlib import Path

import pytest

from stepward.client import AsyncClient
from tests.cluster.rig import Rig, until
from tests.cluster.traffic import Traffic, agents_connect, drawn_seed
from tests.faults.powercut import PowerCutDisk

TRIPS = 100
ROUNDS = 3
SLOW_MS = 30


async def cut_round(rig: Rig, disk: PowerCutDisk, traffic: Traffic, chance: random.Random) -> int:
    """Cut the power in the middle of traffic and start again. Returns how many jobs were acknowledged before."""
    wanted = rig.calls() + chance.randint(10, 250)
    submitting = asyncio.create_task(traffic.submit(TRIPS))
    await until(lambda: rig.calls() >= wanted, seconds_max=60, what=f"{wanted} calls of the travel service")
    disk.cut()
    acknowledged = len(traffic.acknowledged)
    # What it does with a disk that fails is its own affair; here the machine is gone.
    rig.server.kill()
    disk.restore()
    await asyncio.to_thread(rig.start_server)
    async with asyncio.timeout(60):
        await submitting
    return acknowledged


@pytest.mark.root
@pytest.mark.timeout(300)
async def test_acknowledged_trips_survive_a_power_cut(tmp_path: Path, only_seed: int | None) -> None:
    """An answer leaves only after what it says is on the disk, and so does every offer."""
    chance = drawn_seed(only_seed)
    with PowerCutDisk(tmp_path) as disk, Rig(tmp_path, data=disk.folder / "data") as rig:
        rig.start_server()
        rig.start_travel("--no-deduplication", "--slow-ms", str(SLOW_MS))
        for name in ("agent-1", "agent-2"):
            rig.start_agent(name)
        async with AsyncClient(rig.address, timeout_s=30) as client:
            traffic = Traffic(client)
            await agents_connect(client, 2)
            acknowledged = [await cut_round(rig, disk, traffic, chance) for _ in range(ROUNDS)]
            jobs = await traffic.ended(seconds_max=90)
        report = rig.judge({job_id: str(job.state) for job_id, job in jobs.items()})
    print(f"{ROUNDS} cuts, {acknowledged} jobs acknowledged before each; {len(jobs)} jobs, {report.calls} calls")

    assert traffic.wrong_ends(jobs) == {}
    assert report.breaches == []
