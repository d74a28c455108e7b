"""What steps that wait cost a supervisor which has nothing to do about them: `make waiting STEPS=100000`.

Two real nodes run side by side, each a process and a cluster of its own, one with a few steps that wait for an agent
nobody has, one with many. What they use while nothing happens is taken from the kernel; its difference is what waiting
costs. Then a few steps fall due among the many, and the history says how late that was noticed.
"""

from __future__ import annotations

import argparse
import asyncio
import shutil
import tempfile
import time
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Final, NamedTuple

import psutil

from stepward.client import AsyncClient, Definition, JobState, Timeouts
from tests.cluster.rig import Rig

FEW: Final = 10
STEPS_A_JOB: Final = 50
SUBMITTED_AT_ONCE: Final = 20
DISTANT: Final = timedelta(days=1)
# Between the last submission and the first look: what follows from it is over.
QUIET_S: Final = 10.0
# Of one processor.
ADDED_PERCENT_MAX: Final = 1.0
DUE: Final = 5
QUEUE_TIMEOUT_MS: Final = 1_000
# What was due and when that was acted on, both on log time.
LATE_MS_MAX: Final = 500


class Cost(NamedTuple):
    """Of both nodes, in percent of one processor; and by how much what fell due among the many was late."""

    few_percent: float
    many_percent: float
    late_ms: list[int]

    @property
    def breaches(self) -> list[str]:
        """What is over its bound, in words."""
        added, found = self.many_percent - self.few_percent, []
        if added > ADDED_PERCENT_MAX:
            found.append(f"waiting takes {added:.2f}% of a processor; at most {ADDED_PERCENT_MAX:g} may be")
        if max(self.late_ms) > LATE_MS_MAX:
            found.append(f"a step was acted on {max(self.late_ms)} ms after it was due; at most {LATE_MS_MAX} may be")
        return found


async def let_wait(client: AsyncClient, steps: int) -> None:
    """Submit jobs with so many steps together, which nobody takes."""
    for width in (STEPS_A_JOB, 1):
        definition = Definition(f"waits-{width}")
        for number in range(width):
            definition.step(f"step-{number}", action="wait", queue="nobody", timeouts=Timeouts(queue=DISTANT))
        await client.apply_definition(definition)
    jobs = [f"waits-{STEPS_A_JOB}"] * (steps // STEPS_A_JOB) + ["waits-1"] * (steps % STEPS_A_JOB)
    for first in range(0, len(jobs), SUBMITTED_AT_ONCE):
        await asyncio.gather(
            *(client.submit(name, deadline=2 * DISTANT) for name in jobs[first : first + SUBMITTED_AT_ONCE])
        )
    counts = await client.count()
    assert counts.by_state == {JobState.RUNNING: len(jobs)}, counts


async def late_ms(client: AsyncClient, count: int) -> list[int]:
    """Let steps fall due one after the other, because nobody takes them: how late each was given up."""
    definition = Definition("hurried")
    definition.step("pay", timeouts=Timeouts(queue=timedelta(milliseconds=QUEUE_TIMEOUT_MS)))
    await client.apply_definition(definition)
    found = []
    for _ in range(count):
        submitted = await client.submit("hurried")
        await client.wait(submitted.job_id, check=False)
        events = [event async for event in client.history(submitted.job_id)]
        ready_ms = next(event.log_time_ms for event in events if event.type == "StepReady")
        failed_ms = next(event.log_time_ms for event in events if event.type == "StepFailed")
        found.append(failed_ms - ready_ms - QUEUE_TIMEOUT_MS)
    return found


async def measure(folder: Path, steps: int, seconds: float, *, quiet_s: float = QUIET_S) -> Cost:
    """Run both, let them rest for so long, and let something fall due among the many."""
    for name in ("few", "many"):
        (folder / name).mkdir()
    with Rig(folder / "few") as few, Rig(folder / "many") as many:
        for rig in (few, many):
            rig.start_server()
        async with AsyncClient(few.server.address) as client:
            await let_wait(client, FEW)
        async with AsyncClient(many.server.address, timeout_s=60) as client:
            began_s = time.monotonic()
            await let_wait(client, steps)
            print(f"{steps} steps wait after {time.monotonic() - began_s:.0f} s", flush=True)
        await asyncio.sleep(quiet_s)
        pids = (few.server.pid, many.server.pid)
        before = [processor_s(pid) for pid in pids]
        began_s = time.monotonic()
        await asyncio.sleep(seconds)
        took_s = time.monotonic() - began_s
        used = [100 * (processor_s(pid) - start) / took_s for pid, start in zip(pids, before, strict=True)]
        async with AsyncClient(many.server.address) as client:
            return Cost(used[0], used[1], await late_ms(client, DUE))


def processor_s(pid: int) -> float:
    """What a process has used so far, in itself and for it in the kernel."""
    times = psutil.Process(pid).cpu_times()
    return times.user + times.system


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, and fail when something is over its bound."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--seconds", type=float, default=60.0)
    given = parser.parse_args(arguments)
    folder = Path(tempfile.mkdtemp(prefix="stepward-waiting-"))
    print(folder)
    cost = asyncio.run(measure(folder, given.steps, given.seconds))
    print(
        f"{FEW} waiting steps: {cost.few_percent:.2f}% of a processor; {given.steps}: {cost.many_percent:.2f}%; "
        f"added {cost.many_percent - cost.few_percent:+.2f}%. What fell due was acted on {cost.late_ms} ms later."
    )
    if cost.breaches:
        raise SystemExit("\n".join(cost.breaches))
    # Kept only when something was wrong.
    shutil.rmtree(folder)


if __name__ == "__main__":
    main()
