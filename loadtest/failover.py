"""`failover`: the leader is killed under load, and started again when somebody else has taken over.

Jobs are begun at a steady rate by clients that know all nodes, whether they are answered or not. What is told is what
those clients saw: how long nobody got an answer, how soon as many did as before, and who waited longest.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import time
from collections.abc import Sequence

from loadtest.cluster import Cluster
from loadtest.shapes import PLAIN
from loadtest.stage import Played, Stage
from loadtest.tally import End, Pace

RATE = 300.0
# The ends of so long are counted to say that a rate is there again.
RATE_WINDOW_S = 0.5


async def play(stage: Stage, servers: Cluster, given: argparse.Namespace) -> Played:
    """Measure while nothing happens, then kill, and look on for as long again."""
    rate = given.rate or RATE
    async with stage.loaded(PLAIN, Pace(inflight=0, rate=rate)) as tally:
        await asyncio.sleep(given.warmup)
        calm = await stage.measured(tally, lambda: asyncio.sleep(given.seconds))
        leader = servers.leads_now()
        killed_s = time.monotonic()
        leader.kill()
        await asyncio.sleep(given.seconds)
        await asyncio.to_thread(servers.start_again, leader)
        stage.pids = {**servers.pids, **{name: pid for name, pid in stage.pids.items() if name not in servers.pids}}
    return Played(window=calm, steps=PLAIN.steps, figures=seen(tally.ends, killed_s=killed_s, rate=rate))


def seen(ends: Sequence[End], *, killed_s: float, rate: float) -> dict[str, float]:
    """What the callers saw of a kill. -1: the rate was never there again.

    The gap is the longest time without an end, from the last end before the kill on.
    """
    moments = sorted(end.ended_s for end in ends)
    first = max((at for at in moments if at <= killed_s), default=killed_s)
    after = [first, *(at for at in moments if at > killed_s)]
    gap_s, gap_ended_s = max(
        ((later - earlier, later) for earlier, later in itertools.pairwise(after)), default=(0.0, first)
    )
    half_s = next((at for at in _half_rates(after, rate=rate) if at >= gap_ended_s), None)
    return {
        "gap_s": gap_s,
        "half_rate_after_gap_s": half_s - gap_ended_s if half_s is not None else -1.0,
        "slowest_job_s": max((end.latency_s for end in ends if end.ended_s > killed_s), default=0.0),
    }


def _half_rates(moments: Sequence[float], *, rate: float) -> list[float]:
    """The moments at which, of a window that ends there, as many jobs have ended as half of the rate makes."""
    wanted = max(1, int(rate * RATE_WINDOW_S / 2))
    return [
        moments[last] for last in range(wanted, len(moments)) if moments[last] - moments[last - wanted] <= RATE_WINDOW_S
    ]
