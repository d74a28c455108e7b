"""All that a node needs to talk with the others, put together."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Final

from stepward.internal.v1 import peer_service_pb2 as pb
from stepward.server import observe
from stepward.server.config import ConfigError
from stepward.server.peers.channels import PeerChannels
from stepward.server.peers.contact import Contact
from stepward.server.peers.exporting import Exporting
from stepward.server.peers.fetching import Fetching
from stepward.server.peers.forwarded import ForwardedCalls
from stepward.server.peers.forwarding import Forwarding
from stepward.server.peers.handshake import Doorkeeper, Introduction
from stepward.server.peers.links import Links
from stepward.server.peers.refusals import Refusal
from stepward.server.peers.replicating import Replicating

PEER_SERVICE: Final = pb.DESCRIPTOR.services_by_name["PeerService"]

_log = observe.logger("peers")

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Mapping

    from stepward.server.admission import Admission
    from stepward.server.clock import Clock
    from stepward.server.config import ClusterConfig, NodeConfig
    from stepward.server.logbook.identity import Identity
    from stepward.server.observe import Counters
    from stepward.server.peers.forward_link import ForwardCall
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
        admission: Admission,
        free_bytes: Callable[[], int],
        on_fatal: Callable[[str], None],
        incarnations: Mapping[str, int],
    ) -> None:
        """`free_bytes`: of the disk of this node. `on_fatal` is told why this node can meet the others no more.

        `incarnations`: the newest of the other nodes that it has met.
        """
        self._on_fatal = on_fatal
        rng = random.Random(random.SystemRandom().getrandbits(128))
        self.us = Introduction(
            cluster_id=identity.cluster_id,
            node_id=identity.node_id,
            incarnation=identity.node_incarnation,
            members=frozenset(identity.members),
            configuration_hash=cluster.fingerprint(),
            configuration=cluster.encoded(),
        )
        self.doorkeeper = Doorkeeper(self.us, config, clock=clock, incarnations=incarnations)
        self.channels = PeerChannels(config.nodes, config)
        self.links = Links(
            self.us,
            config=config,
            counters=counters,
            wall_ms=clock.wall_ms(),
            rng=rng,
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
            rng=rng,
            counters=counters,
        )
        self.contact = Contact(
            node_id=identity.node_id,
            addresses=self.channels.address,
            session_ttl_ms=cluster.limits.session_ttl_ms,
            rng=rng,
        )
        # None in a cluster of one, where nobody else decides.
        self.forwarded: ForwardedCalls | None = None
        if identity.peers:
            self.forwarded = self._forward(
                shard, clock=clock, config=config, counters=counters, admission=admission, rng=rng
            )

    def _forward(
        self,
        shard: Shard,
        *,
        clock: Clock,
        config: NodeConfig,
        counters: Counters,
        admission: Admission,
        rng: random.Random,
    ) -> ForwardedCalls:
        """Give the shard its way to the leader; what serves the other nodes, when this one leads."""
        forwarding = Forwarding(
            shard,
            node_id=self.us.node_id,
            hello=self.us.hello,
            connect=self._connect,
            contact=self.contact,
            clock=clock,
            config=config,
            counters=counters,
            rng=rng,
        )
        shard.forward_by(forwarding)
        return ForwardedCalls(
            shard,
            forwarding,
            door=self.doorkeeper,
            welcome=self.us.welcome(),
            admission=admission,
            clock=clock,
            config=config,
        )

    def _connect(self, node_id: str) -> ForwardCall:
        """A stream for commands to a node."""
        call = self.channels.to(node_id).stream_stream(
            f"/{PEER_SERVICE.full_name}/Forward",
            request_serializer=pb.ForwardRequest.SerializeToString,
            response_deserializer=pb.ForwardResponse.FromString,
        )
        return call()

    def reached(self) -> list[str]:
        """The other nodes to which a stream stands."""
        return [peer_id for peer_id in self.us.peers if self.links.stands(peer_id)]

    def refusals(self) -> list[Refusal]:
        """Nodes that do not take this one for one of the cluster, and those that this one does not take."""
        of_us = self.links.refusals()
        ours = [Refusal(peer_id, self.us.node_id, "", reason) for peer_id, reason in of_us.items()]
        return [*ours, *self.doorkeeper.refusals.lately()]

    def start(self) -> None:
        """Begin to make streams to the others."""
        if self.us.peers:
            for task in (*self.links.start(), self.fetching.start()):
                task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        """One that has ended by itself would leave a node that only seems to take part."""
        if not task.cancelled():
            error = task.exception()
            _log.critical("peering_ended", part=task.get_name(), exc_info=error)
            self._on_fatal(f"{task.get_name()} ended before the node did: {error!r}")

    def drain(self) -> None:
        """Let go of the streams of the others: this node stops."""
        self.replicating.drain()
        if self.forwarded is not None:
            self.forwarded.drain()

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
