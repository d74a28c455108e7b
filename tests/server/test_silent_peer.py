"""A peer that is gone without a word: the node finds out by its own pings."""

from __future__ import annotations

from pathlib import Path

from stepward.server.core.limits import Limits
from stepward.v1 import agent_service_pb2
from tests.server import nodes
from tests.server.plain_agent import agent
from tests.swallowing import road

# An agent's lease must not be what ends its stream here.
LONG_TTL_MS = 600_000


async def test_h067_stream_of_a_dead_host_is_ended(tmp_path: Path) -> None:
    """Within the two keepalive times, whatever the lease; nothing is offered into the void any longer."""
    limits = Limits(session_ttl_ms=LONG_TTL_MS)
    async with (
        nodes.running(tmp_path / "d", limits=limits, keepalive_ms=1_000, keepalive_timeout_ms=500) as node,
        nodes.connected(node.address) as stubs,
        road(node.address) as way,
        nodes.connected(way.address) as through,
    ):

        async def connected() -> list[bool]:
            listed = await stubs.agents.ListAgents(agent_service_pb2.ListAgentsRequest(), timeout=nodes.CALL_S_MAX)
            return [one.connected for one in listed.agents]

        async def gone() -> bool:
            return await connected() == [False]

        async with agent(through, "nothing"):
            assert await connected() == [True]
            way.swallow()
            await nodes.eventually(gone)
            way.give_back()
