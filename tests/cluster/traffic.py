"""Trips on their way through a cluster: who was acknowledged, how they ended, and whether that is right."""

import asyncio
import itertools
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime

from stepward.client import AsyncClient, Job, JobState
from stepward.client.values import Agent, HistoryEvent
from tests.cluster.rig import LOOK_EVERY_S

# One trip in so many cannot be made, and one in so many needs a second try.
CAR_FAILS_EVERY = 5
HOTEL_FAILS_ONCE_EVERY = 7

LOST = frozenset({"StepAttemptLost", "UndoAttemptLost"})


def trip_input(number: int) -> dict[str, str]:
    """What the trip of this number asks for."""
    return {
        "traveller": f"traveller {number}",
        "flight": "LHR-TRN",
        "hotel": "fails-once" if number % HOTEL_FAILS_ONCE_EVERY == 0 else "quiet",
        "car": "none-left" if number % CAR_FAILS_EVERY == 0 else "small",
    }


def expected(number: int) -> JobState:
    """How the trip of this number must end."""
    return JobState.COMPENSATED if number % CAR_FAILS_EVERY == 0 else JobState.COMPLETED


@dataclass
class Traffic:
    """Trips that were submitted through one client."""

    client: AsyncClient
    acknowledged: dict[str, JobState] = field(default_factory=dict)
    """Every job that the server said it has, with the state in which it must end."""
    _numbers: "itertools.count[int]" = field(default_factory=itertools.count)

    async def submit(self, count: int) -> list[str]:
        """Submit trips at once; each is repeated with its key until it is acknowledged. Returns their ids."""
        return list(await asyncio.gather(*(self._submit(next(self._numbers)) for _ in range(count))))

    async def _submit(self, number: int) -> str:
        submitted = await self.client.submit("trip", trip_input(number), idempotency_key=f"trip-{number}")
        self.acknowledged[submitted.job_id] = expected(number)
        return submitted.job_id

    async def jobs(self) -> dict[str, Job]:
        """All jobs of the cluster, without their steps."""
        return {job.job_id: job async for job in self.client.list(definition="trip", page_size=1000)}

    async def ended(self, *, seconds_max: float) -> dict[str, Job]:
        """Wait until every acknowledged job has ended; returns all jobs of the cluster.

        Raises:
            AssertionError: One has not ended in time, or is gone.
        """
        ends_at = time.monotonic() + seconds_max
        while True:
            jobs = await self.jobs()
            open_ids = [job_id for job_id in self.acknowledged if job_id not in jobs or not jobs[job_id].state.final]
            if not open_ids:
                return jobs
            states = {job_id: str(jobs[job_id].state) if job_id in jobs else "gone" for job_id in open_ids[:5]}
            assert time.monotonic() < ends_at, f"{len(open_ids)} jobs have not ended: {states}"
            await asyncio.sleep(LOOK_EVERY_S * 5)

    def unfinished_at(self, moment: datetime, jobs: dict[str, Job]) -> int:
        """How many acknowledged jobs had been submitted and had not ended at a moment: what a fault then hit."""
        acknowledged = [jobs[job_id] for job_id in self.acknowledged]
        return sum(
            job.submitted_at is not None
            and job.submitted_at < moment
            and (job.ended_at is None or job.ended_at > moment)
            for job in acknowledged
        )

    def wrong_ends(self, jobs: dict[str, Job]) -> dict[str, str]:
        """Acknowledged jobs that ended otherwise than they must."""
        return {
            job_id: f"{jobs[job_id].state}, not {state}: {jobs[job_id].failure}"
            for job_id, state in self.acknowledged.items()
            if jobs[job_id].state is not state
        }

    async def history(self, job_id: str) -> list[HistoryEvent]:
        return [event async for event in self.client.history(job_id)]

    async def losses(self) -> list[str]:
        """Every attempt that was given up because its agent was not heard from."""
        histories = await asyncio.gather(*(self.history(job_id) for job_id in self.acknowledged))
        return [
            f"{job_id}/{event.step_id}: {event.type}"
            for job_id, history in zip(self.acknowledged, histories, strict=True)
            for event in history
            if event.type in LOST
        ]


async def agents_connect(client: AsyncClient, count: int, *, seconds_max: float = 30.0) -> None:
    """Wait until so many agents can be given work.

    Raises:
        AssertionError: They were not there in time.
    """
    await _agents_are(client, count, seconds_max, "connected", lambda agent: agent.connected and not agent.draining)


async def agents_drain(client: AsyncClient, count: int, *, seconds_max: float = 10.0) -> None:
    """Wait until so many agents have said that they take nothing more.

    Raises:
        AssertionError: They had not in time.
    """
    await _agents_are(client, count, seconds_max, "draining", lambda agent: agent.draining)


async def _agents_are(
    client: AsyncClient, count: int, seconds_max: float, what: str, wanted: Callable[[Agent], bool]
) -> None:
    ends_at = time.monotonic() + seconds_max
    while (there := len([agent async for agent in client.agents() if wanted(agent)])) < count:
        assert time.monotonic() < ends_at, f"{there} of {count} agents {what} within {seconds_max:.0f} s"
        await asyncio.sleep(LOOK_EVERY_S)


def drawn_seed(only_seed: int | None) -> random.Random:
    """Chance for one test, told so that it can be had again."""
    seed = random.randrange(1 << 32) if only_seed is None else only_seed
    print(f"--seed {seed}")
    return random.Random(seed)
