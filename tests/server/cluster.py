"""Three real nodes inside one event loop, each with a directory and a port of its own."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any

from stepward.server.config import ClusterConfig, NodeConfig, TlsFiles
from stepward.server.core.limits import Limits
from stepward.server.logbook.identity import create_cluster
from stepward.server.node import Node
from tests.server.peer_host import MEMBERS, free_address

# Longer than any election, however busy the machine.
CHANGE_S_MAX = 20.0
LIMITS = Limits(session_ttl_ms=8_000)


def found(folder: Path, members: tuple[str, ...] = MEMBERS) -> dict[str, Path]:
    """The directories of a new cluster, by node."""
    for member in members:
        create_cluster(folder / member, member, members=members, cluster_id="cluster-of-test", wall_ms=1_000_000)
    return {member: folder / member for member in members}


class Cluster:
    """Nodes by id; those that run now."""

    def __init__(
        self,
        folder: Path,
        *,
        tls: Mapping[str, TlsFiles] | None = None,
        at: Mapping[str, str] | None = None,
        **config: Any,
    ) -> None:
        """`at`: where the others reach a node, if not where it listens."""
        self.directories = found(folder)
        self.addresses = {member: free_address() for member in self.directories}
        self.reached = self.addresses | dict(at or {})
        self._tls = tls or {}
        self._config = config
        self.nodes: dict[str, Node] = {}

    async def start(self, node_id: str) -> Node:
        """Begin one node, with what stands in its directory."""
        host, _, port = self.addresses[node_id].rpartition(":")
        config = NodeConfig(
            data=self.directories[node_id],
            node_id=node_id,
            nodes=self.reached,
            host=host,
            port=int(port),
            tls=self._tls.get(node_id),
            stop_grace_ms=500,
            **self._config,
        )
        node = Node(ClusterConfig(limits=LIMITS), config)
        await node.start()
        self.nodes[node_id] = node
        return node

    async def stop(self, node_id: str) -> None:
        """End one node in order."""
        await self.nodes.pop(node_id).stop()

    async def vanish(self, node_id: str) -> None:
        """End one node without a word, as far as the others can tell."""
        node = self.nodes.pop(node_id)
        node.peering.drain()
        await node.peering.links.stop()
        await node.stop()

    async def until(self, condition: Callable[[], object], *, within_s: float = CHANGE_S_MAX) -> None:
        """Wait until something that happens in the nodes makes a condition true."""
        async with asyncio.timeout(within_s):
            while not condition():  # noqa: ASYNC110 - steps of three nodes make it true, and no one event
                await asyncio.sleep(0.005)

    @property
    def leader_id(self) -> str:
        """The node that decides; empty when none does."""
        leading = [node_id for node_id, node in self.nodes.items() if node.standing.leads]
        return leading[0] if len(leading) == 1 else ""

    async def led(self) -> str:
        """The node that decides, as soon as one does and all that run know it."""

        def known() -> bool:
            leader_id = self.leader_id
            return bool(leader_id) and all(node.standing.leader_id == leader_id for node in self.nodes.values())

        await self.until(known)
        return self.leader_id

    def followers(self) -> list[str]:
        """The nodes that run and do not decide."""
        return [node_id for node_id in self.nodes if node_id != self.leader_id]


@contextlib.asynccontextmanager
async def running(folder: Path, **options: Any) -> AsyncIterator[Cluster]:
    """A cluster of three that has a leader."""
    cluster = Cluster(folder, **options)
    try:
        for node_id in cluster.directories:
            await cluster.start(node_id)
        await cluster.led()
        yield cluster
    finally:
        await asyncio.gather(*(cluster.stop(node_id) for node_id in list(cluster.nodes)))
