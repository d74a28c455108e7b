"""A node that took over the rows of another one has missed batches; nobody who follows it misses anything."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from stepward.server.agent_stream import AgentStream, Unanswered
from stepward.server.api import convert
from stepward.server.core.commands import CancelJob, JobCancelled, OpenSession, SessionOpened
from stepward.server.core.rejections import Reason, Refused
from stepward.v1 import agent_service_pb2
from tests.peers.twins import CLOCK, LIMITS, Cluster, Node, S, twins, until


async def opened(node: Node, session_id: str = "s" * 8) -> SessionOpened:
    command = OpenSession(session_id, "default", "default", ("book",), 1, "", "", node.id)
    answer = await node.shard.call(command)
    assert isinstance(answer, SessionOpened)
    return answer


async def stream_at(node: Node) -> AgentStream:
    """An agent's stream that is bound to a node, without its sockets."""
    session = await opened(node)
    stream = AgentStream(
        "s" * 8,
        session,
        shard=node.shard,
        clock=CLOCK,
        limits=LIMITS,
        config=node.config,
        counters=node.counters,
        all_unanswered=Unanswered(),
        joins=False,
    )
    node.sessions.register(stream)
    return stream


def offers(stream: AgentStream) -> list[Any]:
    return [offer for message in stream.queued() for offer in message.offers.offers]


async def fall_behind(cluster: Cluster, node: Node) -> None:
    """Let a node miss what follows, and be given rows instead."""
    await until(lambda: node.shard.standing.head.sequence == cluster.log.head.sequence)
    node.replica.applies, node.replica.installs = False, True


async def test_offer_that_was_missed_is_sent() -> None:
    """From rows, as to a stream that has just been opened."""
    async with twins() as cluster, asyncio.timeout(S):
        node = cluster["n2"]
        stream = await stream_at(node)
        await fall_behind(cluster, node)
        submitted = await cluster["n1"].gateway.submit(cluster["n1"].submission())
        assert not offers(stream)
        node.replica.applies = True
        await until(lambda: offers(stream))

        assert [offer.attempt.job_id for offer in offers(stream)] == [submitted.job_id]


async def test_stream_whose_session_went_elsewhere_meanwhile_ends() -> None:
    """Its agent has opened a newer one at another node, and the batch that said so never came."""
    async with twins() as cluster, asyncio.timeout(S):
        node = cluster["n2"]
        stream = await stream_at(node)
        await fall_behind(cluster, node)
        await opened(cluster["n1"])
        assert stream.ending is None
        node.replica.applies = True
        await until(lambda: stream.ending is not None)


async def test_call_for_work_finds_the_offer_that_was_missed() -> None:
    """Of an agent without streaming."""
    async with twins() as cluster, asyncio.timeout(S):
        node = cluster["n2"]
        hello = agent_service_pb2.Hello(session_id="s" * 8, actions=["book"], slots=1, protocol_version=1)
        request = agent_service_pb2.LeaseWorkRequest(hello=hello, wait_max=convert.duration(5_000))
        leasing = asyncio.ensure_future(node.agent_calls.lease_work(request, wait_ms_max=5_000))
        await until(lambda: any(ear.waits for ear in node.agent_calls._ears.values()))
        await fall_behind(cluster, node)
        submitted = await cluster["n1"].gateway.submit(cluster["n1"].submission())
        node.replica.applies = True

        assert [offer.attempt.job_id for offer in (await leasing).offers] == [submitted.job_id]


async def test_wait_for_the_end_of_a_job_sees_an_end_that_was_missed() -> None:
    """And who follows a job is woken; a wait for a job that goes on goes on."""
    async with twins() as cluster, asyncio.timeout(S):
        leader, node = cluster["n1"], cluster["n2"]
        submitted = await node.gateway.submit(node.submission())
        other = await node.gateway.submit(node.submission())
        waiter, patient = (node.gateway.register_waiter(one.job_id) for one in (submitted, other))
        watcher = node.gateway.watchers.of_job(submitted.job_id)
        await fall_behind(cluster, node)
        assert isinstance(await leader.shard.call(CancelJob(submitted.job_id, "over")), JobCancelled)
        node.replica.applies = True

        await waiter
        await watcher.wait()
        assert watcher.closed is None
        assert not patient.done()
        assert node.gateway.waiters == 1


class Line:
    """An agent's connection, on which the agent says nothing."""

    def __init__(self) -> None:
        self.written: list[agent_service_pb2.WorkResponse] = []

    async def send_initial_metadata(self, metadata: object) -> None:
        pass

    async def write(self, message: agent_service_pb2.WorkResponse) -> None:
        self.written.append(message)

    async def read(self) -> object:
        return await asyncio.get_running_loop().create_future()


async def test_session_that_went_elsewhere_before_its_stream_began() -> None:
    """A node that catches up applies both in one step, so the stream is told of neither; it must not stay."""
    async with twins() as cluster, asyncio.timeout(S):
        node = cluster["n2"]
        session = await opened(node)
        newer = await opened(cluster["n1"])
        await until(lambda: node.shard.standing.head.sequence == cluster.log.head.sequence)
        hello = agent_service_pb2.Hello(session_id="s" * 8)
        with pytest.raises(Refused) as refused:
            await node.sessions._follow(cast("Any", Line()), hello, session)

        assert newer.generation > session.generation
        assert refused.value.rejection.reason is Reason.SESSION_ENDED
        assert refused.value.rejection.metadata["generation"] == str(newer.generation)
