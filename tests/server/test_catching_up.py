"""Nodes that are further behind than the log reaches: three real nodes, and one that was away, or lost its disk."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path

import pytest

from stepward.server.config import ClusterConfig, NodeConfig
from stepward.server.core.limits import Limits
from stepward.server.logbook import replica
from stepward.server.logbook.identity import Identity, join_directory
from stepward.server.logbook.outbox import ReplicaLimits
from stepward.server.membership import found_directories
from stepward.server.node import Node
from stepward.v1 import definition_pb2
from tests.server import nodes
from tests.server.peer_host import free_address

IDS = ("n1", "n2", "n3")
ENTRIES_MAX = 16
S = 30.0


@pytest.fixture(autouse=True)
def short_logs(monkeypatch: pytest.MonkeyPatch) -> None:
    """A log of a few entries, so that whoever was away for a moment needs all rows."""
    limits = partial(ReplicaLimits, journal_entries_max=ENTRIES_MAX)
    monkeypatch.setattr(replica, "ReplicaLimits", limits)


class Cluster:
    """Three nodes in one process, each of which may be ended and started."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.cluster_id = found_directories(folder, IDS)
        self.addresses = {node_id: free_address() for node_id in IDS}
        self.running: dict[str, Node] = {}

    async def start(self, node_id: str) -> Node:
        port = int(self.addresses[node_id].rpartition(":")[2])
        config = NodeConfig(
            data=self.folder / node_id, node_id=node_id, nodes=self.addresses, port=port, stop_grace_ms=100
        )
        node = self.running[node_id] = Node(ClusterConfig(limits=Limits(session_ttl_ms=3_000)), config)
        await node.start()
        return node

    async def stop(self, node_id: str) -> None:
        await self.running.pop(node_id).stop()

    def wipe(self, node_id: str, *, incarnation: int) -> None:
        """Give a node an empty directory, as one that joins the cluster anew."""
        shutil.rmtree(self.folder / node_id)
        identity = Identity(self.cluster_id, node_id, 1, IDS, node_incarnation=incarnation)
        join_directory(self.folder / node_id, identity)

    @property
    def leader(self) -> Node | None:
        return next((node for node in self.running.values() if node._shard.leads), None)

    async def until(self, condition: Callable[[], object]) -> None:
        async with asyncio.timeout(S):
            while not condition():  # noqa: ASYNC110 - nobody tells of it
                # Nodes tell nobody here of their steps, which come every few milliseconds.
                await asyncio.sleep(0.01)

    async def write(self, count: int) -> None:
        """So many batches, one after the other."""
        await self.until(lambda: self.leader)
        assert self.leader is not None
        async with nodes.connected(self.leader.address) as stubs:
            for number in range(count):
                step = definition_pb2.Step(id=f"s{number}", action="act", undo=definition_pb2.Undo(action="undo"))
                await nodes.define(stubs, f"d{number}", step)

    def rows(self, node: Node) -> dict[bytes, bytes | None]:
        with node._shard.rows._replica._store.snapshot() as snapshot:
            return {key: snapshot.get(key) for key in snapshot.scan(b"")}

    def fetched_once(self, node: Node) -> bool:
        """Whether a node has taken over all rows, and no more often than it has had leaders.

        The one who gave them keeps its log for this node. The next leader's may begin behind it, and on a busy machine
        another may lead at any time.
        """
        return 1 <= node.counters.fetches <= node.counters.leader_changes

    async def agree(self, *who: Node) -> None:
        """Wait until all of these hold the same."""
        await self.until(lambda: len({node._shard.standing.head for node in who}) == 1)
        first, *others = (self.rows(node) for node in who)
        assert all(rows == first for rows in others)


@contextlib.asynccontextmanager
async def three(folder: Path) -> AsyncIterator[Cluster]:
    """A cluster of which two nodes run."""
    cluster = Cluster(folder)
    await asyncio.gather(cluster.start("n1"), cluster.start("n2"))
    try:
        yield cluster
    finally:
        for node_id in list(cluster.running):
            await cluster.stop(node_id)


async def test_node_that_was_away_takes_over_all_rows(tmp_path: Path) -> None:
    """And then works as one of three: with one of the others gone, the two commit."""
    async with three(tmp_path) as cluster:
        await cluster.write(3 * ENTRIES_MAX)
        late = await cluster.start("n3")
        leader = cluster.leader
        assert leader is not None
        await cluster.until(lambda: late.counters.fetches)
        await cluster.agree(leader, late)
        assert leader.counters.exports >= 1
        other = "n1" if cluster.leader is cluster.running["n2"] else "n2"
        await cluster.stop(other)
        await cluster.write(3)

        await cluster.agree(leader, late)
        assert cluster.fetched_once(late)


async def test_node_that_lost_its_disk_takes_over_all_rows(tmp_path: Path) -> None:
    """It begins with nothing, in quarantine, and comes out of it."""
    async with three(tmp_path) as cluster:
        late = await cluster.start("n3")
        await cluster.write(3 * ENTRIES_MAX)
        leader = cluster.leader
        assert leader is not None
        wiped = next(node_id for node_id, node in cluster.running.items() if node is not leader)
        await cluster.stop(wiped)
        cluster.wipe(wiped, incarnation=2)
        late = await cluster.start(wiped)
        await cluster.until(lambda: late.counters.fetches)
        await cluster.until(lambda: not late._shard.standing.quarantined)
        await cluster.write(3)

        assert cluster.leader is not None
        await cluster.agree(cluster.leader, late)
        assert cluster.fetched_once(late)


async def test_rows_come_while_the_leader_works(tmp_path: Path) -> None:
    """What is committed meanwhile comes by the log, which is kept for that."""
    async with three(tmp_path) as cluster:
        await cluster.write(3 * ENTRIES_MAX)
        writing = asyncio.create_task(cluster.write(6 * ENTRIES_MAX))
        late = await cluster.start("n3")
        await writing
        assert cluster.leader is not None
        await cluster.agree(cluster.leader, late)

        assert cluster.fetched_once(late)


async def test_installed_rows_survive_a_restart(tmp_path: Path) -> None:
    async with three(tmp_path) as cluster:
        await cluster.write(3 * ENTRIES_MAX)
        late = await cluster.start("n3")
        await cluster.until(lambda: late.counters.fetches)
        await cluster.stop("n3")
        late = await cluster.start("n3")
        await cluster.write(3)
        assert cluster.leader is not None
        await cluster.agree(cluster.leader, late)

        assert late.counters.fetches == 0
