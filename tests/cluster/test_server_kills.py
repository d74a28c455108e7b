"""The server is killed (SIGKILL) in the middle of many trips, and started again on the same data.

The travel service remembers no keys here, so that a step which runs twice books twice: nothing but stepward's own order
of write and act keeps the record clean.
"""

import asyncio
import random
import time
from datetime import UTC, datetime
from pathlib import Path

import pytest

from stepward.client import AsyncClient
from tests.cluster.rig import LEASE_LOSS_S_MAX, Rig, until
from tests.cluster.traffic import Traffic, agents_connect, drawn_seed

TRIPS = 200

# A kill while hardly anything is open shows nothing: such a round is repeated, so many times at most.
UNFINISHED_MIN = 20
REPEATS_MAX = 5

# About four calls a trip. The kill comes after so many of them, at the earliest and at the latest.
CALLS_BEFORE_KILL = (20, 500)

# Makes a step take long enough that many are running at any moment.
SLOW_MS = 30


class Round:
    """One kill in the middle of traffic."""

    def __init__(self, rig: Rig, traffic: Traffic, chance: random.Random) -> None:
        self._rig = rig
        self._traffic = traffic
        self._chance = chance
        self.unfinished = 0
        """Acknowledged jobs that had not ended when the server was killed."""

    async def run(self) -> None:
        """Submit, kill, start again, and wait until every trip has ended."""
        wanted = self._rig.calls() + self._chance.randint(*CALLS_BEFORE_KILL)
        submitting = asyncio.create_task(self._traffic.submit(TRIPS))
        await until(lambda: self._rig.calls() >= wanted, seconds_max=60, what=f"{wanted} calls of the travel service")
        self._rig.server.kill()
        killed_at = datetime.now(UTC)
        await asyncio.to_thread(self._rig.start_server)
        async with asyncio.timeout(60):
            await submitting
        jobs = await self._traffic.ended(seconds_max=60)
        self.unfinished = self._traffic.unfinished_at(killed_at, jobs)


async def kill_rounds(folder: Path, rounds: int, chance: random.Random) -> None:
    """So many rounds that count, on one growing logbook; then everything is checked."""
    began = time.monotonic()
    with Rig(folder) as rig:
        rig.start_server()
        rig.start_travel("--no-deduplication", "--slow-ms", str(SLOW_MS))
        for name in ("agent-1", "agent-2"):
            rig.start_agent(name)
        async with AsyncClient(rig.address, timeout_s=30) as client:
            traffic = Traffic(client)
            await agents_connect(client, 2)
            counted = await count_rounds(rig, traffic, rounds, chance)
            jobs = await traffic.ended(seconds_max=10)
            losses = await traffic.losses()
        report = rig.judge({job_id: str(job.state) for job_id, job in jobs.items()})
    print(
        f"{len(counted)} kills in {time.monotonic() - began:.0f} s, unfinished jobs at each: {counted}; "
        f"{len(jobs)} jobs, {report.calls} calls, {report.stale_refused} refused as stale"
    )

    # Each submission was repeated with its key until it was answered, and made one job.
    assert jobs.keys() == traffic.acknowledged.keys()
    assert traffic.wrong_ends(jobs) == {}
    assert report.breaches == []
    # No agent died, so none may be taken for dead because the server was away.
    assert losses == []


async def count_rounds(rig: Rig, traffic: Traffic, rounds: int, chance: random.Random) -> list[int]:
    """Run rounds until enough have counted; returns how many jobs were open at each kill."""
    counted: list[int] = []
    for _ in range(rounds + REPEATS_MAX):
        kill = Round(rig, traffic, chance)
        await kill.run()
        if kill.unfinished >= UNFINISHED_MIN:
            counted.append(kill.unfinished)
        if len(counted) == rounds:
            return counted
    pytest.fail(f"only {len(counted)} of {rounds} kills came while {UNFINISHED_MIN} jobs were open: {counted}")


async def test_nothing_is_lost_or_done_twice(tmp_path: Path, only_seed: int | None) -> None:
    """Every acknowledged trip ends as it must, and no key takes effect twice."""
    await kill_rounds(tmp_path, 2, drawn_seed(only_seed))


@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_nothing_is_lost_or_done_twice_in_many_rounds(tmp_path: Path, only_seed: int | None) -> None:
    """The same, often enough that kills hit between most pairs of steps."""
    await kill_rounds(tmp_path, 10, drawn_seed(only_seed))


@pytest.mark.parametrize("how", ["killed", "paused"])
async def test_absence_of_the_server_uses_up_no_lease(tmp_path: Path, how: str) -> None:
    """Nobody counts leases while nobody leads: what agents did meanwhile counts, and nothing is done again.

    A server that was paused hears what was said meanwhile before it judges who is silent.
    """
    with Rig(tmp_path) as rig:
        rig.start_server()
        rig.start_travel("--no-deduplication", "--slow-ms", str(SLOW_MS))
        agents = [rig.start_agent(name) for name in ("agent-1", "agent-2")]
        async with AsyncClient(rig.address, timeout_s=30) as client:
            traffic = Traffic(client)
            await agents_connect(client, 2)
            await traffic.submit(TRIPS)
            await until(lambda: rig.calls() >= TRIPS, seconds_max=60, what="a quarter of the calls")
            (rig.server.kill if how == "killed" else rig.server.pause)()
            await until(
                lambda: all("lease_ended" in agent.log.read_text() for agent in agents),
                seconds_max=LEASE_LOSS_S_MAX,
                what="both agents hold their lease to have ended",
            )
            await asyncio.to_thread(rig.start_server if how == "killed" else rig.server.resume)
            jobs = await traffic.ended(seconds_max=60)
            losses = await traffic.losses()
        report = rig.judge({job_id: str(job.state) for job_id, job in jobs.items()})

    assert traffic.wrong_ends(jobs) == {}
    assert report.breaches == []
    assert losses == []
