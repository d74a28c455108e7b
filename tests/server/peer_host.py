"""One side of a conversation between nodes: the shipped links and the shipped service, and a twin of the shard."""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import grpc.aio

from stepward.server.config import NodeConfig, TlsFiles
from stepward.server.interceptor import CallShell, Rooms
from stepward.server.logbook.outbox import Frame
from stepward.server.node import PEER_SERVICE
from stepward.server.observe import Counters
from stepward.server.peers import tls
from stepward.server.peers.handshake import Doorkeeper, Introduction
from stepward.server.peers.links import Links
from stepward.server.peers.replicating import Replicating
from stepward.server.peers.service import PeerService
from tests.server.host import CLOCK, admission

MEMBERS = ("n1", "n2", "n3")
S = 10.0


def introduction(node_id: str, **fields: Any) -> Introduction:
    """A node of a cluster of three."""
    known: dict[str, Any] = {
        "cluster_id": "cluster",
        "node_id": node_id,
        "incarnation": 1,
        "members": frozenset(MEMBERS),
        "configuration_hash": b"hash",
    }
    return Introduction(**(known | fields))


def free_address() -> str:
    """An address on which nothing listens; it is not taken before the kernel has given all others away."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"


class PeerHost:
    """A node without a replica: notes what other nodes say, and how its streams to them come and go."""

    def __init__(
        self, us: Introduction, address: str, addresses: Mapping[str, str], *, wall_ms: int = 0, **config: Any
    ) -> None:
        nodes = {member: addresses.get(member, "127.0.0.1:1") for member in us.members}
        self.us = us
        self.config = NodeConfig(data=Path("data"), nodes=nodes, **config)
        self.counters = Counters()
        self.address = address
        self.came: list[tuple[str, int, bytes]] = []
        self.arrivals = 0
        self.ends: list[tuple[str, str]] = []
        self._something = asyncio.Event()
        self.links = Links(
            us,
            config=self.config,
            counters=self.counters,
            wall_ms=wall_ms or CLOCK.wall_ms(),
            rng=random.Random(1),
            ends=self,
        )
        doorkeeper = Doorkeeper(us, self.config, clock=CLOCK)
        self.replicating = Replicating(doorkeeper, receiver=self, watcher=self.links, counters=self.counters)
        shell = CallShell(
            self.counters, Rooms(self.config), admission(self.config), stalled_ms_max=self.config.stalled_ms_max
        )
        self.server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
        handlers = shell.serve(PEER_SERVICE, PeerService(replicating=self.replicating))
        self.server.add_generic_rpc_handlers([handlers])

    # What a shard is told.

    def arrived(self, peer_id: str, connection: int, contents: Sequence[bytes]) -> None:
        self.came += [(peer_id, connection, content) for content in contents]
        self.arrivals += 1
        self._something.set()

    def linked(self, peer_id: str) -> None:
        self.ends.append(("linked", peer_id))
        self._something.set()

    def unlinked(self, peer_id: str) -> None:
        self.ends.append(("unlinked", peer_id))
        self._something.set()

    # What a test asks.

    def contents(self, peer_id: str) -> list[bytes]:
        """What a node has said."""
        return [content for sender, _, content in self.came if sender == peer_id]

    def has(self, peer_id: str, content: bytes) -> bool:
        """Whether a node has said something."""
        return content in self.contents(peer_id)

    def was_linked(self, peer_id: str) -> bool:
        """Whether there has been a stream to a node."""
        return ("linked", peer_id) in self.ends

    def send(self, peer_id: str, *contents: bytes) -> None:
        """What a step gave for one node."""
        self.links.send([Frame(peer_id, content) for content in contents])

    async def until(self, condition: Callable[[], object], *, within_s: float = S) -> None:
        """Wait until something that came makes a condition true."""
        async with asyncio.timeout(within_s):
            while not condition():
                self._something.clear()
                await self._something.wait()

    async def start(self) -> None:
        if self.config.tls is None:
            self.server.add_insecure_port(self.address)
        else:
            self.server.add_secure_port(self.address, tls.server_credentials(self.config.tls))
        await self.server.start()
        self.links.start()

    async def stop(self) -> None:
        await self.links.stop()
        self.replicating.drain()
        await self.server.stop(0.1)


@contextlib.asynccontextmanager
async def standing(host: PeerHost) -> AsyncIterator[PeerHost]:
    """A host that runs."""
    await host.start()
    try:
        yield host
    finally:
        await host.stop()


@contextlib.asynccontextmanager
async def pair(
    *, at: Mapping[str, str] | None = None, tls_of: Mapping[str, TlsFiles] | None = None, **config: Any
) -> AsyncIterator[tuple[PeerHost, PeerHost]]:
    """Two nodes of three, with streams in both directions. `at`: where one is reached, if not where it listens."""
    addresses = {"n1": free_address(), "n2": free_address()}
    reached = addresses | dict(at or {})
    first, second = (
        PeerHost(introduction(node_id), addresses[node_id], reached, tls=(tls_of or {}).get(node_id), **config)
        for node_id in ("n1", "n2")
    )
    async with standing(first), standing(second):
        await first.until(lambda: ("linked", "n2") in first.ends)
        await second.until(lambda: ("linked", "n1") in second.ends)
        yield first, second
