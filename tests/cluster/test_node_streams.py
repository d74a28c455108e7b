"""Very many agents hold their streams to one of three real nodes, and everybody else is served as before."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import grpc
import pytest

from stepward.client import Definition
from stepward.v1 import agent_service_pb2 as pb
from tests.cluster.nodes import Nodes
from tests.server import nodes as stubs_of
from tests.server.nodes import refusal
from tests.server.plain_agent import agent
from tests.server.test_many_streams import AGENTS, calls, many_agents

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

ANSWERED_S_MAX = 1.0


async def test_h069_two_hundred_streams_at_a_follower_hold_no_short_call(tmp_path: Path) -> None:
    """Status, submissions, lists and renewals are answered; one stream too many is told so, and goes elsewhere."""
    configuration = tmp_path / "node.toml"
    configuration.write_text(f"[limits]\nstreams_max = {AGENTS}\n")
    with Nodes(tmp_path, options=("--config", str(configuration))) as nodes:
        nodes.start_nodes()
        leader = await nodes.leader()
        crowded, empty = nodes.others(leader)
        async with nodes.client() as client:
            definition = Definition("work")
            definition.step("work", action="nobody-does-it")
            await client.apply_definition(definition)
        async with (
            stubs_of.connected(nodes.addresses[crowded]) as stubs,
            many_agents(nodes.addresses[crowded]) as agents,
        ):
            times = await calls(stubs, agents[-1])
            one_more: Any = stubs.agents.Work()
            began_at = time.monotonic()
            hello = pb.Hello(protocol_version=1, session_id="session-too-many", actions=["idle"], slots=1)
            await one_more.write(pb.WorkRequest(hello=hello))
            with pytest.raises(grpc.aio.AioRpcError) as raised:
                await one_more.read()
            refused_after_s = time.monotonic() - began_at
            refused = refusal(raised.value)
            async with stubs_of.connected(nodes.addresses[empty]) as elsewhere, agent(elsewhere, "idle") as welcomed:
                node_id = welcomed.welcome.node_id
    print(f"answered after {times}, refused after {refused_after_s:.3f} s")

    assert {call: took_s for call, took_s in times.items() if took_s >= ANSWERED_S_MAX} == {}
    assert (refused.code, refused.reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "OVERLOADED")
    assert refused_after_s < ANSWERED_S_MAX
    assert node_id == empty
