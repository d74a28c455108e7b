"""What a client reads of a real node: lists, counts, steps, and a watch that it takes its time with."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple

import pytest_asyncio

from stepward.client import AsyncClient
from stepward.client.values import HistoryEvent, JobState
from stepward.server.node import Node
from stepward.v1 import definition_pb2
from tests.server import nodes
from tests.server.nodes import eventually
from tests.server.plain_agent import agent

STEPS = 30
LARGE = "x" * 250_000


class Live(NamedTuple):
    """A node that gives nobody more than half a second to read, a client, and a job with large outputs that ended."""

    node: Node
    client: AsyncClient
    job_id: str


@pytest_asyncio.fixture
async def live(tmp_path: Path) -> AsyncIterator[Live]:
    async with (
        nodes.running(tmp_path / "data", stalled_ms_max=500) as node,
        nodes.connected(node.address) as stubs,
        AsyncClient(node.address) as client,
        agent(stubs, "one"),
    ):
        steps = [definition_pb2.Step(id=f"s{n:02}", action="one") for n in range(STEPS)]
        steps.append(definition_pb2.Step(id="last", action="one", needs=["s00", "s01"], input="1"))
        await nodes.define(stubs, "many", *steps)
        await nodes.define(stubs, "small", definition_pb2.Step(id="only", action="one", queue="nobody"))
        job = await client.run("many", LARGE, labels={"size": "l"})
        yield Live(node, client, job.job_id)


async def test_watch_that_takes_its_time(live: Live) -> None:
    """It is cut, and goes on by itself: each event once, in order, and in the end every step as it is."""
    told: list[HistoryEvent] = []
    async with aclosing(live.client.watch(live.job_id)) as changes:
        async for change in changes:
            if not told:

                async def is_cut() -> bool:
                    return live.node.counters.refusals > 0

                await eventually(is_cut)
            told += change.events
    history = [event async for event in live.client.history(live.job_id)]

    assert [event.message for event in told] == [event.message for event in history]
    assert change.job.state is JobState.COMPLETED
    assert {step.step_id: step.state for step in change.job.steps} == {
        step.step_id: step.state async for step in live.client.steps(live.job_id)
    }


async def test_what_fits_and_what_is_counted(live: Live) -> None:
    """A job whose outputs do not fit has some of its steps; the pages of steps have all, with their outputs."""
    job = await live.client.get(live.job_id)
    steps = [step async for step in live.client.steps(live.job_id)]

    assert 0 < len(job.steps) < job.steps_total == len(steps) == STEPS + 1
    assert job.step_counts == {"SUCCEEDED": STEPS + 1}
    assert [step.output for step in steps] == [LARGE] * STEPS + [1]


async def test_lists_and_counts(live: Live) -> None:
    """By everything that can be said of jobs."""
    small = (await live.client.submit("small", labels={"size": "s"})).job_id
    now = datetime.now(UTC)
    hour = timedelta(hours=1)

    async def both(**wanted: object) -> tuple[list[str], int]:
        listed = [job.job_id async for job in live.client.list(**wanted)]  # type: ignore[arg-type]  # any of them
        return listed, (await live.client.count(**wanted)).total  # type: ignore[arg-type]  # any of them

    assert await both() == ([small, live.job_id], 2)
    assert await both(labels={"size": "l"}) == ([live.job_id], 1)
    assert await both(queue="nobody") == ([small], 1)
    assert await both(states=["COMPLETED"], definition="many") == ([live.job_id], 1)
    assert await both(since=now - hour, until=now + hour) == ([small, live.job_id], 2)
    assert await both(since=now + hour) == ([], 0)
    assert (await live.client.count()).by_state == {JobState.RUNNING: 1, JobState.COMPLETED: 1}
