"""Jobs of one shape at a pace: `trip`, and `compensate` and `deep`, which are held beside it.

What undoing, or a long chain, costs is told in steps: a job of five handlers may take longer than one of three.
"""

from __future__ import annotations

import argparse

from loadtest.shapes import PLAIN, Shape, compensate, deep
from loadtest.stage import Played, Stage, Window
from loadtest.tally import Pace


async def trip(stage: Stage, given: argparse.Namespace) -> Played:
    """Trips alone."""
    return Played(window=await _window(stage, given, PLAIN), steps=PLAIN.steps, figures={})


async def compensating(stage: Stage, given: argparse.Namespace) -> Played:
    """Jobs that are undone, beside trips."""
    return await _beside_trips(stage, given, compensate())


async def chain(stage: Stage, given: argparse.Namespace) -> Played:
    """Chains, beside trips."""
    return await _beside_trips(stage, given, deep(given.links or 100))


async def _beside_trips(stage: Stage, given: argparse.Namespace, shape: Shape) -> Played:
    trips = await _window(stage, given, PLAIN)
    window = await _window(stage, given, shape)
    return Played(window=window, steps=shape.steps, figures=beside(trips, window, steps=shape.steps))


def beside(trips: Window, window: Window, *, steps: int) -> dict[str, float]:
    """Rate and cost of a step, of these jobs and of trips."""
    steps_per_s, trip_steps_per_s = steps * window.jobs_per_s, PLAIN.steps * trips.jobs_per_s
    cpu_ms, trip_cpu_ms = window.cpu_ms_per_job / steps, trips.cpu_ms_per_job / PLAIN.steps
    return {
        "trip_steps_per_s": trip_steps_per_s,
        "steps_percent_of_trips": 100 * steps_per_s / trip_steps_per_s if trip_steps_per_s else 0.0,
        "cpu_ms_per_step": cpu_ms,
        "trip_cpu_ms_per_step": trip_cpu_ms,
    }


async def _window(stage: Stage, given: argparse.Namespace, shape: Shape) -> Window:
    pace = Pace(inflight=given.inflight, rate=given.rate)
    return await stage.window(shape, pace, warmup=given.warmup, seconds=given.seconds)
