"""H068: who pings whom how often, and that nobody is cut off for it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc  # type: ignore[import-untyped]  # ships no types

from stepward.agents import connection
from stepward.client import channels as client_channels
from stepward.server import config
from stepward.server.config import NodeConfig
from stepward.server.peers import channels
from tests.server import nodes
from tests.server.relay import relay

SHORTEST_MS = next(bound for bound in config.NODE_BOUNDS if bound.field == "ping_interval_ms_min").most


def pings_every_ms(options: Sequence[tuple[str, object]]) -> int:
    every = dict(options)["grpc.keepalive_time_ms"]
    assert isinstance(every, int)
    return every


@pytest.mark.parametrize(
    "options",
    [
        pytest.param(channels._options(NodeConfig(data=Path("data"))), id="node"),
        pytest.param(client_channels.CHANNEL_OPTIONS, id="client"),
        pytest.param(connection.CHANNEL_OPTIONS, id="agent"),
    ],
)
def test_h068_nobody_of_ours_pings_more_often_than_any_node_allows(options: Sequence[tuple[str, object]]) -> None:
    """Whatever the nodes are told: the bound of what they may forbid is checked, not only the default."""
    assert pings_every_ms(options) >= SHORTEST_MS
    assert pings_every_ms(options) >= 2 * NodeConfig(data=Path("data")).ping_interval_ms_min


async def idle(address: str, *, every_ms: int, calls: int, for_s: float) -> tuple[int, int]:
    """How many connections an idle channel that pings has needed, and how many chunks went over them."""
    options = [
        ("grpc.keepalive_time_ms", every_ms),
        ("grpc.keepalive_timeout_ms", 2_000),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.use_local_subchannel_pool", 1),
    ]
    async with relay(address) as wire, grpc.aio.insecure_channel(wire.address, options=options) as channel:
        health = health_pb2_grpc.HealthStub(channel)
        request = health_pb2.HealthCheckRequest()
        await health.Check(request, timeout=nodes.CALL_S_MAX)
        watches = [health.Watch(request) for _ in range(calls)]
        for watch in watches:
            await watch.read()
        before = wire.chunks
        await asyncio.sleep(for_s)
        await health.Check(request, timeout=nodes.CALL_S_MAX)
        return wire.connections, wire.chunks - before


@pytest.mark.parametrize("calls", [0, 1])
async def test_h068_idle_connection_stays(tmp_path: Path, calls: int) -> None:
    """With an open stream and without any call, times shortened by 25: pings go, and nobody minds."""
    async with nodes.running(tmp_path / "data", ping_interval_ms_min=100) as node:
        connections, chunks = await idle(node.address, every_ms=400, calls=calls, for_s=4)

    assert connections == 1
    assert chunks >= 10


async def test_h068_pings_that_are_forbidden_are_punished(tmp_path: Path) -> None:
    """So the test above would see a connection that is cut."""
    async with nodes.running(tmp_path / "data", ping_interval_ms_min=10_000) as node:
        connections, _ = await idle(node.address, every_ms=400, calls=0, for_s=4)

    assert connections > 1
