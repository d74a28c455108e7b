"""H060: bytes that are no message of the contract, to each method of each service that a node serves.

The methods and the strings in their requests are found in the descriptors, so a new one is covered by itself.
"""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import grpc
import grpc.aio
import pytest
import pytest_asyncio
from google.protobuf.descriptor import Descriptor, FieldDescriptor, MethodDescriptor
from google.protobuf.message_factory import GetMessageClass

from stepward.server.core import keys
from stepward.server.node import PEER_SERVICE, SERVICES
from stepward.server.store.lmdb_store import LmdbStore
from stepward.v1 import agent_service_pb2 as pb
from stepward.v1 import cluster_service_pb2
from tests.server import nodes
from tests.server.nodes import CALL_S_MAX, Stubs, refusal

# Too long a number, the begin of a longer message, the tag of a field without the field, and the tag of none.
NO_MESSAGES = (b"\xff\xff\xff\xff", b"\x0a\x7f", b"\x08", b"\x00")
NOT_UTF8 = b"\xff\xfe"
# Strings that lie deeper are of messages that lie less deep, too.
DEPTH_MAX = 4
MUTATIONS = 60

# A node that is alone serves no commands of other nodes.
METHODS = [method for service in (*SERVICES, PEER_SERVICE) for method in service.methods if method.name != "Forward"]
EVERY_METHOD = pytest.mark.parametrize(
    "method", METHODS, ids=lambda method: f"{method.containing_service.name}/{method.name}"
)


class Standing(NamedTuple):
    """A node, and a connection to it."""

    node: Any
    stubs: Stubs


@pytest_asyncio.fixture
async def standing(tmp_path: Path) -> AsyncIterator[Standing]:
    """A node that must be up and have had no fault of its own at the end."""
    async with nodes.running(tmp_path / "data") as node, nodes.connected(node.address) as stubs:
        yield Standing(node, stubs)
        status = await stubs.cluster.GetStatus(cluster_service_pb2.GetStatusRequest(), timeout=CALL_S_MAX)
        assert status.shards[0].leader
        assert node.counters.call_failures == node.counters.rule_failures == node.counters.delivery_failures == 0


async def answer(stubs: Stubs, method: MethodDescriptor, *messages: bytes) -> grpc.aio.AioRpcError | None:
    """What a method says to bytes, whatever their shape."""
    path = f"/{method.containing_service.full_name}/{method.name}"
    try:
        if method.client_streaming:
            stream: Any = stubs.channel.stream_stream(path)(timeout=CALL_S_MAX)
            for message in messages:
                await stream.write(message)
            await stream.done_writing()
            while await stream.read() is not grpc.aio.EOF:
                pass
        elif method.server_streaming:
            method_: Any = stubs.channel.unary_stream(path)
            reading = method_(messages[0], timeout=1)
            await reading.read()
            reading.cancel()
        else:
            unary: Any = stubs.channel.unary_unary(path)
            await unary(messages[0], timeout=1)
    except grpc.aio.AioRpcError as error:
        return error
    return None


def delimited(number: int, content: bytes) -> bytes:
    """A field of bytes, a string or a message. What is tested here is shorter than one byte of length can say."""
    tag = number << 3 | 2
    head = bytes((tag,)) if tag < 0x80 else bytes((tag & 0x7F | 0x80, tag >> 7))
    assert len(content) < 0x80
    return head + bytes((len(content),)) + content


def with_wrong_string(message: Descriptor, depth: int = 0) -> Iterator[tuple[str, bytes]]:
    """For each string of a message, and of the messages in it: its path, and a message whose only field it is."""
    for field in message.fields:
        if field.type == FieldDescriptor.TYPE_STRING:
            yield field.name, delimited(field.number, NOT_UTF8)
        elif field.type == FieldDescriptor.TYPE_MESSAGE and depth < DEPTH_MAX:
            assert field.message_type is not None
            for path, inner in with_wrong_string(field.message_type, depth + 1):
                yield f"{field.name}.{path}", delimited(field.number, inner)


def malformed(method: MethodDescriptor) -> Iterator[tuple[str, bytes]]:
    """What can never be a request of a method, with names."""
    for raw in NO_MESSAGES:
        yield raw.hex(), raw
    yield from with_wrong_string(method.input_type)


@EVERY_METHOD
async def test_h060_bytes_that_are_no_message(tmp_path: Path, method: MethodDescriptor) -> None:
    """Each is the caller's fault, and says so; the node stays up, and nothing of it is written."""
    told: dict[str, str] = {}
    async with nodes.running(tmp_path / "data") as node, nodes.connected(node.address) as stubs:
        for name, raw in malformed(method):
            error = await answer(stubs, method, raw)
            told[name] = "OK" if error is None else refusal(error).reason
        status = await stubs.cluster.GetStatus(cluster_service_pb2.GetStatusRequest(), timeout=CALL_S_MAX)
    store = LmdbStore(tmp_path / "data")
    kinds = {key[:1] for key in store.scan(b"")}
    store.close()

    assert {name: reason for name, reason in told.items() if reason != "INVALID_ARGUMENT"} == {}
    assert status.shards[0].leader
    assert kinds <= {keys.BEAT, keys.EPOCH}
    assert node.counters.refusals == len(told)


def test_strings_of_every_depth_are_found() -> None:
    """A walk that found none would let every method pass."""
    work = next(method for method in METHODS if method.name == "Work")
    paths = {path for path, _ in with_wrong_string(work.input_type)}

    assert {"hello.session_id", "hello.actions", "report.attempts.failed.kind", "heartbeat.held.job_id"} <= paths


async def test_h060_messages_behind_a_hello(standing: Standing) -> None:
    """A stream that has been welcomed is refused as one that begins so."""
    work = next(method for method in METHODS if method.name == "Work")
    for number, (_, raw) in enumerate(malformed(work)):
        hello = pb.Hello(protocol_version=1, session_id=f"session-of-test-{number}", actions=["one"], slots=1)
        error = await answer(standing.stubs, work, pb.WorkRequest(hello=hello).SerializeToString(), raw)

        assert error is not None
        assert refusal(error).reason == "INVALID_ARGUMENT"


def filled(message: Any, chance: random.Random, depth: int = 0) -> Any:
    """A message with a value in most of its fields."""
    for field in message.DESCRIPTOR.fields:
        if chance.random() < 0.2 or (field.type == FieldDescriptor.TYPE_MESSAGE and depth >= DEPTH_MAX):
            continue
        if field.type == FieldDescriptor.TYPE_MESSAGE:
            if field.message_type.GetOptions().map_entry:
                continue
            inner = getattr(message, field.name)
            filled(inner.add() if field.is_repeated else inner, chance, depth + 1)
            continue
        value: Any = chance.choice((0, 1, 7, 2**31 - 1))
        if field.type == FieldDescriptor.TYPE_STRING:
            value = chance.choice(("", "x", "default", "\0", "\U0001f600", "0-" + "0" * 32, "y" * 2_000))
        elif field.type == FieldDescriptor.TYPE_BYTES:
            value = chance.choice((b"", b"{}", b"[1", b"\xff\x00"))
        if field.is_repeated:
            getattr(message, field.name).append(value)
        else:
            setattr(message, field.name, value)
    return message


def mutated(raw: bytes, chance: random.Random) -> bytes:
    """The same with some bytes changed, cut or put in."""
    changed = bytearray(raw)
    for _ in range(chance.randint(0, 4)):
        at = chance.randrange(len(changed) + 1)
        match chance.randrange(3):
            case 0:
                changed[at:] = b""
            case 1:
                changed[at:at] = chance.randbytes(chance.randint(1, 3))
            case _:
                changed[at : at + 1] = chance.randbytes(1)
    return bytes(changed)


@EVERY_METHOD
async def test_h060_messages_of_chance(standing: Standing, method: MethodDescriptor, only_seed: int | None) -> None:
    """Whatever comes is answered or refused for a reason; nothing is a fault of ours."""
    seed = random.randrange(1 << 32) if only_seed is None else only_seed
    print(f"--seed {seed}")
    chance = random.Random(seed)
    for _ in range(MUTATIONS):
        raw = mutated(filled(GetMessageClass(method.input_type)(), chance).SerializeToString(), chance)
        error = await answer(standing.stubs, method, raw)
        code = grpc.StatusCode.OK if error is None else error.code()

        assert code not in (grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN), (raw.hex(), error)
