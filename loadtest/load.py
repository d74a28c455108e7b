"""The load process: puts jobs on a server for a while, and says in one JSON line what came of it.

Closed loop: so many jobs are in flight, and the next begins when one ends. Open loop (`--rate`): jobs begin at their
time, however late the answers are, and latency counts from that time; a stall is then seen by all that it delayed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import time
from collections import Counter
from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any

import grpc.aio

from loadtest import meters
from loadtest.files import add_tls_options, tls_of
from loadtest.shapes import INPUT, TRIP
from loadtest.submitters import MODES, Ended, Submitter, open_channel, run_name
from stepward.client import StepwardError

# What counts as the failure of one job rather than of the run.
FAILURES = (grpc.aio.AioRpcError, Ended, StepwardError, TimeoutError)

# How late after the end of the run the last answer may come.
DRAIN_S_MAX = 60.0


@dataclass
class Tally:
    """What became of the jobs. Latencies of the warm-up are dropped."""

    begun: int = 0
    latencies_s: list[float] = field(default_factory=list)
    job_ids: list[str] = field(default_factory=list)
    failures: Counter[str] = field(default_factory=Counter)

    async def run(self, submit: Submitter, begins_at: float) -> None:
        """Run one job and note what came of it."""
        self.begun += 1
        try:
            job_id = await submit()
        except FAILURES as error:
            self.failures[failure_name(error)] += 1
        else:
            self.job_ids.append(job_id)
            self.latencies_s.append(time.perf_counter() - begins_at)


def failure_name(error: Exception) -> str:
    """A stable name: messages carry ids and addresses."""
    if isinstance(error, grpc.aio.AioRpcError):
        return error.code().name
    return type(error).__name__


async def closed_loop(submit: Submitter, tally: Tally, *, in_flight: int, stopping: asyncio.Event) -> None:
    """Keep so many jobs in flight until told to stop, then wait for the last ones."""

    async def caller() -> None:
        while not stopping.is_set():
            await tally.run(submit, time.perf_counter())

    await asyncio.gather(*(caller() for _ in range(in_flight)))


async def open_loop(submit: Submitter, tally: Tally, *, rate: float, stopping: asyncio.Event) -> None:
    """Begin jobs at a steady rate until told to stop, then wait for the last ones."""
    began = time.perf_counter()
    number = 0
    async with asyncio.TaskGroup() as jobs:
        while not stopping.is_set():
            due = int((time.perf_counter() - began) * rate)
            while number < due:
                jobs.create_task(tally.run(submit, began + number / rate))
                number += 1
            await asyncio.sleep(0.001)


async def load(given: argparse.Namespace) -> dict[str, Any]:
    """The whole run; returns what the report is made of."""
    pids: Mapping[str, int] = {**json.loads(given.pids), "load": os.getpid()}
    tally = Tally()
    stopping = asyncio.Event()
    way = MODES[given.mode]
    addresses, tls = given.server.split(","), tls_of(given)
    async with AsyncExitStack() as opened:
        channels = [await opened.enter_async_context(open_channel(address, tls)) for address in addresses]
        channel = channels[0]
        submit = await opened.enter_async_context(
            way(addresses[0], tls=tls, definition=TRIP, input=INPUT, run=run_name())
        )
        loop = (
            open_loop(submit, tally, rate=given.rate, stopping=stopping)
            if given.rate
            else closed_loop(submit, tally, in_flight=given.inflight, stopping=stopping)
        )
        running = asyncio.create_task(loop)
        await asyncio.sleep(given.warmup)
        tally.latencies_s.clear()
        before, began = await meters.read(channel, pids), time.perf_counter()
        elections = await meters.elections(channels)
        await asyncio.sleep(given.seconds)
        after, took_s = await meters.read(channel, pids), time.perf_counter() - began
        elections = await meters.elections(channels) - elections
        latencies_s = sorted(tally.latencies_s)
        stopping.set()
        await asyncio.wait_for(running, DRAIN_S_MAX)
        replicas_equal = await meters.become_equal(channels)
        status, _ = await meters.status(channel)
    return {
        "jobs": len(latencies_s),
        "seconds": took_s,
        "latencies_ms": quantiles(latencies_s),
        "cpu_ms": {name: after.cpu_ms[name] - before.cpu_ms[name] for name in pids},
        "counters": {name: after.counters[name] - before.counters.get(name, 0) for name in after.counters},
        "peak_memory_mb": {name: meters.peak_memory_mb(pid) for name, pid in pids.items()},
        "begun": tally.begun,
        "answered": len(tally.job_ids),
        "distinct": len(set(tally.job_ids)),
        "failures": dict(tally.failures),
        "elections": elections,
        "replicas_equal": replicas_equal,
        "stored": meters.jobs_by_state(status),
    }


def quantiles(sorted_s: list[float]) -> dict[str, float]:
    """Median, 99th percentile and the largest, in milliseconds; all 0 for none at all."""
    if not sorted_s:
        return {"p50": 0.0, "p99": 0.0, "max": 0.0}
    last = len(sorted_s) - 1
    ranks = {"p50": last // 2, "p99": min(last, int(len(sorted_s) * 0.99)), "max": last}
    return {name: sorted_s[rank] * 1000 for name, rank in ranks.items()}


def main() -> None:
    """Entry of the command line."""
    options = argparse.ArgumentParser(prog="python -m loadtest.load", description=__doc__)
    options.add_argument("--server", required=True, help="where jobs are submitted, and behind commas the other nodes")
    options.add_argument("--mode", choices=MODES, default="run")
    options.add_argument("--inflight", type=int, default=64)
    options.add_argument("--rate", type=float, default=0.0)
    options.add_argument("--warmup", type=float, default=2.0)
    options.add_argument("--seconds", type=float, default=10.0)
    add_tls_options(options)
    options.add_argument("--pids", default="{}", help="JSON: processes whose use is measured, by name")
    sys.stdout.write(json.dumps(asyncio.run(load(options.parse_args()))) + "\n")


if __name__ == "__main__":
    main()
