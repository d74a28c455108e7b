"""Who may speak to this node as another node. Nothing that comes from anybody else is looked at."""

from __future__ import annotations

import ipaddress
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from stepward.internal.v1 import peer_service_pb2 as pb
from stepward.server import config
from stepward.server.core.rejections import Reason, Refused, Rejection
from stepward.server.peers import certificate, tls
from stepward.server.peers.presence import Presence
from stepward.server.peers.refusals import Refusals

if TYPE_CHECKING:
    from collections.abc import Mapping

    from stepward.server.clock import Clock
    from stepward.server.config import NodeConfig
    from stepward.server.interceptor import Context

# Rises with every change after which nodes of before would misunderstand each other.
PROTOCOL_VERSION: Final = 2
# How long an id may be that is told to whoever looks at a log, where it is not one of ours.
_SHOWN_CHARS_MAX: Final = 64
# In a refusal: the newest stream that is known, so that a node whose clock went back can begin above it.
NEWEST_CONNECTION: Final = "newest_connection"


class Introduction(Struct, frozen=True, kw_only=True):
    """What a node says of itself to the others, and what it knows of them."""

    cluster_id: str
    node_id: str
    # How often this node has begun with an empty directory.
    incarnation: int
    # All nodes of the cluster, this one too.
    members: frozenset[str]
    configuration_hash: bytes
    # What the hash is of, so that who refuses it can say what differs.
    configuration: bytes = b""

    @property
    def peers(self) -> list[str]:
        """The other nodes."""
        return sorted(self.members - {self.node_id})

    def hello(self, to_node_id: str, connection: int = 0) -> pb.Hello:
        """The first message to another node. `connection` matters where streams replace each other."""
        return pb.Hello(
            cluster_id=self.cluster_id,
            node_id=self.node_id,
            to_node_id=to_node_id,
            incarnation=self.incarnation,
            connection=connection,
            protocol_version=PROTOCOL_VERSION,
            configuration_hash=self.configuration_hash,
            configuration=self.configuration,
        )

    def welcome(self) -> pb.Welcome:
        """The answer to a hello that fits."""
        return pb.Welcome(node_id=self.node_id, incarnation=self.incarnation)


def why_refused(us: Introduction, hello: pb.Hello) -> Rejection | None:
    """Why a hello does not fit, whoever sent it."""
    if hello.protocol_version != PROTOCOL_VERSION:
        text = f"protocol version {hello.protocol_version} is not spoken here; this is {PROTOCOL_VERSION}"
        return Rejection(Reason.PROTOCOL_VERSION, f"{text}: run the same release on all nodes")
    if hello.cluster_id != us.cluster_id:
        text = f"{_shown(hello.node_id)} is of cluster {_shown(hello.cluster_id)}; this is {us.cluster_id}"
        return _refusal(f"{text}: its data or its list of nodes belongs to another cluster")
    if hello.to_node_id != us.node_id:
        text = f"{_shown(hello.node_id)} looks for {_shown(hello.to_node_id)}, and this is {us.node_id}"
        return _refusal(f"{text}: mend the addresses of its configuration")
    if hello.node_id not in us.members or hello.node_id == us.node_id:
        others = ", ".join(us.peers) or "nobody"
        return _refusal(f"{_shown(hello.node_id)} is none of the other nodes of this cluster, which are: {others}")
    if hello.configuration_hash != us.configuration_hash:
        return _refusal(configured_otherwise(us, hello.node_id, hello.configuration))
    return None


def configured_otherwise(us: Introduction, node_id: str, configuration: bytes) -> str:
    """What to say of a node that is configured otherwise in what must be equal on all nodes."""
    text = f"{node_id} is configured otherwise in what must be equal on all nodes"
    differences = config.differences(us.configuration, configuration)
    if not differences:
        return f"{text}: compare the limits of its configuration with those of {us.node_id}"
    told = "; ".join(f"{one.field} is {one.theirs} there and {one.ours} on {us.node_id}" for one in differences)
    return f"{text}: {told}; give all nodes the same"


class Doorkeeper:
    """Lets in what comes from nodes of this cluster, and remembers the newest that it has seen of each."""

    def __init__(
        self,
        us: Introduction,
        node: NodeConfig,
        *,
        clock: Clock,
        incarnations: Mapping[str, int] = MappingProxyType({}),
    ) -> None:
        """`incarnations`: the newest that this node has met before it was started, by node."""
        self.us = us
        self.presence = Presence(node.nodes, gone_ms=node.peer_gone_ms, clock=clock)
        self.refusals = Refusals(us.node_id, clock=clock)
        self._has_tls = node.tls is not None
        self._trusted_network = node.trusted_network
        # Incarnation, and number of the stream.
        self._newest: dict[str, tuple[int, int]] = {node_id: (newest, 0) for node_id, newest in incarnations.items()}

    def admit_caller(self, context: Context, node_id: str = "") -> None:
        """Look who calls. `node_id`: as which node he speaks; empty where any node of the CA may ask.

        Raises:
            Refused: NOT_ALLOWED, when it is no node.
        """
        if self._has_tls:
            certified = tls.node_ids(context.auth_context() or {})
            if not certified or (node_id and node_id not in certified):
                wanted = f"{certificate.NODE_URI}{_shown(node_id) or 'ID'}"
                shown = ", ".join(sorted(_shown(one) for one in certified)) or "no node"
                raise Refused(
                    Rejection(
                        Reason.NOT_ALLOWED,
                        f"this call is for nodes: its certificate must name {wanted}, and names {shown}",
                    )
                )
        elif not self._trusted_network and not is_local(context.peer()):
            text = "without TLS other nodes are only taken from this machine: configure TLS, or trusted_network"
            raise Refused(Rejection(Reason.NOT_ALLOWED, text))

    def newest_incarnation(self, node_id: str) -> int:
        """The highest incarnation of a node that has spoken to this one; 0 when none has."""
        incarnation, _ = self._newest.get(node_id, (0, 0))
        return incarnation

    def refuse_newcomer(self, node_id: str, context: Context) -> str:
        """Why a node with an empty directory may not come under an id now; empty when it may.

        While another one speaks under that id, whoever comes is a second one, started by mistake: were it taken, the
        first would be refused for good.
        """
        if node_id not in self.us.peers:
            return ""
        there = self.presence.of(node_id, self.newest_incarnation(node_id))
        if there:
            self.refusals.note(node_id, host_of(context.peer()), there)
        return there or self.presence.unknown(node_id)

    def admit(self, hello: pb.Hello, context: Context) -> None:
        """Look who speaks, before anything of it is taken.

        Raises:
            Refused: NOT_ALLOWED, NODE_STATE or PROTOCOL_VERSION, with what does not fit.
        """
        try:
            self._admit(hello, context)
        except Refused as refused:
            self.refusals.note(_shown(hello.node_id), host_of(context.peer()), refused.rejection.message)
            raise

    def _admit(self, hello: pb.Hello, context: Context) -> None:
        self.admit_caller(context, hello.node_id)
        why = why_refused(self.us, hello)
        if why is not None:
            raise Refused(why)
        newest, connection = self._newest.get(hello.node_id, (0, 0))
        if hello.incarnation < newest:
            text = f"{hello.node_id} speaks as incarnation {hello.incarnation}, and has begun anew as {newest} since"
            raise Refused(_refusal(f"{text}: two directories serve as the same node; end the older one, and remove it"))
        if hello.incarnation > newest:
            if there := self.presence.of(hello.node_id, newest):
                raise Refused(_refusal(there))
            # Streams go on being numbered upwards: whoever takes in what comes on them knows no incarnations.
            self._newest[hello.node_id] = (hello.incarnation, connection)

    def admit_stream(self, hello: pb.Hello, context: Context) -> None:
        """As `admit`, for a stream that replaces the older ones of its node.

        Raises:
            Refused: Also when it is not newer; then metadata says what the newest is.
        """
        self.admit(hello, context)
        _, newest = self._newest[hello.node_id]
        if hello.connection <= newest:
            text = f"stream {hello.connection} of {hello.node_id} is not newer than {newest}, which stands or stood"
            raise Refused(Rejection(Reason.NODE_STATE, text, {NEWEST_CONNECTION: str(newest)}))
        self._newest[hello.node_id] = (hello.incarnation, hello.connection)
        self.refusals.forget(hello.node_id, host_of(context.peer()))


def is_local(peer: str) -> bool:
    """Whether a caller is on this machine. `peer`: as gRPC names it, such as "ipv4:127.0.0.1:4711"."""
    if peer.startswith("unix:"):
        return True
    try:
        found = ipaddress.ip_address(host_of(peer).partition("%")[0])
    except ValueError:
        return False
    mapped = getattr(found, "ipv4_mapped", None)
    return (mapped or found).is_loopback


def host_of(peer: str) -> str:
    """The host of a caller, as far as there is one. `peer`: as gRPC names it."""
    _, _, address = peer.partition(":")
    return address.rpartition(":")[0].replace("%5B", "[").replace("%5D", "]").strip("[]")


def _refusal(text: str) -> Rejection:
    return Rejection(Reason.NODE_STATE, text)


def _shown(id: str) -> str:
    """An id that somebody claims, short enough to be told."""
    return id if len(id) <= _SHOWN_CHARS_MAX else f"{id[:_SHOWN_CHARS_MAX]}..."
