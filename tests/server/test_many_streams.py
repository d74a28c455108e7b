"""H069: many open streams hold no short call, and one too many is told so at once."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable
from pathlib import Path
from typing import Any

import grpc

from stepward.server.core.limits import Limits
from stepward.v1 import agent_service_pb2 as pb
from stepward.v1 import cluster_service_pb2, definition_pb2, job_service_pb2
from tests.server import nodes
from tests.server.nodes import CALL_S_MAX, Stubs, refusal
from tests.server.plain_agent import PlainAgent, agent

AGENTS = 200
CONNECTIONS = 10


@contextlib.asynccontextmanager
async def many_agents(address: str) -> AsyncIterator[list[PlainAgent]]:
    """Agents with open streams, some of them on each connection."""
    async with contextlib.AsyncExitStack() as stack:
        wires = [await stack.enter_async_context(nodes.connected(address)) for _ in range(CONNECTIONS)]
        joining = (stack.enter_async_context(agent(wires[n % CONNECTIONS], "idle")) for n in range(AGENTS))
        yield [await one for one in joining]


async def took_s(call: Awaitable[Any]) -> float:
    began = time.monotonic()
    await call
    return time.monotonic() - began


async def calls(stubs: Stubs, joined: PlainAgent) -> dict[str, float]:
    """How long calls of each kind take, all at once."""
    await joined.heartbeat(1)
    pending: dict[str, Any] = {
        "status": stubs.cluster.GetStatus(cluster_service_pb2.GetStatusRequest(), timeout=CALL_S_MAX),
        "submit": stubs.jobs.SubmitJob(
            job_service_pb2.SubmitJobRequest(job=nodes.submission("work")), timeout=CALL_S_MAX
        ),
        "list": stubs.jobs.ListJobs(job_service_pb2.ListJobsRequest(), timeout=CALL_S_MAX),
        "renew": joined.until(lambda: joined.heartbeats),
    }
    times = await asyncio.gather(*(took_s(call) for call in pending.values()))
    return dict(zip(pending, times, strict=True))


async def test_h069_short_calls_beside_many_streams(tmp_path: Path) -> None:
    """No stream holds a thread or a place that another call needs."""
    limits = Limits(session_ttl_ms=60_000)
    async with (
        nodes.running(tmp_path / "data", limits=limits, streams_max=AGENTS) as node,
        nodes.connected(node.address) as stubs,
        many_agents(node.address) as agents,
    ):
        await nodes.define(stubs, "work", definition_pb2.Step(id="work", action="nobody-does-it"))
        times = await calls(stubs, agents[-1])
        one_more: Any = stubs.agents.Work()
        began = time.monotonic()
        hello = pb.Hello(protocol_version=1, session_id="session-too-many", actions=["idle"], slots=1)
        await one_more.write(pb.WorkRequest(hello=hello))
        try:
            await one_more.read()
            raise AssertionError("a stream above the bound was taken")
        except grpc.aio.AioRpcError as error:
            refused = refusal(error)
        refused_s = time.monotonic() - began

    assert {call: took for call, took in times.items() if took >= 1.0} == {}
    assert (refused.code, refused.reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "OVERLOADED")
    assert refused_s < 1.0
