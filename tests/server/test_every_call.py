"""Whatever is asked in any call: it is granted or refused in words, nothing fails inside, a refusal stores nothing."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stepward.server.core.commands import CloseStream
from stepward.server.core.limits import Limits
from stepward.server.logbook.outbox import Applied
from stepward.server.node import SERVICES, Node
from stepward.v1 import (
    agent_service_pb2,
    cluster_service_pb2,
    definition_pb2,
    definition_service_pb2,
    job_service_pb2,
)
from tests.server import nodes
from tests.server.any_request import Known, requests
from tests.server.nodes import Stubs, define, submission
from tests.server.plain_agent import PlainAgent, agent, failed, succeeds

S = nodes.CALL_S_MAX
METHODS = {f"{service.name}/{method.name}": method for service in SERVICES for method in service.methods}
EXAMPLES, EXAMPLES_SLOW = 50, 500
# What waits for something that does not come is ended by its caller.
WAIT_S = 0.15
# Sent by a client that has waited long enough, or by gRPC itself about the size of a message: without our details.
OWN_CODES = frozenset({grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.CANCELLED})
# What a client says to itself when it wrote to a stream that the node was just ending.
OWN_DETAILS = "Internal error from Core"
# Refusals that come after something was stored: the wait for a job, and what was sent on a stream before.
STORED_BEFORE = frozenset({"WAIT_TIMED_OUT"})
WAITS = frozenset({"RunJob", "LeaseWork"})
# No lease ends and no timer of a session falls due while this runs.
LIMITS = Limits(session_ttl_ms=3_600_000, payload_bytes_max=4_096)


class Desk:
    """A node with jobs in many states, whose supervisor stands still: what changes was changed by the call."""

    def __init__(self, node: Node, stubs: Stubs) -> None:
        self.known = Known()
        self._node = node
        self._stubs = stubs
        self._batches: list[Applied] = []

    @classmethod
    @contextlib.asynccontextmanager
    async def opened(cls, directory: Path) -> Any:
        async with nodes.running(directory, limits=LIMITS) as node, nodes.connected(node.address) as stubs:
            desk = cls(node, stubs)
            await desk.fill()
            await node._oversight.stop()
            await desk.settle()
            node._shard.on_applied(desk._batches.append)
            yield desk
            await stubs.cluster.GetStatus(cluster_service_pb2.GetStatusRequest(), timeout=S)

    async def fill(self) -> None:
        """Jobs that completed, were undone, wait for a person, were cancelled, and run; and what names them."""
        stubs, known = self._stubs, self.known
        undo = definition_pb2.Undo(action="undo-a")
        await define(stubs, "two", definition_pb2.Step(id="a", undo=undo), definition_pb2.Step(id="b", needs=["a"]))
        await define(stubs, "risky", definition_pb2.Step(id="a"), definition_pb2.Step(id="bad", needs=["a"]))
        await define(stubs, "free", definition_pb2.Step(id="a", action="nobody"))
        async with agent(stubs, "a", "b", "bad", "undo-a", handler=_fails_bad) as joined:
            for name in ("two", "risky"):
                request = job_service_pb2.RunJobRequest(job=submission(name, idempotency_key=f"key-{name}"))
                known.add("job_id", (await stubs.jobs.RunJob(request, timeout=S)).job.job_id)
        async with agent(stubs, "a", handler=_holds, slots=2) as holding:
            for _ in range(2):
                known.add("job_id", await self._submit("two"))
            await holding.until(lambda: len(holding.offers) == 2)
        known.add("job_id", await self._submit("free"), await self._submit("free"))
        cancel = job_service_pb2.CancelJobRequest(job_id=known.by_field["job_id"][-1])
        await stubs.jobs.CancelJob(cancel, timeout=S)
        self._know(joined, holding)
        await self._know_pages()

    async def _submit(self, name: str) -> str:
        request = job_service_pb2.SubmitJobRequest(job=submission(name, caller_id="me", labels={"k": "v"}))
        return (await self._stubs.jobs.SubmitJob(request, timeout=S)).job_id

    def _know(self, joined: PlainAgent, holding: PlainAgent) -> None:
        known = self.known
        known.add("session_id", joined.session_id, holding.session_id, "session-of-nobody-01")
        known.add("generation", 0, 1, 2)
        known.add("token", *(offer.attempt.token for offer in holding.offers))
        known.add("step_id", "a", "b", "bad")
        known.add("id", "a", "b")
        known.add("needs", "a", "b")
        known.add("actions", "a", "b", "undo-a")
        known.add("action", "a")
        known.add("queue", "", "default")
        known.add("namespace", "", "default", "other")
        known.add("definition_name", "two", "risky", "free")
        known.add("name", "two", "new")
        known.add("idempotency_key", "", "key-two")
        known.add("encoding", "", "json/utf-8", "text/plain")
        known.add("protocol_version", 1)
        known.add("slots", 1, 4)
        known.add("page_size", 0, 1, 2)
        known.add("definition_version", 0, 1)
        known.add("version", 0, 1)
        known.add("from_revision", 0, 5)
        # Of durations and timestamps.
        known.add("seconds", 0, 1, 60)
        known.add("nanos", 0)
        known.add("input", "", '{"a":"${input.a}"}')
        known.add("output", "")

    async def _know_pages(self) -> None:
        """Tokens of pages that go on."""
        jobs, definitions = self._stubs.jobs, self._stubs.definitions
        job_id = self.known.by_field["job_id"][0]
        pages: list[Any] = [
            await jobs.ListJobs(job_service_pb2.ListJobsRequest(page_size=1), timeout=S),
            await jobs.GetJobHistory(job_service_pb2.GetJobHistoryRequest(job_id=job_id, page_size=1), timeout=S),
            await definitions.ListDefinitions(definition_service_pb2.ListDefinitionsRequest(page_size=1), timeout=S),
        ]
        self.known.add("page_token", "", *(page.next_page_token for page in pages))

    async def settle(self) -> None:
        """Until what the last call left behind is decided."""
        await nodes.eventually(self._no_streams)
        for _ in range(2):
            await self._node._shard.call(CloseStream("nobody", 1))

    async def _no_streams(self) -> bool:
        return self._node._sessions._count == 0

    async def ask(self, service: str, method: MethodDescriptor, asked: list[Message]) -> None:
        """Call, and look at what came of it."""
        self._batches.clear()
        try:
            await self._call(service, method, asked)
        except grpc.aio.AioRpcError as error:
            reason = _reason(error)
            await self.settle()
            if reason and reason not in STORED_BEFORE and not method.client_streaming:
                assert self._batches == [], f"refused with {reason}, and stored all the same"
        else:
            await self.settle()
        counters = self._node.counters
        failures = (counters.call_failures, counters.rule_failures, counters.delivery_failures)
        assert failures == (0, 0, 0), "a call, a rule, a delivery failed inside"

    async def _call(self, service: str, method: MethodDescriptor, asked: list[Message]) -> None:
        path = f"/stepward.v1.{service}/{method.name}"
        raw = [one.SerializeToString() for one in asked]
        parse: Any = GetMessageClass(method.output_type).FromString
        channel: Any = self._stubs.channel
        if method.client_streaming:
            await _talk(channel.stream_stream(path, response_deserializer=parse)(timeout=S), raw)
        elif method.server_streaming:
            call = channel.unary_stream(path, response_deserializer=parse)(raw[0], timeout=WAIT_S)
            async for _ in call:
                pass
        else:
            timeout_s = WAIT_S if method.name in WAITS else S
            await channel.unary_unary(path, response_deserializer=parse)(raw[0], timeout=timeout_s)


async def _talk(call: Any, raw: list[bytes]) -> None:
    """Send everything, close our side, and hear the other to its end."""
    for one in raw:
        # A stream that was refused takes nothing more; why, the reading tells.
        with contextlib.suppress(asyncio.InvalidStateError, grpc.aio.AioRpcError):
            await call.write(one)
    with contextlib.suppress(asyncio.InvalidStateError, grpc.aio.AioRpcError):
        await call.done_writing()
    async for _ in call:
        pass


def _reason(error: grpc.aio.AioRpcError) -> str:
    """The reason of a refusal, of which there is exactly one; empty when the caller ended the call himself."""
    code = error.code()
    if error.details() == OWN_DETAILS:
        return ""
    assert code not in (grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN), error
    metadata = dict(error.trailing_metadata() or ())
    if "grpc-status-details-bin" not in metadata:
        assert code in OWN_CODES, error
        return ""
    assert sum(len(key) + len(value) for key, value in metadata.items()) < 8_192
    return nodes.refusal(error).reason


def _fails_bad(offer: agent_service_pb2.Offer) -> agent_service_pb2.AttemptReport:
    return failed(offer) if offer.action == "bad" else succeeds(offer)


def _holds(offer: agent_service_pb2.Offer) -> agent_service_pb2.AttemptReport:
    return agent_service_pb2.AttemptReport(attempt=offer.attempt, started=agent_service_pb2.Started())


def asked_of(method: MethodDescriptor, known: Known) -> st.SearchStrategy[list[Message]]:
    """What is sent in one call: one message, or on a stream a hello and what follows."""
    one = requests(method.input_type, known)
    if not method.client_streaming:
        return one.map(lambda message: [message])
    hello = requests(method.input_type, known, oneof="hello")
    follows = st.lists(one, max_size=3)
    return st.one_of(
        st.tuples(hello, follows).map(lambda drawn: [drawn[0], *drawn[1]]), st.lists(one, min_size=1, max_size=2)
    )


@pytest.mark.parametrize("name", METHODS)
def test_whatever_is_asked(name: str, tmp_path: Path, pytestconfig: pytest.Config) -> None:
    """The same requests each time; with --slow many more, and others each time."""
    method, slow = METHODS[name], bool(pytestconfig.getoption("--slow"))

    with asyncio.Runner() as runner:
        opened = Desk.opened(tmp_path / "data")
        desk = runner.run(opened.__aenter__())

        @settings(
            max_examples=EXAMPLES_SLOW if slow else EXAMPLES,
            derandomize=not slow,
            deadline=None,
            database=None,
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
        )
        @given(asked_of(method, desk.known))
        def call(asked: list[Message]) -> None:
            runner.run(desk.ask(name.partition("/")[0], method, asked))

        try:
            call()
        finally:
            runner.run(opened.__aexit__(None, None, None))
