"""A node that knows no cluster: it listens where the node will, until its directory is that of a member.

It answers who it is, becomes one of a cluster that is made, asks the others for one that exists, and sends everybody
else away with the reason. Then it lets go of the port, and the node begins on it.
"""

from __future__ import annotations

import asyncio
import os
import random
import secrets
from typing import TYPE_CHECKING, Any, Final

import grpc
import grpc.aio

from stepward.server import observe
from stepward.server.admission import Admission
from stepward.server.api import convert
from stepward.server.clock import SystemClock
from stepward.server.core.rejections import Reason, Refused, refuse
from stepward.server.interceptor import CallShell, Rooms, abort
from stepward.server.listening import listen, server_options
from stepward.server.node import PEER_SERVICE, SERVICES, version
from stepward.server.peers import joining
from stepward.server.peers.channels import PeerChannels
from stepward.server.peers.founding import Asking, Founder, cluster_exists
from stepward.server.peers.handshake import Doorkeeper, Introduction
from stepward.server.peers.passing import Unreached, pass_on
from stepward.server.peers.service import PeerService
from stepward.v1 import cluster_service_pb2, cluster_service_pb2_grpc

if TYPE_CHECKING:
    from collections.abc import Callable

    from stepward.server.config import ClusterConfig, NodeConfig
    from stepward.server.logbook.identity import Identity

    Context = grpc.aio.ServicerContext[Any, Any]

CLUSTER_SERVICE: Final = cluster_service_pb2.DESCRIPTOR.services_by_name["ClusterService"]

_ASKS: Final = "it asks the other nodes"
# How often the others are asked for a cluster.
ASK_EVERY_S = 1.0
# How long the answers that made this node a member may take to leave.
STOP_S_MAX = 2.0
# How long the node that makes the cluster may take when another one was asked for it.
CREATE_S_MAX = 20.0

_log = observe.logger("empty_node")


class EmptyNode:
    """Runs on the event loop from `start` until `member` has ended."""

    def __init__(
        self, cluster: ClusterConfig, config: NodeConfig, *, on_waiting: Callable[[str], None] = lambda _: None
    ) -> None:
        """`on_waiting` is told what this node waits for, whenever that changes."""
        self._config = config
        self._on_waiting = on_waiting
        self._clock = SystemClock()
        self._started_wall_ms = self._clock.wall_ms()
        self._member: asyncio.Future[Identity] = asyncio.get_running_loop().create_future()
        self._channels = PeerChannels(config.nodes, config)
        self._asking = Asking(config, self._channels.to)
        us = _introduction(cluster, config)
        doorkeeper = Doorkeeper(us, config, clock=self._clock)
        self._applicant = joining.Applicant(
            config, doorkeeper=doorkeeper, start_id=secrets.token_bytes(16), member=self._member
        )
        self._founder = Founder(config, self._asking, us)
        self._founding = asyncio.Lock()
        self._reason = ""
        self._server = self._make_server(cluster)
        self.address = ""

    def _make_server(self, cluster: ClusterConfig) -> grpc.aio.Server:
        server = grpc.aio.server(options=server_options(cluster, self._config))
        counters, config = observe.Counters(), self._config
        # Nobody is admitted to anything here; it only words what is refused when too many call.
        admission = Admission(
            config=config, clock=self._clock, counters=counters, rng=random.Random(), free_bytes=lambda: 0
        )
        shell = CallShell(counters, Rooms(config), admission, stalled_ms_max=config.stalled_ms_max)
        server.add_generic_rpc_handlers(
            [
                shell.serve(PEER_SERVICE, PeerService(founding=self._applicant)),
                shell.serve(CLUSTER_SERVICE, self),
                _Elsewhere(config.node_id),
            ]
        )
        return server

    async def start(self) -> None:
        """Begin to listen.

        Raises:
            AddressTaken: The address cannot be listened on.
        """
        self.address = listen(self._server, self._config)
        await self._server.start()
        self._on_waiting(_ASKS)
        _log.info("node_is_empty", address=self.address, node_id=self._config.node_id)

    async def member(self) -> Identity:
        """Who this node is, as soon as its directory is that of a member; nothing listens any more then.

        Raises:
            ServerError: The directory cannot be used.
        """
        looking = asyncio.create_task(self._look())
        try:
            await asyncio.wait((looking, self._member), return_when=asyncio.FIRST_COMPLETED)
            if looking.done() and not self._member.done():
                looking.result()
            return await self._member
        finally:
            looking.cancel()
            await asyncio.gather(looking, return_exceptions=True)
            await self.stop()

    async def stop(self) -> None:
        """Let go of the port. Safe to repeat."""
        await self._server.stop(STOP_S_MAX)
        await self._channels.close()

    async def _look(self) -> None:
        """Ask the others for a cluster until there is one."""
        while not self._member.done():
            answers = await self._asking.all()
            reason = self._applicant.join(answers, wall_ms=self._clock.wall_ms())
            if reason != self._reason and not self._member.done():
                _log.info("node_waits", reason=reason)
                self._on_waiting(reason)
            self._reason = reason
            if not self._member.done():
                await asyncio.wait((self._member,), timeout=ASK_EVERY_S * (1 + random.random() / 2))

    # ClusterService.

    async def get_status(
        self, request: cluster_service_pb2.GetStatusRequest, context: Context
    ) -> cluster_service_pb2.GetStatusResponse:
        """See the contract."""
        return cluster_service_pb2.GetStatusResponse(
            node_id=self._config.node_id,
            version=version(),
            started_at=convert.timestamp(self._started_wall_ms),
            pid=os.getpid(),
            members=self._members(),
            state=cluster_service_pb2.NODE_STATE_EMPTY,
            state_reason=self._reason or f"it knows no cluster yet: {_ASKS}",
        )

    async def create_cluster(
        self, request: cluster_service_pb2.CreateClusterRequest, context: Context
    ) -> cluster_service_pb2.CreateClusterResponse:
        """See the contract."""
        first = min(self._config.nodes)
        if first != self._config.node_id:
            return await self._let_create(first, request)
        async with self._founding:
            if self._member.done():
                raise cluster_exists(self._config.node_id, self._member.result().cluster_id)
            plan = await self._founder.plan(self._applicant.start_id, wall_ms=self._clock.wall_ms())
            failures = await self._founder.tell(plan)
            identity = self._applicant.found(plan.cluster_id, sorted(plan.starts), wall_ms=plan.wall_ms)
        for failure in failures:
            _log.warning("node_left_out", reason=failure)
        return cluster_service_pb2.CreateClusterResponse(cluster_id=identity.cluster_id, members=self._members())

    async def _let_create(
        self, node_id: str, request: cluster_service_pb2.CreateClusterRequest
    ) -> cluster_service_pb2.CreateClusterResponse:
        """Have the one node do it that does it whoever is asked."""
        stub = cluster_service_pb2_grpc.ClusterServiceStub(self._channels.to(node_id))
        try:
            return await pass_on(stub.CreateCluster, request, timeout_s=CREATE_S_MAX)
        except Unreached as error:
            text = f"{node_id}, which makes the cluster, did not answer at {self._config.nodes[node_id]}: {error}"
            raise refuse(Reason.NODE_STATE, f"{text}; ask for the status, then try again") from None

    def _members(self) -> list[cluster_service_pb2.Member]:
        return [
            cluster_service_pb2.Member(node_id=node_id, address=address)
            for node_id, address in sorted(self._config.nodes.items())
        ]

    async def transfer_leader(
        self, request: cluster_service_pb2.TransferLeaderRequest, context: Context
    ) -> cluster_service_pb2.TransferLeaderResponse:
        """See the contract."""
        raise no_cluster(self._config.node_id)

    async def recover_node(
        self, request: cluster_service_pb2.RecoverNodeRequest, context: Context
    ) -> cluster_service_pb2.RecoverNodeResponse:
        """See the contract."""
        raise no_cluster(self._config.node_id)


def _introduction(cluster: ClusterConfig, config: NodeConfig) -> Introduction:
    return Introduction(
        cluster_id="",
        node_id=config.node_id,
        incarnation=0,
        members=frozenset(config.nodes),
        configuration_hash=cluster.fingerprint(),
        configuration=cluster.encoded(),
    )


def no_cluster(node_id: str) -> Refused:
    """The refusal of a node that knows no cluster."""
    return refuse(
        Reason.NO_CLUSTER,
        f"{node_id} knows no cluster yet; make one with `stepward cluster create`, or ask another node",
    )


class _Elsewhere(grpc.GenericRpcHandler):
    """Refuses every call of every other service of the contract."""

    def __init__(self, node_id: str) -> None:
        self._rejection = no_cluster(node_id).rejection
        self._services = {service.full_name for service in SERVICES}

    def service(  # type: ignore[explicit-override]  # `override` is of 3.12
        self, handler_call_details: grpc.HandlerCallDetails
    ) -> Any:
        """See grpc."""
        service = handler_call_details.method.removeprefix("/").partition("/")[0]
        if service not in self._services:
            return None
        # A stream of both directions serves calls of any kind, as long as nobody reads or answers.
        return grpc.stream_stream_rpc_method_handler(self._refuse)

    async def _refuse(self, _requests: Any, context: Context) -> None:
        await abort(context, self._rejection)
