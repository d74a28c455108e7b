"""Streams between nodes, over real sockets: what is sent arrives once and in order, or the stream is gone."""

from __future__ import annotations

import asyncio
import time
from functools import partial
from typing import Any

import grpc
import grpc.aio
import pytest
from structlog.testing import capture_logs

from stepward.internal.v1 import peer_service_pb2 as pb
from stepward.server.config import FRAME_BYTES_MAX
from stepward.server.peers import link as links
from stepward.server.peers import replicating
from stepward.server.peers.pieces import MESSAGE_BYTES_MAX
from tests.server.nodes import refusal
from tests.server.peer_host import PeerHost, S, free_address, introduction, pair, standing
from tests.server.relay import relay

FAST: dict[str, Any] = {
    "peer_beat_ms": 25,
    "peer_silence_ms_max": 250,
    "peer_connect_ms_max": 200,
    "peer_backoff_ms_max": 100,
}


async def refused_times(host: PeerHost, times: int) -> None:
    """Wait until a host has refused so many streams."""
    async with asyncio.timeout(S):
        while host.counters.hellos_refused < times:  # noqa: ASYNC110 - nothing tells a test of a refusal
            await asyncio.sleep(0.01)


def numbers(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


async def test_what_is_sent_arrives_in_order() -> None:
    """Both ways at once."""
    sent = numbers(2_000)
    async with pair() as (first, second):
        for at in range(0, len(sent), 10):
            first.send("n2", *sent[at : at + 10])
            second.send("n1", *sent[at : at + 10])
            await asyncio.sleep(0)
        await second.until(lambda: len(second.came) == len(sent))
        await first.until(lambda: len(first.came) == len(sent))

        assert second.contents("n1") == first.contents("n2") == sent
        assert first.counters.frames_sent == first.counters.frames_received == len(sent)


async def test_frames_of_one_step_travel_in_one_message() -> None:
    """Each message costs a turn of the loop on either side, whatever is in it."""
    sent = numbers(500)
    async with pair() as (first, second):
        before = second.arrivals
        first.send("n2", *sent)
        await second.until(lambda: len(second.came) == len(sent))

        assert second.arrivals - before == 1


@pytest.mark.parametrize("size", [MESSAGE_BYTES_MAX, MESSAGE_BYTES_MAX + 1, FRAME_BYTES_MAX])
async def test_large_frames_are_cut_and_joined(size: int) -> None:
    """Those behind it wait for the whole of it, and those before it go first."""
    async with pair() as (first, second):
        sent = [b"before", bytes(size - 1) + b"x", b"behind"]
        first.send("n2", *sent)
        await second.until(lambda: len(second.came) == 3)

        assert second.contents("n1") == sent


async def test_nothing_is_kept_for_a_node_that_is_away() -> None:
    """The logbook begins anew on the next stream; what it said before would be too old."""
    async with pair(**FAST) as (first, second):
        await second.stop()
        await first.until(lambda: ("unlinked", "n2") in first.ends)
        first.send("n2", b"lost")

        assert first.counters.frames_dropped == 1
        assert not first.links.stands("n2")


async def test_node_that_comes_back_is_linked_again() -> None:
    """Within the longest backoff, and at once when it has made its own stream."""
    async with pair() as (first, second):
        await second.stop()
        await first.until(lambda: first.ends[-1] == ("unlinked", "n2"))
        addresses = {"n1": first.address}
        async with standing(PeerHost(introduction("n2"), second.address, addresses)) as again:
            began = time.monotonic()
            await first.until(lambda: first.ends[-1] == ("linked", "n2"))
            first.send("n2", b"new")
            await again.until(lambda: again.contents("n1") == [b"new"])

        assert time.monotonic() - began < 1.0


async def test_streams_of_one_node_are_numbered_upwards() -> None:
    """So what an older one still holds can be told from what is new."""
    async with pair() as (first, second):
        first.send("n2", b"one")
        await second.until(lambda: second.came)
        await second.stop()
        await first.until(lambda: first.ends[-1] == ("unlinked", "n2"))
        async with standing(PeerHost(introduction("n2"), second.address, {"n1": first.address})) as again:
            await first.until(lambda: first.ends[-1] == ("linked", "n2"))
            first.send("n2", b"two")
            await again.until(lambda: again.came)

        assert second.came[0][1] < again.came[0][1]


async def test_wall_clock_that_went_back_locks_nobody_out() -> None:
    """A node numbers its streams from the time of its start, and is told when that is not new any more."""
    there = free_address()
    async with standing(PeerHost(introduction("n2"), there, {})) as receiver:
        for wall_ms in (2_000_000, 1_000_000):
            sender = PeerHost(introduction("n1"), free_address(), {"n2": there}, wall_ms=wall_ms)
            async with standing(sender):
                await sender.until(partial(sender.was_linked, "n2"))
                sender.send("n2", b"%d" % wall_ms)
                await receiver.until(partial(receiver.has, "n1", b"%d" % wall_ms))

        assert receiver.came[0][1] < receiver.came[1][1]


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"cluster_id": "other"}, "is of cluster other; this is cluster"),
        ({"configuration_hash": b"other"}, "is configured otherwise"),
        ({"members": frozenset({"n1", "n2", "n4"}), "node_id": "n4"}, "is none of the other nodes"),
    ],
)
async def test_node_that_does_not_fit_is_refused_with_the_reason(fields: dict[str, Any], reason: str) -> None:
    """It goes on trying, since somebody may mend it, and says so once."""
    there = free_address()
    us = introduction(fields.pop("node_id", "n1"), **fields)
    with capture_logs() as logs:
        async with standing(PeerHost(introduction("n2"), there, {})) as receiver:
            sender = PeerHost(us, free_address(), {"n2": there}, **FAST)
            async with standing(sender):
                await refused_times(receiver, 4)

    assert sender.ends == []
    assert receiver.came == []
    told = [line["event"] for line in logs if reason in line["reason"]]
    assert sorted(told) == ["peer_refused", "peer_refuses_us"]


async def test_another_node_at_the_address_is_noticed() -> None:
    """Both sides check who the other is."""
    there = free_address()
    async with standing(PeerHost(introduction("n3"), there, {})) as other:
        sender = PeerHost(introduction("n1"), free_address(), {"n2": there}, **FAST)
        async with standing(sender):
            await refused_times(other, 2)

            assert sender.ends == []


async def test_h067_black_hole_is_noticed() -> None:
    """Packets vanish and no connection is closed: the stream is given up, hard, and made again when they do not."""
    first_at, second_at = free_address(), free_address()
    async with relay(first_at) as to_first, relay(second_at) as to_second:
        first = PeerHost(introduction("n1"), first_at, {"n2": to_second.address})
        second = PeerHost(introduction("n2"), second_at, {"n1": to_first.address})
        async with standing(first), standing(second):
            for host, peer_id in ((first, "n2"), (second, "n1")):
                await host.until(partial(host.was_linked, peer_id))
                host.send(peer_id, b"heard")
            await first.until(lambda: first.came)
            await second.until(lambda: second.came)
            to_first.swallow()
            to_second.swallow()
            began = time.monotonic()
            await first.until(lambda: ("unlinked", "n2") in first.ends)
            await second.until(lambda: ("unlinked", "n1") in second.ends)
            noticed_s = time.monotonic() - began
            to_first.heal()
            to_second.heal()
            await first.until(lambda: first.ends[-1] == ("linked", "n2"))
            await second.until(lambda: second.ends[-1] == ("linked", "n1"))
            first.send("n2", b"again")
            await second.until(lambda: second.contents("n1") == [b"heard", b"again"])

    assert noticed_s < 2.0


@pytest.mark.parametrize(
    ("bounds", "sent", "good"),
    [
        ({"peer_frames_waiting_max": 3}, [b""] * 3, True),
        ({"peer_frames_waiting_max": 3}, [b""] * 4, False),
        ({"peer_bytes_waiting_max": 100}, [b"x" * 100], True),
        ({"peer_bytes_waiting_max": 100}, [b"x" * 101], False),
    ],
)
async def test_what_waits_for_a_node_is_bounded(bounds: dict[str, Any], sent: list[bytes], good: bool) -> None:
    """Beyond it the stream is closed: a gap in the middle of one would be worse than a new one."""
    async with pair(**bounds) as (first, second):
        first.send("n2", *sent)

        assert first.links.stands("n2") is good
        if good:
            await second.until(lambda: len(second.came) == len(sent))
        else:
            await first.until(lambda: ("unlinked", "n2") in first.ends)
            await first.until(lambda: first.ends[-1] == ("linked", "n2"))
            assert second.came == []


async def test_node_that_does_not_read_holds_nobody() -> None:
    """It lives and says so, but takes nothing: a write that does not end is given up, and the loop is free."""
    there = free_address()
    server = grpc.aio.server()
    server.add_generic_rpc_handlers([Deaf("n2").handler()])
    server.add_insecure_port(there)
    await server.start()
    host = PeerHost(introduction("n1"), free_address(), {"n2": there}, peer_stalled_ms_max=300)
    with capture_logs() as logs:
        async with standing(host):
            await host.until(lambda: ("linked", "n2") in host.ends)
            began, turns = time.monotonic(), 0
            # More than any window of a connection, and less than may wait.
            host.send("n2", bytes(16 << 20))
            while host.links.stands("n2"):
                host.links.heard("n2")
                turns += 1
                await asyncio.sleep(0.001)
                assert time.monotonic() - began < S
            await host.until(lambda: ("unlinked", "n2") in host.ends)
    await server.stop(0)

    assert "nothing was read for 300 ms" in [line.get("reason") for line in logs]
    assert turns > 50


async def test_stream_on_which_nothing_is_said_stands() -> None:
    """Each side says so often enough that the other does not take it for gone."""
    async with pair(**FAST) as (first, second):
        await asyncio.sleep(4 * FAST["peer_silence_ms_max"] / 1_000)

        assert first.ends == [("linked", "n2")]
        assert second.ends == [("linked", "n1")]


async def test_welcome_of_another_node_is_not_taken() -> None:
    """Whatever checks the other side makes, or does not."""
    there = free_address()
    server = grpc.aio.server()
    server.add_generic_rpc_handlers([Deaf("n3").handler()])
    server.add_insecure_port(there)
    await server.start()
    host = PeerHost(introduction("n1"), free_address(), {"n2": there}, **FAST)
    with capture_logs() as logs:
        async with standing(host):
            async with asyncio.timeout(S):
                while not any(line["event"] == "peer_refuses_us" for line in logs):  # noqa: ASYNC110 - nothing else tells
                    await asyncio.sleep(0.01)
    await server.stop(0)

    assert host.ends == []
    assert "n3 answers there: mend the addresses" in [line.get("reason") for line in logs]


async def test_what_was_on_its_way_when_a_newer_stream_came_counts_for_nothing() -> None:
    """The reader of the older one may already hold it."""
    host = PeerHost(introduction("n2"), free_address(), {})

    class OneMessage:
        async def read(self) -> bytes:
            return pb.ReplicateRequest(frames=[b"late"]).SerializeToString()

    incoming = replicating._Incoming(introduction("n1").hello("n2", 1))
    incoming.end(None)
    await host.replicating._read(incoming, OneMessage())  # type: ignore[arg-type]  # all that is asked of a context

    assert host.came == []


class Deaf:
    """Takes a stream and never reads from it again."""

    def __init__(self, node_id: str) -> None:
        self._node_id = node_id

    def handler(self) -> grpc.GenericRpcHandler:
        handler: grpc.RpcMethodHandler[bytes, bytes] = grpc.stream_stream_rpc_method_handler(self.replicate)
        return grpc.method_handlers_generic_handler("stepward.internal.v1.PeerService", {"Replicate": handler})

    async def replicate(self, _requests: object, context: Any) -> None:
        await context.read()
        await context.write(pb.ReplicateResponse(welcome=pb.Welcome(node_id=self._node_id)).SerializeToString())
        await asyncio.sleep(S)


class Stranger:
    """A stream to a node, written by hand."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self.stream: Any = channel.stream_stream(links.METHOD)()

    async def say(self, message: pb.ReplicateRequest | bytes) -> None:
        raw = message if isinstance(message, bytes) else message.SerializeToString()
        await self.stream.write(raw)

    async def welcomed(self) -> pb.Welcome:
        return pb.ReplicateResponse.FromString(await self.stream.read()).welcome

    async def end(self) -> str:
        """Why the other side ended the stream; empty when it was in order."""
        try:
            async with asyncio.timeout(S):
                answer = await self.stream.read()
        except grpc.aio.AioRpcError as error:
            return f"{refusal(error).reason}: {refusal(error).message}"
        assert answer is grpc.aio.EOF
        return ""


def hello(connection: int = 1, **fields: Any) -> pb.ReplicateRequest:
    return pb.ReplicateRequest(hello=introduction("n1", **fields).hello("n2", connection))


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        pytest.param(b"\xff\xff\xff\xff", "INVALID_ARGUMENT: the request is not", id="no-message"),
        pytest.param(hello(2), "INVALID_ARGUMENT: a second hello", id="second-hello"),
        pytest.param(pb.ReplicateRequest(unfinished=True), "INVALID_ARGUMENT: a message without", id="goes-on"),
    ],
)
async def test_what_no_node_says_ends_its_stream(message: pb.ReplicateRequest | bytes, reason: str) -> None:
    """It is counted, and the node says why; what came before counts."""
    there = free_address()
    async with standing(PeerHost(introduction("n2"), there, {})) as host:
        async with grpc.aio.insecure_channel(there) as channel:
            stranger = Stranger(channel)
            await stranger.say(hello())
            assert (await stranger.welcomed()).node_id == "n2"
            await stranger.say(pb.ReplicateRequest(frames=[b"good"]))
            await stranger.say(message)
            ended = await stranger.end()

        assert ended.startswith(reason)
        assert host.contents("n1") == [b"good"]
        assert host.counters.frames_refused == 1
        assert host.counters.call_failures == 0


async def test_frame_past_its_bound_ends_the_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its pieces are not kept, whatever they would make."""
    monkeypatch.setattr(replicating, "FRAME_BYTES_MAX", 10)
    there = free_address()
    async with standing(PeerHost(introduction("n2"), there, {})) as host:
        async with grpc.aio.insecure_channel(there) as channel:
            stranger = Stranger(channel)
            await stranger.say(hello())
            await stranger.welcomed()
            await stranger.say(pb.ReplicateRequest(frames=[b"12345"], unfinished=True))
            await stranger.say(pb.ReplicateRequest(frames=[b"67890"]))
            await stranger.say(pb.ReplicateRequest(frames=[b"12345"], unfinished=True))
            await stranger.say(pb.ReplicateRequest(frames=[b"678901"]))
            ended = await stranger.end()

        assert "a frame has 11 bytes or more; at most 10 are taken" in ended
        assert host.contents("n1") == [b"1234567890"]


async def test_h067_silence_that_began_before_the_stream_stood() -> None:
    """A node that has opened a stream of its own should have gone on speaking on it."""
    there = free_address()
    server = grpc.aio.server()
    server.add_generic_rpc_handlers([Deaf("n1").handler()])
    server.add_insecure_port(there)
    host = PeerHost(introduction("n2"), free_address(), {"n1": there}, peer_silence_ms_max=1_000)
    async with standing(host), grpc.aio.insecure_channel(host.address) as channel:
        stranger = Stranger(channel)
        await stranger.say(hello())
        await stranger.welcomed()
        await server.start()
        await host.until(lambda: ("linked", "n1") in host.ends)
        await host.until(lambda: ("unlinked", "n1") in host.ends, within_s=5)
        # It is taken again, and now nobody knows whether that node has a stream of its own: it is left alone.
        await host.until(lambda: host.ends[-1] == ("linked", "n1"))
        ends = len(host.ends)
        await asyncio.sleep(2 * host.config.peer_silence_ms_max / 1_000)

        assert len(host.ends) == ends
    await server.stop(0)


async def test_newer_stream_replaces_an_older_one() -> None:
    """What the older one still sends counts for nothing; an older one that comes late is refused."""
    there = free_address()
    async with standing(PeerHost(introduction("n2"), there, {})) as host, grpc.aio.insecure_channel(there) as channel:
        old, new, late = Stranger(channel), Stranger(channel), Stranger(channel)
        await old.say(hello(7))
        await old.welcomed()
        await new.say(hello(8))
        await new.welcomed()
        ended = await old.end()
        await late.say(hello(7))
        refused = await late.end()
        await new.say(pb.ReplicateRequest(frames=[b"new"]))
        await host.until(lambda: host.came)

        assert ended == "NODE_STATE: a newer stream of this node has replaced this one"
        assert refused == "NODE_STATE: stream 7 of n1 is not newer than 8, which stands or stood"
        assert host.came == [("n1", 8, b"new")]


async def test_older_incarnation_is_refused() -> None:
    """Its directory was replaced: whoever still serves from it speaks for nobody."""
    there = free_address()
    async with standing(PeerHost(introduction("n2"), there, {})), grpc.aio.insecure_channel(there) as channel:
        new, old = Stranger(channel), Stranger(channel)
        await new.say(hello(1, incarnation=2))
        await new.welcomed()
        await old.say(hello(9, incarnation=1))
        refused = await old.end()

        assert refused.startswith("NODE_STATE: n1 speaks as incarnation 1, and has begun anew as 2 since")


async def test_whoever_does_not_say_who_he_is_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """Anybody can open a stream, so few may be open without a hello, and for a short time."""
    monkeypatch.setattr(replicating, "HELLO_MS_MAX", 300)
    monkeypatch.setattr(replicating, "STRANGERS_MAX", 2)
    there = free_address()
    async with standing(PeerHost(introduction("n2"), there, {})), grpc.aio.insecure_channel(there) as channel:
        silent = [Stranger(channel) for _ in range(3)]
        ends = await asyncio.gather(*(one.end() for one in silent))

    told = sorted(end.partition(";")[0] for end in ends)
    late = "INVALID_ARGUMENT: no hello within 300 ms"
    assert told == [late, late, "OVERLOADED: 2 streams here have not said whose they are, which is the most"]


async def test_node_that_stops_lets_its_streams_go() -> None:
    """Nobody waits for streams that would never end by themselves."""
    async with pair() as (first, second):
        began = time.monotonic()
        second.replicating.drain()
        await second.server.stop(5)
        took_s = time.monotonic() - began
        await first.until(lambda: first.ends[-1] == ("unlinked", "n2"))

    assert took_s < 2.0


class Garbler(grpc.GenericRpcHandler):
    """Whatever listens at that address refuses every call, with details that nobody can read."""

    def service(self, handler_call_details: Any) -> Any:  # type: ignore[explicit-override]  # `override` is of 3.12
        return grpc.stream_stream_rpc_method_handler(self._refuse)

    async def _refuse(self, requests: object, context: Any) -> None:
        details = (("grpc-status-details-bin", b"\xff"),)
        await context.abort(grpc.StatusCode.FAILED_PRECONDITION, "no", trailing_metadata=details)


async def test_refusal_that_cannot_be_read_ends_nothing_for_good() -> None:
    """It is tried again, as after any other."""
    server, address = grpc.aio.server(), free_address()
    server.add_generic_rpc_handlers([Garbler()])
    server.add_insecure_port(address)
    await server.start()
    async with standing(PeerHost(introduction("n1"), free_address(), {"n2": address}, **FAST)) as host:
        link = host.links._links["n2"]
        async with asyncio.timeout(S):
            while link._failures < 3:  # noqa: ASYNC110 - nothing tells a test of a refusal
                await asyncio.sleep(0.01)
    await server.stop(0)
