"""All that a node needs to talk with the others, put together."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

from stepward.server.config import ConfigError
from stepward.server.peers.channels import PeerChannels
from stepward.server.peers.exporting import Exporting
from stepward.server.peers.fetching import Fetching
from stepward.server.peers.handshake import Doorkeeper, Introduction
from stepward.server.peers.links import Links
from stepward.server.peers.replicating import Replicating

if TYPE_CHECKING:
    from collections.abc import Callable

    from stepward.server.clock import Clock
    from stepward.server.config import ClusterConfig, NodeConfig
    from stepward.server.logbook.identity import Identity
    from stepward.server.observe import Counters
    from stepward.server.shard import Shard


class Peering:
    """The other nodes, as this one meets them. Belongs to the thread of the event loop."""

    def __init__(
        self,
        identity: Identity,
        shard: Shard,
        *,
        cluster: ClusterConfig,
        config: NodeConfig,
        clock: Clock,
        counters: Counters,
        free_bytes: Callable[[], int],
    ) -> None:
        """`free_bytes`: of the disk of this node."""
        self.us = Introduction(
            cluster_id=identity.cluster_id,
            node_id=identity.node_id,
            incarnation=identity.node_incarnation,
            members=frozenset(identity.members),
            configuration_hash=cluster.fingerprint(),
        )
        self.doorkeeper = Doorkeeper(self.us, has_tls=config.tls is not None, trusted_network=config.trusted_network)
        self.channels = PeerChannels(config.nodes, config)
        self.links = Links(
            self.us,
            config=config,
            counters=counters,
            wall_ms=clock.wall_ms(),
            rng=random.Random(random.SystemRandom().getrandbits(128)),
            ends=shard,
        )
        self.replicating = Replicating(self.doorkeeper, receiver=shard, watcher=self.links, counters=counters)
        shard.on_frames(self.links.send, self.replicating.break_off)
        self.exporting = Exporting(
            shard.rows,
            admit=self.doorkeeper.admit,
            free_bytes=free_bytes,
            free_bytes_min=config.free_bytes_for_submissions_min,
            counters=counters,
        )
        self.fetching = Fetching(
            shard.rows,
            channel=self.channels.to,
            hello=self.us.hello,
            rng=random.Random(random.SystemRandom().getrandbits(128)),
            counters=counters,
        )

    def start(self) -> None:
        """Begin to make streams to the others."""
        self.links.start()
        if self.us.peers:
            self.fetching.start()

    def drain(self) -> None:
        """Let go of the streams of the others: this node stops."""
        self.replicating.drain()

    async def stop_fetching(self) -> None:
        """Let go of rows that come: before the shard stops, whose store they go into."""
        await self.fetching.stop()

    async def stop(self) -> None:
        """Let go of everything."""
        self.exporting.stop()
        await self.links.stop()
        await self.channels.close()


def check_addresses(identity: Identity, config: NodeConfig) -> None:
    """See that the others can be reached.

    Raises:
        ConfigError: The configuration does not say where one is.
    """
    unknown = sorted(set(identity.peers) - set(config.nodes))
    if unknown:
        rule = f"it must say where {', '.join(unknown)} can be reached, with which this node makes a cluster"
        raise ConfigError("nodes", dict(config.nodes), rule)
