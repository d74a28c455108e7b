"""What a benchmark plays on: nodes and an agent that run, and the jobs that were begun on them.

All that was begun is kept until the end, when each job must have ended once, as its shape must, and be stored so.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

import grpc.aio

from loadtest import meters
from loadtest.shapes import Shape
from loadtest.submitters import MODES, Submitter, open_channel, run_name
from loadtest.tally import Pace, Tally, begin, quantiles
from stepward.client import AsyncClient
from stepward.client.tls import TlsFiles
from stepward.v1.common_pb2 import JobState

# How late after the end of the run the last answer may come.
DRAIN_S_MAX = 60.0
CALL_S_MAX = 30.0


# Over which nodes calls go.
THROUGH = ("leader", "followers", "all")


def routes_through(through: str, addresses: Sequence[str]) -> list[tuple[str, ...]]:
    """For each node that is called its address, and behind it those where a client may go when it is away.

    `addresses` begin with that of the node which leads; one that is alone is its own follower.
    """
    turned = [(*addresses[number:], *addresses[:number]) for number in range(len(addresses))]
    return {"leader": turned[:1], "followers": turned[1:] or turned, "all": turned}[through]


@dataclass(frozen=True, kw_only=True)
class Window:
    """What happened between two moments."""

    seconds: float
    latencies_s: Sequence[float]
    """Of the jobs that ended, sorted."""
    cpu_ms: Mapping[str, float]
    """By name of the process."""
    written_bytes: Mapping[str, int]
    counters: Mapping[str, int]
    elections: int

    @property
    def jobs(self) -> int:
        """How many ended."""
        return len(self.latencies_s)

    @property
    def jobs_per_s(self) -> float:
        return self.jobs / self.seconds

    @property
    def cpu_ms_per_job(self) -> float:
        """Of all processes together."""
        return sum(self.cpu_ms.values()) / max(1, self.jobs)

    @property
    def latencies_ms(self) -> dict[str, float]:
        """By rank: p50, p99, max."""
        return quantiles(self.latencies_s)


@dataclass(frozen=True, kw_only=True)
class Judged:
    """What all jobs of a run came to, whenever they were begun."""

    begun: int
    answered: int
    distinct: int
    """Different jobs in the answers."""
    wanted: Mapping[str, int]
    """How many must be stored, by state."""
    stored: Mapping[str, int]
    handled: int
    """Handlers that must have run for them."""
    failures: Mapping[str, int]
    replicas_equal: bool
    peak_memory_mb: Mapping[str, float]


class Stage:
    """A cluster that is played on, by one event loop. `open` makes one."""

    def __init__(
        self,
        addresses: Sequence[str],
        channels: Sequence[grpc.aio.Channel],
        tls: TlsFiles | None,
        *,
        mode: str,
        through: str,
    ) -> None:
        self.mode = mode
        self._addresses = addresses
        self.routes = routes_through(through, addresses)
        self.tls = tls
        self.pids: dict[str, int] = {}
        """Processes whose use is measured, by name."""
        self.failures: Counter[str] = Counter()
        """What went wrong beside jobs."""
        self._channels = channels
        self._tallies: list[Tally] = []
        self._kept: Counter[str] = Counter()
        self._run = run_name()
        self._submitters = 0

    @classmethod
    @asynccontextmanager
    async def open(
        cls, addresses: Sequence[str], tls: TlsFiles | None, *, mode: str, through: str
    ) -> AsyncIterator[Stage]:
        """Connect to the nodes, of which the first leads."""
        async with AsyncExitStack() as opened:
            channels = [await opened.enter_async_context(open_channel(address, tls)) for address in addresses]
            yield cls(addresses, channels, tls, mode=mode, through=through)

    @property
    def channel(self) -> grpc.aio.Channel:
        """To the node that led at the start."""
        return self._channels[0]

    async def apply(self, shape: Shape) -> None:
        """Store the definition of a shape; again changes nothing, so it is repeated until there is an answer."""
        async with AsyncClient(self._addresses, tls=self.tls, timeout_s=CALL_S_MAX) as client:
            await client.apply_definition(shape.definition)

    @asynccontextmanager
    async def submitter(self, shape: Shape, mode: str = "") -> AsyncIterator[Submitter]:
        """Runs jobs of a shape, in the mode of the run or another; at the nodes of the run in turn."""
        async with AsyncExitStack() as opened:
            each = []
            for route in self.routes:
                self._submitters += 1
                run = f"{self._run}-{self._submitters}"
                way = MODES[mode or self.mode](route, tls=self.tls, shape=shape, run=run)
                each.append(await opened.enter_async_context(way))
            turns = itertools.cycle(each)

            async def submit() -> str:
                return await next(turns)()

            yield submit

    def tally(self, shape: Shape) -> Tally:
        """An account of jobs that is judged at the end with all others."""
        self._tallies.append(Tally(shape))
        return self._tallies[-1]

    def keep(self, jobs: Mapping[str, int]) -> None:
        """So many jobs, by state, were stored beside the tallies and stay as they are."""
        self._kept.update(jobs)

    @asynccontextmanager
    async def loaded(self, shape: Shape, pace: Pace, *, mode: str = "") -> AsyncIterator[Tally]:
        """Begin jobs all the while, and at the end wait for the last of them."""
        await self.apply(shape)
        tally, stopping = self.tally(shape), asyncio.Event()
        async with self.submitter(shape, mode) as submit:
            running = asyncio.create_task(begin(submit, tally, pace, stopping=stopping))
            try:
                yield tally
                stopping.set()
                await asyncio.wait_for(running, DRAIN_S_MAX)
            finally:
                running.cancel()

    async def measured(self, tally: Tally, waiting: Callable[[], Any]) -> Window:
        """What happens while something is awaited."""
        first = len(tally.ends)
        before, began_s = await meters.read(self.channel, self.pids), time.monotonic()
        elections = await meters.elections(self._channels)
        await waiting()
        after, seconds = await meters.read(self.channel, self.pids), time.monotonic() - began_s
        latencies_s = sorted(end.latency_s for end in tally.ends[first:])
        return Window(
            seconds=seconds,
            latencies_s=latencies_s,
            cpu_ms={name: after.cpu_ms[name] - before.cpu_ms[name] for name in self.pids},
            written_bytes={name: after.written_bytes[name] - before.written_bytes[name] for name in self.pids},
            counters={name: after.counters[name] - before.counters.get(name, 0) for name in after.counters},
            elections=await meters.elections(self._channels) - elections,
        )

    async def window(self, shape: Shape, pace: Pace, *, warmup: float, seconds: float, mode: str = "") -> Window:
        """Measure jobs of one shape for so long."""
        async with self.loaded(shape, pace, mode=mode) as tally:
            await asyncio.sleep(warmup)
            return await self.measured(tally, lambda: asyncio.sleep(seconds))

    async def judged(self) -> Judged:
        """Wait until all nodes hold the same, and hold it against what was begun."""
        replicas_equal = await meters.become_equal(self._channels)
        status, _ = await meters.status(self.channel)
        wanted, failures = Counter(self._kept), Counter(self.failures)
        for tally in self._tallies:
            wanted[_state(tally.shape)] += len(set(tally.job_ids))
            failures.update(tally.failures)
        job_ids = [job_id for tally in self._tallies for job_id in tally.job_ids]
        return Judged(
            begun=sum(tally.begun for tally in self._tallies) + self._kept.total(),
            answered=len(job_ids) + self._kept.total(),
            distinct=len(set(job_ids)) + self._kept.total(),
            wanted=dict(wanted),
            stored=meters.jobs_by_state(status),
            handled=sum(tally.shape.steps * len(set(tally.job_ids)) for tally in self._tallies),
            failures=dict(failures),
            replicas_equal=replicas_equal,
            peak_memory_mb={name: meters.peak_memory_mb(pid) for name, pid in self.pids.items()},
        )


def _state(shape: Shape) -> str:
    return JobState.Name(shape.end).removeprefix("JOB_STATE_")


@dataclass(frozen=True, kw_only=True)
class Played:
    """What a benchmark measured."""

    window: Window
    """The figures that all benchmarks have."""
    steps: int
    """Of one job of it."""
    figures: Mapping[str, float]
    """Those that only this one has."""
