"""A node that is started twice under one id: the second waits, and a person is told by whichever node is asked."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from stepward.server.config import ClusterConfig
from stepward.server.core.limits import Limits
from stepward.server.empty_node import EmptyNode
from stepward.server.membership import found_directories
from stepward.server.node import Node
from stepward.v1 import cluster_service_pb2
from tests.server import nodes
from tests.server.nodes import CALL_S_MAX, eventually
from tests.server.test_joining import IDS, ended, free_addresses
from tests.server.test_operating import Cluster

S = CALL_S_MAX


async def status(stubs: nodes.Stubs) -> cluster_service_pb2.GetStatusResponse:
    return await stubs.cluster.GetStatus(cluster_service_pb2.GetStatusRequest(), timeout=S)


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    found_directories(tmp_path, IDS)
    cluster = Cluster(tmp_path)
    for node_id in IDS:
        await cluster.start(node_id)
    yield cluster
    await cluster.close()


async def test_the_second_waits_until_the_first_is_gone(cluster: Cluster, tmp_path: Path) -> None:
    """Nothing happens to the first meanwhile; when it is stopped for good, the second comes in its place."""
    await cluster.leader()
    (address,) = free_addresses(1)
    config = msgspec.structs.replace(
        cluster.config("n2"), data=tmp_path / "again", port=int(address.rpartition(":")[2])
    )
    second = EmptyNode(ClusterConfig(), config)
    await second.start()
    joining = asyncio.create_task(second.member())
    try:
        async with nodes.connected(address) as stubs:
            # Longer than one that is gone would keep it waiting.
            until = asyncio.get_running_loop().time() + 2 * cluster.config("n1").peer_gone_ms / 1_000

            async def is_refused() -> bool:
                waits = "runs already" in (await status(stubs)).state_reason
                return waits and asyncio.get_running_loop().time() >= until

            await eventually(is_refused)
            waits, first = await status(stubs), await status(cluster.stubs["n2"])
            other = await status(cluster.stubs["n1"])
            made = config.data.exists()

            del cluster.stubs["n2"]
            await cluster.running.pop("n2").stop()
            async with asyncio.timeout(S):
                identity = await joining
    finally:
        await ended(joining)

    assert waits.state == cluster_service_pb2.NODE_STATE_EMPTY
    assert waits.state_reason.startswith(f"n2 runs already at {cluster.addresses['n2']}, incarnation 1, last heard ")
    assert first.state == cluster_service_pb2.NODE_STATE_SERVING
    assert not made
    assert [(one.node_id, one.refused_node_id, one.refused_host) for one in other.refusals] == [
        ("n1", "n2", "127.0.0.1")
    ]
    assert other.refusals[0].reason.startswith("n2 runs already at ")
    assert identity.node_incarnation > 1


async def test_a_node_with_other_limits_shows_what_differs(tmp_path: Path) -> None:
    """On both sides, with the field and both values."""
    found_directories(tmp_path, IDS)
    cluster = Cluster(tmp_path)
    for node_id in ("n1", "n2"):
        await cluster.start(node_id)
    other = Node(ClusterConfig(limits=Limits(session_ttl_ms=9_000)), cluster.config("n3"))
    await other.start()
    cluster.running["n3"] = other
    try:
        async with nodes.connected(cluster.addresses["n3"]) as stubs:
            reasons = {}

            async def told() -> bool:
                for at in (stubs, cluster.stubs["n1"]):
                    found = (await status(at)).refusals
                    reasons.update({(one.node_id, one.refused_node_id): one.reason for one in found})
                return {("n1", "n3"), ("n3", "n1")} <= reasons.keys()

            await eventually(told)
    finally:
        await cluster.close()

    assert "session_ttl_ms is 9000 there and 10000 on n1" in reasons["n1", "n3"]
    assert "session_ttl_ms is 10000 there and 9000 on n3" in reasons["n3", "n1"]
