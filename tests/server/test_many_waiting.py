"""A hundred thousand steps wait with distant deadlines, in a store on disk: what is due among them is acted on."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from stepward.client import AsyncClient
from stepward.server.core import keys, rows
from stepward.server.store.lmdb_store import LmdbStore
from tests.server import nodes, waiting_cost

WAITING = 100_000
DAY_MS = 86_400_000


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
    async with nodes.running(tmp_path / "data") as node, AsyncClient(node.address) as client:
        late_ms = await waiting_cost.late_ms(client, waiting_cost.DUE)
        sweeps_before = node.counters.sweeps
        await asyncio.sleep(2.0)
        sweeps = node.counters.sweeps - sweeps_before
    print(f"acted on {late_ms} ms after it was due; {sweeps} sweeps in 2 s of rest")

    assert min(late_ms) >= 0
    assert max(late_ms) <= waiting_cost.LATE_MS_MAX
    assert 1 <= sweeps <= 4


@pytest.mark.slow
async def test_cost_of_waiting_is_measured_on_real_processes(tmp_path: Path) -> None:
    """The short form of `make waiting`: a thousand steps that wait cost less than anybody could notice."""
    cost = await waiting_cost.measure(tmp_path, 1_000, 3.0, quiet_s=2.0)

    # Two processes that do the same may differ by this on a machine that does other things, too.
    assert cost.many_percent < cost.few_percent + 5.0
    assert max(cost.late_ms) <= waiting_cost.LATE_MS_MAX


@pytest.mark.parametrize(
    ("cost", "breaches"),
    [
        (waiting_cost.Cost(1.0, 1.0 + waiting_cost.ADDED_PERCENT_MAX, [waiting_cost.LATE_MS_MAX]), 0),
        (waiting_cost.Cost(1.0, 1.1 + waiting_cost.ADDED_PERCENT_MAX, [0, waiting_cost.LATE_MS_MAX]), 1),
        (waiting_cost.Cost(1.0, 1.0, [0, waiting_cost.LATE_MS_MAX + 1]), 1),
    ],
)
def test_what_waiting_may_cost(cost: waiting_cost.Cost, breaches: int) -> None:
    assert len(cost.breaches) == breaches
