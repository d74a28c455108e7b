"""One agent's stream by itself: what it promises, and what it does not take in."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc
import pytest

from stepward.server.agent_stream import JOINED_BYTES_MAX, AgentStream, Unanswered
from stepward.server.clock import ManualClock
from stepward.server.config import NodeConfig
from stepward.server.core.commands import AttemptsReported, SessionOpened, SessionRenewed
from stepward.server.core.limits import Limits
from stepward.server.core.rejections import Reason, Rejection
from stepward.server.interceptor import CallShell, Rooms
from stepward.server.observe import Counters
from stepward.server.session_binding import OpenTicket
from stepward.server.sessions import Sessions
from stepward.server.tickets import Ticket
from stepward.v1 import agent_service_pb2
from tests.server import nodes
from tests.server.host import admission
from tests.server.nodes import Stubs
from tests.server.plain_agent import succeeded

if TYPE_CHECKING:
    from stepward.server.interceptor import Context

SESSION = "session-of-the-test-1"


class LeadingShard:
    """As much of a shard as a stream asks for."""

    leads = True

    def __init__(self) -> None:
        self.proposed: list[tuple[object, Ticket]] = []

    def on_applied(self, listener: object) -> None:
        """Nothing is."""

    def renew(self, command: object, ticket: Ticket) -> None:
        self.proposed.append((command, ticket))

    def propose(self, command: object, ticket: Ticket) -> None:
        self.proposed.append((command, ticket))


@pytest.mark.parametrize("newest_first", [False, True])
async def test_older_of_two_streams_that_were_bound_together_ends(newest_first: bool) -> None:
    """One batch may bind both, and then tells of the newer only."""
    shard = LeadingShard()
    sessions = Sessions(
        shard,  # type: ignore[arg-type]  # all that is asked of it
        node_id="n1",
        clock=ManualClock(steady_ms=0, wall_ms=0),
        limits=Limits(),
        config=NodeConfig(data=Path()),
        counters=Counters(),
        admission=admission(NodeConfig(data=Path())),
    )
    older, newer = stream_on(shard, generation=1), stream_on(shard, generation=2)

    for stream in (newer, older) if newest_first else (older, newer):
        sessions.register(stream)

    assert newer.ending is None
    assert older.ending is not None
    assert older.ending.reason is Reason.SESSION_ENDED


class ScriptedContext:
    """A call whose messages were written before; it counts how many were read."""

    def __init__(self, *messages: agent_service_pb2.WorkRequest) -> None:
        self._messages = [message.SerializeToString() for message in messages]
        self.read_so_far = 0
        self.written: list[agent_service_pb2.WorkResponse] = []

    async def read(self) -> object:
        if self.read_so_far == len(self._messages):
            await asyncio.Event().wait()
        self.read_so_far += 1
        return self._messages[self.read_so_far - 1]

    async def send_initial_metadata(self, metadata: object) -> None:
        """Taken at once."""

    async def write(self, message: agent_service_pb2.WorkResponse) -> None:
        """Taken at once."""
        self.written.append(message)


def stream_on(
    shard: LeadingShard,
    *,
    generation: int = 1,
    all_unanswered: Unanswered | None = None,
    joins: bool = False,
    **config: int,
) -> AgentStream:
    return AgentStream(
        SESSION,
        SessionOpened(generation=generation, ttl_ms=3_000),
        shard=shard,  # type: ignore[arg-type]  # all that is asked of it
        clock=ManualClock(steady_ms=0, wall_ms=0),
        limits=Limits(),
        config=NodeConfig(data=Path(), **config),  # type: ignore[arg-type]  # bounds, by name
        counters=Counters(),
        all_unanswered=all_unanswered or Unanswered(),
        joins=joins,
    )


async def reads_until_it_waits(stream: AgentStream, context: ScriptedContext) -> asyncio.Task[None]:
    """Let a stream run until nothing more happens by itself."""
    running = asyncio.create_task(stream.run(context))  # type: ignore[arg-type]  # all that is asked of it
    before = -1
    while before != context.read_so_far:
        before = context.read_so_far
        for _ in range(10):
            await asyncio.sleep(0)
    return running


async def test_flood_of_heartbeats_is_not_taken_in() -> None:
    """At the bound one more is passed over; silence is safe."""
    shard = LeadingShard()
    beats = [agent_service_pb2.WorkRequest(heartbeat=agent_service_pb2.Heartbeat(number=n)) for n in range(5)]

    running = await reads_until_it_waits(stream_on(shard, heartbeats_waiting_max=3), ScriptedContext(*beats))
    running.cancel()

    assert len(shard.proposed) == 3


def reports(count: int) -> ScriptedContext:
    """So many messages with a report of a hundred and some bytes each."""
    ref = agent_service_pb2.AttemptRef(job_id="0-" + "0" * 32, step_id="one", token=1)
    offer = agent_service_pb2.Offer(attempt=ref)
    report = agent_service_pb2.Report(attempts=[succeeded(offer, nodes.json_payload(b"1" * 100))])
    return ScriptedContext(*(agent_service_pb2.WorkRequest(report=report) for _ in range(count)))


async def test_all_streams_share_the_room_for_reports() -> None:
    """When it is taken each is read until one of its own reports waits, so none is shut out; answers make room."""
    shard, together = LeadingShard(), Unanswered()
    contexts = [reports(3), reports(3)]
    streams = [stream_on(shard, all_unanswered=together, report_bytes_waiting_max=300) for _ in contexts]
    running = [await reads_until_it_waits(stream, context) for stream, context in zip(streams, contexts, strict=True)]
    read_before = [context.read_so_far for context in contexts]
    answered = 0
    while [context.read_so_far for context in contexts] != [3, 3] or answered < len(shard.proposed):
        for _, ticket in shard.proposed[answered:]:
            ticket.answered(AttemptsReported(()))
            answered += 1
        await asyncio.sleep(0)
    for one in running:
        one.cancel()

    assert read_before == [2, 1]
    assert together.size_bytes == 0


async def test_flood_of_reports_is_read_no_further() -> None:
    """Until those that were read are answered: the agent's own buffers are where the others belong."""
    shard = LeadingShard()
    context = reports(5)

    running = await reads_until_it_waits(stream_on(shard, stream_bytes_waiting_max=400), context)
    read_before = context.read_so_far
    for _, ticket in list(shard.proposed):
        ticket.answered(AttemptsReported(()))
    while context.read_so_far < 5:
        await asyncio.sleep(0)
        for _, ticket in shard.proposed[read_before:]:
            ticket.answered(AttemptsReported(()))
    running.cancel()

    assert 2 <= read_before < 5


@pytest.mark.parametrize(
    ("passed_ms", "answered"),
    [
        # At a third of the TTL the agent may still be told that it was heard.
        (1_000, 1),
        # One millisecond later silence is what is safe.
        (1_001, 0),
    ],
)
async def test_late_heartbeat_is_not_acknowledged(passed_ms: int, answered: int) -> None:
    """A lease is never promised on what was heard long ago."""
    clock = ManualClock(steady_ms=5_000, wall_ms=0)
    stream = AgentStream(
        SESSION,
        SessionOpened(generation=1, ttl_ms=3_000),
        shard=LeadingShard(),  # type: ignore[arg-type]  # all that is asked of it
        clock=clock,
        limits=Limits(),
        config=NodeConfig(data=Path()),
        counters=Counters(),
        all_unanswered=Unanswered(),
        joins=False,
    )
    clock.advance(passed_ms)

    stream.heartbeat_answered(SessionRenewed(send_held=False), number=1, arrived_ms=5_000)

    assert len(stream.queued()) == answered


def acknowledged(number: int) -> agent_service_pb2.WorkResponse:
    return agent_service_pb2.WorkResponse(heartbeat=agent_service_pb2.HeartbeatAnswer(number=number))


async def written_of(stream: AgentStream, *sizes: int) -> list[list[int]]:
    """The numbers of messages of such sizes that are queued at once, as they are written: those of one in one list."""
    for number, size_bytes in enumerate(sizes, 1):
        stream.send(acknowledged(number), size_bytes=size_bytes)
    context = ScriptedContext()
    running = await reads_until_it_waits(stream, context)
    running.cancel()
    return [
        [one.heartbeat.number for one in message.together.responses] or [message.heartbeat.number]
        for message in context.written
    ]


@pytest.mark.parametrize(
    ("joins", "sizes", "written"),
    [
        # What waits leaves as one message, in its order.
        (True, (128, 512, 128), [[1, 2, 3]]),
        # To an agent that does not say that it reads that, as ever.
        (False, (128, 512, 128), [[1], [2], [3]]),
        # One alone needs no wrapping.
        (True, (128,), [[1]]),
        # Up to the bound, and not one byte past it.
        (True, (JOINED_BYTES_MAX - 128, 128), [[1, 2]]),
        (True, (JOINED_BYTES_MAX - 128, 129, 128), [[1], [2, 3]]),
        # One that is larger by itself still goes.
        (True, (JOINED_BYTES_MAX * 2, 128), [[1], [2]]),
    ],
)
async def test_what_waits_leaves_as_one_message(joins: bool, sizes: tuple[int, ...], written: list[list[int]]) -> None:
    """Each write costs the node and the agent as much as most of what it carries."""
    stream = stream_on(LeadingShard(), joins=joins)

    assert await written_of(stream, *sizes) == written


async def test_room_of_what_was_joined_is_free_again() -> None:
    """What has left does not count as waiting."""
    stream = stream_on(LeadingShard(), joins=True, stream_bytes_waiting_max=1_000)
    await written_of(stream, 400, 400)

    stream.send(acknowledged(3), size_bytes=1_000)

    assert stream.ending is None
    assert len(stream.queued()) == 1


async def test_welcome_stands_alone() -> None:
    """Whatever waits behind it: every agent knows its stream by that message."""
    stream = stream_on(LeadingShard(), joins=True)
    stream.send_welcome("n1", ())
    written = await written_of(stream, 128, 128)

    assert written == [[0], [1, 2]]


@contextlib.asynccontextmanager
async def served(stream: AgentStream, ended: asyncio.Event) -> AsyncIterator[Stubs]:
    """A client of a server that knows one stream, over a connection whose window does not grow."""

    class OnlyWork:
        async def work(self, request_iterator: object, context: Context) -> None:
            try:
                await stream.run(context)
            finally:
                ended.set()

        def __getattr__(self, name: str) -> None:
            """No other call is served."""

    config = NodeConfig(data=Path())
    shell = CallShell(Counters(), Rooms(config), admission(config), stalled_ms_max=1)
    server = grpc.aio.server()
    server.add_generic_rpc_handlers(
        (shell.serve(agent_service_pb2.DESCRIPTOR.services_by_name["AgentService"], OnlyWork()),)
    )
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        async with nodes.connected(
            f"127.0.0.1:{port}", ("grpc.http2.lookahead_bytes", 1 << 16), ("grpc.http2.bdp_probe", 0)
        ) as stubs:
            yield stubs
    finally:
        await server.stop(None)


async def test_one_who_leaves_even_the_first_message_unread_is_told_why_it_ended() -> None:
    """When it reads at last. A message that is larger than the window of the connection is not taken until then."""
    stream = stream_on(LeadingShard())
    large = agent_service_pb2.Welcome(session_id="x" * (1 << 20))
    stream.send(agent_service_pb2.WorkResponse(welcome=large), size_bytes=0)
    ended = asyncio.Event()
    async with served(stream, ended) as stubs:
        call = stubs.agents.Work(timeout=nodes.CALL_S_MAX)
        await call.wait_for_connection()
        stream.end(Rejection(Reason.NODE_DRAINING, "this node goes down"))
        await asyncio.wait_for(ended.wait(), nodes.CALL_S_MAX)
        told = await nodes.refused(_last_of(call))

    assert told.reason == "NODE_DRAINING"


async def _last_of(call: Any) -> object:
    """Read to the end, which is an error unless the server closed the stream in order."""
    while (message := await call.read()) is not grpc.aio.EOF:
        pass
    return message


async def test_refusal_of_a_deposed_leader_says_nothing_to_the_agent() -> None:
    """Silence is safe, and the next heartbeat finds the new leader; when none is found, all streams of the node end."""
    stream = stream_on(LeadingShard())
    stream.heartbeat_answered(Rejection(Reason.NOT_LEADER, "no"), number=1, arrived_ms=0)

    assert stream.queued() == []
    assert stream.ending is None


async def test_refusal_that_the_session_has_ended_ends_the_stream() -> None:
    """Its agent has to open a new one."""
    stream = stream_on(LeadingShard())
    stream.heartbeat_answered(Rejection(Reason.SESSION_ENDED, "over"), number=1, arrived_ms=0)

    assert stream.queued() == []
    assert stream.ending is not None
    assert stream.ending.reason is Reason.SESSION_ENDED


async def test_agent_that_leaves_while_it_is_bound_is_not_taken_for_connected() -> None:
    """Its generation is closed when the answer comes, since nobody else will close it."""
    closed: list[tuple[str, int]] = []

    def unwanted(generation: int) -> None:
        closed.append((SESSION, generation))

    early = OpenTicket(asyncio.get_running_loop().create_future(), unwanted)
    early.future.cancel()
    early.answered(SessionOpened(generation=1, ttl_ms=1))
    late = OpenTicket(asyncio.get_running_loop().create_future(), unwanted)
    late.answered(SessionOpened(generation=2, ttl_ms=1))
    late.abandon()

    assert closed == [(SESSION, 1), (SESSION, 2)]
