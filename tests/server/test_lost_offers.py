"""H014: an assignment is committed, and the wire eats the message that tells its agent of it."""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path

import pytest_asyncio

from stepward.client import AsyncClient, Definition, Step, Timeouts
from stepward.server.node import Node
from tests.server import nodes
from tests.server.plain_agent import PlainAgent, agent, silent, succeeds
from tests.server.relay import Relay, relay

TTL_S = 3.0
# A sweep follows within a second, and an offer of the same batch takes no time that counts.
SOON_S = 1.5


@pytest_asyncio.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    async with nodes.running(tmp_path / "data") as node:
        yield node


async def becomes(client: AsyncClient, job_id: str, state: str) -> Step:
    """The step of a job, once it is in a state."""
    async with contextlib.aclosing(client.watch(job_id)) as changes:
        return await anext(change.job.steps[0] async for change in changes if change.job.steps[0].state == state)


async def lose_the_offer(client: AsyncClient, wire: Relay, listener: PlainAgent) -> tuple[str, int]:
    """Submit a job whose offer is committed and never arrives. Its id, and the token of the offer."""
    wire.swallow()
    submitted = await client.submit("lost")
    step = await becomes(client, submitted.job_id, "OFFERED")
    wire.cut()
    await listener.ended
    assert listener.offers == []
    return submitted.job_id, step.token


async def test_h014_lost_offer_that_starts_on_accept_goes_to_another_agent(node: Node) -> None:
    """After its accept deadline, a TTL and not the two hours of the step: no attempt is used, and the token is new."""
    definition = Definition("lost")
    definition.step("pay", effect="non_idempotent", timeouts=Timeouts(start_to_close=timedelta(hours=2)))
    async with AsyncClient(node.address) as client, nodes.connected(node.address) as stubs, relay(node.address) as wire:
        await client.apply_definition(definition)
        async with nodes.connected(wire.address) as far, agent(far, "pay", handler=silent) as listener:
            began_at = time.monotonic()
            job_id, lost_token = await lose_the_offer(client, wire, listener)
            step = await becomes(client, job_id, "READY")
            took_s = time.monotonic() - began_at
            async with agent(stubs, "pay", handler=silent) as other:
                await other.until(lambda: other.offers)
                (offer,) = other.offers

    assert took_s < TTL_S + SOON_S
    assert offer.attempt.token > lost_token
    assert (offer.attempt_number, step.attempts) == (1, 0)


async def test_h014_lost_offer_that_starts_at_once_is_sent_again_when_its_agent_is_back(node: Node) -> None:
    """It may have started, so nobody else gets it; the newer stream of the session is told at once, with its token."""
    definition = Definition("lost")
    definition.step("pay", timeouts=Timeouts(start_to_close=timedelta(hours=2)))
    async with AsyncClient(node.address) as client, nodes.connected(node.address) as stubs, relay(node.address) as wire:
        await client.apply_definition(definition)
        async with nodes.connected(wire.address) as far, agent(far, "pay", handler=silent) as listener:
            job_id, lost_token = await lose_the_offer(client, wire, listener)
            generation = listener.welcome.generation
            async with agent(
                stubs, "pay", handler=succeeds, session_id=listener.session_id, generation=generation
            ) as back:
                await back.until(lambda: back.offers)
                result = await client.wait(job_id)

    assert [offer.attempt.token for offer in back.offers] == [lost_token]
    assert (result.state, result.job.steps[0].attempts) == ("COMPLETED", 1)
