"""A hundred thousand steps wait with distant deadlines, in a store on disk: what is due among them is acted on."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from pathlib import Path

import pytest

from stepward.client import AsyncClient, Definition, Timeouts
from stepward.server.core import keys, rows
from stepward.server.store.lmdb_store import LmdbStore
from tests.server import nodes

WAITING = 100_000
DAY_MS = 86_400_000
QUEUE_TIMEOUT_MS = 1_000
# What was due and when that was acted on, both on log time.
LATE_MS_MAX = 500
STEPS = 5


def let_wait(directory: Path, count: int) -> None:
    """Timers of so many steps, a day from now and later, as a shard has them whose jobs wait for agents."""
    nodes.make_cluster(directory)
    store = LmdbStore(directory)
    timer = keys.encode_row(rows.Timer())
    timers = (
        keys.step_timer(rows.Clock.LOG, keys.Duty.JUDGE, DAY_MS + number, f"0-{number:032x}", 0)
        for number in range(count)
    )
    store.apply([(key, timer) for key in timers], [])
    store.commit()
    store.close()


@pytest.mark.slow
async def test_what_is_due_among_many_that_wait_is_acted_on_within_half_a_second(tmp_path: Path) -> None:
    """Nobody takes a step, and its time in the queue is over: it is given up on time. Meanwhile nothing spins."""
    let_wait(tmp_path / "data", WAITING)
    definition = Definition("hurried")
    definition.step("pay", timeouts=Timeouts(queue=timedelta(milliseconds=QUEUE_TIMEOUT_MS)))
    async with nodes.running(tmp_path / "data") as node, AsyncClient(node.address) as client:
        await client.apply_definition(definition)
        late_ms = []
        for _ in range(STEPS):
            submitted = await client.submit("hurried")
            await client.wait(submitted.job_id, check=False)
            events = [event async for event in client.history(submitted.job_id)]
            ready_ms = next(event.log_time_ms for event in events if event.type == "StepReady")
            failed_ms = next(event.log_time_ms for event in events if event.type == "StepFailed")
            late_ms.append(failed_ms - ready_ms - QUEUE_TIMEOUT_MS)
        sweeps_before = node.counters.sweeps
        await asyncio.sleep(2.0)
        sweeps = node.counters.sweeps - sweeps_before
    print(f"acted on {late_ms} ms after it was due; {sweeps} sweeps in 2 s of rest")

    assert min(late_ms) >= 0
    assert max(late_ms) <= LATE_MS_MAX
    assert 1 <= sweeps <= 4
