"""One node: composes store, replica, shard, supervisor, sessions and services, and takes them apart again."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import random
import sys
from datetime import UTC, datetime
from importlib import metadata
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc  # type: ignore[import-untyped]  # ships no types
from grpc_reflection.v1alpha import reflection  # type: ignore[import-untyped]  # ships no types

from stepward.internal.v1 import peer_service_pb2
from stepward.server import observe
from stepward.server.admission import Admission
from stepward.server.agent_calls import AgentCalls
from stepward.server.api.agents import AgentService
from stepward.server.api.cluster import ClusterService
from stepward.server.api.definitions import DefinitionService
from stepward.server.api.ends_watch import EndsWatch
from stepward.server.api.jobs import JobService
from stepward.server.api.operator import OperatorService
from stepward.server.api.supervision import SupervisionService
from stepward.server.api.watch import JobWatch
from stepward.server.canary_agent import CanaryAgent
from stepward.server.clock import SystemClock, boot_id
from stepward.server.core.decide import decide
from stepward.server.counted_store import CountedStore
from stepward.server.flush_guard import FlushGuard
from stepward.server.gateway import Gateway
from stepward.server.interceptor import CallShell, Rooms
from stepward.server.job_ids import JobIds, newest_job_id
from stepward.server.listening import listen, server_options
from stepward.server.logbook.identity import open_identity
from stepward.server.logbook.outbox import Transfer
from stepward.server.logbook.quarantine import read_newcomers
from stepward.server.logbook.replica import Instant, Replica
from stepward.server.metrics import Exposition
from stepward.server.operating import Operating
from stepward.server.oversight import Oversight
from stepward.server.peers import certificate
from stepward.server.peers.founding import KnownNode
from stepward.server.peers.peering import Peering, check_addresses
from stepward.server.peers.service import PeerService
from stepward.server.probes import Probes
from stepward.server.sessions import Sessions
from stepward.server.shard import Shard
from stepward.server.supervisor import Supervisor
from stepward.server.vitals import Vitals
from stepward.server.webhook import Telling
from stepward.v1 import (
    agent_service_pb2,
    cluster_service_pb2,
    definition_service_pb2,
    job_service_pb2,
    operator_service_pb2,
    supervision_service_pb2,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stepward.server.config import ClusterConfig, NodeConfig
    from stepward.server.core.commands import AnyCommand, Command
    from stepward.server.core.decide import Decision, Moment
    from stepward.server.core.limits import Limits
    from stepward.server.core.reader import Reader
    from stepward.server.logbook.identity import Identity
    from stepward.server.logbook.outbox import Decider, Standing
    from stepward.server.observe import Counters

SERVICES: Final = tuple(
    service
    for module in (
        job_service_pb2,
        operator_service_pb2,
        supervision_service_pb2,
        definition_service_pb2,
        agent_service_pb2,
        cluster_service_pb2,
    )
    for service in module.DESCRIPTOR.services_by_name.values()
)

# What only other nodes may call. Nobody is told of it.
PEER_SERVICE: Final = peer_service_pb2.DESCRIPTOR.services_by_name["PeerService"]

# How long a node that stops waits for another one to lead. The others would elect one in about as long.
HAND_OVER_MS_MAX: Final = 1_000

A = TypeVar("A", Sessions, AgentCalls)

_log = observe.logger("node")


class Node:
    """A running node. Made, started and stopped on the thread of the event loop.

    Raises:
        StoreAbsent: There is no data in the directory; nobody makes a cluster by accident.
        StoreInUse: Another node runs on it.
        LogbookError: What lies there cannot be gone on with.
        TlsUnusable: The files for TLS are not what they must be.
        ConfigError: The configuration does not say where another node is.
    """

    def __init__(self, cluster: ClusterConfig, config: NodeConfig, *, probes: Probes | None = None) -> None:
        """`probes`: the pages for monitoring where this process has them already. None: it makes its own."""
        self._cluster = cluster
        self._config = config
        self._counters = observe.Counters()
        self._clock = SystemClock()
        self._guard = FlushGuard(config.flush_ms_max)
        self.address = ""
        self._fatal: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        if config.tls is not None:
            certificate.check(config, datetime.now(UTC))
        with contextlib.ExitStack() as opened:
            store = CountedStore(config.data, self._counters, self._guard)
            opened.callback(store.close)
            self._free_bytes = store.free_bytes
            self._admission = self._make_admission()
            self.identity: Identity = open_identity(store)
            check_addresses(self.identity, config)
            incarnations = read_newcomers(store)
            self._shard = self._make_shard(store)
            opened.pop_all()
        self._ready = asyncio.Event()
        self._oversight = self._make_oversight()
        self._gateway = self._make_gateway()
        self._sessions = self._serve_agents(Sessions)
        self._agent_calls = self._serve_agents(AgentCalls)
        self._canary = CanaryAgent(
            self._shard,
            self._agent_calls,
            node_id=self.identity.node_id,
            version=version(),
            counters=self._counters,
        )
        self._vitals = self._make_vitals()
        self._probes = probes
        chance = random.Random(random.SystemRandom().getrandbits(128))
        self._telling = Telling(self._shard, config, self._clock, self._counters, self.identity.cluster_id, chance)
        self._peering = Peering(
            self.identity,
            self._shard,
            cluster=cluster,
            config=config,
            clock=self._clock,
            counters=self._counters,
            free_bytes=self._free_bytes,
            admission=self._admission,
            on_fatal=self._on_fatal,
            incarnations=incarnations,
        )
        for part in (self._sessions, self._agent_calls, self._gateway):
            self._peering.contact.on_lost(part.send_away)
            self._shard.rows.on_installed(part.start_over)
        self._health = health.aio.HealthServicer()
        self._server = self._make_server()

    @property
    def waiters(self) -> int:
        """How many calls wait for the end of a job."""
        return self._gateway.waiters

    @property
    def standing(self) -> Standing:
        """What this node was at the end of the last step of its replica."""
        return self._shard.standing

    @property
    def peering(self) -> Peering:
        """The other nodes, as this one meets them."""
        return self._peering

    @property
    def counters(self) -> Counters:
        """What this process has done so far."""
        return self._counters

    async def start(self) -> None:
        """Begin to listen and to step; a node that is alone returns when its epoch is open.

        Raises:
            AddressTaken: The address cannot be listened on.
            ProbesAddressTaken: That of the pages for monitoring cannot.
        """
        self._start_probes()
        self.address = listen(self._server, self._config)
        await self._server.start()
        self._shard.on_standing(self._oversight.on_standing)
        self._guard.start()
        self._shard.start()
        self._peering.start()
        if not self.identity.peers:
            await self._first(self._ready.wait())
        for service in ("", *(service.full_name for service in SERVICES)):
            await self._health.set(service, health_pb2.HealthCheckResponse.SERVING)
        # What has been made so far lives as long as the process; the collector need not look at it again.
        gc.collect()
        gc.freeze()
        _log.info(
            "node_started",
            address=self.address,
            node_id=self.identity.node_id,
            peers=self.identity.peers,
            tls=self._config.tls is not None,
        )

    @property
    def http_address(self) -> str:
        """Where the pages for monitoring are; empty: nowhere."""
        return self._probes.address if self._probes is not None else ""

    def _start_probes(self) -> None:
        """First of all, so that whoever waits for this node can ask it what it waits for."""
        config, vitals = self._config, self._vitals
        vitals.start()
        text = Exposition(vitals).text
        if self._probes is not None:
            self._probes.show(metrics=text, unhealthy=vitals.unhealthy, unready=vitals.unready)
        elif config.http_port is not None:
            self._probes = Probes(
                config.http_host, config.http_port, metrics=text, unhealthy=vitals.unhealthy, unready=vitals.unready
            )
            self._probes.start()

    async def fatal(self) -> str:
        """Why this node cannot go on; waits until there is a reason."""
        return await asyncio.shield(self._fatal)

    async def stop(self) -> None:
        """Send callers and agents elsewhere, let what is decided be answered, and let go of the files."""
        _log.info("node_stopping", grace_ms=self._config.stop_grace_ms)
        self._vitals.drain()
        await self._health.enter_graceful_shutdown()
        self._sessions.drain()
        self._agent_calls.drain()
        self._gateway.drain()
        await self._canary.stop()
        await self._hand_over()
        stopped = asyncio.create_task(self._server.stop(self._config.stop_grace_ms / 1_000))
        # Other nodes keep their streams open for ever, and the calls that are still here may need them until they end.
        await asyncio.wait((asyncio.create_task(self._shell.quiet()), stopped), return_when=asyncio.FIRST_COMPLETED)
        self._peering.drain()
        await stopped
        await self._oversight.stop()
        await self._telling.stop()
        self._vitals.stop()
        await self._peering.stop_fetching()
        self._shard.stop()
        await self._peering.stop()
        self._guard.stop()
        if self._probes is not None:
            self._probes.stop()
        _log.info("node_stopped")

    async def _hand_over(self) -> None:
        """Let another node lead before this one is gone, so that nobody waits for an election."""
        if not (self.identity.peers and self._shard.leads):
            return
        try:
            async with asyncio.timeout(HAND_OVER_MS_MAX / 1_000):
                answer = await self._shard.ask(Transfer)
        except TimeoutError:
            answer = None
        _log.info("leadership_handed_over", answer=str(answer))

    async def _first(self, wanted: Any) -> None:
        """Wait for something, unless the node fails before."""
        task = asyncio.ensure_future(wanted)
        await asyncio.wait((task, self._fatal), return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            task.cancel()

    def _on_fatal(self, reason: str) -> None:
        if not self._fatal.done():
            self._fatal.set_result(reason)

    def _make_oversight(self) -> Oversight:
        """What binds a supervisor to each epoch that this node opens."""
        oversight = Oversight(
            self._shard,
            make=self._make_supervisor,
            clock=self._clock,
            counters=self._counters,
            is_alone=not self.identity.peers,
            on_begun=self._ready.set,
            on_fatal=self._on_fatal,
        )
        self._shard.on_applied(oversight.on_applied)
        return oversight

    def _make_supervisor(self, epoch: int) -> Supervisor:
        return Supervisor(
            self._shard, epoch=epoch, clock=self._clock, limits=self._cluster.limits, counters=self._counters
        )

    def _make_shard(self, store: CountedStore) -> Shard:
        replica = Replica(
            store=store,
            identity=self.identity,
            decider=_decider(self._cluster.limits),
            boot_id=boot_id(),
            now=Instant(self._clock.steady_ms(), self._clock.wall_ms()),
            rng=random.Random(random.SystemRandom().getrandbits(128)),
            on_failure=self._on_failure,
        )
        store.on_flush = replica.note_flush
        return Shard(replica, clock=self._clock, config=self._config, counters=self._counters, on_fatal=self._on_fatal)

    def _on_failure(self, command: object, error: BaseException) -> None:
        """A rule of ours raised; its command was rolled back and answered INTERNAL."""
        self._counters.rule_failures += 1
        _log.error("rule_failed", command=type(command).__name__, exc_info=error)

    def _make_admission(self) -> Admission:
        return Admission(
            config=self._config,
            clock=self._clock,
            counters=self._counters,
            rng=random.Random(random.SystemRandom().getrandbits(128)),
            free_bytes=self._free_bytes_for_new_work,
        )

    def _free_bytes_for_new_work(self) -> int:
        """Of this disk, or on the leader of the fullest one of those that make a majority: it must find room there.

        What comes in by another node is judged by the leader; a node with a full disk does not stop the others.
        """
        if self.identity.peers and not self._shard.leads:
            return sys.maxsize
        majority = self._shard.condition().majority_free_bytes
        return self._free_bytes() if majority is None else min(self._free_bytes(), majority)

    def _make_gateway(self) -> Gateway:
        with self._shard.committed() as reader:
            newest = newest_job_id(reader, 0)
        return Gateway(
            self._shard,
            job_ids=JobIds(0, random.SystemRandom(), newest=newest),
            clock=self._clock,
            config=self._config,
            admission=self._admission,
        )

    def _serve_agents(self, type_: type[A]) -> A:
        """Those who serve agents with a stream and those without need the same."""
        return type_(
            self._shard,
            node_id=self.identity.node_id,
            node_addresses=self._node_addresses(),
            clock=self._clock,
            limits=self._cluster.limits,
            config=self._config,
            counters=self._counters,
            admission=self._admission,
        )

    def _make_vitals(self) -> Vitals:
        return Vitals(
            self._shard,
            identity=self.identity,
            version=version(),
            clock=self._clock,
            counters=self._counters,
            free_bytes=self._free_bytes,
            data_file=self._config.data / "data.mdb",
            gauges={
                "agent_streams": lambda: self._sessions.count,
                "lease_waits": lambda: self._agent_calls.count,
                "job_waiters": lambda: self._gateway.waiters,
                "job_watchers": lambda: self._gateway.watchers.count,
                "submissions": lambda: self._admission.waiting,
                "notices": lambda: self._telling.waiting,
            },
            limits=self._cluster.limits,
            supervises=lambda: self._oversight.supervises,
            contact_age_ms_max=self._cluster.limits.session_ttl_ms // 3,
        )

    def _make_server(self) -> grpc.aio.Server:
        server = grpc.aio.server(options=server_options(self._cluster, self._config))
        rooms = Rooms(self._config)
        shell = self._shell = CallShell(
            self._counters, rooms, self._admission, stalled_ms_max=self._config.stalled_ms_max
        )
        servicers = self._servicers()
        services = (*SERVICES, PEER_SERVICE)
        server.add_generic_rpc_handlers([shell.serve(service, servicers[service.name]) for service in services])
        health_pb2_grpc.add_HealthServicer_to_server(self._health, server)
        names = (service.full_name for service in SERVICES)
        reflection.enable_server_reflection((*names, health.SERVICE_NAME, reflection.SERVICE_NAME), server)
        return server

    def _addresses(self) -> dict[str, str]:
        """Where each node of the cluster is reached, this one where callers are told to find it."""
        config, node_id = self._config, self.identity.node_id
        here = config.advertise or config.nodes.get(node_id, self.address)
        return {**{member: config.nodes[member] for member in self.identity.peers}, node_id: here}

    def _node_addresses(self) -> list[str]:
        """The same for agents, the others first; none when there is no other to go to."""
        if not self.identity.peers:
            return []
        addresses = self._addresses()
        ordered = (addresses[node_id] for node_id in (*self.identity.peers, self.identity.node_id))
        return [address for address in ordered if address]

    def _known_node(self) -> KnownNode:
        start_id = random.SystemRandom().randbytes(16)
        return KnownNode(self.identity, self._shard, doorkeeper=self._peering.doorkeeper, start_id=start_id)

    def _servicers(self) -> dict[str, object]:
        """What serves each service."""
        limits, gateway = self._cluster.limits, self._gateway
        return {
            "JobService": JobService(gateway, limits, JobWatch(gateway, limits), EndsWatch(gateway, limits)),
            "OperatorService": OperatorService(gateway, limits),
            "SupervisionService": SupervisionService(gateway, limits),
            "DefinitionService": DefinitionService(gateway, limits),
            "AgentService": AgentService(gateway, self._sessions, self._agent_calls, limits),
            "ClusterService": ClusterService(
                self._shard,
                identity=self.identity,
                vitals=self._vitals,
                oversight=self._oversight,
                started_wall_ms=self._clock.wall_ms(),
                addresses=self._addresses,
                refusals=self._peering.refusals,
                operating=Operating(
                    self.identity, self._shard, self._peering.channels, reached=self._peering.reached, limits=limits
                ),
            ),
            "PeerService": PeerService(
                replicating=self._peering.replicating,
                exporting=self._peering.exporting,
                forwarding=self._peering.forwarded,
                founding=self._known_node(),
            ),
        }


def version() -> str:
    """Version of the software; empty when it runs from a checkout that nobody installed."""
    try:
        return metadata.version("stepward")
    except metadata.PackageNotFoundError:
        return ""


def _decider(limits: Limits) -> Decider:
    """The rules with their bounds and their chance filled in."""
    rng = random.Random(random.SystemRandom().getrandbits(128))

    def decider(reader: Reader, commands: Sequence[Command], moment: Moment) -> Decision:
        # A command of another kind would be answered INTERNAL.
        return decide(reader, cast("Sequence[AnyCommand]", commands), moment, limits, rng)

    return decider
