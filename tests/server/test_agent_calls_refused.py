"""What calls of agents without streaming are refused for."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
import pytest_asyncio
from google.protobuf.duration_pb2 import Duration

from stepward.server.agent_calls import AgentCalls
from stepward.server.clock import ManualClock
from stepward.server.config import NodeConfig
from stepward.server.core.commands import CloseStream, SessionOpened
from stepward.server.core.limits import Limits
from stepward.server.observe import Counters
from stepward.server.tickets import Ticket
from stepward.v1 import agent_service_pb2 as pb
from stepward.v1 import definition_pb2
from tests.server import nodes
from tests.server.host import admission
from tests.server.nodes import CALL_S_MAX, Stubs, refused
from tests.server.plain_agent import succeeds
from tests.server.unary_agent import NO_WAIT, UnaryAgent, listens, submit

S = CALL_S_MAX
SESSION = "session-of-the-test-1"


@pytest_asyncio.fixture
async def stubs(tmp_path: Path) -> AsyncIterator[Stubs]:
    """A connection to a node that knows the definition `one`."""
    async with nodes.running(tmp_path / "data") as node, nodes.connected(node.address) as stubs:
        await nodes.define(stubs, "one", definition_pb2.Step(id="one"))
        yield stubs


@pytest.mark.parametrize("generation", [0, 1, 3])
async def test_wrong_generation_is_refused(stubs: Stubs, generation: int) -> None:
    """As a stream of it would be closed. An older one that asks for work gets a newer one."""
    worker = UnaryAgent(stubs, "one", session_id=SESSION)
    await worker.lease(NO_WAIT)
    await worker.lease(NO_WAIT, generation=0)
    await submit(stubs)
    await worker.lease(NO_WAIT)
    (offer,) = worker.held.values()
    worker.generation = generation

    assert (await refused(worker.renew())).reason == "SESSION_ENDED"
    answer = await refused(worker.report(succeeds(offer)))
    assert (answer.reason, answer.metadata["generation"]) == ("SESSION_ENDED", "2")


async def test_session_that_is_over_is_not_made_anew(stubs: Stubs) -> None:
    """Who knows a generation of a session that no row knows begins with a new session; so does one who renews it."""
    worker = UnaryAgent(stubs, "one")
    worker.generation = 3

    assert (await refused(worker.lease(NO_WAIT))).reason == "SESSION_ENDED"
    assert (await refused(worker.renew())).reason == "SESSION_ENDED"


HELLO: dict[str, Any] = {"protocol_version": 1, "session_id": SESSION, "actions": ["one"], "slots": 1}
REFS = [pb.AttemptRef(job_id="0-0", step_id="one", token=1)]


@pytest.mark.parametrize(
    ("request_", "fields"),
    [
        (pb.LeaseWorkRequest(hello=pb.Hello(**HELLO | {"slots": 0, "queue": "\x00"})), ["hello.queue", "hello.slots"]),
        (pb.LeaseWorkRequest(hello=pb.Hello(**HELLO | {"held": REFS * 10_001})), ["hello.held"]),
        (pb.LeaseWorkRequest(hello=pb.Hello(**HELLO), cancelled=REFS * 10_001), ["cancelled"]),
        (pb.LeaseWorkRequest(hello=pb.Hello(**HELLO), wait_max=Duration(seconds=-1)), ["wait_max"]),
        (pb.RenewSessionRequest(session_id="a\x00b"), ["session_id"]),
        (pb.RenewSessionRequest(session_id=SESSION, heartbeat=pb.Heartbeat(held=REFS * 10_001)), ["heartbeat.held"]),
        (pb.ReportAttemptsRequest(session_id=""), ["session_id"]),
    ],
)
async def test_call_breaks_a_rule(stubs: Stubs, request_: Any, fields: list[str]) -> None:
    """The refusal names the field."""
    name = type(request_).__name__.removesuffix("Request")
    answer = await refused(getattr(stubs.agents, name)(request_, timeout=S))

    assert (answer.code, answer.reason) == (grpc.StatusCode.INVALID_ARGUMENT, "INVALID_ARGUMENT")
    assert [field for field, _ in answer.violations] == fields


async def test_as_much_as_may_be_said_is_heard(stubs: Stubs) -> None:
    """At the bound of what is held, all of it is answered for."""
    refs = [pb.AttemptRef(job_id=f"0-{n:032x}", step_id="one", token=1) for n in range(10_000)]
    answer = await UnaryAgent(stubs, "one").lease(held=refs)

    assert len(answer.cancels) == 10_000


async def test_other_protocol_version(stubs: Stubs) -> None:
    """Tells which one is spoken."""
    answer = await refused(UnaryAgent(stubs, "one").lease(protocol_version=2))

    assert (answer.reason, answer.metadata["protocol_version"]) == ("PROTOCOL_VERSION", "1")


async def test_waiting_calls_are_bounded(tmp_path: Path) -> None:
    """At the bound is served, one past it is asked to come back, and there is room when one has gone."""
    limits = Limits(session_ttl_ms=60_000)
    async with (
        nodes.running(tmp_path / "data", limits=limits, lease_waits_max=2) as node,
        nodes.connected(node.address) as stubs,
    ):
        waiting = [asyncio.ensure_future(UnaryAgent(stubs, "one").lease(Duration(seconds=8))) for _ in range(2)]
        await listens(stubs, 2)
        answer = await refused(UnaryAgent(stubs, "one").lease(NO_WAIT))
        waiting[0].cancel()
        await listens(stubs, 1)
        after = await UnaryAgent(stubs, "one").lease(NO_WAIT)
        waiting[1].cancel()

    assert (answer.code, answer.reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "OVERLOADED")
    assert answer.retry_after_ms > 0
    assert after.welcome.generation == 1


class OpeningShard:
    """As much of a shard as opening a session asks for: it answers when the test does."""

    leads = True

    def __init__(self) -> None:
        self.proposed: list[tuple[object, Ticket]] = []

    def on_applied(self, listener: object) -> None:
        """Nothing is."""

    def propose(self, command: object, ticket: Ticket) -> None:
        self.proposed.append((command, ticket))


async def test_agent_that_leaves_while_its_session_is_opened_closes_it_only_if_it_was_the_last() -> None:
    """The answer that comes too late names a generation which another call may listen for."""
    shard, config = OpeningShard(), NodeConfig(data=Path())
    calls = AgentCalls(
        shard,  # type: ignore[arg-type]  # all that is asked of it
        node_id="n1",
        clock=ManualClock(steady_ms=0, wall_ms=0),
        limits=Limits(),
        config=config,
        counters=Counters(),
        admission=admission(config),
    )
    hello = pb.LeaseWorkRequest(hello=pb.Hello(**HELLO))
    leaving, staying = (asyncio.create_task(calls.lease_work(hello, wait_ms_max=0)) for _ in range(2))
    await asyncio.sleep(0)
    (_, first), (_, second) = shard.proposed
    shard.proposed.clear()
    closed: list[list[object]] = []
    for task, ticket in ((leaving, first), (staying, second)):
        task.cancel()
        await asyncio.wait((task,))
        ticket.answered(SessionOpened(generation=1, ttl_ms=3_000))
        closed.append([command for command, _ in shard.proposed])

    assert closed == [[], [CloseStream(SESSION, 1)]]


async def test_reports_that_wait_are_bounded(tmp_path: Path) -> None:
    """One set alone is always taken; one more while it waits is to be reported again."""
    async with (
        nodes.running(tmp_path / "data", report_bytes_waiting_max=1) as node,
        nodes.connected(node.address) as stubs,
    ):
        worker = UnaryAgent(stubs, "one")
        await worker.lease(NO_WAIT)
        report = pb.AttemptReport(attempt=pb.AttemptRef(job_id="0-" + "0" * 32, step_id="one", token=1))
        report.started.SetInParent()
        told = await asyncio.gather(*(worker.report(report) for _ in range(50)), return_exceptions=True)
        alone = await worker.report(report)

    results = [nodes.refusal(one).reason if isinstance(one, grpc.aio.AioRpcError) else "OK" for one in told]
    assert results.count("OK") >= 1
    assert set(results) == {"OK", "OVERLOADED"}
    assert [one.result for one in alone] == [pb.REPORT_RESULT_NOT_FOUND]
