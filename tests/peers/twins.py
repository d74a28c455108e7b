"""Three nodes in one loop, on a log that a test drives: real shards, gateways and forwarding over pipes in memory.

Elections and replication are played: who leads, who knows it, and how far a node has applied is what the test says.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar, cast

import grpc

from stepward.internal.v1 import peer_service_pb2 as pb
from stepward.server.agent_calls import AgentCalls
from stepward.server.config import NodeConfig
from stepward.server.core import clocks, keys, rows
from stepward.server.core.commands import AnyCommand, ApplyDefinition, SubmitJob
from stepward.server.core.decide import Moment, decide
from stepward.server.core.epoch_rows import Epoch
from stepward.server.core.limits import Limits
from stepward.server.core.rejections import Reason, Refused, Rejection
from stepward.server.core.rows import Payload
from stepward.server.gateway import Gateway
from stepward.server.job_ids import JobIds
from stepward.server.logbook import batch as batches
from stepward.server.logbook.outbox import (
    Answered,
    Applied,
    Condition,
    Confirm,
    Confirmed,
    Frame,
    Instant,
    Letter,
    Outbox,
    Proposal,
    Standing,
)
from stepward.server.observe import Counters
from stepward.server.peers.contact import Contact
from stepward.server.peers.forwarded import ForwardedCalls
from stepward.server.peers.forwarding import Forwarding
from stepward.server.sessions import Sessions
from stepward.server.shard import Shard
from stepward.server.store import facts
from stepward.server.store.live import CommittedRows
from stepward.server.store.memory import MemoryStore
from tests.core.definitions import compiled, step, trip
from tests.peers.played_time import LoopClock
from tests.server.host import admission

A = TypeVar("A", Sessions, AgentCalls)

S = 10.0
CLOCK = LoopClock()
IDS = ("n1", "n2", "n3")
LIMITS = Limits(session_ttl_ms=9_000)
LEASE_MS = 60_000
BODY = compiled(trip(step("book")))


class Log:
    """What was committed, and who leads as far as anybody knows."""

    def __init__(self) -> None:
        self.genesis = batches.genesis("cluster", incarnation=1, wall_ms=CLOCK.wall_ms())
        self.committed: list[tuple[Applied, rows.Head]] = []
        self.leader_id = ""
        self.term = 0

    @property
    def head(self) -> rows.Head:
        return self.committed[-1][1] if self.committed else self.genesis


class PlayedReplica:
    """A replica whose raft is played by the test."""

    def __init__(self, node_id: str, log: Log) -> None:
        self.node_id = node_id
        self.log = log
        self.store = MemoryStore()
        self.store.put_fact(facts.HEAD, facts.encode_head(log.genesis))
        self.store.commit()
        self._head = log.genesis
        self.shown_sequence = 0
        # What the test says of this node: whether it hears of batches and leaders, how far it may apply, and, when it
        # leads, whether a majority hears it.
        self.hears = True
        self.applies = True
        self.has_lease = True
        # Whether it has failed to hand over in this term, in which it counts its lease no more.
        self.kept_leading = False
        self.majority = True
        # How many batches are decided and then lost, with their answers: leadership ends while they travel.
        self.answers_lost = 0
        # How long it needs no step while nothing comes.
        self.wakes_after_ms = 5
        # Whether what it lacks comes as rows instead of batches.
        self.installs = False
        self.believes_leads = False
        self._leader_id = ""
        self._term = 0
        self._contact_at_ms = CLOCK.steady_ms()
        self.takes_entries = True
        self._lease_until_ms = 0
        self._rng = random.Random(1)
        self._confirms: list[object] = []
        self.steps: list[Sequence[Letter]] = []
        self._begun: tuple[Instant, Sequence[Letter]] = Instant(0, 0), ()

    @property
    def standing(self) -> Standing:
        leads = self.believes_leads
        if leads and self.has_lease:
            self._lease_until_ms = CLOCK.steady_ms() + LEASE_MS
        elif leads:
            # A majority has not answered since, and what it answered before is over.
            self._lease_until_ms = min(self._lease_until_ms, CLOCK.steady_ms())
        else:
            self._lease_until_ms = 0
        lease = 0 if self.kept_leading else self._lease_until_ms
        leader_id = self.node_id if leads else self._leader_id
        contact = CLOCK.steady_ms() if leads else self._contact_at_ms
        standing = Standing(leads, self._head.epoch, self._term, self._head, leader_id, lease, contact)
        return standing._replace(takes_entries=self.takes_entries)

    def begin(self, now: Instant, inbox: Sequence[Letter]) -> list[Frame]:
        """It has nothing to say to the others: what they need stands in the log."""
        self._begun = now, inbox
        return []

    def flush_apart(self) -> None:
        """It writes when it finishes."""

    def finish(self) -> Outbox:
        """Follow the log; decide if this node leads, or thinks that it does."""
        now, inbox = self._begun
        if inbox:
            self.steps.append(inbox)
        log, answers, applied = self.log, list[Answered](), list[Applied]()
        if self.hears:
            self._contact_at_ms = now.steady_ms if log.leader_id else self._contact_at_ms
            self._leader_id, self._term = log.leader_id, log.term
            if self.believes_leads and log.leader_id != self.node_id:
                self.believes_leads = False
        installed = False
        if self.hears and self.applies:
            applied = self._catch_up()
            if self.installs and applied:
                applied, installed = [], True
        if log.leader_id == self.node_id and not self.believes_leads and self._head.sequence == log.head.sequence:
            applied.append(self._open_epoch(now))
            self.believes_leads = True
        proposals = [letter for letter in inbox if isinstance(letter, Proposal)]
        self._confirms += [letter.token for letter in inbox if isinstance(letter, Confirm)]
        if not self.believes_leads:
            refused = Rejection(Reason.NOT_LEADER, "this replica does not lead")
            answers += [Answered(token, refused, 0) for token in (*(one.token for one in proposals), *self._confirms)]
            self._confirms.clear()
        else:
            if proposals:
                answers += self._decide(now, proposals, applied)
            if self.majority:
                answers += [Answered(token, Confirmed(), self._head.sequence) for token in self._confirms]
                self._confirms.clear()
        return Outbox(answers, applied, self.standing, now.steady_ms + self.wakes_after_ms, installed=installed)

    def _catch_up(self) -> list[Applied]:
        missing = self.log.committed[self._head.sequence :]
        for applied, head in missing:
            self._write(applied, head)
        return [replace(applied, changes=None) for applied, _ in missing]

    def _write(self, applied: Applied, head: rows.Head) -> None:
        self.store.apply(applied.puts, applied.deletes)
        self.store.put_fact(facts.HEAD, facts.encode_head(head))
        self.store.commit()
        self._head, self.shown_sequence = head, head.sequence

    def _open_epoch(self, now: Instant) -> Applied:
        gap_ms = max(0, now.steady_ms - self._head.decided_steady_ms)
        moved = clocks.reopen(self._head, gap_ms=gap_ms, wall_ms=now.wall_ms)
        puts = [(keys.EPOCH, keys.encode_row(Epoch(self._head.epoch + 1, moved.log_ms)))]
        return self._commit(now, moved, self._head.epoch + 1, puts, [])

    def _commit(
        self,
        now: Instant,
        moved: clocks.Clocks,
        epoch: int,
        puts: list[tuple[bytes, bytes]],
        deletes: list[bytes],
    ) -> Applied:
        batch = batches.Batch(
            sequence=self._head.sequence + 1,
            parent=self._head.hash,
            epoch=epoch,
            incarnation=1,
            led_ms=moved.led_ms,
            log_ms=moved.log_ms,
            wall_ms=moved.wall_ms,
            decided_steady_ms=now.steady_ms,
            boot_id="boot",
            puts=puts,
            deletes=deletes,
        )
        applied = Applied(batch.sequence, epoch, None, puts, deletes)
        head = batches.head_after(batch, batches.hash_of(batches.encode(batch)))
        self.log.committed.append((applied, head))
        self._write(applied, head)
        return applied

    def _decide(self, now: Instant, proposals: list[Proposal], applied: list[Applied]) -> list[Answered]:
        assert self._head.sequence == self.log.head.sequence, "a leader that was deposed commits nothing"
        moved = clocks.advance(self._head, steady_ms=now.steady_ms, wall_ms=now.wall_ms)
        moment = Moment(
            sequence=self._head.sequence + 1,
            epoch=self._head.epoch,
            incarnation=1,
            led_ms=moved.led_ms,
            log_ms=moved.log_ms,
            wall_ms=moved.wall_ms,
            steady_ms=now.steady_ms,
        )
        with self.committed() as reader:
            commands = [cast("AnyCommand", proposal.command) for proposal in proposals]
            decision = decide(reader, commands, moment, LIMITS, self._rng)
        assert not decision.failures, decision.failures
        if decision.changes:
            puts = [(key, keys.encode_row(row)) for key, row in decision.changes.items() if row is not None]
            deletes = [key for key, row in decision.changes.items() if row is None]
            done = self._commit(now, moved, self._head.epoch, puts, deletes)
            applied.append(replace(done, changes=decision.changes))
            if self.answers_lost:
                self.answers_lost -= 1
                self.believes_leads = False
                self.log.leader_id, self.log.term = "", self.log.term + 1
                unknown = Rejection(Reason.COMMIT_UNKNOWN, "leadership was lost while this was committed")
                return [Answered(proposal.token, unknown, 0) for proposal in proposals]
        return [
            Answered(proposal.token, answer, self._head.sequence)
            for proposal, answer in zip(proposals, decision.answers, strict=True)
        ]

    @contextlib.contextmanager
    def committed(self) -> Iterator[CommittedRows]:
        with self.store.snapshot() as snapshot:
            yield CommittedRows(snapshot)

    def withdraw(self) -> list[Proposal]:
        return []

    def condition(self) -> Condition:
        return Condition(0, 0, 0)

    def close(self) -> None:
        self.store.close()


class Broken(grpc.RpcError):
    """A stream that ended without order."""


class Pipe:
    """A Forward stream between two nodes, as gRPC has it on both sides: bytes, in order, or nothing more."""

    def __init__(self) -> None:
        self._up: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._down: asyncio.Queue[pb.ForwardResponse | None] = asyncio.Queue()
        self.broken = False
        # Whether the caller's messages reach the other side, and the answers the caller.
        self.up = asyncio.Event()
        self.down = asyncio.Event()
        self.up.set()
        self.down.set()
        # Whether the caller's connection takes more.
        self.writable = asyncio.Event()
        self.writable.set()
        self.task: asyncio.Task[None] | None = None
        self.requests: list[pb.ForwardRequest] = []

    # The caller's side.

    async def write(self, message: Any) -> None:
        """Of the caller a request, of the one who serves a response."""
        if self.broken:
            raise Broken
        if isinstance(message, pb.ForwardRequest):
            await self.writable.wait()
            self.requests.append(message)
            await self._up.put(message.SerializeToString())
        else:
            await self.down.wait()
            await self._down.put(pb.ForwardResponse.FromString(message.SerializeToString()))

    async def read(self) -> Any:
        """See `ForwardCall`."""
        response = await self._down.get()
        if response is None:
            raise Broken
        return response

    def cancel(self) -> bool:
        """End the stream, from either side."""
        self.broken = True
        self.up.set()
        self.down.set()
        self._up.put_nowait(None)
        self._down.put_nowait(None)
        return True


class Served:
    """The same stream as the serving side sees it: a context."""

    def __init__(self, pipe: Pipe) -> None:
        self._pipe = pipe
        self.write = pipe.write

    async def read(self) -> bytes | None:
        raw = await self._pipe._up.get()
        await self._pipe.up.wait()
        return raw


class Node:
    """One node of the twins."""

    def __init__(self, cluster: Cluster, node_id: str, *, session_ttl_ms: int, **config: Any) -> None:
        self.id = node_id
        self.cluster = cluster
        self.replica = PlayedReplica(node_id, cluster.log)
        self.counters = Counters()
        self.config = NodeConfig(data=Path("data"), gather_ms_max=0, gather_ms_max_slow=0, **config)
        self.fatal: list[str] = []
        self.shard = Shard(
            cast("Any", self.replica),
            clock=CLOCK,
            config=self.config,
            counters=self.counters,
            on_fatal=self.fatal.append,
        )
        self.contact = Contact(
            node_id=node_id,
            addresses=lambda peer_id: f"{peer_id}.example:7654",
            session_ttl_ms=session_ttl_ms,
            rng=random.Random(1),
        )
        self.pipes: list[Pipe] = []
        self.forwarding = Forwarding(
            self.shard,
            node_id=node_id,
            hello=lambda peer_id: pb.Hello(node_id=node_id, to_node_id=peer_id),
            connect=self._connect,
            contact=self.contact,
            clock=CLOCK,
            config=self.config,
            counters=self.counters,
            rng=random.Random(1),
        )
        self.shard.forward_by(self.forwarding)
        self.admission = admission(self.config, counters=self.counters)
        self.forwarded = ForwardedCalls(
            self.shard,
            self.forwarding,
            door=self,
            welcome=pb.Welcome(node_id=node_id),
            admission=self.admission,
            clock=CLOCK,
            config=self.config,
        )
        self.gateway = Gateway(
            self.shard,
            job_ids=JobIds(0, random.Random(int(node_id[1:]))),
            clock=CLOCK,
            config=self.config,
            admission=self.admission,
        )
        self.sessions = self._serve_agents(Sessions)
        self.agent_calls = self._serve_agents(AgentCalls)
        for part in (self.gateway, self.sessions, self.agent_calls):
            self.contact.on_lost(part.send_away)
            self.shard.rows.on_installed(part.start_over)

    def _serve_agents(self, type_: type[A]) -> A:
        return type_(
            self.shard,
            node_id=self.id,
            clock=CLOCK,
            limits=LIMITS,
            config=self.config,
            counters=self.counters,
            admission=self.admission,
        )

    def admit(self, hello: pb.Hello, context: object) -> None:
        """See `Door`."""
        if hello.to_node_id != self.id:
            raise Refused(Rejection(Reason.NODE_STATE, f"this is {self.id}"))

    def _connect(self, peer_id: str) -> Pipe:
        pipe = Pipe()
        self.pipes.append(pipe)
        if self.cluster.is_cut(self.id, peer_id):
            pipe.cancel()
            return pipe
        peer = self.cluster.nodes[peer_id]
        pipe.task = asyncio.create_task(self._serve(peer, pipe))
        return pipe

    async def _serve(self, peer: Node, pipe: Pipe) -> None:
        try:
            await peer.forwarded.forward(None, cast("Any", Served(pipe)))
        except (Refused, Broken):
            pass
        finally:
            pipe.cancel()

    def submission(self, *, key: str = "", data: bytes = b"{}") -> SubmitJob:
        """A job of the definition that the cluster has."""
        return SubmitJob(self.gateway.draw_job_id(), "default", "trip", 0, Payload(data), key, {}, "", data)

    def stop(self) -> None:
        self.shard.stop()
        for pipe in self.pipes:
            pipe.cancel()


class Cluster:
    """Three nodes."""

    def __init__(self, *, session_ttl_ms: int = LIMITS.session_ttl_ms, **config: Any) -> None:
        self.log = Log()
        self.cut: set[frozenset[str]] = set()
        self.nodes = {node_id: Node(self, node_id, session_ttl_ms=session_ttl_ms, **config) for node_id in IDS}

    def __getitem__(self, node_id: str) -> Node:
        return self.nodes[node_id]

    def is_cut(self, one: str, other: str) -> bool:
        return frozenset((one, other)) in self.cut

    def elect(self, node_id: str) -> None:
        """Let a node lead; empty: nobody."""
        self.log.leader_id = node_id
        self.log.term += 1

    async def led_by(self, node_id: str) -> None:
        """Elect a node, and wait until all that hear of it know it, and its epoch is open."""
        self.elect(node_id)
        await until(lambda: self.knows(node_id))

    def knows(self, leader_id: str) -> bool:
        standings = [node.shard.standing for node in self.nodes.values() if node.replica.hears]
        sequence = self.log.head.sequence
        return self.nodes[leader_id].shard.leads and all(
            standing.leader_id == leader_id
            and (standing.head.sequence == sequence or not self.nodes[leader_id].replica.applies)
            for standing in standings
        )


@contextlib.asynccontextmanager
async def twins(leader_id: str = "n1", **config: Any) -> AsyncIterator[Cluster]:
    """Three running nodes, one of which leads, with a definition."""
    cluster = Cluster(**{"gather_renewals_ms": 0} | config)
    for node in cluster.nodes.values():
        node.shard.start()
    try:
        if leader_id:
            await cluster.led_by(leader_id)
            async with asyncio.timeout(S):
                await cluster[leader_id].shard.call(ApplyDefinition("default", b"hash".ljust(32, b"."), BODY))
        yield cluster
        assert [node.fatal for node in cluster.nodes.values()] == [[], [], []]
        assert [node.counters.delivery_failures for node in cluster.nodes.values()] == [0, 0, 0]
    finally:
        for node in cluster.nodes.values():
            node.stop()
        tasks = [pipe.task for node in cluster.nodes.values() for pipe in node.pipes if pipe.task is not None]
        await asyncio.gather(*tasks, return_exceptions=True)


async def until(condition: Callable[[], object]) -> None:
    """Wait until a condition holds, with a bound."""
    async with asyncio.timeout(S):
        while not condition():  # noqa: ASYNC110 - what is waited for happens in a shard, which sets no event
            await asyncio.sleep(0.001)


def reason_of(answer: object) -> Reason:
    """Why something was refused."""
    assert isinstance(answer, Rejection), answer
    return answer.reason
