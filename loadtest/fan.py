"""`wide`: one job with very many steps that are ready at once, alone and while trips go on beside it."""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Sequence

from loadtest.shapes import PLAIN, Shape, wide
from loadtest.stage import Played, Stage, Window
from loadtest.tally import Pace, quantiles

LINKS = 10_000
# Trips beside it, so few that they wait for nobody but it.
RATE = 50.0


async def play(stage: Stage, given: argparse.Namespace) -> Played:
    """What a step of it costs, and what it costs others.

    The p99 of trips is that of those which were on their way while it ran, counted from when they should have begun.
    """
    shape = wide(given.links or LINKS)
    await stage.apply(shape)
    closed = Pace(inflight=given.inflight, rate=0.0)
    trips = await stage.window(PLAIN, closed, warmup=given.warmup, seconds=given.seconds)
    alone = await _measured(stage, shape)
    async with stage.loaded(PLAIN, Pace(inflight=0, rate=given.rate or RATE)) as tally:
        await asyncio.sleep(given.warmup)
        before = await stage.measured(tally, lambda: asyncio.sleep(given.seconds))
        began_s = time.monotonic()
        await _run(stage, shape)
        ended_s = time.monotonic()
    # Read when all have ended: a trip that it held up may end behind it.
    meanwhile = tally.latencies_s(began_s, ended_s)
    return Played(window=trips, steps=PLAIN.steps, figures=figures(shape, trips, alone, before, meanwhile))


async def _measured(stage: Stage, shape: Shape) -> Window:
    return await stage.measured(stage.tally(PLAIN), lambda: _run(stage, shape))


async def _run(stage: Stage, shape: Shape) -> None:
    """One such job, to its end."""
    tally = stage.tally(shape)
    async with stage.submitter(shape, "run") as submit:
        await tally.run(submit, asyncio.get_running_loop().time())


def figures(shape: Shape, trips: Window, alone: Window, before: Window, meanwhile: Sequence[float]) -> dict[str, float]:
    """Costs and latencies beside each other. `meanwhile`: latencies of trips beside it, in seconds, sorted."""
    wide_cpu_ms = sum(alone.cpu_ms.values()) / shape.steps
    trip_cpu_ms = trips.cpu_ms_per_job / PLAIN.steps
    p99_before, beside_ms = before.latencies_ms["p99"], quantiles(meanwhile)
    return {
        "wide_steps": shape.steps,
        "wide_seconds": alone.seconds,
        "wide_steps_per_s": shape.steps / alone.seconds,
        "wide_cpu_ms_per_step": wide_cpu_ms,
        "trip_cpu_ms_per_step": trip_cpu_ms,
        "cost_ratio": wide_cpu_ms / trip_cpu_ms if trip_cpu_ms else 0.0,
        "trip_p99_ms_before": p99_before,
        "trip_p99_ms_meanwhile": beside_ms["p99"],
        "trip_max_ms_meanwhile": beside_ms["max"],
        "p99_ratio": beside_ms["p99"] / p99_before if p99_before else 0.0,
    }
