"""Nodes that begin with empty directories: they are made a cluster once, or join the one that exists."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import socket
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import grpc
import msgspec
import pytest

from stepward.internal.v1 import peer_service_pb2 as pb
from stepward.internal.v1 import peer_service_pb2_grpc
from stepward.server.config import ClusterConfig, NodeConfig
from stepward.server.core.limits import Limits
from stepward.server.empty_node import EmptyNode
from stepward.server.listening import AddressTaken
from stepward.server.logbook.identity import Identity, create_cluster, known_identity
from stepward.server.node import Node
from stepward.server.peers.handshake import Introduction
from stepward.server.peers.joining import cluster_to_join
from stepward.v1 import cluster_service_pb2, job_service_pb2
from tests.server import nodes
from tests.server.nodes import CALL_S_MAX, refused

S = CALL_S_MAX
IDS = ("n1", "n2", "n3")


def free_addresses(count: int) -> list[str]:
    with contextlib.ExitStack() as stack:
        probes = [stack.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [f"127.0.0.1:{probe.getsockname()[1]}" for probe in probes]


class Three:
    """Three nodes that know of each other, each with a directory of its own, and none running yet."""

    def __init__(self, folder: Path) -> None:
        self.nodes = dict(zip(IDS, free_addresses(3), strict=True))
        self.cluster = ClusterConfig()
        self._folder = folder
        self._stack = contextlib.AsyncExitStack()

    def config(self, node_id: str) -> NodeConfig:
        port = int(self.nodes[node_id].rpartition(":")[2])
        data = self._folder / node_id
        return NodeConfig(data=data, node_id=node_id, nodes=self.nodes, port=port, http_port=None)

    async def start(self, node_id: str, **changes: Any) -> asyncio.Task[Identity]:
        """Run a node with an empty directory; the task ends with who it has become."""
        empty = EmptyNode(
            changes.pop("cluster", self.cluster), msgspec.structs.replace(self.config(node_id), **changes)
        )
        await empty.start()
        task = asyncio.create_task(empty.member())
        self._stack.push_async_callback(ended, task)
        return task

    async def start_all(self) -> list[asyncio.Task[Identity]]:
        return [await self.start(node_id) for node_id in IDS]

    async def stubs(self, node_id: str) -> nodes.Stubs:
        return await self._stack.enter_async_context(nodes.connected(self.nodes[node_id]))

    async def peer(self, node_id: str) -> peer_service_pb2_grpc.PeerServiceAsyncStub:
        return peer_service_pb2_grpc.PeerServiceStub((await self.stubs(node_id)).channel)

    async def create(self, node_id: str) -> cluster_service_pb2.CreateClusterResponse:
        stubs = await self.stubs(node_id)
        return await stubs.cluster.CreateCluster(cluster_service_pb2.CreateClusterRequest(), timeout=S)

    async def close(self) -> None:
        await self._stack.aclose()


async def ended(task: asyncio.Task[Identity]) -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


@pytest.fixture
async def three(tmp_path: Path) -> AsyncIterator[Three]:
    three = Three(tmp_path)
    yield three
    await three.close()


async def identities(tasks: Sequence[asyncio.Task[Identity]]) -> list[Identity]:
    async with asyncio.timeout(S):
        return await asyncio.gather(*tasks)


@pytest.mark.parametrize("asked", IDS)
async def test_a_cluster_is_made_of_all(three: Three, asked: str) -> None:
    """Whichever node is asked; each directory holds the same beginning under its own id."""
    tasks = await three.start_all()

    made = await three.create(asked)
    found = await identities(tasks)

    assert [member.node_id for member in made.members] == list(IDS)
    assert found == [Identity(made.cluster_id, node_id, 1, IDS, 1) for node_id in IDS]
    assert [known_identity(three.config(node_id).data) for node_id in IDS] == found


async def test_an_empty_node_says_so(three: Three) -> None:
    """Its status says what to do, and every other call is sent elsewhere."""
    await three.start("n1")
    stubs = await three.stubs("n1")

    status = await stubs.cluster.GetStatus(cluster_service_pb2.GetStatusRequest(), timeout=S)
    refusals = [
        await refused(stubs.jobs.ListJobs(job_service_pb2.ListJobsRequest(), timeout=S)),
        await refused(stubs.jobs.SubmitJob(job_service_pb2.SubmitJobRequest(), timeout=S)),
        await refused(stubs.cluster.TransferLeader(cluster_service_pb2.TransferLeaderRequest(), timeout=S)),
        await refused(stubs.cluster.RecoverNode(cluster_service_pb2.RecoverNodeRequest(), timeout=S)),
    ]
    with pytest.raises(grpc.aio.AioRpcError) as watch:
        async for _ in stubs.jobs.WatchJob(job_service_pb2.WatchJobRequest(), timeout=S):
            pass

    assert (status.node_id, status.cluster_id) == ("n1", "")
    assert status.state == cluster_service_pb2.NODE_STATE_EMPTY
    assert [member.address for member in status.members] == [three.nodes[node_id] for node_id in IDS]
    assert {one.reason for one in refusals} == {"NO_CLUSTER"}
    assert watch.value.code() == grpc.StatusCode.UNAVAILABLE


async def test_nothing_is_made_when_one_is_away(three: Three) -> None:
    """It may be asked again when all are there."""
    tasks = [await three.start("n1"), await three.start("n2")]

    refusal = await refused(three.create("n1"))

    assert refusal.reason == "NODE_STATE"
    assert f"n3 cannot be reached at {three.nodes['n3']}" in refusal.message
    assert not any(three.config(node_id).data.exists() for node_id in IDS)
    tasks.append(await three.start("n3"))
    assert len({(await three.create("n1")).cluster_id, *(one.cluster_id for one in await identities(tasks))}) == 1


async def test_nothing_is_made_when_one_knows_a_cluster(three: Three) -> None:
    """That one would be taken out of it."""
    await three.start("n1")
    await three.start("n2")
    create_cluster(three.config("n3").data, "n3", members=IDS, cluster_id="other", wall_ms=1)
    node = Node(three.cluster, three.config("n3"))
    await node.start()
    try:
        refusal = await refused(three.create("n2"))
        second = await refused(three.create("n3"))
    finally:
        await node.stop()

    assert (refusal.reason, second.reason) == ("CLUSTER_EXISTS", "CLUSTER_EXISTS")
    assert "knows cluster other" in refusal.message


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"cluster": ClusterConfig(limits=Limits(retention_ms=1_000))}, "retention_ms is 1000 there and 6048"),
        ({"nodes": {"n1": "127.0.0.1:1", "n2": "127.0.0.1:2", "n4": "127.0.0.1:4"}}, "n2 is configured for n1, n2, n4"),
    ],
)
async def test_nodes_that_are_configured_differently(three: Three, changes: dict[str, Any], complaint: str) -> None:
    """They would find it out later, when jobs run."""
    await three.start("n1")
    await three.start("n2", **changes)
    await three.start("n3")

    refusal = await refused(three.create("n1"))

    assert refusal.reason == "NODE_STATE"
    assert complaint in refusal.message
    assert not three.config("n1").data.exists()


async def test_another_start_is_not_founded(three: Three) -> None:
    """It may have another directory than the one that answered."""
    await three.start("n1")
    peer = await three.peer("n1")

    refusal = await refused(
        peer.FoundCluster(pb.FoundClusterRequest(cluster_id="c", member_ids=IDS, start_id=b"other"), timeout=S)
    )

    assert refusal.reason == "NODE_STATE"
    assert "started again" in refusal.message
    assert not three.config("n1").data.exists()


async def test_founding_may_be_repeated(three: Three) -> None:
    """Its answer may have been lost. Another cluster is refused."""
    task = await three.start("n1")
    peer = await three.peer("n1")
    start_id = (await peer.GetNode(pb.GetNodeRequest(), timeout=S)).start_id
    request = pb.FoundClusterRequest(cluster_id="c", member_ids=IDS, start_id=start_id, wall_ms=5)
    other = pb.FoundClusterRequest(cluster_id="d", member_ids=IDS, start_id=start_id, wall_ms=5)

    first, again, different = await asyncio.gather(
        peer.FoundCluster(request, timeout=S),
        peer.FoundCluster(request, timeout=S),
        refused(peer.FoundCluster(other, timeout=S)),
    )

    assert (first, again) == (pb.FoundClusterResponse(), pb.FoundClusterResponse())
    assert different.reason == "CLUSTER_EXISTS"
    assert (await identities([task]))[0].cluster_id == "c"


async def test_two_who_create_at_once_make_one(three: Three) -> None:
    """Whichever nodes they ask."""
    tasks = await three.start_all()

    outcomes = await asyncio.gather(*(three.create(node_id) for node_id in IDS), return_exceptions=True)
    found = await identities(tasks)

    assert len({identity.cluster_id for identity in found}) == 1
    assert {one.cluster_id for one in outcomes if not isinstance(one, BaseException)} == {found[0].cluster_id}


async def test_the_port_is_free_when_the_node_begins(three: Three) -> None:
    """Nothing of the empty node listens any more, and while it does nobody else can."""
    tasks = await three.start_all()
    with pytest.raises(AddressTaken):
        await EmptyNode(three.cluster, three.config("n1")).start()
    await three.create("n1")
    await identities(tasks)

    again = EmptyNode(three.cluster, three.config("n1"))
    await again.start()
    await again.stop()


async def test_a_directory_that_cannot_be_used(three: Three) -> None:
    """A file stands in its place: the node ends with the reason."""
    task = await three.start("n1")
    three.config("n1").data.write_text("no folder")
    peer = await three.peer("n1")
    start_id = (await peer.GetNode(pb.GetNodeRequest(), timeout=S)).start_id

    refusal = await refused(
        peer.FoundCluster(pb.FoundClusterRequest(cluster_id="c", member_ids=IDS, start_id=start_id), timeout=S)
    )

    assert refusal.reason == "NODE_STATE"
    assert str(three.config("n1").data) in refusal.message
    assert not task.done()


async def test_a_node_whose_directory_was_lost_joins(three: Three, tmp_path: Path) -> None:
    """With a new incarnation, in quarantine, as soon as a cluster that works is found."""
    tasks = await three.start_all()
    made = await three.create("n1")
    await identities(tasks)
    shutil.rmtree(three.config("n3").data)

    identity = cluster_to_join(three.config("n3"), US, answers(made.cluster_id, sequence=1), wall_ms=1_700_000_000_000)

    assert identity == Identity(made.cluster_id, "n3", 1, IDS, 1_700_000_000_000)


def answers(cluster_id: str, **changes: Any) -> dict[str, pb.GetNodeResponse | str]:
    known = {"cluster_id": cluster_id, "member_ids": IDS, "cluster_incarnation": 1, "sequence": 1, **changes}
    return {"n1": pb.GetNodeResponse(node_id="n1", **known), "n2": "n2 cannot be reached"}


US = Introduction(
    cluster_id="", node_id="n3", incarnation=0, members=frozenset(IDS), configuration_hash=b"", configuration=b""
)
CONFIG = NodeConfig(data=Path("d"), node_id="n3", nodes=dict.fromkeys(IDS, "a:1"))


@pytest.mark.parametrize(
    ("found", "reason"),
    [
        ({"n1": "n1 is away", "n2": "n2 is away"}, "no node knows a cluster"),
        ({"n1": pb.GetNodeResponse(node_id="n1"), "n2": pb.GetNodeResponse(node_id="n2")}, "no node knows a cluster"),
        ({**answers("c"), "n2": answers("d")["n1"]}, "the other nodes know different clusters: c, d"),
        (answers("c", sequence=0), "cluster c has not begun yet"),
        (answers("c", member_ids=("n1", "n2", "n4")), "cluster c consists of n1, n2, n4"),
        (answers("c", configuration_hash=b"other"), "n1 is configured otherwise in what must be equal on all nodes"),
        (answers("c", caller_refused="n3 runs already"), "n3 runs already"),
    ],
)
def test_what_is_not_joined(found: dict[str, pb.GetNodeResponse | str], reason: str) -> None:
    """A cluster that is only being made, one of other nodes, and none."""
    text = cluster_to_join(CONFIG, US, found, wall_ms=9)

    assert isinstance(text, str)
    assert reason in text


def test_an_incarnation_is_higher_than_any_that_was_met() -> None:
    """Also when the wall clock has gone back."""
    identity = cluster_to_join(CONFIG, US, answers("c", caller_incarnation=20, cluster_incarnation=3), wall_ms=9)

    assert identity == Identity("c", "n3", 3, IDS, 21)
