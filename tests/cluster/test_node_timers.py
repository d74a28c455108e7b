"""Retry waits on three real nodes: each ends once and in its own time, whoever leads, and also when nobody ran then."""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import pytest

from stepward.agents import Agent, Context, RetryAfter
from stepward.client import AsyncClient, Definition, JobState, Retry, StepState
from tests.agents.test_agent_live import serving
from tests.cluster.nodes import NODE_IDS, Nodes
from tests.cluster.rig import until
from tests.cluster.test_agent_kills import step_is
from tests.cluster.traffic import agents_connect
from tests.faults.wall_clock import WallClock
from tests.server.test_metrics import fetch, parsed

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

HOUR_S = 3_600.0
# By how much the wall clocks of the nodes differ.
SKEW_S = 0.05
# Waits in one test, and how they are spread.
WAITS_S = [1.0 + 0.2 * number for number in range(20)]
# Instants are whole milliseconds, and each leader rounds once.
ROUNDING_S = 0.02
# A leader that was killed is missed and followed within 2.5 s; the rest is for a busy machine.
LATE_S_MAX = 2.5 + 5.0
# A sweep comes at latest so long after something has fallen due; the rest is for an agent that finds the nodes again.
TICK_S = 1.0
BACK_S_MAX = 5.0
S_MAX = 60.0
FLAPS = 30
# Long enough to see two loops sweep where there should be one.
WATCHED_S = 3.0


class Waits:
    """Jobs whose first attempt asks for a wait of the length that they are told; when each attempt began."""

    def __init__(self, client: AsyncClient) -> None:
        self._client = client
        self.waits_s: dict[str, float] = {}
        self.began_at: dict[str, list[float]] = defaultdict(list)
        self.agent = Agent(queue="wait", slots=64, name="waits")
        self.agent.action("wait")(self._wait)

    async def _wait(self, ctx: Context, wait_s: float) -> None:
        self.began_at[ctx.job_id].append(time.monotonic())
        if ctx.attempt == 1:
            raise RetryAfter(wait_s, "not yet")

    async def begin(self, *waits_s: float) -> list[str]:
        """Submit a job for each, and see all of them wait. Returns their ids."""
        submitted = await asyncio.gather(*(self._client.submit("wait", {"wait_s": wait_s}) for wait_s in waits_s))
        job_ids = [one.job_id for one in submitted]
        self.waits_s |= dict(zip(job_ids, waits_s, strict=True))
        await until(lambda: all(self.began_at[one] for one in job_ids), seconds_max=S_MAX, what="all have failed once")
        return job_ids

    async def over(self, job_ids: list[str]) -> None:
        """Wait until these have ended."""
        for job_id in job_ids:
            result = await self._client.wait(job_id, wait_max_s=S_MAX)
            assert (result.state, result.job.step("wait").attempts) == (JobState.COMPLETED, 2)

    def late_s(self, job_ids: list[str]) -> list[float]:
        """By how much each second attempt began behind its time, in the order of the waits; each began once."""
        began = {job_id: self.began_at[job_id] for job_id in job_ids}
        assert {job_id: len(times) for job_id, times in began.items()} == dict.fromkeys(job_ids, 2)
        return [second - first - self.waits_s[job_id] for job_id, (first, second) in began.items()]


@pytest.fixture(scope="module")
def clocks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, WallClock]]:
    """A clock for each node; their wall clocks do not agree."""
    folder = tmp_path_factory.mktemp("clocks")
    made = {name: WallClock(folder, name) for name in NODE_IDS}
    for clock, skew_s in zip(made.values(), (-SKEW_S, 0.0, SKEW_S), strict=True):
        clock.set(skew_s)
    yield made
    for clock in made.values():
        clock.close()


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory, clocks: dict[str, WallClock]) -> Iterator[Nodes]:
    """Three nodes for all tests here; none of them is left down."""
    prefixes = {name: clock.prefix for name, clock in clocks.items()}
    with Nodes(tmp_path_factory.mktemp("nodes"), prefixes=prefixes) as three:
        three.start_nodes()
        yield three


@asynccontextmanager
async def waiting(nodes: Nodes) -> AsyncIterator[tuple[AsyncClient, Waits]]:
    """An agent that knows all nodes."""
    async with nodes.client() as client:
        waits = Waits(client)
        definition = Definition("wait")
        definition.step("wait", queue="wait", retry=Retry(attempts_max=2))
        await client.apply_definition(definition)
        async with serving(waits.agent, *nodes.addresses.values()):
            await agents_connect(client, 1)
            yield client, waits


async def counters(nodes: Nodes, name: str) -> dict[str, float]:
    """A counter of each process."""
    texts = await asyncio.gather(
        *(asyncio.to_thread(fetch, str(node.ready["http"]), "/metrics") for node in nodes.nodes.values())
    )
    return {node: parsed(text)[f"stepward_{name}", ()] for node, (_, text) in zip(nodes.nodes, texts, strict=True)}


async def grown(nodes: Nodes, name: str, before: dict[str, float]) -> dict[str, float]:
    """By how much a counter of each process has grown."""
    after = await counters(nodes, name)
    return {node: after[node] - before[node] for node in after}


async def flap(client: AsyncClient, nodes: Nodes) -> None:
    """Leadership goes to another node and comes back at once."""
    first = await nodes.leader()
    for target in (nodes.others(first)[0], first):
        leadership = await client.transfer_leader(target)
        assert leadership.node_id == target


async def test_h038_h040_waits_end_once_and_in_time_while_leadership_flaps(nodes: Nodes) -> None:
    """The clocks of the nodes differ, so some leader looks too early: nothing is dropped, nothing fires too soon.

    What the nodes count as handled is what fired, and no look that found nothing due.
    """
    async with waiting(nodes) as (client, waits):
        before = await counters(nodes, "swept_total")
        began_at = time.monotonic()
        job_ids = await waits.begin(*WAITS_S)
        (patient,) = await waits.begin(HOUR_S)
        while time.monotonic() < began_at + max(WAITS_S):
            await flap(client, nodes)
            await asyncio.sleep(0.2)
        await waits.over(job_ids)
        swept = sum((await grown(nodes, "swept_total", before)).values())
        took_s = time.monotonic() - began_at
        late_s = waits.late_s(job_ids)
        assert len(waits.began_at[patient]) == 1
        assert (await client.get(patient)).step("wait").state is StepState.RETRY_WAIT
        await client.cancel(patient)
    print(f"late by {min(late_s):.3f} to {max(late_s):.3f} s; {swept:.0f} timers handled")

    assert min(late_s) >= -ROUNDING_S
    assert max(late_s) < LATE_S_MAX
    # The lease of the agent's session is looked at once in its length, and set again.
    assert len(WAITS_S) <= swept <= len(WAITS_S) + took_s // (nodes.session_ttl_ms / 1_000)


async def test_h040_leader_that_dies_hurries_no_wait(nodes: Nodes) -> None:
    """Whatever falls due later falls due for the next leader, and not all at once when that begins."""
    async with waiting(nodes) as (client, waits):
        job_ids = await waits.begin(*WAITS_S)
        (patient,) = await waits.begin(HOUR_S)
        leader = await nodes.leader()
        nodes.nodes[leader].kill()
        await nodes.leader(*nodes.others(leader))
        await asyncio.to_thread(nodes.start_nodes, leader)
        await waits.over(job_ids)
        late_s = waits.late_s(job_ids)
        assert len(waits.began_at[patient]) == 1
        await client.cancel(patient)
    print(f"late by {min(late_s):.3f} to {max(late_s):.3f} s")

    assert min(late_s) >= -ROUNDING_S
    assert max(late_s) < LATE_S_MAX


def supervised(nodes: Nodes, name: str) -> list[tuple[str, int]]:
    """What a node has said of its supervisors and its epochs, in order."""
    lines = [json.loads(line) for line in (nodes.folder / f"{name}.log").read_text().splitlines()]
    led = [("leads", line["epoch"]) for line in lines if line["event"] == "standing_changed" and line["leads"]]
    return led + [("supervises", line["epoch"]) for line in lines if line["event"] == "supervisor_started"]


async def test_h104_flaps_leave_one_supervisor(nodes: Nodes) -> None:
    """Won and lost within a moment, again and again: each epoch has one supervisor, and the last one works alone."""
    async with waiting(nodes) as (client, waits):
        job_ids = await waits.begin(*WAITS_S[:10])
        for _ in range(FLAPS // 2):
            await flap(client, nodes)
        leader = await nodes.leader()
        await waits.over(job_ids)
        waits.late_s(job_ids)
        sweeps = await counters(nodes, "sweeps_total")
        watched_from = time.monotonic()
        await asyncio.sleep(WATCHED_S)
        sweeps = await grown(nodes, "sweeps_total", sweeps)
        watched_s = time.monotonic() - watched_from
    told = {name: supervised(nodes, name) for name in NODE_IDS}
    epochs = {name: [epoch for what, epoch in lines if what == "leads"] for name, lines in told.items()}
    supervisors = {name: [epoch for what, epoch in lines if what == "supervises"] for name, lines in told.items()}
    print(f"{sum(map(len, epochs.values()))} epochs; sweeps in {watched_s:.1f} s: {sweeps}")

    # Each epoch belongs to one node, which supervised it once, in order.
    assert supervisors == epochs
    every = [epoch for one in epochs.values() for epoch in one]
    assert Counter(every).most_common(1)[0][1] == 1
    assert len(every) > FLAPS
    assert all(one == sorted(one) for one in epochs.values())
    # One sweep a second while nothing is due, and none elsewhere; two supervisors of one node would make it two.
    assert {name: count for name, count in sweeps.items() if name != leader} == dict.fromkeys(nodes.others(leader), 0)
    assert 1 <= sweeps[leader] < 1.6 * watched_s


async def test_h039_wait_that_ended_while_all_nodes_were_down_is_over_at_once(
    nodes: Nodes, clocks: dict[str, WallClock]
) -> None:
    """They are down for an hour: what fell due then fires with the next leader, once; what is due later does not."""
    async with waiting(nodes) as (client, waits):
        due, not_due = await waits.begin(HOUR_S / 2, 2 * HOUR_S)
        failed_at = time.time()
        for job_id in (due, not_due):
            await step_is(client, job_id, "wait", StepState.RETRY_WAIT)
        for name in NODE_IDS:
            nodes.nodes[name].kill()
        for clock in clocks.values():
            clock.sleep(HOUR_S)
        await asyncio.to_thread(nodes.start_nodes)
        await nodes.leader()
        led_at = time.monotonic()
        await waits.over([due])
        await asyncio.sleep(led_at + 2 * TICK_S - time.monotonic())
        later = (await client.get(not_due)).step("wait")
        await client.cancel(not_due)
    print(f"began {waits.began_at[due][1] - led_at:.2f} s after somebody led")

    assert [len(waits.began_at[job_id]) for job_id in (due, not_due)] == [2, 1]
    assert waits.began_at[due][1] - led_at < TICK_S + BACK_S_MAX
    assert later.state is StepState.RETRY_WAIT
    # Nor was its wait begun anew.
    assert later.due_at is not None
    assert later.due_at.timestamp() - failed_at == pytest.approx(2 * HOUR_S, abs=30)
