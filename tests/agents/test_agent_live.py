"""An agent in this process, against a stub server over real sockets."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import msgspec
import pytest

from stepward.agents import Agent, AgentError, AgentRefused, Context, DefinitionRefused, Permanent, RetryAfter, Unknown
from stepward.agents.connection import Connection
from stepward.agents.handlers import Handlers
from stepward.agents.lag import StallWatch
from stepward.agents.runner import Runner
from stepward.agents.session import Session
from stepward.v1 import agent_service_pb2 as wire
from stepward.v1 import definition_pb2
from tests.agents.played import offer, ref
from tests.agents.stub import BOUND_S, Stub, new_stub, until


@pytest.fixture
async def stub() -> AsyncIterator[Stub]:
    server = new_stub()
    await server.start()
    yield server
    await server.stop()


@asynccontextmanager
async def serving(agent: Agent, *addresses: str) -> AsyncIterator[asyncio.Task[int]]:
    """The agent at work. It is drained at the end, so that nothing of it is left."""
    task = asyncio.create_task(agent.serve(addresses))
    try:
        yield task
    finally:
        agent.drain()
        with suppress(AgentError):
            async with asyncio.timeout(BOUND_S):
                await task


def trip() -> Agent:
    """An agent with one handler of each kind of end."""
    agent = Agent(queue="trip", slots=4, drain_timeout_seconds=0.5)

    @agent.action
    async def book(ctx: Context, who: str, days: int = 2) -> dict[str, object]:
        return {"who": who, "days": days, "key": ctx.idempotency_key, "thread": threading.current_thread().name}

    @agent.action
    def book_on_thread(who: str) -> str:
        return f"{who} on {threading.current_thread().name}"

    @agent.action
    async def give_up() -> None:
        raise Permanent("no seat", kind="Full")

    @agent.action
    def come_back() -> None:
        raise RetryAfter(1.5, "busy")

    @agent.action
    async def guess() -> None:
        raise Unknown("no answer", kind="Timeout")

    @agent.action
    def break_down() -> None:
        raise LookupError("no such row")

    @agent.action
    async def wait(ctx: Context) -> str:
        ctx.progress({"percent": 10})
        await asyncio.Event().wait()
        return "never"

    return agent


async def test_handlers_get_typed_input_and_their_output_is_reported(stub: Stub) -> None:
    async with serving(trip(), stub.address):
        stream = await stub.stream()
        stream.offer(
            offer("a", 1, action="book", input=b'{"who": "Ada", "more": 1}'),
            offer("b", 1, action="book-on-thread", input=b'{"who": "Bob"}'),
        )
        a = await stream.reported("a", "succeeded")
        b = await stream.reported("b", "succeeded")

    output = msgspec.json.decode(a.succeeded.output.data)
    assert output["who"] == "Ada"
    assert output["days"] == 2
    assert output["key"] == "0-job/a/1"
    assert not output["thread"].startswith("stepward")
    assert msgspec.json.decode(b.succeeded.output.data).startswith("Bob on stepward-handler")
    assert stream.hello.actions == sorted(stream.hello.actions)
    assert stream.hello.slots == 4


@pytest.mark.parametrize(
    ("installed", "module"),
    [
        (True, "uvloop"),
        # As after a plain install.
        (False, "asyncio"),
    ],
)
async def test_agent_works_with_and_without_uvloop(
    stub: Stub, monkeypatch: pytest.MonkeyPatch, installed: bool, module: str
) -> None:
    """It is used where it is there, on the I/O thread alone: the loop of handlers is theirs."""
    loops: set[str] = set()
    run = Runner.run

    async def noting(runner: Runner, handlers: Handlers) -> int:
        loops.add(type(asyncio.get_running_loop()).__module__.partition(".")[0])
        return await run(runner, handlers)

    monkeypatch.setattr(Runner, "run", noting)
    if not installed:
        monkeypatch.setitem(sys.modules, "uvloop", None)
    async with serving(trip(), stub.address):
        stream = await stub.stream()
        stream.offer(offer("a", 1, action="book", input=b'{"who": "Ada"}'))
        await stream.reported("a", "succeeded")

    assert loops == {module}


@pytest.mark.parametrize(
    ("action", "expected"),
    [
        ("give-up", wire.Failed(kind="Full", message="no seat", retryable=False)),
        (
            "break-down",
            wire.Failed(kind="LookupError", message="no such row", retryable=True, may_have_happened=True),
        ),
    ],
)
async def test_exceptions_become_failures(stub: Stub, action: str, expected: wire.Failed) -> None:
    async with serving(trip(), stub.address):
        stream = await stub.stream()
        stream.offer(offer("a", 1, action=action))
        report = await stream.reported("a", "failed")

    assert report.failed == expected


async def test_retry_after_and_unknown_are_told(stub: Stub) -> None:
    async with serving(trip(), stub.address):
        stream = await stub.stream()
        stream.offer(offer("a", 1, action="come-back"), offer("b", 1, action="guess"))
        failed = (await stream.reported("a", "failed")).failed
        unknown = (await stream.reported("b", "unknown")).unknown

    assert failed.retryable
    assert failed.retry_after.ToMilliseconds() == 1_500
    assert (unknown.kind, unknown.message) == ("Timeout", "no answer")


async def test_wrong_input_is_a_permanent_failure_that_names_the_place(stub: Stub) -> None:
    async with serving(trip(), stub.address):
        stream = await stub.stream()
        stream.offer(offer("a", 1, action="book", input=b'{"who": "Ada", "days": "two"}'))
        failed = (await stream.reported("a", "failed")).failed

    assert failed.kind == "INVALID_INPUT"
    assert "$.days" in failed.message
    assert not failed.retryable


async def test_cancel_reaches_an_async_handler_and_progress_travels(stub: Stub) -> None:
    """H024: within moments, whether it reports progress or not."""
    async with serving(trip(), stub.address):
        stream = await stub.stream()
        stream.offer(offer("a", 1, action="wait"))
        progress = await stream.reported("a", "progress")
        stream.cancel(ref("a", 1))
        await stream.reported("a", "stopped")

    assert progress.progress.details.data == b'{"percent":10}'


async def test_agent_resumes_its_session_when_the_node_is_back(stub: Stub) -> None:
    """The handler goes on meanwhile, and nothing is lost."""
    stub.ttl_ms = 60_000
    async with serving(trip(), stub.address):
        first = await stub.stream()
        first.offer(offer("a", 1, action="wait"))
        await first.reported("a", "started")
        await stub.stop()
        await stub.start()
        second = await stub.stream(2)
        second.cancel(ref("a", 1))
        await second.reported("a", "stopped")

    assert second.hello.session_id == first.hello.session_id
    assert [one.step_id for one in second.hello.held] == ["a"]


async def test_agent_leaves_a_node_that_does_not_acknowledge(stub: Stub) -> None:
    """H013: the stream is open and silent. The session moves to another node before its lease ends."""
    other = new_stub()
    await other.start()
    try:
        async with serving(trip(), stub.address, other.address):
            await until(lambda: bool(stub.streams or other.streams))
            silent, answering = (stub, other) if stub.streams else (other, stub)
            first = await silent.stream()
            silent.acknowledges = False
            second = await answering.stream()
    finally:
        await other.stop()

    assert second.hello.session_id == first.hello.session_id


async def test_server_that_refuses_is_not_a_missing_one(stub: Stub, caplog: pytest.LogCaptureFixture) -> None:
    """A full disk refuses every hello for a while: to start another server would be the wrong advice."""
    stub.refusal = "DISK_FULL"
    async with serving(trip(), stub.address):
        await until(lambda: "stream_ended" in caplog.text)

    assert "reason=DISK_FULL" in caplog.text
    assert "start a server" not in caplog.text


async def test_refused_session_is_followed_by_a_new_one(stub: Stub) -> None:
    async with serving(trip(), stub.address):
        first = await stub.stream()
        stub.refusal = "SESSION_ENDED"
        first.end()
        await until(lambda: stub.refused > 0)
        stub.refusal = ""
        await until(lambda: len({one.hello.session_id for one in stub.streams}) == 2)


async def test_drain_tells_the_node_and_ends_in_order(stub: Stub) -> None:
    """H070, H071: what runs gets its time, is stopped, and is said to have been stopped by the drain."""
    agent = trip()
    async with serving(agent, stub.address) as task:
        stream = await stub.stream()
        stream.offer(offer("a", 1, action="wait"))
        await stream.reported("a", "started")
        agent.drain()
        code = await asyncio.wait_for(task, BOUND_S)

    assert code == 0
    assert stream.drained
    assert (await stream.reported("a", "stopped")).stopped.draining
    assert "succeeded" not in stream.events("a")


async def test_cancelled_serve_drains(stub: Stub) -> None:
    """An application that is ended by its framework hands its work back, too."""
    agent = trip()
    task = asyncio.create_task(agent.serve([stub.address]))
    stream = await stub.stream()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

    assert stream.drained


async def test_definitions_are_applied_before_the_hello(stub: Stub) -> None:
    definition = definition_pb2.Definition(name="trip", steps=[definition_pb2.Step(id="a")])
    agent = Agent(definitions=[definition], namespace="tests")
    agent.action("a")(lambda: None)
    async with serving(agent, stub.address):
        await stub.stream()
        applied = list(stub.definitions)

    assert [(one.namespace, one.definition.name) for one in applied] == [("tests", "trip")]


async def test_refused_definition_ends_the_agent_and_lists_what_is_wrong(stub: Stub) -> None:
    stub.definition_refusal = "INVALID_DEFINITION"
    agent = Agent(definitions=[definition_pb2.Definition(name="trip")])
    agent.action("a")(lambda: None)

    with pytest.raises(DefinitionRefused, match=r"'trip'.*\n.*steps\[0\]\.id: is empty"):
        await agent.serve([stub.address])


async def test_definition_file_that_cannot_be_read_ends_the_agent(stub: Stub, tmp_path: Path) -> None:
    agent = Agent(definitions=[tmp_path / "none.yaml"])
    agent.action("a")(lambda: None)

    with pytest.raises(DefinitionRefused, match=r"none\.yaml"):
        await agent.serve([stub.address])


@pytest.mark.parametrize("reason", ["INVALID_ARGUMENT", "PROTOCOL_VERSION"])
async def test_hello_that_will_never_be_accepted_ends_the_agent(stub: Stub, reason: str) -> None:
    stub.refusal = reason

    with pytest.raises(AgentRefused, match=reason):
        await trip().serve([stub.address])


async def test_blocked_loop_is_said(stub: Stub, caplog: pytest.LogCaptureFixture) -> None:
    """The log says what is wrong and what to do. This test's loop is the agent's and blocks for a moment."""
    async with serving(trip(), stub.address):
        await stub.stream()
        blocked = threading.Event()
        said = threading.Thread(target=lambda: _wait_for_log(caplog, blocked))
        said.start()
        # The loop stands still until the agent has noticed.
        assert blocked.wait(BOUND_S)
        said.join()
        await until(lambda: "loop_unblocked" in caplog.text)

    assert "make it a plain function" in caplog.text
    # This test is no handler, and its stack shows where it waits.
    assert "It is at code of no handler" in caplog.text
    assert "assert blocked.wait(BOUND_S)" in caplog.text


def _wait_for_log(caplog: pytest.LogCaptureFixture, seen: threading.Event) -> None:
    for _ in range(int(BOUND_S * 100)):
        if "loop_blocked" in caplog.text:
            seen.set()
            return
        threading.Event().wait(0.01)


async def test_lifespan_and_hooks_surround_the_work(stub: Stub) -> None:
    happened: list[str] = []

    @asynccontextmanager
    async def lifespan() -> AsyncIterator[None]:
        happened.append("entered")
        yield
        happened.append("left")

    agent = Agent(lifespan=lifespan)
    agent.on_start(lambda: happened.append("hook"))

    @agent.action
    async def work() -> None:
        happened.append("handler")

    async with serving(agent, stub.address):
        stream = await stub.stream()
        stream.offer(offer("a", 1))
        await stream.reported("a", "succeeded")

    assert happened == ["entered", "hook", "handler", "left"]


@pytest.mark.parametrize("broken", ["tick", "received", "handler_ended"])
async def test_h013_broken_io_thread_ends_the_process(stub: Stub, monkeypatch: pytest.MonkeyPatch, broken: str) -> None:
    """H013: a bug of ours in any of its callbacks. Nobody would notice the end of the lease, so the process ends."""
    codes: list[int] = []
    monkeypatch.setattr(os, "_exit", codes.append)
    monkeypatch.setattr(Session, broken, break_down)
    task = asyncio.create_task(trip().serve([stub.address]))
    if broken == "handler_ended":
        (await stub.stream()).offer(offer("a", 1, action="give-up"))

    with pytest.raises(ZeroDivisionError):
        await asyncio.wait_for(task, BOUND_S)
    assert codes == [70]


async def test_h013_broken_writer_ends_the_process(stub: Stub, monkeypatch: pytest.MonkeyPatch) -> None:
    """H013: a bug of ours is not taken for the end of a stream, which would only be followed by another."""
    codes: list[int] = []

    async def broken(connection: Connection, call: object) -> None:
        break_down()

    monkeypatch.setattr(os, "_exit", codes.append)
    monkeypatch.setattr(Connection, "_write", broken)
    task = asyncio.create_task(trip().serve([stub.address]))

    with pytest.raises(ZeroDivisionError):
        await asyncio.wait_for(task, BOUND_S)
    assert codes == [70]


async def test_handler_that_held_the_interpreter_is_named_also_when_it_is_the_first_to_be_heard(
    stub: Stub, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Whether its end is heard before the next tick is chance."""
    held = threading.Event()

    def woke(watch: StallWatch, now_ms: int, *, cpu_ms: Callable[[], int], ttl_ms: int) -> str:
        was_held = held.is_set()
        held.clear()
        return "for_ms=9000" if was_held else ""

    monkeypatch.setattr(StallWatch, "woke", woke)
    agent = trip()
    agent.action("culprit")(held.set)
    async with serving(agent, stub.address):
        stream = await stub.stream()
        stream.offer(offer("a", 1, action="culprit"))
        await stream.reported("a", "succeeded")

    assert "interpreter_blocked for_ms=9000 lease=runs handlers=culprit:" in caplog.text


def break_down(*arguments: object) -> None:
    raise ZeroDivisionError


@pytest.mark.parametrize("slots", [0, 10_001])
async def test_slots_have_bounds(slots: int) -> None:
    agent = Agent(slots=slots)
    agent.action("a")(lambda: None)

    with pytest.raises(AgentError, match=f"slots is {slots}; it must be between 1 and 10000"):
        await agent.serve(["localhost:1"])


async def test_agent_without_actions_is_refused() -> None:
    with pytest.raises(AgentError, match="0 actions"):
        await Agent().serve(["localhost:1"])


async def test_address_must_come_in_a_list() -> None:
    """A string would be taken for many short addresses."""
    with pytest.raises(AgentError, match="must be a list"):
        await trip().serve("localhost:7654")
