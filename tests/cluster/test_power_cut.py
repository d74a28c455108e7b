"""The power of the server's disk is cut under load: what was acknowledged was on it."""

import asyncio
import random
from datetime import UTC, datetime
from pathlib import Path

import pytest

from stepward.client import AsyncClient
from tests.cluster.rig import Rig, until
from tests.cluster.traffic import Traffic, agents_connect, drawn_seed
from tests.faults.powercut import PowerCutDisk

TRIPS = 100
ROUNDS = 3
UNFINISHED_MIN = 10
SLOW_MS = 30


async def cut_round(rig: Rig, disk: PowerCutDisk, traffic: Traffic, chance: random.Random) -> int:
    """Cut the power in the middle of traffic and start again. Returns how many jobs were open at that moment."""
    wanted = rig.calls() + chance.randint(10, 250)
    submitting = asyncio.create_task(traffic.submit(TRIPS))
    await until(lambda: rig.calls() >= wanted, seconds_max=60, what=f"{wanted} calls of the travel service")
    disk.cut()
    cut_at = datetime.now(UTC)
    # What it does with a disk that fails is its own affair; here the machine is gone.
    rig.server.kill()
    disk.restore()
    await asyncio.to_thread(rig.start_server)
    async with asyncio.timeout(60):
        await submitting
    return traffic.unfinished_at(cut_at, await traffic.ended(seconds_max=90))


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
            unfinished = [await cut_round(rig, disk, traffic, chance) for _ in range(ROUNDS)]
            jobs = await traffic.ended(seconds_max=90)
        report = rig.judge({job_id: str(job.state) for job_id, job in jobs.items()})
    print(f"{ROUNDS} cuts, {unfinished} jobs open at each; {len(jobs)} jobs, {report.calls} calls")

    # The cuts hit something.
    assert min(unfinished) >= UNFINISHED_MIN
    # Each submission was repeated with its key until it was answered, and made one job.
    assert jobs.keys() == traffic.acknowledged.keys()
    assert traffic.wrong_ends(jobs) == {}
    assert report.breaches == []
