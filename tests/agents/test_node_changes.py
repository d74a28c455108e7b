"""An agent whose node is lost, leaves it behind, or falls silent: the session goes on elsewhere, with its work."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

from stepward.agents import Agent, Context
from stepward.agents import route as routes
from stepward.agents.route import Route
from tests.agents.played import offer
from tests.agents.stub import BOUND_S, Stub, StubStream, new_stub, until
from tests.agents.test_agent_live import serving
from tests.swallowing import Road, road

# Long enough that a busy machine does not end the lease by itself.
TTL_MS = 3_000


class Work:
    """An agent with one handler, which waits to be let go."""

    def __init__(self) -> None:
        self.agent = Agent(slots=4, drain_timeout_seconds=1.0)
        self.let_go = asyncio.Event()
        self.lease_lost = False
        self.runs = 0
        self.agent.action("work")(self.work)

    async def work(self, ctx: Context) -> str:
        self.runs += 1
        await self.let_go.wait()
        self.lease_lost = ctx.lease_lost
        return "done"


@asynccontextmanager
async def three() -> AsyncIterator[tuple[list[Stub], list[Road]]]:
    """Three nodes, each at the end of a road of its own."""
    stubs = [new_stub() for _ in range(3)]
    async with AsyncExitStack() as opened:
        for stub in stubs:
            stub.ttl_ms = TTL_MS
            await stub.start()
            opened.push_async_callback(stub.stop)
        roads = [await opened.enter_async_context(road(stub.address)) for stub in stubs]
        yield stubs, roads


async def first_of(stubs: list[Stub]) -> int:
    """Which node the agent has gone to."""
    await until(lambda: any(stub.streams for stub in stubs))
    return next(number for number, stub in enumerate(stubs) if stub.streams)


async def done(stream: StubStream) -> bool:
    """Whether the work that was begun elsewhere is reported here."""
    return (await stream.reported("a", "succeeded")).attempt.token == 1


@pytest.mark.parametrize("dead", [1, 2])
async def test_h010_h067_dead_hosts_are_left_before_the_lease_ends(dead: int) -> None:
    """Silence without a reset: the same session reaches a node that answers, and nothing of its work is lost."""
    async with three() as (stubs, roads):
        work = Work()
        async with serving(work.agent, *(one.address for one in roads)):
            at = await first_of(stubs)
            first = await stubs[at].stream()
            first.offer(offer("a", 1))
            await first.reported("a", "started")
            # The addresses are gone through in their order.
            for number in range(dead):
                roads[(at + number) % 3].swallow()
            last = await stubs[(at + dead) % 3].stream()
            work.let_go.set()
            assert await done(last)

    assert last.hello.session_id == first.hello.session_id
    assert [one.step_id for one in last.hello.held] == ["a"]
    assert (work.runs, work.lease_lost) == (1, False)


@pytest.mark.parametrize("reason", ["NO_LEADER", "NODE_DRAINING", "KILLED"])
async def test_stream_that_a_node_ends_goes_on_elsewhere_at_once(reason: str) -> None:
    """A node that is cut off, goes down, or is killed says so, or its kernel does: nobody waits for a timeout."""
    async with three() as (stubs, roads):
        work = Work()
        async with serving(work.agent, *(one.address for one in roads)):
            at = await first_of(stubs)
            first = await stubs[at].stream()
            first.offer(offer("a", 1))
            await first.reported("a", "started")
            asked_s = asyncio.get_running_loop().time()
            if reason == "KILLED":
                await stubs[at].stop()
            else:
                stubs[at].refusal = reason
                first.fail(reason)
            last = await stubs[(at + 1) % 3].stream()
            took_s = asyncio.get_running_loop().time() - asked_s
            work.let_go.set()
            assert await done(last)

    assert last.hello.session_id == first.hello.session_id
    assert [one.step_id for one in last.hello.held] == ["a"]
    assert (work.runs, work.lease_lost) == (1, False)
    assert took_s < TTL_MS / 3 / 1_000


@pytest.mark.parametrize("how", ["killed", "silent"])
async def test_one_address_is_enough_to_find_the_others(how: str) -> None:
    """The node that was found names them: the agent leaves it as if it had been told of all."""
    async with three() as (stubs, roads):
        stubs[0].node_addresses = [roads[number].address for number in (1, 2, 0)]
        work = Work()
        async with serving(work.agent, roads[0].address):
            first = await stubs[0].stream()
            first.offer(offer("a", 1))
            await first.reported("a", "started")
            if how == "killed":
                await stubs[0].stop()
            else:
                roads[0].swallow()
            last = await stubs[1].stream()
            work.let_go.set()
            assert await done(last)

    assert last.hello.session_id == first.hello.session_id
    assert (work.runs, work.lease_lost) == (1, False)


async def test_agent_that_drains_while_its_node_is_dead_hands_back_elsewhere() -> None:
    """What it was offered and has not started goes to the node that it finds."""
    async with three() as (stubs, roads):
        work = Work()
        async with serving(work.agent, *(one.address for one in roads)) as task:
            at = await first_of(stubs)
            first = await stubs[at].stream()
            first.offer(offer("a", 1))
            await first.reported("a", "started")
            roads[at].swallow()
            work.let_go.set()
            work.agent.drain()
            last = await stubs[(at + 1) % 3].stream()
            assert await done(last)
            async with asyncio.timeout(BOUND_S):
                code = await task

    assert (last.drained, code) == (True, 0)


def test_agents_of_a_lost_node_do_not_come_together() -> None:
    """They leave at the same moment, and must not say hello at the same moment, nor at the same node."""
    seeds = [Route(["a", "b", "c"], random.Random(seed)) for seed in range(200)]
    waits = [route.failed_wait_ms() for route in seeds]
    nexts = [route.next_address() for route in seeds]

    assert max(waits) <= routes.BACKOFF_INITIAL_MS
    assert len(set(waits)) > 50
    assert {nexts.count(address) // 40 for address in "abc"} == {1}
