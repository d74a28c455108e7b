"""Leadership that is handed on by a call to any node, and the word of a person about nodes that are gone."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace

import grpc
import pytest

from stepward.server.config import ClusterConfig, NodeConfig
from stepward.server.core.limits import Limits
from stepward.server.core.rows import Head
from stepward.server.logbook.outbox import Standing, Transferred
from stepward.server.membership import found_directories
from stepward.server.node import Node
from stepward.server.operating import Operating
from stepward.server.serving import serve_until
from stepward.v1 import cluster_service_pb2
from tests.server import nodes
from tests.server.nodes import CALL_S_MAX, eventually, refused
from tests.server.test_joining import IDS, free_addresses

S = CALL_S_MAX


class Cluster:
    """Three nodes in one event loop."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.addresses = dict(zip(IDS, free_addresses(3), strict=True))
        self.running: dict[str, Node] = {}
        self.stubs: dict[str, nodes.Stubs] = {}
        self._stack = contextlib.AsyncExitStack()

    def config(self, node_id: str) -> NodeConfig:
        port = int(self.addresses[node_id].rpartition(":")[2])
        data = self._folder / node_id
        # A node that is gone is given up as soon as may be.
        return NodeConfig(
            data=data,
            node_id=node_id,
            nodes=self.addresses,
            port=port,
            http_port=None,
            stop_grace_ms=0,
            peer_gone_ms=1_500,
        )

    async def start(self, node_id: str) -> None:
        node = Node(ClusterConfig(), self.config(node_id))
        await node.start()
        self.running[node_id] = node
        self.stubs[node_id] = await self._stack.enter_async_context(nodes.connected(self.addresses[node_id]))

    async def leader(self) -> str:
        found = []

        async def led() -> bool:
            for node_id, stubs in self.stubs.items():
                status = await stubs.cluster.GetStatus(cluster_service_pb2.GetStatusRequest(), timeout=S)
                if status.shards[0].leader:
                    found.append(node_id)
            return bool(found)

        await eventually(led)
        return found[-1]

    async def knows(self, node_id: str) -> str:
        status = await self.stubs[node_id].cluster.GetStatus(cluster_service_pb2.GetStatusRequest(), timeout=S)
        return str(status.shards[0].leader_id)

    async def transfer(self, asked: str, target: str = "") -> cluster_service_pb2.TransferLeaderResponse:
        request = cluster_service_pb2.TransferLeaderRequest(node_id=target)
        return await self.stubs[asked].cluster.TransferLeader(request, timeout=S)

    async def recover(self, asked: str, *gone: str, reason: str = "x", actor: str = "") -> str:
        request = cluster_service_pb2.RecoverNodeRequest(gone_node_ids=gone, reason=reason, actor=actor)
        return str((await self.stubs[asked].cluster.RecoverNode(request, timeout=S)).warning)

    async def close(self) -> None:
        await self._stack.aclose()
        await asyncio.gather(*(node.stop() for node in self.running.values()))


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    found_directories(tmp_path, IDS)
    cluster = Cluster(tmp_path)
    for node_id in IDS:
        await cluster.start(node_id)
    yield cluster
    await cluster.close()


@pytest.mark.parametrize("ask", ["leader", "target", "third"])
async def test_leadership_is_handed_on_whoever_is_asked(cluster: Cluster, ask: str) -> None:
    """A follower passes the call on to the node that leads. Doing it again changes nothing."""
    leader = await cluster.leader()
    target, third = (node_id for node_id in IDS if node_id != leader)
    asked = {"leader": leader, "target": target, "third": third}[ask]
    await eventually(lambda: knows(cluster, asked))

    outcome = await cluster.transfer(asked, target)
    await eventually(lambda: knows(cluster, asked, target))
    again = await cluster.transfer(asked, target)

    assert outcome.node_id == again.node_id == target
    assert outcome.term == again.term
    assert await cluster.leader() == target


async def test_node_that_was_elected_and_decides_nothing_yet_leads_already() -> None:
    """Others name it as their leader by then; handing leadership to it changes nothing."""
    head = Head(3, b"hash", 1, 1, 0, 0, 0, 0, "boot")
    shard = SimpleNamespace(leads=False, standing=Standing(False, 1, 2, head, leader_id="n1"))
    identity = SimpleNamespace(node_id="n1", members=IDS, peers=IDS[1:])
    operating = Operating(identity, shard, None, reached=lambda: (), limits=Limits())  # type: ignore[arg-type]  # of those it looks at these

    assert await operating.transfer("n1", passed_on=False) == Transferred("n1", 2)


async def knows(cluster: Cluster, node_id: str, leader: str = "") -> bool:
    known = await cluster.knows(node_id)
    return known == leader if leader else bool(known)


async def test_leader_tells_of_the_disks_of_the_others(cluster: Cluster) -> None:
    """When they are away nobody else could."""
    leader = await cluster.leader()
    told: dict[str, int] = {}

    async def told_of_both() -> bool:
        status = await cluster.stubs[leader].cluster.GetStatus(cluster_service_pb2.GetStatusRequest(), timeout=S)
        (shard,) = status.shards
        told.update({one.node_id: one.free_bytes for one in shard.followers if one.HasField("free_bytes")})
        return len(told) == 2

    await eventually(told_of_both)
    assert sorted([leader, *told]) == list(IDS)
    assert min(told.values()) > 0


async def test_a_target_is_chosen(cluster: Cluster) -> None:
    """Without one it is a node that is up to date, and not the one that leads."""
    leader = await cluster.leader()

    outcome = await cluster.transfer(leader)

    assert outcome.node_id in set(IDS) - {leader}


async def test_leadership_stays_when_the_target_is_away(cluster: Cluster) -> None:
    """The refusal says so, and the cluster goes on."""
    leader = await cluster.leader()
    target, _ = (node_id for node_id in IDS if node_id != leader)
    await cluster.running.pop(target).stop()
    del cluster.stubs[target]

    refusal = await refused(cluster.transfer(leader, target))

    assert refusal.reason == "NODE_STATE"
    assert refusal.message == f"{target} is not reached by {leader}, which leads and goes on; start {target}"
    assert await cluster.leader() == leader


@pytest.mark.parametrize("left", ["leader", "follower"])
async def test_without_a_quorum_it_is_told_at_once(cluster: Cluster, left: str) -> None:
    """Who is reached, and what to do; not only that the time is up."""
    leader = await cluster.leader()
    survivor = leader if left == "leader" else next(node_id for node_id in IDS if node_id != leader)
    await eventually(lambda: knows(cluster, survivor))
    gone = sorted(set(IDS) - {survivor})
    await asyncio.gather(*(cluster.running.pop(node_id).stop() for node_id in gone))

    async def is_told() -> bool:
        refusal = await refused(cluster.transfer(survivor))
        told.append(refusal.message)
        # The streams end a moment after the nodes, and until then nobody knows that these are gone.
        return refusal.reason == "NODE_STATE" and "quorum" in refusal.message

    told: list[str] = []
    await eventually(is_told)

    assert told[-1] == (
        f"there is no quorum: {survivor} reaches no other node, and 2 of 3 nodes must reach each other for one to "
        f"lead; start {', '.join(gone)}, or mend the network between them"
    )


@pytest.mark.parametrize(
    ("call", "reason", "complaint"),
    [
        ("transfer n9", "INVALID_ARGUMENT", "node_id is 'n9'; it must be one of n1, n2, n3"),
        ("recover", "INVALID_ARGUMENT", "gone_node_ids names nobody; it must name others of this cluster: n2, n3"),
        ("recover n1", "INVALID_ARGUMENT", "gone_node_ids names n1; it must name others"),
        ("recover n9 n2", "INVALID_ARGUMENT", "gone_node_ids names n9; it must name others"),
        ("recover n2", "NODE_STATE", "nothing was changed"),
    ],
)
async def test_what_is_refused(cluster: Cluster, call: str, reason: str, complaint: str) -> None:
    """In one sentence with the value and what it must be."""
    await cluster.leader()
    verb, *names = call.split()

    refusal = await refused(cluster.transfer("n1", *names) if verb == "transfer" else cluster.recover("n1", *names))

    assert refusal.reason == reason
    assert complaint in refusal.message


@pytest.mark.parametrize(("reason", "actor"), [("", "me"), (" ", "me"), ("x" * 1_025, "me"), ("x", "a" * 129)])
async def test_a_recovery_has_a_reason(cluster: Cluster, reason: str, actor: str) -> None:
    """It stands in the log for whoever asks later, and has a bound."""
    refusal = await refused(cluster.recover("n1", "n2", reason=reason, actor=actor))

    assert refusal.reason == "INVALID_ARGUMENT"


async def test_a_wiped_node_goes_on_without_one_that_is_gone(cluster: Cluster, tmp_path: Path) -> None:
    """It waits in quarantine for the one that is gone, until a person says that this one never comes back."""
    leader = await cluster.leader()
    wiped, gone = (node_id for node_id in IDS if node_id != leader)
    for node_id in (wiped, gone):
        await cluster.running.pop(node_id).stop()
        del cluster.stubs[node_id]
    shutil.rmtree(tmp_path / wiped)
    stop = asyncio.Event()
    serving = asyncio.create_task(serve_until(stop, ClusterConfig(), cluster.config(wiped)))
    try:
        async with nodes.connected(cluster.addresses[wiped]) as stubs:
            cluster.stubs[wiped] = stubs
            await eventually(lambda: is_in(stubs, cluster_service_pb2.NODE_STATE_QUARANTINED))

            warning = await cluster.recover(wiped, gone, reason="its disk is destroyed")

            await eventually(lambda: is_in(stubs, cluster_service_pb2.NODE_STATE_SERVING))
            assert await cluster.leader() in {leader, wiped}
            del cluster.stubs[wiped]
    finally:
        stop.set()
        await serving

    assert f"what only {wiped} and {gone} had acknowledged is lost" in warning


async def is_in(stubs: nodes.Stubs, state: cluster_service_pb2.NodeState.ValueType) -> bool:
    """Whether a node is in a state; while it becomes a member nobody answers for a moment."""
    try:
        status = await stubs.cluster.GetStatus(cluster_service_pb2.GetStatusRequest(), timeout=S)
    except grpc.aio.AioRpcError as error:
        if error.code() not in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED):
            raise
        return False
    return status.state == state


async def test_alone_there_is_nobody_to_lead_instead(tmp_path: Path) -> None:
    """A cluster of one says so."""
    async with nodes.running(tmp_path / "d") as node, nodes.connected(node.address) as stubs:
        request = cluster_service_pb2.TransferLeaderRequest()
        refusal = await refused(stubs.cluster.TransferLeader(request, timeout=S))
        other_shard = await refused(
            stubs.cluster.TransferLeader(cluster_service_pb2.TransferLeaderRequest(shard=1), timeout=S)
        )

    assert (refusal.reason, other_shard.reason) == ("NODE_STATE", "INVALID_ARGUMENT")
