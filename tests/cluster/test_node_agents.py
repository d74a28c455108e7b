"""Agents of three real nodes, while those who decide about them die: no lease is lost, and none lives on for that."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path

import pytest

from stepward.agents import Agent, Context
from stepward.client import AsyncClient, Definition, JobState, Retry, StepState
from tests.agents.test_agent_live import serving
from tests.cluster.nodes import LEASE_LOSS_S_MAX, NODE_IDS, TTL_MS, Nodes
from tests.cluster.rig import until
from tests.cluster.test_agent_kills import step_is
from tests.cluster.traffic import agents_connect
from tests.swallowing import Road, road

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

AGENTS = 20
S_MAX = 60.0
# From the last sign of life to the moment at which a lost agent's work is given to another, and a second more.
RECLAIMED_S = TTL_MS / 1_000 * 4 / 3 + 3.5 + 1.0
SWEEPS_S = 3.0
ATTEMPTS = 3
STEPS = 10


class Hands:
    """Agents with one slot each, whose work lasts until it is let go."""

    def __init__(self) -> None:
        self.let_go = asyncio.Event()
        self.begun: Counter[str] = Counter()
        self.lost = 0
        self.agents = [self._agent(number) for number in range(AGENTS)]

    def _agent(self, number: int) -> Agent:
        agent = Agent(queue="hold", slots=1, name=f"agent-{number}")
        agent.action("hold")(self._hold)
        return agent

    async def _hold(self, ctx: Context) -> None:
        self.begun[ctx.job_id] += 1
        await self.let_go.wait()
        self.lost += ctx.lease_lost


@contextmanager
def three_nodes(folder: Path) -> Iterator[Nodes]:
    with Nodes(folder) as nodes:
        nodes.start_nodes()
        yield nodes


@asynccontextmanager
async def at_work(client: AsyncClient, *addresses: str) -> AsyncIterator[tuple[Hands, list[str]]]:
    """Agents that are all busy, each with a job of its own."""
    hands = Hands()
    definition = Definition("hold")
    definition.step("hold", queue="hold")
    await client.apply_definition(definition)
    async with AsyncExitStack() as opened:
        for agent in hands.agents:
            await opened.enter_async_context(serving(agent, *addresses))
        job_ids = [(await client.submit("hold")).job_id for _ in range(AGENTS)]
        await until(lambda: len(hands.begun) == AGENTS, seconds_max=S_MAX, what=f"{AGENTS} agents are at work")
        yield hands, job_ids
        hands.let_go.set()
        for job_id in job_ids:
            result = await client.wait(job_id, wait_max_s=S_MAX)
            assert (result.state, result.job.step("hold").attempts) == (JobState.COMPLETED, 1)
    assert set(hands.begun.values()) == {1}


async def another_leads(nodes: Nodes) -> None:
    """Kill the leader, and start it again when another leads."""
    leader = await nodes.leader()
    nodes.nodes[leader].kill()
    await nodes.leader(*nodes.others(leader))
    await asyncio.to_thread(nodes.start_nodes, leader)


async def test_h010_h067_leader_that_agents_cannot_reach_costs_no_lease(tmp_path: Path) -> None:
    """Twenty agents, three addresses, packets to the leader dropped: no step is moved to another agent."""
    with three_nodes(tmp_path) as nodes:
        leader = await nodes.leader()
        order = [leader, *nodes.others(leader)]
        async with nodes.client(*nodes.others(leader)) as client, AsyncExitStack() as opened:
            roads: list[Road] = [await opened.enter_async_context(road(nodes.addresses[name])) for name in order]
            async with at_work(client, *(one.address for one in roads)) as (hands, _):
                before, elsewhere = roads[0].callers, sum(one.callers for one in roads[1:])
                assert before > 0
                roads[0].swallow()
                began_at = time.monotonic()
                await until(
                    lambda: sum(one.callers for one in roads[1:]) >= elsewhere + before,
                    seconds_max=S_MAX,
                    what="all of its agents are elsewhere",
                )
                await asyncio.sleep(began_at + RECLAIMED_S - time.monotonic())

            assert hands.lost == 0


async def test_h002_time_without_a_leader_uses_up_no_lease(tmp_path: Path) -> None:
    """Two nodes are gone for longer than a lease: with the next leader everybody goes on with what he has."""
    with three_nodes(tmp_path) as nodes:
        async with nodes.client() as client, at_work(client, *nodes.addresses.values()):
            gone = nodes.others(NODE_IDS[0])
            for name in gone:
                nodes.nodes[name].kill()
            await asyncio.sleep(TTL_MS / 1_000 + 1.0)
            await asyncio.to_thread(nodes.start_nodes, *gone)
            await nodes.leader()
            # A leader that counted the time before it would take everybody for dead in its first sweeps.
            await asyncio.sleep(SWEEPS_S)


async def test_h001_h011_elections_prolong_no_lease(tmp_path: Path) -> None:
    """An agent dies at work, and the leader again and again: its step is given away as if one had led all along."""
    with three_nodes(tmp_path) as nodes:
        nodes.start_travel()
        dead = nodes.start_agent("agent-1")
        async with nodes.client() as client:
            await agents_connect(client, 1)
            trip = {"traveller": "Ada", "flight": "slow-60000", "hotel": "quiet", "car": "small"}
            submitted = await client.submit("trip", trip)
            await step_is(client, submitted.job_id, "flight", StepState.RUNNING)
            dead.kill()
            died_at = time.monotonic()
            nodes.start_agent("agent-2")
            moves = 0
            while (await client.get(submitted.job_id)).step("flight").attempts == 1:
                await another_leads(nodes)
                await nodes.whole()
                moves += 1
                assert time.monotonic() < died_at + 2 * LEASE_LOSS_S_MAX, "elections keep the lease alive"
            took_s = time.monotonic() - died_at
        print(f"given to another {took_s:.1f} s after it died, with {moves} changes of the leader")

    # Each change costs the time without a leader, and the little for which its clock may go on.
    assert moves >= 3
    assert took_s < RECLAIMED_S + 1.5 * moves


async def test_h029_attempts_are_counted_over_failovers(tmp_path: Path) -> None:
    """Ten steps that fail each time, and a leader that dies between their attempts: three each, and not one more."""
    tried: Counter[str] = Counter()
    agent = Agent(queue="fail", slots=STEPS)

    @agent.action
    async def fail(ctx: Context) -> None:
        tried[ctx.job_id] += 1
        raise RuntimeError("as always")

    def each_tried(times: int) -> bool:
        return len(tried) == STEPS and min(tried.values()) >= times

    definition = Definition("fails")
    definition.step("fail", queue="fail", retry=Retry(attempts_max=ATTEMPTS))
    with three_nodes(tmp_path) as nodes:
        async with nodes.client() as client, serving(agent, *nodes.addresses.values()):
            await client.apply_definition(definition)
            job_ids = [(await client.submit("fails")).job_id for _ in range(STEPS)]
            for count in range(1, ATTEMPTS):
                await until(partial(each_tried, count), seconds_max=S_MAX, what="each step has failed once more")
                await another_leads(nodes)
            results = [await client.wait(job_id, wait_max_s=S_MAX, check=False) for job_id in job_ids]

    assert [result.state for result in results] == [JobState.FAILED] * STEPS
    assert {result.job.step("fail").attempts for result in results} == set(tried.values()) == {ATTEMPTS}
