"""Renewals through a node that does not lead: in front of everything, once, and soon or not at all."""

from __future__ import annotations

import asyncio

from stepward.server.core.commands import (
    Answer,
    AttemptRef,
    CloseStream,
    OpenSession,
    RenewSession,
    SessionOpened,
    SessionRenewed,
    StreamClosed,
)
from stepward.server.core.rejections import Reason
from stepward.server.tickets import FutureTicket
from tests.peers.twins import Node, S, reason_of, twins, until


def session(node_id: str, session_id: str = "s" * 8) -> OpenSession:
    return OpenSession(session_id, "default", "default", ("book",), 1, "", "", node_id)


async def test_h005_renewal_through_a_node_that_lags() -> None:
    """A session that was just opened is renewed through a follower that has not heard of it yet."""
    async with twins() as cluster, asyncio.timeout(30):
        leader, node = cluster["n1"], cluster["n2"]
        for number in range(1_000):
            node.replica.applies = False
            session_id = f"session-{number}"
            opened = await leader.shard.call(session("n1", session_id))
            assert isinstance(opened, SessionOpened)
            renewed: asyncio.Future[object] = asyncio.get_running_loop().create_future()
            node.shard.renew(RenewSession(session_id, opened.generation, 0), FutureTicket(renewed))  # type: ignore[arg-type]  # any answer
            await asyncio.sleep(0)
            node.replica.applies = True
            assert isinstance(await renewed, SessionRenewed)


async def test_renewals_go_in_front_of_everything_else() -> None:
    """In a message as in a batch."""
    async with twins() as cluster, asyncio.timeout(S):
        node = cluster["n2"]
        closing = [asyncio.ensure_future(node.shard.call(CloseStream(f"s{number}", 1))) for number in range(3)]
        await asyncio.sleep(0)
        renewed: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        node.shard.renew(RenewSession("nobody", 1, 0), FutureTicket(renewed))  # type: ignore[arg-type]  # any answer
        await asyncio.gather(renewed, *closing)

        (request,) = [request for pipe in node.pipes for request in pipe.requests if request.commands]
        assert [command.urgent for command in request.commands] == [True, False, False, False]
        assert all(isinstance(task.result(), StreamClosed) for task in closing)


async def test_heartbeats_leave_together() -> None:
    """Nobody waits for one alone; one with the list that was asked for leaves at once, and takes the others along."""
    async with twins(gather_renewals_ms=50) as cluster, asyncio.timeout(S):
        node = cluster["n2"]
        early = [asyncio.ensure_future(renewed(node))]
        await asyncio.sleep(0.01)
        early.append(asyncio.ensure_future(renewed(node)))
        await asyncio.gather(*early)
        late = [asyncio.ensure_future(renewed(node)), asyncio.ensure_future(renewed(node, held=()))]
        await asyncio.sleep(0.01)
        assert sent(node) == [2, 2]
        await asyncio.gather(*late)

        assert sent(node) == [2, 2]


async def test_commands_take_waiting_heartbeats_along() -> None:
    async with twins(gather_renewals_ms=50) as cluster, asyncio.timeout(S):
        node = cluster["n2"]
        beat = asyncio.ensure_future(renewed(node))
        await asyncio.sleep(0)
        await node.shard.call(CloseStream("nobody", 1))
        await beat

        assert sent(node) == [2]


def sent(node: Node) -> list[int]:
    """How many commands the messages of a node carry."""
    return [len(request.commands) for pipe in node.pipes for request in pipe.requests if request.commands]


async def test_renewal_is_never_sent_twice() -> None:
    """Its list is of the moment at which it was made; the next one comes soon."""
    async with twins() as cluster, asyncio.timeout(S):
        for node_id, other_id in (("n2", "n3"), ("n3", "n2")):
            replica = cluster[node_id].replica
            replica.hears, replica._leader_id = False, other_id
        node = cluster["n2"]
        await until(lambda: node.shard.standing.leader_id == "n3")
        assert reason_of(await renewed(node)) is Reason.NO_LEADER

        sent = [command.urgent for pipe in node.pipes for request in pipe.requests for command in request.commands]
        assert sent == [True]


async def renewed(node: Node, held: tuple[AttemptRef, ...] | None = None) -> Answer:
    future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
    node.shard.renew(RenewSession("nobody", 1, 0, held), FutureTicket(future))
    return await future


async def test_renewal_waits_for_a_leader_for_less_than_the_time_to_the_next_one() -> None:
    """Two that wait would be decided one behind the other; a report may wait for a third of a TTL."""
    async with twins(session_ttl_ms=3_600) as cluster, asyncio.timeout(S):
        cluster.elect("")
        node = cluster["n2"]
        await until(lambda: not node.shard.standing.leader_id)
        began = asyncio.get_running_loop().time()
        closing = asyncio.ensure_future(node.shard.call(CloseStream("nobody", 1)))
        assert reason_of(await renewed(node)) is Reason.NO_LEADER
        assert 0.3 <= asyncio.get_running_loop().time() - began < 0.6
        assert reason_of(await closing) is Reason.NO_LEADER
        assert 1.2 <= asyncio.get_running_loop().time() - began < 1.5
