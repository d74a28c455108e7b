"""Agents as processes, with a real node: what becomes of steps when an agent is blocked, broken, or ended hard."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from asyncio.subprocess import Process
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from stepward.agents import Agent, Context
from stepward.server.core.limits import Limits
from stepward.v1 import agent_service_pb2, common_pb2, definition_pb2, job_pb2, job_service_pb2
from tests.agents.played import duration
from tests.agents.stub import until
from tests.agents.test_agent_live import serving
from tests.agents.test_worker import alive, ended, ready, running
from tests.server import nodes
from tests.server.nodes import CALL_S_MAX, Stubs, submission

S = CALL_S_MAX
TTL_MS = 3_000

# From the last sign of life: TTL x 4/3, the kill grace, and the margin; and as much again for a busy machine.
LOST_S_MAX = 20.0


@asynccontextmanager
async def node(folder: Path, *, ttl_ms: int = TTL_MS) -> AsyncIterator[tuple[str, Stubs]]:
    """A node that knows a definition for each action: one step, named as the action."""
    async with (
        nodes.running(folder / "data", limits=Limits(session_ttl_ms=ttl_ms)) as started,
        nodes.connected(started.address) as stubs,
    ):
        for action in ("hold", "hold-and-stay", "mark", "work", "break-renewal", "listen"):
            await nodes.define(stubs, action, definition_pb2.Step(id=action))
        yield started.address, stubs


@asynccontextmanager
async def working(address: str, *options: str, target: str = "tests.agents.held") -> AsyncIterator[Process]:
    """An agent that is ready."""
    command = ("-m", "stepward.agents.worker", target, "--server", address, *options)
    async with running(*command) as process:
        await ready(process)
        yield process


@asynccontextmanager
async def substitute(address: str, *actions: str) -> AsyncIterator[list[str]]:
    """Another agent, which does at once what the first has not done. Gives the jobs whose steps it took."""
    taken: list[str] = []

    def take(ctx: Context) -> None:
        taken.append(ctx.job_id)

    other = Agent(slots=8)
    for action in actions:
        other.action(action)(take)
    async with serving(other, address):
        yield taken


async def submit(stubs: Stubs, action: str, folder: Path) -> str:
    data = b'{"folder":"%s"}' % str(folder).encode()
    request = job_service_pb2.SubmitJobRequest(job=submission(action, data))
    return (await stubs.jobs.SubmitJob(request, timeout=S)).job_id


async def step_of(stubs: Stubs, job_id: str) -> job_pb2.JobStep:
    answer = await stubs.jobs.GetJob(job_service_pb2.GetJobRequest(job_id=job_id), timeout=S)
    return answer.job.steps[0]


async def step_is(stubs: Stubs, job_id: str, state: common_pb2.StepState.ValueType) -> job_pb2.JobStep:
    """Wait for the state of the only step of a job."""

    async def reached() -> bool:
        return bool((await step_of(stubs, job_id)).state == state)

    await nodes.eventually(reached, within_s=LOST_S_MAX)
    return await step_of(stubs, job_id)


async def happened(stubs: Stubs, job_id: str) -> list[str]:
    answer = await stubs.jobs.GetJobHistory(job_service_pb2.GetJobHistoryRequest(job_id=job_id), timeout=S)
    return [event.type for event in answer.events]


def release(folder: Path) -> None:
    """Let a handler go that holds the interpreter."""
    with (folder / "release").open("wb", buffering=0) as pipe:
        pipe.write(b"!")


async def test_blocked_interpreter_costs_the_step_and_starts_nothing(tmp_path: Path) -> None:
    """One C call holds the interpreter beyond the lease.

    The step is given to another, and what waited for the agent meanwhile is not started by it when it wakes. Its late
    report is refused and kept, and its log says what has happened.
    """
    os.mkfifo(tmp_path / "release")
    async with node(tmp_path) as (address, stubs), working(address) as process:
        first = await submit(stubs, "hold", tmp_path)
        await until((tmp_path / "held").exists)
        # Offered to the agent, which cannot hear of it, or to the other one.
        second = await submit(stubs, "mark", tmp_path)
        async with substitute(address, "hold", "mark") as taken:
            for job_id in (first, second):
                await step_is(stubs, job_id, common_pb2.STEP_STATE_SUCCEEDED)
            release(tmp_path)

            async def heard_late() -> bool:
                return "StaleReportObserved" in await happened(stubs, first)

            await nodes.eventually(heard_late, within_s=LOST_S_MAX)
        process.terminate()
        code, said = await ended(process)

    assert sorted(taken) == sorted([first, second])
    assert not (tmp_path / f"mark-{process.pid}").exists()
    assert code == 0
    (line,) = [line for line in said.splitlines() if "interpreter_blocked" in line]
    assert "lease=ended handlers=hold:" in line
    assert int(line.partition("for_ms=")[2].split()[0]) > TTL_MS
    assert "process=True" in line


async def test_blocked_interpreter_that_goes_on_ends_the_process(tmp_path: Path) -> None:
    """When it wakes, the time of the kill grace is over, too: the first thing that it does is to end."""
    os.mkfifo(tmp_path / "release")
    async with node(tmp_path) as (address, stubs), working(address) as process:
        job_id = await submit(stubs, "hold-and-stay", tmp_path)
        await until((tmp_path / "held").exists)
        async with substitute(address, "hold-and-stay"):
            await step_is(stubs, job_id, common_pb2.STEP_STATE_SUCCEEDED)
        release(tmp_path)
        code, said = await ended(process)

    assert code == 70
    assert "lease=ended handlers=hold-and-stay:" in said
    assert "(hold-and-stay) does not stop: its lease has ended" in said


async def test_h024_silent_step_hears_of_its_cancel_within_one_renewal(tmp_path: Path) -> None:
    """H024: it calls nothing that speaks to the cluster; the cancel comes over the stream."""
    ttl_ms = 12_000
    async with node(tmp_path, ttl_ms=ttl_ms) as (address, stubs), working(address):
        job_id = await submit(stubs, "listen", tmp_path)
        await step_is(stubs, job_id, common_pb2.STEP_STATE_RUNNING)
        await until((tmp_path / "listening").exists)
        began_at = time.monotonic()
        await stubs.jobs.CancelJob(job_service_pb2.CancelJobRequest(job_id=job_id), timeout=S)
        await until((tmp_path / "heard").exists)
        took_s = time.monotonic() - began_at

    assert took_s <= ttl_ms / 6 / 1_000


async def test_h013_h088_broken_renewal_is_seen_and_the_step_moves_once(tmp_path: Path) -> None:
    """H013, H088: an exception in the loop that renews the lease. Its work ends with the process, and says why last."""
    async with (
        node(tmp_path) as (address, stubs),
        working(address, target="tests.agents.broken_renewal") as process,
    ):
        job_id = await submit(stubs, "break-renewal", tmp_path)
        code, said = await ended(process)
        async with substitute(address, "break-renewal"):
            await step_is(stubs, job_id, common_pb2.STEP_STATE_SUCCEEDED)
        events = await happened(stubs, job_id)

    assert code == 70
    assert "io_thread_failed" in said
    assert "ZeroDivisionError: a bug in the renewal" in said
    assert "ZeroDivisionError: a bug in the renewal" in said.splitlines()[-1]
    assert events.count("StepOffered") == 2


async def test_h072_agents_that_end_hard_while_no_leader_is_there_lose_nothing(tmp_path: Path) -> None:
    """H072: a drain whose time is over, a second SIGTERM, SIGKILL. Nobody hears of it; the leases decide."""
    ways = 3
    async with AsyncExitStack() as stack:
        async with node(tmp_path) as (address, stubs):
            agents = {}
            for _ in range(ways):
                process = await stack.enter_async_context(working(address, "--slots", "1", "--drain-timeout", "0.3"))
                agents[process.pid] = process
            job_ids = [await submit(stubs, "work", tmp_path) for _ in range(ways)]
            at_work = [tmp_path / f"work-{job_id}" for job_id in job_ids]
            await until(lambda: all(path.exists() and path.read_text() for path in at_work))
            for job_id in job_ids:
                await step_is(stubs, job_id, common_pb2.STEP_STATE_RUNNING)
            over, twice, killed = (agents[int(path.read_text())] for path in at_work)
        over.terminate()
        twice.terminate()
        killed.kill()
        # The second signal counts when the first was heard.
        await said(twice, b"draining")
        twice.terminate()
        codes = [await asyncio.wait_for(process.wait(), LOST_S_MAX) for process in (over, twice, killed)]
        async with node(tmp_path) as (address, stubs), substitute(address, "work"):
            steps = [await step_is(stubs, job_id, common_pb2.STEP_STATE_SUCCEEDED) for job_id in job_ids]

    assert codes == [70, 1, -signal.SIGKILL]
    assert [step.attempts for step in steps] == [2] * ways


async def said(process: Process, word: bytes) -> None:
    """Wait until a process has said something on standard error."""
    assert process.stderr is not None
    async with asyncio.timeout(LOST_S_MAX):
        while word not in (line := await process.stderr.readline()):
            assert line, "it has ended"


async def test_h113_slot_is_free_when_the_handler_has_ended_and_no_sooner(tmp_path: Path) -> None:
    """H113: one slot, a thread that ignores its cancel, and another step that is READY."""
    async with node(tmp_path) as (address, stubs), working(address, "--slots", "1") as process:
        first = await submit(stubs, "work", tmp_path)
        await until((tmp_path / f"work-{first}").exists)
        second = await submit(stubs, "work", tmp_path)
        await stubs.jobs.CancelJob(job_service_pb2.CancelJobRequest(job_id=first), timeout=S)
        # Long enough for a grace of two seconds to be over, by the cluster's own sense of the agent's signs of life.
        await lives_for(stubs, 4)
        overlapped = (tmp_path / f"work-{second}").exists()
        waiting = await step_of(stubs, second)
        taken = (await agent_of(stubs)).slots_taken
        (tmp_path / f"enough-{first}").touch()
        (tmp_path / f"enough-{second}").touch()
        done = await step_is(stubs, second, common_pb2.STEP_STATE_SUCCEEDED)
        lives = alive(process.pid)

    assert not overlapped
    assert (waiting.state, waiting.attempts, taken) == (common_pb2.STEP_STATE_READY, 0, 1)
    assert (done.attempts, lives) == (1, True)


async def define_with_heartbeat(stubs: Stubs, name: str) -> None:
    """A step that asks for a sign of life every two seconds."""
    timeouts = definition_pb2.Timeouts(heartbeat=duration(2_000))
    await nodes.define(stubs, name, definition_pb2.Step(id=name, timeouts=timeouts))


async def test_step_whose_handler_gives_signs_of_life_goes_on(tmp_path: Path) -> None:
    """In a process of its own; few of the many travel, and none is missed for longer than two heartbeat timeouts."""
    async with node(tmp_path) as (address, stubs), working(address, target="tests.agents.isolated"):
        await define_with_heartbeat(stubs, "beat")
        job_id = await submit(stubs, "beat", tmp_path)
        await step_is(stubs, job_id, common_pb2.STEP_STATE_RUNNING)
        await lives_for(stubs, 5)
        (tmp_path / "enough").touch()
        step = await step_is(stubs, job_id, common_pb2.STEP_STATE_SUCCEEDED)

    assert step.attempts == 1


async def test_step_whose_handler_is_silent_is_given_up_and_its_author_told(tmp_path: Path) -> None:
    async with node(tmp_path) as (address, stubs), working(address) as process:
        await define_with_heartbeat(stubs, "listen")
        job_id = await submit(stubs, "listen", tmp_path)
        await until((tmp_path / "heard").exists)

        async def given_up() -> bool:
            return (await step_of(stubs, job_id)).failure.kind == "HEARTBEAT_TIMEOUT"

        await nodes.eventually(given_up, within_s=LOST_S_MAX)
        process.terminate()
        _, said = await ended(process)

    assert "heartbeat_missing action=listen" in said


async def lives_for(stubs: Stubs, seconds: int) -> None:
    """Wait while the only agent gives signs of life for so long, by the cluster's own sense of them."""
    before_s = (await agent_of(stubs)).renewed_at.seconds

    async def has_lived_on() -> bool:
        return (await agent_of(stubs)).renewed_at.seconds >= before_s + seconds

    await nodes.eventually(has_lived_on, within_s=LOST_S_MAX)


async def agent_of(stubs: Stubs) -> agent_service_pb2.Agent:
    """The only agent of the cluster."""
    answer = await stubs.agents.ListAgents(agent_service_pb2.ListAgentsRequest(), timeout=S)
    (found,) = answer.agents
    return found
