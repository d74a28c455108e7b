"""Handlers in processes of their own, against a stub server over real sockets."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from stepward.agents import Agent, handler_frames, handler_process
from stepward.v1 import agent_service_pb2 as wire
from stepward.v1 import common_pb2
from tests.agents import isolated
from tests.agents.played import offer, ref
from tests.agents.stub import BOUND_S, Stub, new_stub, until
from tests.agents.test_agent_live import serving
from tests.agents.test_worker import ROOT, alive, ended, ready, running, worker


@pytest.fixture
async def stub() -> AsyncIterator[Stub]:
    # Long enough for a busy machine; what is about the end of a lease has its own.
    server = new_stub()
    server.ttl_ms = 6_000
    await server.start()
    yield server
    await server.stop()


@pytest.fixture
def agent() -> Agent:
    """One that has not served yet, with the handlers of the module."""
    fresh = Agent(queue="isolated", slots=2, drain_timeout_seconds=0.5)
    for action in isolated.agent.actions.values():
        fresh.action(action.name, process=action.in_process)(action.function)
    return fresh


def told(report: wire.AttemptReport) -> Any:
    found: Any = msgspec.json.decode(report.succeeded.output.data)
    return found


def as_json(**fields: object) -> bytes:
    return msgspec.json.encode(fields)


async def begun(path: Path) -> int:
    """Wait until a handler has written its process id."""

    def pid() -> int:
        said = path.read_text() if path.exists() else ""
        return int(said) if said.isdigit() else 0

    await until(lambda: pid() > 0)
    return pid()


async def test_process_gets_the_attempt_and_is_used_again(stub: Stub, agent: Agent) -> None:
    """What a handler on a thread sees, and none of the agent's own process."""
    async with serving(agent, stub.address):
        stream = await stub.stream()
        first = offer("a", 7, action="tell", input=b'{"who":"Ada"}')
        first.last_progress.CopyFrom(common_pb2.Payload(data=b'{"percent":18446744073709551616}'))
        stream.offer(first)
        a = told(await stream.reported("a", "succeeded"))
        stream.offer(offer("b", 8, action="tell", input=b'{"who":"Bob"}'))
        b = told(await stream.reported("b", "succeeded"))

    assert a == {
        "who": "Ada",
        "pid": a["pid"],
        "key": "0-job/a/1",
        "token": 7,
        "attempt": 1,
        "last": {"percent": 18446744073709551616},
        "cancelled": False,
    }
    assert a["pid"] == b["pid"] != os.getpid()
    assert not alive(a["pid"])


async def test_as_many_processes_as_handlers_run(stub: Stub, agent: Agent, tmp_path: Path) -> None:
    async with serving(agent, stub.address):
        stream = await stub.stream()
        paths = [tmp_path / "a", tmp_path / "b"]
        stream.offer(*(offer(path.name, 1, action="hold", input=as_json(path=str(path))) for path in paths))
        pids = [await begun(path) for path in paths]
        for path in paths:
            stream.cancel(ref(path.name, 1))
            await stream.reported(path.name, "stopped")

    assert pids[0] != pids[1]


async def test_signs_of_life_come_through(stub: Stub, agent: Agent, tmp_path: Path) -> None:
    """However many the handler gives, few travel."""
    path = tmp_path / "enough"
    async with serving(agent, stub.address):
        stream = await stub.stream()
        stream.offer(offer("a", 1, action="beat", input=as_json(path=str(path)), heartbeat_timeout_ms=900))
        await until(lambda: stream.events("a").count("progress") >= 3)
        path.touch()
        await stream.reported("a", "succeeded")

    progress = [one.progress for one in stream.reports if one.HasField("progress")]
    assert progress[0].details.data == b'{"percent":40}'
    assert not any(one.HasField("details") for one in progress[1:])
    assert len(progress) < 20


async def test_what_a_handler_leaves_running_does_not_speak_for_the_next_one(
    stub: Stub, agent: Agent, tmp_path: Path
) -> None:
    """Its process is used again; the next attempt would find the details of another step in `last_progress`."""
    path = tmp_path / "enough"
    async with serving(agent, stub.address):
        stream = await stub.stream()
        stream.offer(offer("a", 1, action="leave-a-voice"))
        await stream.reported("a", "succeeded")
        stream.offer(offer("b", 2, action="beat", input=as_json(path=str(path)), heartbeat_timeout_ms=600))
        await until(lambda: stream.events("b").count("progress") >= 3)
        path.touch()
        await stream.reported("b", "succeeded")

    said = {one.progress.details.data for one in stream.reports if one.attempt.step_id == "b"}
    assert said == {b"", b'{"percent":40}'}


async def test_h024_busy_process_is_interrupted_where_it_stands(stub: Stub, agent: Agent, tmp_path: Path) -> None:
    """H024: it asks for nothing and looks at nothing; it may clean up, and its process is not used again."""
    path = tmp_path / "spin"
    async with serving(agent, stub.address):
        stream = await stub.stream()
        stream.offer(offer("a", 1, action="spin", input=as_json(path=str(path))))
        pid = await begun(path)
        stream.cancel(ref("a", 1))
        await stream.reported("a", "stopped")
        stream.offer(offer("b", 2, action="tell", input=b'{"who":"Bob"}'))
        other = told(await stream.reported("b", "succeeded"))

    assert path.read_text() == "cleaned up"
    assert other["pid"] != pid
    assert not alive(pid)


@pytest.mark.parametrize("action", ["insist", "beat-hard"])
async def test_what_an_interrupted_handler_says_deliberately_is_believed(
    stub: Stub, agent: Agent, tmp_path: Path, action: str
) -> None:
    """Also when it is interrupted while it speaks: half a sentence would make the rest unreadable."""
    path = tmp_path / "insist"
    async with serving(agent, stub.address):
        stream = await stub.stream()
        stream.offer(offer("a", 1, action=action, input=as_json(path=str(path))))
        await begun(path)
        stream.cancel(ref("a", 1))
        failed = (await stream.reported("a", "failed")).failed

    assert (failed.kind, failed.retryable, failed.may_have_happened) == ("Withdrawn", False, False)


async def test_h113_process_that_does_not_stop_is_killed_and_then_its_slot_is_free(
    stub: Stub, agent: Agent, tmp_path: Path
) -> None:
    """H113: it holds the interpreter, so nothing but the kernel can end it; the agent and its neighbours go on."""
    path = tmp_path / "hold"
    async with serving(agent, stub.address) as task:
        stream = await stub.stream()
        stream.offer(offer("a", 1, action="hold", input=as_json(path=str(path))))
        pid = await begun(path)
        stream.cancel(ref("a", 1))
        stream.offer(offer("b", 2, action="beside"))
        neighbour = told(await stream.reported("b", "succeeded"))
        await stream.reported("a", "stopped")
        gone = not alive(pid)
        stream.offer(offer("c", 3, action="tell", input=b'{"who":"Cyd"}'))
        await stream.reported("c", "succeeded")
        serves_on = not task.done()

    assert neighbour == os.getpid()
    assert (gone, serves_on) == (True, True)


@pytest.mark.parametrize(
    ("how", "says"),
    [
        ("SIGSEGV", "signal 11 (SIGSEGV) has ended it"),
        # As the kernel does when memory is short.
        ("SIGKILL", "signal 9 (SIGKILL) has ended it"),
        ("_exit", "it has exited with code 3"),
        ("exit", "it has exited with code 4"),
        # A child of the handler holds the socket open; it is gone, too.
        ("fork", "it has exited with code 5"),
    ],
)
async def test_process_that_dies_leaves_an_unknown_outcome(stub: Stub, agent: Agent, how: str, says: str) -> None:
    """It may have done its work just before. The agent is not affected."""
    async with serving(agent, stub.address):
        stream = await stub.stream()
        stream.offer(offer("a", 1, action="die", input=as_json(how=how)))
        unknown = (await stream.reported("a", "unknown")).unknown
        stream.offer(offer("b", 2, action="tell", input=b'{"who":"Bob"}'))
        await stream.reported("b", "succeeded")

    assert unknown.kind == "PROCESS_DIED"
    assert says in unknown.message


@pytest.mark.parametrize(
    ("action", "expected"),
    [
        ("refuse", wire.Failed(kind="Full", message="no seat", retryable=False)),
        (
            "break-down",
            wire.Failed(kind="LookupError", message="no such row", retryable=True, may_have_happened=True),
        ),
    ],
)
async def test_exceptions_are_those_of_any_handler(
    stub: Stub, agent: Agent, action: str, expected: wire.Failed
) -> None:
    async with serving(agent, stub.address):
        stream = await stub.stream()
        stream.offer(offer("a", 1, action=action))
        failed = (await stream.reported("a", "failed")).failed

    assert failed == expected


async def test_wrong_input_never_happened(stub: Stub, agent: Agent) -> None:
    async with serving(agent, stub.address):
        stream = await stub.stream()
        stream.offer(offer("a", 1, action="tell", input=b'{"who":7}'))
        failed = (await stream.reported("a", "failed")).failed

    assert (failed.kind, failed.retryable, failed.may_have_happened) == ("INVALID_INPUT", False, False)


async def test_module_that_cannot_be_imported_never_happened(stub: Stub, agent: Agent, tmp_path: Path) -> None:
    """The handler was not called, and it may be another time: here, its module wants something that is away."""
    broken = Path(isolated.__file__).with_suffix(".broken")
    broken.touch()
    try:
        async with serving(agent, stub.address):
            stream = await stub.stream()
            stream.offer(offer("a", 1, action="tell", input=b'{"who":"Ada"}'))
            failed = (await stream.reported("a", "failed")).failed
            broken.unlink()
            stream.offer(offer("b", 2, action="tell", input=b'{"who":"Bob"}'))
            await stream.reported("b", "succeeded")
    finally:
        broken.unlink(missing_ok=True)

    assert (failed.kind, failed.retryable, failed.may_have_happened) == ("NOT_STARTED", True, False)
    assert "ConnectionRefusedError: the database is down" in failed.message


async def test_process_that_died_at_rest_costs_no_attempt(stub: Stub, agent: Agent) -> None:
    async with serving(agent, stub.address):
        stream = await stub.stream()
        stream.offer(offer("a", 1, action="tell", input=b'{"who":"Ada"}'))
        pid = told(await stream.reported("a", "succeeded"))["pid"]
        os.kill(pid, signal.SIGKILL)
        stream.offer(offer("b", 2, action="tell", input=b'{"who":"Bob"}'))
        other = told(await stream.reported("b", "succeeded"))

    assert other["pid"] != pid
    assert set(stream.events("b")) <= {"started", "succeeded"}


async def test_process_that_writes_rubbish_is_ended(stub: Stub, agent: Agent) -> None:
    """What it did is not known."""
    async with serving(agent, stub.address):
        stream = await stub.stream()
        stream.offer(offer("a", 1, action="write-rubbish"))
        unknown = (await stream.reported("a", "unknown")).unknown

    assert unknown.kind == "PROCESS_DIED"


async def test_lost_lease_ends_the_process_and_not_the_agent(agent: Agent, tmp_path: Path) -> None:
    """A thread that does not stop takes the agent with it; a process does not."""
    stub = new_stub()
    await stub.start()
    path = tmp_path / "hold"
    async with serving(agent, stub.address) as task:
        stream = await stub.stream()
        stream.offer(offer("a", 1, action="hold", input=as_json(path=str(path)), idempotent=False))
        pid = await begun(path)
        stub.acknowledges = stub.welcomes = False
        await until(lambda: not alive(pid))
        stub.acknowledges = stub.welcomes = True
        await until(lambda: any("stopped" in one.events("a") for one in stub.streams))
        serves_on = not task.done()
    await stub.stop()

    assert serves_on


async def test_process_ends_with_its_agent_whatever_it_does(stub: Stub, tmp_path: Path) -> None:
    """Killed with -9, the agent can do nothing; the process holds the interpreter, so it cannot either."""
    paths = {"hold": tmp_path / "hold", "spin": tmp_path / "spin"}
    async with running(*worker(stub, target="tests.agents.isolated")) as process:
        await ready(process)
        stream = await stub.stream()
        stream.offer(*(offer(name, 1, action=name, input=as_json(path=str(path))) for name, path in paths.items()))
        pids = [await begun(path) for path in paths.values()]
        process.kill()
        await until(lambda: not any(alive(pid) for pid in pids))


async def test_signal_to_the_whole_group_is_the_agents_to_judge(stub: Stub, agent: Agent, tmp_path: Path) -> None:
    """A service manager signals every process of a service; what runs may still finish its time."""
    path = tmp_path / "beat"
    async with serving(agent, stub.address):
        stream = await stub.stream()
        stream.offer(offer("a", 1, action="tell", input=b'{"who":"Ada"}'))
        pid = told(await stream.reported("a", "succeeded"))["pid"]
        stream.offer(offer("b", 2, action="beat", input=as_json(path=str(path))))
        await stream.reported("b", "progress")
        os.kill(pid, signal.SIGTERM)
        os.kill(pid, signal.SIGINT)
        path.touch()
        await stream.reported("b", "succeeded")

    assert stream.events("b")[-1] == "succeeded"


async def test_signal_from_elsewhere_does_not_use_up_the_interruption(stub: Stub, agent: Agent, tmp_path: Path) -> None:
    path = tmp_path / "spin"
    async with serving(agent, stub.address):
        stream = await stub.stream()
        stream.offer(offer("a", 1, action="spin", input=as_json(path=str(path))))
        os.kill(await begun(path), signal.SIGTERM)
        stream.cancel(ref("a", 1))
        await stream.reported("a", "stopped")

    assert path.read_text() == "cleaned up"


async def test_process_whose_agent_lets_go_of_the_socket_ends(tmp_path: Path) -> None:
    """Where the kernel does not tell of the agent's death, this does."""
    path = tmp_path / "spin"
    ours, theirs = socket.socketpair()
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "stepward.agents.handler_child", str(theirs.fileno()), str(os.getpid())),
        pass_fds=[theirs.fileno()],
        cwd=ROOT,
    )
    theirs.close()
    attempt = offer("a", 1, action="spin", input=as_json(path=str(path))).SerializeToString()
    handler_frames.send(ours, handler_frames.Begin(sys.path, 30))
    handler_frames.send(ours, handler_frames.Call("spin", "tests.agents.isolated", "spin", attempt, 0))
    await begun(path)
    ours.close()

    assert await asyncio.wait_for(process.wait(), BOUND_S) == 70


@pytest.mark.parametrize("how", ["SIGSEGV", "_exit"])
async def test_end_of_a_process_is_noticed_by_its_socket_alone(
    stub: Stub, agent: Agent, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """Where a process is nothing that can be polled."""
    monkeypatch.setattr(handler_process, "_pidfd", lambda pid: -1)
    async with serving(agent, stub.address):
        stream = await stub.stream()
        stream.offer(offer("a", 1, action="die", input=as_json(how=how)))
        unknown = (await stream.reported("a", "unknown")).unknown

    assert unknown.kind == "PROCESS_DIED"


async def test_drain_stops_a_process(stub: Stub, tmp_path: Path) -> None:
    path = tmp_path / "hold"
    async with running(*worker(stub, "--drain-timeout", "0.2", target="tests.agents.isolated")) as process:
        await ready(process)
        stream = await stub.stream()
        stream.offer(offer("a", 1, action="hold", input=as_json(path=str(path))))
        pid = await begun(path)
        process.terminate()
        code, _ = await ended(process)

    assert code == 0
    assert (await stream.reported("a", "stopped")).stopped.draining
    assert not alive(pid)


@pytest.mark.parametrize("size", [handler_frames.OUTPUT_BYTES_MAX, handler_frames.OUTPUT_BYTES_MAX + 1])
async def test_output_has_a_bound_before_it_travels(stub: Stub, agent: Agent, size: int) -> None:
    """The cluster's own bound is far lower, and judged by the agent; this one keeps frames finite."""
    async with serving(agent, stub.address):
        stream = await stub.stream()
        stream.offer(offer("a", 1, action="give", input=as_json(size=size)))
        failed = (await stream.reported("a", "failed")).failed

    bound = 262_144 if size == handler_frames.OUTPUT_BYTES_MAX else handler_frames.OUTPUT_BYTES_MAX
    assert failed.kind == "RESULT_TOO_LARGE"
    assert f"has {size} bytes; at most {bound} can be kept" in failed.message
