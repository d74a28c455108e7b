"""Worker processes and their parent, against a stub server: signals, exit codes, restarts."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.agents.played import offer
from tests.agents.stub import BOUND_S, Stub, new_stub, until

ROOT = Path(__file__).resolve().parents[2]

PARENT = """
import sys
from stepward.agents.parent import WorkerOptions, run
sys.exit(run(sys.argv[1], [sys.argv[2]], WorkerOptions(drain_timeout_seconds=1.0, once="once" in sys.argv)))
"""

READY = re.compile(rb"^stepward agent ready session=([0-9a-f]{32}) queue=(\S+) pid=(\d+)\n$")


@pytest.fixture
async def stub() -> AsyncIterator[Stub]:
    server = new_stub()
    await server.start()
    yield server
    await server.stop()


@asynccontextmanager
async def running(*arguments: str) -> AsyncIterator[Process]:
    """A Python process. It is killed at the end if it still runs."""
    process = await asyncio.create_subprocess_exec(sys.executable, *arguments, cwd=ROOT, stdout=PIPE, stderr=PIPE)
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


def worker(stub: Stub, *options: str, target: str = "tests.agents.sample") -> tuple[str, ...]:
    return ("-m", "stepward.agents.worker", target, "--server", stub.address, *options)


def parent(stub: Stub, *options: str, target: str = "tests.agents.sample") -> tuple[str, ...]:
    return ("-c", PARENT, target, stub.address, *options)


async def ready(process: Process) -> tuple[str, int]:
    """Wait for the ready line. Returns session and process id."""
    assert process.stdout is not None
    line = await asyncio.wait_for(process.stdout.readline(), BOUND_S)
    found = READY.match(line)
    assert found, line
    return found[1].decode(), int(found[3])


async def ended(process: Process) -> tuple[int, str]:
    """Wait for the end. Returns the exit code and what was said on standard error."""
    _, said = await asyncio.wait_for(process.communicate(), BOUND_S)
    assert process.returncode is not None
    return process.returncode, said.decode()


async def test_worker_says_when_it_is_ready(stub: Stub) -> None:
    async with running(*worker(stub, "--queue", "other", "--slots", "3")) as process:
        session_id, pid = await ready(process)
        stream = await stub.stream()

    assert pid == process.pid
    assert (stream.hello.session_id, stream.hello.queue, stream.hello.slots) == (session_id, "other", 3)


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
async def test_h071_signal_drains_and_what_was_cut_off_is_no_success(stub: Stub, signum: int) -> None:
    """H071: threads too. The handler returns as if it had done its work, after it has seen that it is cancelled."""
    async with running(*worker(stub, "--drain-timeout", "0.3")) as process:
        await ready(process)
        stream = await stub.stream()
        stream.offer(offer("a", 1, action="sleep-until-cancelled"))
        await stream.reported("a", "started")
        process.send_signal(signum)
        code, _ = await ended(process)

    assert code == 0
    assert stream.drained
    assert stream.events("a") == ["started", "stopped"]
    assert stream.reports[-1].stopped.draining


async def test_second_signal_ends_the_process_at_once(stub: Stub) -> None:
    """H072: the lease decides then."""
    async with running(*worker(stub)) as process:
        await ready(process)
        stream = await stub.stream()
        stream.offer(offer("a", 1, action="sleep-deaf"))
        await stream.reported("a", "started")
        process.send_signal(signal.SIGTERM)
        await until(lambda: stream.drained)
        process.send_signal(signal.SIGTERM)
        code, _ = await ended(process)

    assert code == 1
    assert stream.events("a") == ["started"]


async def test_blocked_loop_keeps_its_lease(stub: Stub) -> None:
    """Heartbeats live on a thread of their own: two TTLs of a blocked loop pass, and nothing is lost."""
    seconds = 2 * stub.ttl_ms / 1_000
    async with running(*worker(stub)) as process:
        await ready(process)
        stream = await stub.stream()
        stream.offer(offer("a", 1, action="block-loop", input=b'{"seconds": %f}' % seconds, idempotent=False))
        await stream.reported("a", "started")
        before = heartbeats(stub)
        # On a machine that is busy with other things the agent may have changed its stream meanwhile.
        await until(lambda: any("succeeded" in one.events("a") for one in stub.streams))
        during = heartbeats(stub) - before
        process.terminate()
        code, said = await ended(process)

    assert code == 0
    assert during >= 6
    assert "lease_ended" not in said
    assert "loop_blocked" in said
    # Who it is, and where it stands.
    assert "It is at the handler of 'block-loop'" in said
    assert "    time.sleep(seconds)" in said


def heartbeats(stub: Stub) -> int:
    """How many have arrived in all."""
    return sum(len(stream.heartbeats) for stream in stub.streams)


async def test_stuck_thread_ends_the_worker_and_the_parent_starts_another(stub: Stub) -> None:
    """H013: when the lease is over and the grace too, the process must be gone. Exit code 70, and a new session."""
    async with running(*parent(stub)) as process:
        session_id, pid = await ready(process)
        stream = await stub.stream()
        stream.offer(offer("a", 1, action="sleep-deaf", idempotent=False))
        await stream.reported("a", "started")
        stub.acknowledges = stub.welcomes = False
        await until(lambda: not alive(pid))
        stub.acknowledges = stub.welcomes = True
        next_session_id, next_pid = await ready(process)
        process.terminate()
        code, said = await ended(process)

    assert code == 0
    assert (next_session_id, next_pid) != (session_id, pid)
    assert "does not stop: its lease has ended" in said
    assert "the worker ended with code 70" in said


def alive(pid: int) -> bool:
    """Whether the process runs; a parent that has waited for it leaves nothing behind."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


async def test_parent_that_is_told_to_run_once_ends_with_its_worker(stub: Stub) -> None:
    async with running(*parent(stub, "once")) as process:
        _, pid = await ready(process)
        os.kill(pid, signal.SIGKILL)
        code, _ = await ended(process)

    assert code == 128 + signal.SIGKILL


async def test_parent_that_is_killed_takes_its_worker_with_it(stub: Stub) -> None:
    """In order: the worker drains, so nothing waits for the end of a lease."""
    async with running(*parent(stub)) as process:
        _, pid = await ready(process)
        stream = await stub.stream()
        process.kill()
        await until(lambda: stream.drained)
        await until(lambda: not alive(pid))


@pytest.mark.parametrize(
    ("target", "says"),
    [
        ("tests.agents.nowhere", "there is no module 'tests.agents.nowhere'; looked in "),
        ("tests.agents.sample:nobody", "has no attribute 'nobody'; it has tests.agents.sample:agent"),
        ("tests.agents.sample:not_an_agent", "has a str, not an Agent, as 'not_an_agent'"),
        ("tests/agents/sample.py", "is a file; name the module instead: tests.agents.sample"),
        ("tests.agents.sample:", "nothing after the colon"),
        ("./thumbs", "'./thumbs' is a path, and nothing is there; name the module instead: thumbs"),
        ("/tests/agents", "'/tests/agents' is a path, and nothing is there; name the module instead, in its folder"),
        ("./tests", "'./tests' is a folder; name the module instead: tests"),
        (".sample", "'.sample' is no name of a module"),
    ],
)
async def test_wrong_target_is_said_once_and_not_started_again(stub: Stub, target: str, says: str) -> None:
    async with running(*parent(stub, target=target)) as process:
        code, said = await ended(process)

    assert code == 2
    assert says in said
    assert said.count("stepward agent:") == 1


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("def work(:\n", 'thumbs.py", line 1\n'),
        ("import no_such_package\n", "ModuleNotFoundError: No module named 'no_such_package'"),
        ("\ndef size():\n    return 1 / 0\n\nsize()\n", "in size\n    return 1 / 0\n"),
    ],
    ids=["syntax", "lacks a package", "raises"],
)
async def test_module_that_cannot_be_imported_is_shown_and_not_started_again(
    stub: Stub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, says: str
) -> None:
    """Only the user's own frames: the import around them is ours and Python's."""
    (tmp_path / "thumbs.py").write_text(source)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    async with running(*parent(stub, target="thumbs")) as process:
        code, said = await ended(process)

    assert code == 2
    assert said.startswith("stepward agent: module 'thumbs' cannot be imported:\n")
    assert says in said
    assert "importlib" not in said
    assert "target.py" not in said
    assert "starting it again" not in said
