"""What became of the jobs that were begun, and the two ways to begin them.

Closed loop: so many jobs are in flight, and the next begins when one ends. Open loop: jobs begin at their time, however
late the answers are, and latency counts from that time; a stall is then seen by all that it delayed.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import grpc.aio

from loadtest.shapes import Shape
from loadtest.submitters import Ended, Submitter
from stepward.client import StepwardError

# What counts as the failure of one job rather than of the run.
FAILURES = (grpc.aio.AioRpcError, Ended, StepwardError, TimeoutError)

# What the open loop looks at the clock for.
LOOK_EVERY_S = 0.001


class End(NamedTuple):
    """A job has ended as it must."""

    began_s: float
    """When it was, or should have been, begun. Both by the steady clock."""
    ended_s: float

    @property
    def latency_s(self) -> float:
        return self.ended_s - self.began_s


@dataclass(frozen=True, kw_only=True)
class Pace:
    """How jobs are begun."""

    inflight: int
    rate: float
    """Jobs a second, whatever is in flight; 0: as many as `inflight` lets."""


@dataclass
class Tally:
    """What became of the jobs of one shape."""

    shape: Shape
    begun: int = 0
    ends: list[End] = field(default_factory=list)
    job_ids: list[str] = field(default_factory=list)
    failures: Counter[str] = field(default_factory=Counter)

    async def run(self, submit: Submitter, began_s: float) -> None:
        """Run one job and note what came of it."""
        self.begun += 1
        try:
            job_id = await submit()
        except FAILURES as error:
            self.failures[failure_name(error)] += 1
        else:
            self.job_ids.append(job_id)
            self.ends.append(End(began_s, time.monotonic()))

    def latencies_s(self, after_s: float, before_s: float) -> list[float]:
        """Of the jobs that were on their way at some moment between the two; sorted. Those that have ended count."""
        return sorted(end.latency_s for end in self.ends if end.began_s < before_s and end.ended_s > after_s)


def failure_name(error: Exception) -> str:
    """A stable name: messages carry ids and addresses."""
    if isinstance(error, grpc.aio.AioRpcError):
        return error.code().name
    return type(error).__name__


async def begin(submit: Submitter, tally: Tally, pace: Pace, *, stopping: asyncio.Event) -> None:
    """Begin jobs until told to stop, then wait for the last ones."""
    if pace.rate:
        await _open_loop(submit, tally, rate=pace.rate, stopping=stopping)
    else:
        await _closed_loop(submit, tally, in_flight=pace.inflight, stopping=stopping)


async def begin_all(submit: Submitter, tally: Tally, count: int, *, in_flight: int) -> None:
    """Run so many jobs, of which some are in flight at any moment."""
    numbers = iter(range(count))

    async def caller() -> None:
        for _ in numbers:
            await tally.run(submit, time.monotonic())

    await asyncio.gather(*(caller() for _ in range(in_flight)))


async def _closed_loop(submit: Submitter, tally: Tally, *, in_flight: int, stopping: asyncio.Event) -> None:
    async def caller() -> None:
        while not stopping.is_set():
            await tally.run(submit, time.monotonic())

    await asyncio.gather(*(caller() for _ in range(in_flight)))


async def _open_loop(submit: Submitter, tally: Tally, *, rate: float, stopping: asyncio.Event) -> None:
    began = time.monotonic()
    number = 0
    async with asyncio.TaskGroup() as jobs:
        while not stopping.is_set():
            due = int((time.monotonic() - began) * rate)
            while number < due:
                jobs.create_task(tally.run(submit, began + number / rate))
                number += 1
            await asyncio.sleep(LOOK_EVERY_S)


def quantiles(sorted_s: Sequence[float]) -> dict[str, float]:
    """Median, 99th percentile and the largest, in milliseconds; all 0 for none at all."""
    if not sorted_s:
        return {"p50": 0.0, "p99": 0.0, "max": 0.0}
    last = len(sorted_s) - 1
    ranks = {"p50": last // 2, "p99": min(last, int(len(sorted_s) * 0.99)), "max": last}
    return {name: sorted_s[rank] * 1000 for name, rank in ranks.items()}
