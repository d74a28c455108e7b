"""What a node does that begins with an empty directory: it waits to be made one of a cluster, or joins one that exists.

A cluster that exists is joined in quarantine, see `logbook.identity`. While one is being made, some nodes know it and
others do not yet; a node that joined then would be in quarantine in a cluster that has no others to learn from. So only
a cluster that has begun to decide is joined: it has the majority that it needs without this node.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from stepward.internal.v1 import peer_service_pb2 as pb
from stepward.server import observe
from stepward.server.core.rejections import Reason, refuse
from stepward.server.logbook.identity import Identity, create_cluster, join_directory
from stepward.server.peers.founding import cluster_exists
from stepward.server.peers.handshake import configured_otherwise
from stepward.server.store.errors import ServerError

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Iterable, Mapping

    from stepward.server.config import NodeConfig
    from stepward.server.interceptor import Context
    from stepward.server.peers.handshake import Doorkeeper, Introduction


_log = observe.logger("joining")


class Applicant:
    """A node that knows no cluster: says so, and becomes one of the first that takes it."""

    def __init__(
        self, config: NodeConfig, *, doorkeeper: Doorkeeper, start_id: bytes, member: asyncio.Future[Identity]
    ) -> None:
        """`member` is set once, when the directory is that of a member."""
        self._config = config
        self._doorkeeper = doorkeeper
        self._member = member
        self.start_id = start_id

    async def get_node(self, request: pb.GetNodeRequest, context: Context) -> pb.GetNodeResponse:
        """Who this node is; with no cluster, as long as it knows none.

        Raises:
            Refused: NOT_ALLOWED, when no node asks.
        """
        self._doorkeeper.admit_caller(context, request.node_id)
        identity = self._member.result() if self._member.done() else None
        return pb.GetNodeResponse(
            node_id=self._config.node_id,
            cluster_id=identity.cluster_id if identity else "",
            incarnation=identity.node_incarnation if identity else 0,
            start_id=self.start_id,
            configuration_hash=self._doorkeeper.us.configuration_hash,
            configuration=self._doorkeeper.us.configuration,
            member_ids=sorted(self._config.nodes),
            cluster_incarnation=identity.incarnation if identity else 0,
        )

    async def found_cluster(self, request: pb.FoundClusterRequest, context: Context) -> pb.FoundClusterResponse:
        """Become one of a cluster that is being made. May be repeated.

        Raises:
            Refused: CLUSTER_EXISTS when this node is one of another already; NODE_STATE when another start of it was
                meant, or other nodes than it is configured for; NOT_ALLOWED, when no node asks.
        """
        self._doorkeeper.admit_caller(context)
        if request.start_id != self.start_id:
            text = f"{self._config.node_id} was started again after it was asked, and may have another directory now"
            raise refuse(Reason.NODE_STATE, f"{text}; try again")
        self.found(request.cluster_id, request.member_ids, wall_ms=request.wall_ms)
        return pb.FoundClusterResponse()

    def found(self, cluster_id: str, member_ids: Iterable[str], *, wall_ms: int) -> Identity:
        """Make the directory that of a node of a new cluster.

        Raises:
            Refused: As `found_cluster`, and NODE_STATE when the directory cannot be used.
        """
        members = tuple(sorted(self._config.nodes))
        if self._member.done():
            identity = self._member.result()
            if identity.cluster_id != cluster_id:
                raise cluster_exists(identity.node_id, identity.cluster_id)
            return identity
        if tuple(sorted(member_ids)) != members:
            raise refuse(Reason.NODE_STATE, f"{self._config.node_id} is configured for {', '.join(members)}")
        data, node_id = self._config.data, self._config.node_id
        try:
            identity = create_cluster(data, node_id, members=members, cluster_id=cluster_id, wall_ms=wall_ms)
        except (ServerError, OSError) as error:
            _log.exception("directory_unusable", data=str(data))
            raise refuse(Reason.NODE_STATE, f"the directory of {node_id} cannot be used: {error}") from None
        self._member.set_result(identity)
        return identity

    def join(self, answers: Mapping[str, pb.GetNodeResponse | str], *, wall_ms: int) -> str:
        """Join the cluster that the other nodes know; why not, empty when this node is one of it.

        Raises:
            ServerError: The directory cannot be used.
        """
        if self._member.done():
            return ""
        identity = cluster_to_join(self._config, self._doorkeeper.us, answers, wall_ms=wall_ms)
        if isinstance(identity, str):
            return identity
        join_directory(self._config.data, identity)
        self._member.set_result(identity)
        return ""


def cluster_to_join(
    config: NodeConfig, us: Introduction, answers: Mapping[str, pb.GetNodeResponse | str], *, wall_ms: int
) -> Identity | str:
    """Who this node would be in the cluster that the others know; or why it cannot join one.

    Any one of them that hears another node under this one's id is enough to wait: that one works.
    """
    knowing = [answer for answer in answers.values() if not isinstance(answer, str) and answer.cluster_id]
    if not knowing:
        silent = "; ".join(answer for answer in answers.values() if isinstance(answer, str))
        return f"no node knows a cluster; `stepward cluster create` makes one{silent and f' ({silent})'}"
    clusters = {answer.cluster_id for answer in knowing}
    if len(clusters) > 1:
        return f"the other nodes know different clusters: {', '.join(sorted(clusters))}; mend their addresses"
    members, configured = tuple(sorted(knowing[0].member_ids)), tuple(sorted(config.nodes))
    if members != configured:
        return (
            f"cluster {knowing[0].cluster_id} consists of {', '.join(members)}, and this node is configured for "
            f"{', '.join(configured)}"
        )
    for answer in knowing:
        if answer.configuration_hash != us.configuration_hash:
            return configured_otherwise(us, answer.node_id, answer.configuration)
        if answer.caller_refused:
            return answer.caller_refused
    if not any(answer.sequence for answer in knowing):
        return f"cluster {knowing[0].cluster_id} has not begun yet"
    return Identity(
        cluster_id=knowing[0].cluster_id,
        node_id=config.node_id,
        incarnation=max(answer.cluster_incarnation for answer in knowing),
        members=members,
        # The wall clock may have gone back since the directory that was lost was begun.
        node_incarnation=max(wall_ms, *(answer.caller_incarnation + 1 for answer in knowing)),
    )
