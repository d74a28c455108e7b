"""A watch tells each event of a job once, in order, whatever breaks between; a slow one is cut and can resume."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import grpc
import pytest_asyncio

from stepward.server.node import Node
from stepward.v1 import definition_pb2, job_service_pb2
from tests.server import nodes
from tests.server.nodes import CALL_S_MAX, Stubs, eventually, refusal, submission
from tests.server.plain_agent import agent

S = CALL_S_MAX
STALLED_MS = 500


@pytest_asyncio.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    async with nodes.running(tmp_path / "data", stalled_ms_max=STALLED_MS) as started:
        yield started


@pytest_asyncio.fixture
async def stubs(node: Node) -> AsyncIterator[Stubs]:
    async with nodes.connected(node.address) as connected:
        yield connected


def nobody_follows(node: Node) -> Callable[[], Awaitable[bool]]:
    """Whether all places of those who follow jobs are free."""

    async def condition() -> bool:
        return not node._gateway.watchers.count

    return condition


async def test_one_who_does_not_read_is_cut(node: Node, stubs: Stubs) -> None:
    """With a reason by which he can resume. What he left unread holds his place until he reads it, so it is bounded."""
    steps = [definition_pb2.Step(id=f"s{n}", action="one") for n in range(10)]
    await nodes.define(stubs, "ten", *steps)
    async with agent(stubs, "one"):
        run = job_service_pb2.RunJobRequest(job=submission("ten", b'"' + b"x" * 250_000 + b'"'))
        job_id = (await stubs.jobs.RunJob(run, timeout=S)).job.job_id
    async with nodes.connected(
        node.address, ("grpc.http2.lookahead_bytes", 1 << 16), ("grpc.http2.bdp_probe", 0)
    ) as slow:
        streams = [slow.jobs.WatchJob(job_service_pb2.WatchJobRequest(job_id=job_id), timeout=3 * S) for _ in range(3)]
        await asyncio.gather(*(stream.wait_for_connection() for stream in streams))

        async def all_are_cut() -> bool:
            return node.counters.refusals == 3

        await eventually(all_are_cut)
        held = node._gateway.watchers.count
        ends = []
        for stream in streams:
            try:
                async for _ in stream:
                    pass
            except grpc.aio.AioRpcError as error:
                ends.append(refusal(error).reason)

    assert ends == ["WATCH_TOO_SLOW"] * 3
    assert held == 3
    await eventually(nobody_follows(node))
