"""Streams of agents: opened, resumed, replaced, slow, ended."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import grpc.aio
import pytest
import pytest_asyncio

from stepward.server.core.limits import Limits
from stepward.server.node import Node
from stepward.v1 import agent_service_pb2, common_pb2, definition_pb2, job_service_pb2
from tests.server import nodes
from tests.server.nodes import CALL_S_MAX, Stubs, refusal, refused, submission
from tests.server.plain_agent import PlainAgent, agent, silent, succeeded

S = CALL_S_MAX
SESSION = "session-of-the-test-1"


@pytest_asyncio.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    """A node."""
    async with nodes.running(tmp_path / "data") as node:
        yield node


@pytest_asyncio.fixture
async def stubs(node: Node) -> AsyncIterator[Stubs]:
    """A connection to it; it knows the definition `one`."""
    async with nodes.connected(node.address) as stubs:
        await nodes.define(stubs, "one", definition_pb2.Step(id="one"))
        yield stubs


async def submit(stubs: Stubs) -> str:
    request = job_service_pb2.SubmitJobRequest(job=submission("one"))
    return (await stubs.jobs.SubmitJob(request, timeout=S)).job_id


async def why_ended(joined: PlainAgent) -> nodes.Refusal:
    async with asyncio.timeout(S):
        error = await asyncio.shield(joined.ended)
    assert error is not None
    return refusal(error)


async def agents(stubs: Stubs) -> list[agent_service_pb2.Agent]:
    return list((await stubs.agents.ListAgents(agent_service_pb2.ListAgentsRequest(), timeout=S)).agents)


async def test_welcome_says_how_to_stay(node: Node, stubs: Stubs) -> None:
    """The lease, the heartbeats, the grace and the bound of an output."""
    async with agent(stubs, "one", session_id=SESSION) as joined:
        welcome = joined.welcome

    assert (welcome.session_id, welcome.generation) == (SESSION, 1)
    assert welcome.ttl.ToMilliseconds() == 3_000
    assert welcome.heartbeat_interval.ToMilliseconds() == 500
    assert welcome.kill_grace.ToMilliseconds() == 2_000
    assert welcome.payload_bytes_max == 262_144
    assert welcome.node_id == node.identity.node_id


async def test_heartbeat_is_answered_with_its_number(stubs: Stubs) -> None:
    """A digest that is ours asks for nothing; another one for the whole list."""
    async with agent(stubs, "one") as joined:
        await joined.heartbeat(41)
        joined.held.add(("0-0", "one", 1))
        await joined.heartbeat(42)
        await joined.until(lambda: len(joined.heartbeats) == 2)

    assert [(beat.number, beat.send_held) for beat in joined.heartbeats] == [(41, False), (42, True)]


async def test_what_no_row_knows_is_cancelled(stubs: Stubs) -> None:
    """An agent that shows its whole list is told what of it is wanted no more."""
    async with agent(stubs, "one") as joined:
        joined.held.add(("0-0", "one", 1))
        await joined.heartbeat(1)
        await joined.until(lambda: joined.heartbeats)
        await joined.heartbeat(2, held=[agent_service_pb2.AttemptRef(job_id="0-0", step_id="one", token=1)])
        await joined.until(lambda: joined.cancels)

    (cancel,) = joined.cancels
    assert (cancel.attempt.token, cancel.reason) == (1, agent_service_pb2.CANCEL_REASON_STALE)


async def test_session_that_is_over_is_not_made_anew(stubs: Stubs) -> None:
    """A hello that knows a generation of a session which no row knows is refused."""
    async with agent(stubs, "one", session_id=SESSION, generation=3) as refused_one:
        ended = await why_ended(refused_one)

    assert ended.reason == "SESSION_ENDED"


async def test_many_reports_are_answered_in_their_order(stubs: Stubs) -> None:
    """More than one command carries."""
    async with agent(stubs, "one") as joined:
        refs = [agent_service_pb2.AttemptRef(job_id=f"0-{n:032x}", step_id="one", token=n + 1) for n in range(100)]
        started = agent_service_pb2.Started()
        await joined.report(*(agent_service_pb2.AttemptReport(attempt=ref, started=started) for ref in refs))
        await joined.until(lambda: len(joined.answers) == 100)

    assert [answer.attempt.token for answer in joined.answers] == [ref.token for ref in refs]


async def test_resumed_stream_is_sent_what_is_open(stubs: Stubs) -> None:
    """The same offer with the same token, and nothing that is over."""
    await submit(stubs)
    async with agent(stubs, "one", session_id=SESSION, handler=silent) as first:
        await first.until(lambda: first.offers)
    async with agent(stubs, "one", session_id=SESSION) as second:
        await second.until(lambda: second.answers)
    async with agent(stubs, "one", session_id=SESSION) as third:
        await third.heartbeat(1)
        await third.until(lambda: third.heartbeats)

    assert [offer.attempt for offer in second.offers] == [offer.attempt for offer in first.offers]
    assert second.answers[0].result == agent_service_pb2.REPORT_RESULT_RECORDED
    assert second.welcome.generation == 2
    assert third.offers == []


async def test_list_says_what_agents_hold_and_for_how_long(stubs: Stubs) -> None:
    """Everything that a person needs to judge whether an agent is well."""
    await submit(stubs)
    async with agent(stubs, "one", session_id=SESSION, handler=silent) as joined:
        await joined.until(lambda: joined.offers)
        (listed,) = await agents(stubs)

    assert [ref.step_id for ref in listed.held] == ["one"]
    assert (listed.slots_taken, listed.ttl.ToMilliseconds()) == (1, 3_000)
    assert listed.lease_ends_at.ToMilliseconds() - listed.renewed_at.ToMilliseconds() == 3_000 + 1_000 + 2_000 + 530


async def test_newer_stream_ends_the_older(stubs: Stubs) -> None:
    """A session has one stream."""
    async with (
        agent(stubs, "one", session_id=SESSION) as older,
        agent(stubs, "one", session_id=SESSION) as newer,
    ):
        ended = await why_ended(older)
        await newer.heartbeat(1)
        await newer.until(lambda: newer.heartbeats)

    assert (ended.code, ended.reason) == (grpc.StatusCode.FAILED_PRECONDITION, "SESSION_ENDED")


async def test_cancel_reaches_the_agent(stubs: Stubs) -> None:
    """An agent that never started says so, and the job ends without it."""
    job_id = await submit(stubs)
    async with agent(stubs, "one", handler=silent) as joined:
        await joined.until(lambda: joined.offers)
        await stubs.jobs.CancelJob(job_service_pb2.CancelJobRequest(job_id=job_id), timeout=S)
        await joined.until(lambda: joined.cancels)
        never = agent_service_pb2.AttemptReport(attempt=joined.cancels[0].attempt, refused=agent_service_pb2.Refused())
        await joined.report(never)
        watch = stubs.jobs.WatchJob(job_service_pb2.WatchJobRequest(job_id=job_id), timeout=S)
        states = [message.job.state async for message in watch]

    assert joined.cancels[0].reason == agent_service_pb2.CANCEL_REASON_JOB_ENDING
    assert states[-1] == common_pb2.JOB_STATE_CANCELLED


async def test_lost_agent_is_replaced(tmp_path: Path) -> None:
    """One that sends no heartbeats loses its work to another, whose outcome counts."""
    limits = Limits(session_ttl_ms=1_000, kill_grace_ms=0)
    async with nodes.running(tmp_path / "data", limits=limits) as node, nodes.connected(node.address) as stubs:
        await nodes.define(stubs, "one", definition_pb2.Step(id="one"))
        await submit(stubs)
        async with agent(stubs, "one", handler=silent) as lost:
            await lost.until(lambda: lost.offers)
            ended = await why_ended(lost)
            async with agent(stubs, "one") as other:
                beating = asyncio.create_task(beat(other))
                await other.until(lambda: other.answers)
                beating.cancel()

    assert ended.reason == "SESSION_ENDED"
    assert other.offers[0].attempt.token > lost.offers[0].attempt.token
    assert other.offers[0].idempotency_key == lost.offers[0].idempotency_key


async def beat(joined: PlainAgent) -> None:
    """Heartbeats, as the welcome asks for."""
    number = 0
    while True:
        number += 1
        await joined.heartbeat(number)
        await asyncio.sleep(joined.welcome.heartbeat_interval.ToMilliseconds() / 1_000)


async def test_drained_agent_is_offered_nothing(stubs: Stubs) -> None:
    """It finishes what it has, and is gone when it closes its stream."""
    async with agent(stubs, "one") as joined:
        await joined.send(drain=agent_service_pb2.Drain())
        await nodes.eventually(lambda: drained(stubs))
        await submit(stubs)
        await joined.heartbeat(1)
        await joined.until(lambda: joined.heartbeats)
        assert joined.offers == []

    await nodes.eventually(lambda: nobody(stubs))


async def drained(stubs: Stubs) -> bool:
    return [one.draining for one in await agents(stubs)] == [True]


async def nobody(stubs: Stubs) -> bool:
    return not await agents(stubs)


async def test_agent_that_says_hello_and_closes_is_told_the_end(stubs: Stubs) -> None:
    """Closing while the welcome was being written left the stream open for ever: its status was never sent."""
    for number in range(40):
        call = stubs.agents.Work(timeout=S)
        hello = agent_service_pb2.Hello(protocol_version=1, session_id=f"session-{number:016}", actions=["a"], slots=1)
        await call.write(agent_service_pb2.WorkRequest(hello=hello))
        await call.done_writing()
        said = []
        while isinstance(message := await call.read(), agent_service_pb2.WorkResponse):
            said.append(message.WhichOneof("message"))

        assert said == ["welcome"]
        assert await call.code() is grpc.StatusCode.OK


async def test_closed_stream_is_seen(stubs: Stubs) -> None:
    """Nothing is offered to a session whose stream is gone; the session stays."""
    async with agent(stubs, "one", session_id=SESSION):
        (connected,) = await agents(stubs)

    async def closed() -> bool:
        return [one.connected for one in await agents(stubs)] == [False]

    await nodes.eventually(closed)
    assert (connected.session_id, connected.connected, connected.slots) == (SESSION, True, 10)


HELLO = {"protocol_version": 1, "session_id": SESSION, "actions": ["one"], "slots": 1}


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"session_id": "short"}, "hello.session_id"),
        ({"session_id": "x" * 65}, "hello.session_id"),
        ({"session_id": "with a space in it"}, "hello.session_id"),
        ({"actions": []}, "hello.actions"),
        ({"actions": ["x"] * 1_001}, "hello.actions"),
        ({"actions": ["ok", "a\0b"]}, "hello.actions[1]"),
        ({"slots": 0}, "hello.slots"),
        ({"slots": 10_001}, "hello.slots"),
        ({"queue": "\U0001f600"}, "hello.queue"),
        ({"namespace": "a b"}, "hello.namespace"),
        ({"name": "x" * 257}, "hello.name"),
    ],
)
async def test_hello_breaks_a_rule(stubs: Stubs, change: dict[str, object], field: str) -> None:
    """The refusal names the field."""
    hello = agent_service_pb2.Hello(**(HELLO | change))  # type: ignore[arg-type]  # the table says which

    answer = await said(stubs, agent_service_pb2.WorkRequest(hello=hello))

    assert [violated for violated, _ in answer.violations] == [field]


async def test_other_protocol_version(stubs: Stubs) -> None:
    """Tells which one is spoken."""
    hello = agent_service_pb2.Hello(**(HELLO | {"protocol_version": 2}))  # type: ignore[arg-type]  # the table says which

    answer = await said(stubs, agent_service_pb2.WorkRequest(hello=hello))

    assert (answer.reason, answer.metadata["protocol_version"]) == ("PROTOCOL_VERSION", "1")


@pytest.mark.parametrize("message", [{}, {"drain": agent_service_pb2.Drain()}])
async def test_stream_without_hello(stubs: Stubs, message: dict[str, object]) -> None:
    """Nothing else may come first."""
    answer = await said(stubs, agent_service_pb2.WorkRequest(**message))  # type: ignore[arg-type]  # the table says which

    assert answer.reason == "INVALID_ARGUMENT"
    assert "hello" in answer.message


async def test_second_hello(stubs: Stubs) -> None:
    """One stream, one hello."""
    async with agent(stubs, "one") as joined:
        await joined.send(hello=agent_service_pb2.Hello(**HELLO))  # type: ignore[arg-type]  # a table
        ended = await why_ended(joined)

    assert ended.reason == "INVALID_ARGUMENT"


async def said(stubs: Stubs, message: agent_service_pb2.WorkRequest) -> nodes.Refusal:
    """What a stream that begins so is answered."""
    call = stubs.agents.Work()
    await call.write(message)
    return await refused(call.read())


async def test_stopping_node_sends_agents_away(tmp_path: Path) -> None:
    """The session stays; the stream ends with a reason to go elsewhere."""
    async with (
        nodes.running(tmp_path / "data") as node,
        nodes.connected(node.address) as stubs,
        agent(stubs, "one") as joined,
    ):
        stopping = asyncio.create_task(node.stop())
        ended = await why_ended(joined)
        await stopping

    assert joined.redirected
    assert (ended.code, ended.reason) == (grpc.StatusCode.UNAVAILABLE, "NODE_DRAINING")


async def test_stopping_node_ends_waits(tmp_path: Path) -> None:
    """And names the job, which goes on elsewhere."""
    async with nodes.running(tmp_path / "data") as node, nodes.connected(node.address) as stubs:
        await nodes.define(stubs, "one", definition_pb2.Step(id="one"))
        request = job_service_pb2.RunJobRequest(job=submission("one"))
        waiting = asyncio.ensure_future(stubs.jobs.RunJob(request, timeout=S))

        async def runs() -> bool:
            listed = await stubs.jobs.ListJobs(job_service_pb2.ListJobsRequest(), timeout=S)
            return len(listed.jobs) == 1

        await nodes.eventually(runs)
        stopping = asyncio.create_task(node.stop())
        answer = await refused(waiting)
        await stopping

    assert answer.reason == "NODE_DRAINING"
    assert answer.metadata["job_id"]


async def test_agent_that_does_not_read_loses_its_stream(tmp_path: Path) -> None:
    """Its offers wait in rows; our memory is not for them."""
    limits = Limits(session_ttl_ms=3_000, payload_bytes_max=200_000)
    config = {"limits": limits, "stream_bytes_waiting_max": 400_000}
    async with contextlib.AsyncExitStack() as joined:
        node = await joined.enter_async_context(nodes.running(tmp_path / "data", **config))  # type: ignore[arg-type]  # two kinds of options
        stubs = await joined.enter_async_context(nodes.connected(node.address))
        await nodes.define(stubs, "one", definition_pb2.Step(id="one"))
        hello = agent_service_pb2.Hello(**(HELLO | {"slots": 100}))  # type: ignore[arg-type]  # a table
        # A connection whose window does not grow, or it would take in much that nobody reads.
        narrow = await joined.enter_async_context(nodes.connected(node.address, ("grpc.http2.bdp_probe", 0)))
        call = narrow.agents.Work()
        await call.write(agent_service_pb2.WorkRequest(hello=hello))
        for _ in range(20):
            job = submission("one", b'"' + b"x" * 199_000 + b'"')
            await stubs.jobs.SubmitJob(job_service_pb2.SubmitJobRequest(job=job), timeout=S)

        async def closed() -> bool:
            return node.counters.slow_streams == 1 and [one.connected for one in await agents(stubs)] == [False]

        await nodes.eventually(closed)
        call.cancel()


async def test_many_streams_of_one_session_leave_one(stubs: Stubs) -> None:
    """The one of the highest generation, also when they are opened at the same moment."""
    async with contextlib.AsyncExitStack() as opened:
        streams = await asyncio.gather(
            *(opened.enter_async_context(agent(stubs, "one", session_id=SESSION)) for _ in range(5))
        )

        async def one_is_left() -> bool:
            return sum(not stream.ended.done() for stream in streams) == 1

        await nodes.eventually(one_is_left)
        (left,) = [stream for stream in streams if not stream.ended.done()]
        await left.heartbeat(1)
        await left.until(lambda: left.heartbeats)
        (listed,) = await agents(stubs)

    assert left.welcome.generation == listed.generation == 5


async def test_open_offers_come_in_messages_that_a_client_takes(stubs: Stubs, node: Node) -> None:
    """A client that was told nothing takes 4 MiB; what is open may be more."""
    async with agent(stubs, "one", session_id=SESSION, handler=silent, slots=30) as first:
        job = submission("one", b'"' + b"x" * 200_000 + b'"')
        for _ in range(30):
            await stubs.jobs.SubmitJob(job_service_pb2.SubmitJobRequest(job=job), timeout=S)
        await first.until(lambda: len(first.offers) == 30)
    async with (
        nodes.connected(node.address, ("grpc.max_receive_message_length", 4 * 1024 * 1024)) as plain,
        agent(plain, "one", session_id=SESSION, handler=silent, slots=30) as second,
    ):
        await second.until(lambda: len(second.offers) == 30 or second.ended.done())

    assert [offer.attempt for offer in second.offers] == [offer.attempt for offer in first.offers]


async def test_offer_is_answered_before_it_is_made_again(stubs: Stubs) -> None:
    """The answer that frees a slot leaves before the offer that takes it."""
    async with agent(stubs, "one", slots=1, handler=silent) as joined:
        await submit(stubs)
        await submit(stubs)
        await joined.until(lambda: joined.offers)
        await joined.report(succeeded(joined.offers[0], nodes.json_payload(b"1")))
        await joined.until(lambda: joined.answers)
        first = len(joined.offers)
        await joined.until(lambda: len(joined.offers) == 2)

    assert first == 1
