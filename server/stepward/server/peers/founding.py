"""How a cluster is made of nodes of which none knows one, and what a node says of itself to those who ask.

A person asks any of them; the one whose id is the first in order does it, so that two people who ask two nodes at once
do not make two clusters. First all are asked who they are: one that cannot be reached, or knows a cluster, ends it
before anything was made. Then each is told, under the start that it named: a node that was started again meanwhile may
have another directory, and refuses. The one that does it is the last.
"""

from __future__ import annotations

import asyncio
import uuid
from typing import TYPE_CHECKING, Final, NamedTuple

from stepward.internal.v1 import peer_service_pb2 as pb
from stepward.internal.v1 import peer_service_pb2_grpc
from stepward.server import observe
from stepward.server.core.rejections import Reason, Refused, refuse
from stepward.server.peers.handshake import configured_otherwise
from stepward.server.peers.passing import Unreached, pass_on

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import grpc

    from stepward.server.config import NodeConfig
    from stepward.server.interceptor import Context
    from stepward.server.logbook.identity import Identity
    from stepward.server.peers.handshake import Doorkeeper, Introduction
    from stepward.server.shard import Shard

# How long one question to one node may take: it answers from memory.
ASK_S_MAX: Final = 3.0
# How long the nodes together may take to write what they are told, with repetitions.
TELL_S_MAX: Final = 10.0
TELL_AGAIN_S: Final = 0.2

_log = observe.logger("founding")


class Plan(NamedTuple):
    """A cluster that is being made."""

    cluster_id: str
    wall_ms: int
    starts: Mapping[str, bytes]


class KnownNode:
    """What a node that knows its cluster says to those who ask, or who want to make another cluster of it."""

    def __init__(self, identity: Identity, shard: Shard, *, doorkeeper: Doorkeeper, start_id: bytes) -> None:
        self._identity = identity
        self._shard = shard
        self._doorkeeper = doorkeeper
        self._start_id = start_id

    async def get_node(self, request: pb.GetNodeRequest, context: Context) -> pb.GetNodeResponse:
        """Who this node is.

        Raises:
            Refused: NOT_ALLOWED, when no node asks.
        """
        self._doorkeeper.admit_caller(context, request.node_id)
        identity, head = self._identity, self._shard.standing.head
        return pb.GetNodeResponse(
            node_id=identity.node_id,
            cluster_id=identity.cluster_id,
            incarnation=identity.node_incarnation,
            start_id=self._start_id,
            sequence=head.sequence,
            hash=head.hash,
            configuration_hash=self._doorkeeper.us.configuration_hash,
            member_ids=identity.members,
            cluster_incarnation=identity.incarnation,
            caller_incarnation=self._doorkeeper.newest_incarnation(request.node_id),
            caller_refused=self._doorkeeper.refuse_newcomer(request.node_id, context),
            configuration=self._doorkeeper.us.configuration,
        )

    async def found_cluster(self, request: pb.FoundClusterRequest, context: Context) -> pb.FoundClusterResponse:
        """Refused, unless it is the cluster that this node knows.

        Raises:
            Refused: CLUSTER_EXISTS; NOT_ALLOWED, when no node asks.
        """
        self._doorkeeper.admit_caller(context)
        if request.cluster_id != self._identity.cluster_id:
            raise cluster_exists(self._identity.node_id, self._identity.cluster_id)
        return pb.FoundClusterResponse()


class Asking:
    """Questions to the other nodes of a configuration."""

    def __init__(self, config: NodeConfig, channel_to: Callable[[str], grpc.aio.Channel]) -> None:
        self._node_id = config.node_id
        self._peers = config.peers
        self._channel_to = channel_to

    @property
    def node_ids(self) -> list[str]:
        """The other nodes."""
        return sorted(self._peers)

    def address(self, node_id: str) -> str:
        """Where a node is reached."""
        return self._peers[node_id]

    def stub(self, node_id: str) -> peer_service_pb2_grpc.PeerServiceAsyncStub:
        """The calls of a node."""
        return peer_service_pb2_grpc.PeerServiceStub(self._channel_to(node_id))

    async def all(self) -> dict[str, pb.GetNodeResponse | str]:
        """Who the other nodes say they are; of one that did not say it, why."""
        request = pb.GetNodeRequest(node_id=self._node_id)
        answers = await asyncio.gather(*(self._one(node_id, request) for node_id in self.node_ids))
        return dict(zip(self.node_ids, answers, strict=True))

    async def _one(self, node_id: str, request: pb.GetNodeRequest) -> pb.GetNodeResponse | str:
        try:
            answer = await pass_on(self.stub(node_id).GetNode, request, timeout_s=ASK_S_MAX)
        except Unreached as error:
            return f"{node_id} cannot be reached at {self.address(node_id)} ({error})"
        except Refused as refused:
            return f"{node_id} at {self.address(node_id)} refuses: {refused.rejection.message}"
        if answer.node_id != node_id:
            return f"at {self.address(node_id)} there is {answer.node_id}, not {node_id}; mend the addresses"
        return answer


class Founder:
    """Makes a cluster of all nodes of a configuration, on the node whose id is the first in order."""

    def __init__(self, config: NodeConfig, asking: Asking, us: Introduction) -> None:
        self._config = config
        self._asking = asking
        self._us = us

    async def plan(self, own_start: bytes, *, wall_ms: int) -> Plan:
        """Ask every node whether it may become one of a new cluster.

        Raises:
            Refused: CLUSTER_EXISTS when one knows a cluster; NODE_STATE when one cannot be reached, or is configured
                otherwise. Nothing was made.
        """
        starts = {self._config.node_id: own_start}
        problems = []
        for node_id, answer in (await self._asking.all()).items():
            if isinstance(answer, str):
                problems.append(answer)
            elif answer.cluster_id:
                raise cluster_exists(node_id, answer.cluster_id)
            elif differs := self._differs(node_id, answer):
                problems.append(differs)
            else:
                starts[node_id] = answer.start_id
        if problems:
            raise refuse(Reason.NODE_STATE, f"nothing was made: {'; '.join(problems)}")
        return Plan(str(uuid.uuid4()), wall_ms, starts)

    def _differs(self, node_id: str, answer: pb.GetNodeResponse) -> str:
        ours, theirs = sorted(self._config.nodes), sorted(answer.member_ids)
        if ours != theirs:
            return f"{node_id} is configured for {', '.join(theirs)}, {self._config.node_id} for {', '.join(ours)}"
        if answer.configuration_hash != self._us.configuration_hash:
            return configured_otherwise(self._us, node_id, answer.configuration)
        return ""

    async def tell(self, plan: Plan) -> list[str]:
        """Make the other nodes ones of the cluster; why this did not work with some.

        Raises:
            Refused: NODE_STATE when so few have it now that the cluster could not work. Those that have it must begin
                again with empty directories.
        """
        others = self._asking.node_ids
        outcomes = await asyncio.gather(*(self._tell(node_id, plan) for node_id in others))
        failures = [text for text in outcomes if text]
        # With this node, which is the last.
        told = len(others) - len(failures) + 1
        if 2 * told <= len(plan.starts):
            left = ", ".join(node_id for node_id, text in zip(others, outcomes, strict=True) if not text) or "none"
            raise refuse(
                Reason.NODE_STATE,
                f"too few nodes became part of the new cluster: {'; '.join(failures)}. Those that have ({left}) must "
                "be given empty directories before it is tried again",
            )
        return failures

    async def _tell(self, node_id: str, plan: Plan) -> str:
        """Tell one node until it has heard, or refuses, or time is up; why it is none of the cluster."""
        request = pb.FoundClusterRequest(
            cluster_id=plan.cluster_id,
            member_ids=sorted(plan.starts),
            start_id=plan.starts[node_id],
            wall_ms=plan.wall_ms,
        )
        loop = asyncio.get_running_loop()
        until = loop.time() + TELL_S_MAX
        while True:
            try:
                await pass_on(self._asking.stub(node_id).FoundCluster, request, timeout_s=ASK_S_MAX)
            except Refused as refused:
                return f"{node_id}: {refused.rejection.message}"
            except Unreached as error:
                if loop.time() + TELL_AGAIN_S >= until:
                    return f"{node_id}: {error}"
                _log.warning("founding_repeated", node_id=node_id, reason=str(error))
                await asyncio.sleep(TELL_AGAIN_S)
            else:
                return ""


def cluster_exists(node_id: str, cluster_id: str) -> Refused:
    """The refusal to make a cluster of a node that knows one."""
    return refuse(
        Reason.CLUSTER_EXISTS,
        f"{node_id} knows cluster {cluster_id}; a node becomes one of another cluster only with an empty directory",
        cluster_id=cluster_id,
        node_id=node_id,
    )
