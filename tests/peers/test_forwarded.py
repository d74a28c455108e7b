"""What a node takes from another one on a Forward stream, and what it refuses."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from stepward.internal.v1 import peer_service_pb2 as pb
from stepward.server.core.commands import CloseStream, StreamClosed
from stepward.server.core.rejections import Reason, Refused
from stepward.server.logbook.outbox import Proposal, Serves
from stepward.server.peers import encoding
from stepward.server.peers.forwarded import SERVES_MS, SERVES_READERS_MS
from tests.peers.twins import Broken, Cluster, Pipe, S, Served, reason_of, twins, until


class Caller:
    """Another node, which says what a test wants."""

    def __init__(self, cluster: Cluster, node_id: str = "n1", speaker: str = "n9") -> None:
        self.pipe = Pipe()
        serving = cluster[node_id].forwarded.forward(None, cast("Any", Served(self.pipe)))
        self.served = asyncio.create_task(serving)
        self.hello = pb.Hello(node_id=speaker, to_node_id=node_id)

    async def open(self) -> None:
        await self.pipe.write(pb.ForwardRequest(hello=self.hello))
        assert (await self.pipe.read()).welcome.node_id

    async def ask(self, command: bytes, **fields: Any) -> object:
        """The answer to one command."""
        await self.pipe.write(pb.ForwardRequest(commands=[pb.ForwardedCommand(id=7, command=command, **fields)]))
        (answered,) = (await self.pipe.read()).answers
        assert answered.id == 7
        return encoding.decode_answer(answered.answer)


CLOSE = encoding.encode_command(CloseStream("s", 1))


@pytest.mark.parametrize("first", [b"", pb.ForwardRequest(reads=[pb.ReadQuestion(id=1)]).SerializeToString(), b"\xff"])
async def test_stream_without_a_hello_is_refused(first: bytes) -> None:
    """Before anything of it is taken."""
    async with twins() as cluster, asyncio.timeout(S):
        caller = Caller(cluster)
        await caller.pipe._up.put(first)
        with pytest.raises(Refused) as refused:
            await caller.served

        assert refused.value.rejection.reason is Reason.INVALID_ARGUMENT


async def test_wrong_hello_is_refused() -> None:
    """The door judges it."""
    async with twins() as cluster, asyncio.timeout(S):
        caller = Caller(cluster)
        caller.hello.to_node_id = "n7"
        await caller.pipe.write(pb.ForwardRequest(hello=caller.hello))
        with pytest.raises(Refused) as refused:
            await caller.served

        assert refused.value.rejection.reason is Reason.NODE_STATE


async def test_hostile_bytes_harm_one_command() -> None:
    """It is refused with what to do; the stream goes on."""
    async with twins() as cluster, asyncio.timeout(S):
        caller = Caller(cluster)
        await caller.open()
        for hostile in (b"", b"\x80\x04K\x01.", b"\xc1" * 1_000, encoding.encode_answer(StreamClosed())):
            assert reason_of(await caller.ask(hostile)) is Reason.UNIMPLEMENTED

        assert isinstance(await caller.ask(CLOSE), StreamClosed)


async def test_hops_are_bounded_here_too() -> None:
    """At the bound and one below."""
    async with twins() as cluster, asyncio.timeout(S):
        caller = Caller(cluster)
        await caller.open()

        assert isinstance(await caller.ask(CLOSE, hops=2), StreamClosed)
        assert reason_of(await caller.ask(CLOSE, hops=3)) is Reason.NO_LEADER


async def test_node_that_does_not_lead_says_who_does() -> None:
    """At once: whoever asks looks for the leader himself."""
    async with twins() as cluster, asyncio.timeout(S):
        caller = Caller(cluster, "n2")
        await caller.open()
        answer = await caller.ask(CLOSE)

        assert reason_of(answer) is Reason.NOT_LEADER
        assert cast("Any", answer).metadata == {"leader_id": "n1", "leader_address": "n1.example:7654"}


def serving(cluster: Cluster) -> list[Serves]:
    """What the leader's replica was told of nodes that serve somebody."""
    return [letter for letters in cluster["n1"].replica.steps for letter in letters if isinstance(letter, Serves)]


async def test_leader_learns_who_serves_agents_and_callers() -> None:
    """With the first command, which may wait for its batch there; not with each, since the replica keeps it in mind."""
    async with twins() as cluster, asyncio.timeout(S):
        caller = Caller(cluster)
        await caller.open()
        assert serving(cluster) == []
        for _ in range(3):
            await caller.ask(CLOSE)
        (letters,) = [step for step in cluster["n1"].replica.steps if any(isinstance(one, Serves) for one in step)]

        assert serving(cluster) == [Serves("n9", SERVES_MS)]
        assert [type(letter) for letter in letters] == [Serves, Proposal]


async def test_leader_learns_who_serves_a_reader() -> None:
    """For long enough that this one need not wait: a node asks for itself, too. A command makes it more."""
    async with twins() as cluster, asyncio.timeout(S):
        caller = Caller(cluster)
        await caller.open()
        for number in range(2):
            await caller.pipe.write(pb.ForwardRequest(reads=[pb.ReadQuestion(id=number)]))
            assert (await caller.pipe.read()).reads
        await until(lambda: bool(serving(cluster)))
        assert serving(cluster) == [Serves("n9", SERVES_READERS_MS)]
        await caller.ask(CLOSE)

        assert serving(cluster)[1:] == [Serves("n9", SERVES_MS)]


async def test_newer_stream_of_a_node_replaces_the_older_one() -> None:
    """What still comes on the older one was given up by the node that sent it, and is sent again on the newer."""
    async with twins() as cluster, asyncio.timeout(S):
        older, newer = Caller(cluster), Caller(cluster)
        await older.open()
        await newer.open()
        await older.pipe.write(pb.ForwardRequest(commands=[pb.ForwardedCommand(id=1, command=CLOSE)]))
        assert isinstance(await newer.ask(CLOSE), StreamClosed)
        await until(older.served.done)

        assert older.pipe._down.empty()


async def test_stream_that_breaks_before_its_welcome_leaves_nothing_behind() -> None:
    """Neither in the place of the newest of its node, nor by ending one that stands."""
    async with twins() as cluster, asyncio.timeout(S):
        standing, broken = Caller(cluster), Caller(cluster)
        await standing.open()
        await broken.pipe.write(pb.ForwardRequest(hello=broken.hello))
        broken.pipe.broken = True
        with pytest.raises(Broken):
            await broken.served

        assert isinstance(await standing.ask(CLOSE), StreamClosed)


async def test_new_work_of_other_nodes_takes_the_room_that_there_is() -> None:
    """The leader sheds it as it sheds its own; the refusal and its delay reach the caller."""
    async with twins(submissions_waiting_max=2) as cluster, asyncio.timeout(S):
        leader, node = cluster["n1"], cluster["n2"]
        leader.admission.admit("default", 0)
        with pytest.raises(Refused) as refused:
            await node.gateway.submit(node.submission())

        assert refused.value.rejection.reason is Reason.OVERLOADED
        assert refused.value.rejection.retry_after_ms > 0
        leader.admission.decided("default", 0)
        await node.gateway.submit(node.submission())
        assert leader.admission.waiting == node.admission.waiting == 0


async def test_node_that_does_not_read_its_answers_loses_its_stream() -> None:
    """Rather than fill the memory of the leader."""
    async with twins(stream_bytes_waiting_max=10_000) as cluster, asyncio.timeout(S):
        caller = Caller(cluster)
        await caller.open()
        caller.pipe.down.clear()
        commands = [pb.ForwardedCommand(id=number, command=b"?") for number in range(1_000)]
        await caller.pipe.write(pb.ForwardRequest(commands=commands))
        await caller.pipe.write(pb.ForwardRequest(commands=commands))
        await asyncio.sleep(0.05)
        caller.pipe.down.set()
        with pytest.raises(Refused) as refused:
            await caller.served

        assert refused.value.rejection.reason is Reason.OVERLOADED


async def test_node_that_shuts_down_ends_the_streams_of_others() -> None:
    """They would hold its stop up for its whole grace."""
    async with twins() as cluster, asyncio.timeout(S):
        caller = Caller(cluster)
        await caller.open()
        cluster["n1"].forwarded.drain()
        await caller.served
        late = Caller(cluster)
        await late.pipe.write(pb.ForwardRequest(hello=late.hello))
        with pytest.raises(Refused) as refused:
            await late.served

        assert refused.value.rejection.reason is Reason.NODE_DRAINING


async def test_node_that_was_taken_for_the_leader_says_so_as_soon_as_it_knows() -> None:
    """What it held for the epoch that it never opened is not held any longer."""
    async with twins(leader_wait_ms_max=60_000) as cluster, asyncio.timeout(S):
        node = cluster["n3"]
        node.replica.applies = False
        await cluster["n1"].gateway.submit(cluster["n1"].submission())
        cluster.elect("n3")
        await until(lambda: node.shard.standing.leader_id == "n3")
        caller = Caller(cluster, "n3")
        await caller.open()
        asking = asyncio.ensure_future(caller.ask(CLOSE))
        await asyncio.sleep(0.05)
        assert not asking.done()
        cluster.elect("n1")

        assert reason_of(await asking) is Reason.NOT_LEADER
