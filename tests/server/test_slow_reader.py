"""An agent that lives and does not read, beside one that works."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import grpc.aio

from stepward.v1 import agent_service_pb2, definition_pb2, job_service_pb2
from tests.server import nodes
from tests.server.nodes import CALL_S_MAX, Stubs, submission
from tests.server.plain_agent import agent

S = CALL_S_MAX
JOBS = 1_000
SLOTS = 4
SUBMITTED_AT_ONCE = 50
BEAT_S = 0.3
# For all jobs, on a busy machine.
ALL_S_MAX = 60.0


@contextlib.asynccontextmanager
async def beating(beat: Callable[[int], Awaitable[Any]]) -> AsyncIterator[None]:
    """Heartbeats go out all the while."""

    async def for_ever() -> None:
        number = 0
        while True:
            number += 1
            await beat(number)
            await asyncio.sleep(BEAT_S)

    task = asyncio.create_task(for_ever())
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def submit(stubs: Stubs, count: int) -> None:
    for _ in range(count // SUBMITTED_AT_ONCE):
        request = job_service_pb2.SubmitJobRequest(job=submission("one"))
        await asyncio.gather(*(stubs.jobs.SubmitJob(request, timeout=S) for _ in range(SUBMITTED_AT_ONCE)))


async def listed(stubs: Stubs) -> dict[str, agent_service_pb2.Agent]:
    answer = await stubs.agents.ListAgents(agent_service_pb2.ListAgentsRequest(), timeout=S)
    return {one.name: one for one in answer.agents}


async def offers_in(call: Any) -> list[str]:
    """Read now what was never read, up to the answer to the last heartbeat."""
    last, offers = 1_000_000, []
    await call.write(agent_service_pb2.WorkRequest(heartbeat=agent_service_pb2.Heartbeat(number=last)))
    while (message := await call.read()) is not grpc.aio.EOF:
        offers += [offer.attempt.job_id for offer in message.offers.offers]
        if message.heartbeat.number == last:
            return offers
    raise AssertionError("the stream has ended")


async def test_h065_agent_that_does_not_read_is_sent_no_more_than_its_slots(tmp_path: Path) -> None:
    """H065: 1000 steps are READY. It holds its four, however long; the others are done by whoever takes them."""
    ceiling: set[int] = set()
    async with (
        nodes.running(tmp_path / "data") as node,
        nodes.connected(node.address) as stubs,
        nodes.connected(node.address) as narrow,
    ):
        await nodes.define(stubs, "one", definition_pb2.Step(id="one"))
        call = narrow.agents.Work()
        hello = agent_service_pb2.Hello(
            protocol_version=1, session_id="session-of-the-deaf-one", actions=["one"], slots=SLOTS, name="deaf"
        )
        await call.write(agent_service_pb2.WorkRequest(hello=hello))

        def beat(number: int) -> Awaitable[Any]:
            return call.write(agent_service_pb2.WorkRequest(heartbeat=agent_service_pb2.Heartbeat(number=number)))

        async with beating(beat):
            await submit(stubs, JOBS)
            async with agent(stubs, "one") as other, beating(other.heartbeat):

                async def others_are_done() -> bool:
                    ceiling.add((await listed(stubs))["deaf"].slots_taken)
                    return len(other.offers) >= JOBS - SLOTS

                await nodes.eventually(others_are_done, within_s=ALL_S_MAX)
                held = {ref.job_id for ref in (await listed(stubs))["deaf"].held}
                done = {offer.attempt.job_id for offer in other.offers}
            slow_streams = node.counters.slow_streams
        offered = await asyncio.wait_for(offers_in(call), S)
        call.cancel()

    assert ceiling == {SLOTS}
    assert slow_streams == 0
    assert len(done) == JOBS - SLOTS
    assert sorted(offered) == sorted(held)
    assert held.isdisjoint(done)
