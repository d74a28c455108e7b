"""The supervisor's loop, with rules that answer sweeps as they are told."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from stepward.server import supervisor as supervisors
from stepward.server.core import keys
from stepward.server.core.commands import (
    Answer,
    AnyCommand,
    Command,
    StreamClosed,
    Sweep,
    Swept,
)
from stepward.server.core.decide import Decision, Moment
from stepward.server.core.limits import Limits
from stepward.server.core.reader import Reader
from stepward.server.core.rejections import Reason, Rejection
from stepward.server.core.rows import Timer
from stepward.server.logbook.outbox import Applied
from stepward.server.store.lmdb_store import LmdbStore
from stepward.server.supervisor import Supervisor
from stepward.v1 import common_pb2, definition_pb2, job_service_pb2
from tests.server import nodes
from tests.server.host import CLOCK, Host, S
from tests.server.plain_agent import agent


class Sweeping:
    """Rules that answer sweeps as they are told."""

    def __init__(self, answer: Callable[[], Answer]) -> None:
        self.sweeps = 0
        self._answer = answer

    def __call__(self, reader: Reader, commands: Sequence[Command], moment: Moment, /) -> Decision:
        self.sweeps += sum(isinstance(command, Sweep) for command in commands)
        return Decision({}, [self._answer() for _ in commands], [])


def supervisor(host: Host) -> Supervisor:
    return Supervisor(
        host.shard,
        epoch=host.shard.standing.epoch,
        clock=CLOCK,
        limits=Limits(),
        counters=host.counters,
    )


async def run(supervising: Supervisor) -> None:
    await supervising.run(on_begun=lambda: None)


class Broken(Exception):  # noqa: N818 - what a sweep may meet with
    """A sweep meets with something that is no answer."""


@pytest.mark.parametrize(
    "error",
    [
        # A bug of ours; a broken promise of the interpreter; what the world does; a cancellation that nobody asked for.
        ValueError("wrong"),
        AssertionError("wrong"),
        OSError("broken"),
        MemoryError(),
        TimeoutError(),
        asyncio.CancelledError(),
        Broken(),
    ],
    ids=lambda error: type(error).__name__,
)
async def test_h086_supervisor_goes_on_after_a_sweep_that_raised(
    error: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    """H086: whatever a sweep raises, the next one follows; failures are counted, and forgotten when one succeeds."""
    monkeypatch.setattr(supervisors, "_log", Logged())
    swept = Swept(handled=0, overdue=0, unfinished=False, next_due_led_ms=None, next_due_log_ms=None)
    host = Host(Sweeping(lambda: swept))
    await host.lead()
    call, failed = host.shard.call_here, 0

    async def call_and_fail(command: AnyCommand) -> Answer:
        nonlocal failed
        if failed < 3:
            failed += 1
            raise error
        return await call(command)

    host.shard.call_here = call_and_fail  # type: ignore[method-assign]  # what a sweep may meet with
    supervising, begun = supervisor(host), asyncio.Event()
    running = asyncio.create_task(supervising.run(on_begun=begun.set))
    async with asyncio.timeout(S):
        await begun.wait()
        await eventually(lambda: supervising.failures == 0)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    host.shard.stop()

    assert running.cancelled()
    assert host.counters.supervisor_failures == 3
    assert host.counters.sweeps == 1


async def test_h086_supervisor_that_keeps_failing_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """H086: it never ends by itself, and never seems to be at work; `oversight` judges what follows."""
    monkeypatch.setattr(supervisors, "_FAILURE_WAIT_MS", 1)
    monkeypatch.setattr(supervisors, "_log", Logged())
    rules = Sweeping(lambda: Rejection(Reason.INTERNAL, "a rule is wrong"))
    host = Host(rules)
    await host.lead()
    supervising = supervisor(host)
    running = asyncio.create_task(run(supervising))
    async with asyncio.timeout(S):
        await eventually(lambda: supervising.failures >= 50)
    running.cancel()
    host.shard.stop()

    assert supervising.answered_at_ms is None
    assert host.counters.supervisor_failures == supervising.failures
    # One may have been answered and not been heard of.
    assert 0 <= rules.sweeps - supervising.failures <= 1


async def test_supervisor_sweeps_sooner_when_a_timer_is_due_sooner() -> None:
    """A wait that was set by a batch is not kept waiting for the next beat, a second away."""
    rules = Sweeping(lambda: Swept(handled=0, overdue=0, unfinished=False, next_due_led_ms=None, next_due_log_ms=None))
    host = Host(rules)
    await host.lead()
    supervising = supervisor(host)
    running = asyncio.create_task(run(supervising))
    await eventually(lambda: host.counters.sweeps == 1)
    await asyncio.sleep(0)

    key = keys.session_timer(host.shard.standing.head.led_ms + 10, "session-0")
    supervising.on_applied(Applied(2, 1, {key: Timer()}, [], []))

    async with asyncio.timeout(0.8):
        await eventually(lambda: host.counters.sweeps == 2)
    running.cancel()
    host.shard.stop()


async def test_supervisor_comes_back_at_once_when_a_sweep_is_unfinished(monkeypatch: pytest.MonkeyPatch) -> None:
    """Slices follow each other without a wait; what they removed and found is counted, and what is stuck is logged."""
    left = Swept(
        handled=1,
        overdue=1,
        unfinished=True,
        next_due_led_ms=None,
        next_due_log_ms=None,
        purged=2,
        stuck=("j1",),
        late_ms=(0, supervisors.LATE_MS, supervisors.LATE_MS + 1),
    )
    done = Swept(handled=0, overdue=0, unfinished=False, next_due_led_ms=None, next_due_log_ms=None)
    answers = [left] * 20
    host = Host(Sweeping(lambda: answers.pop() if answers else done))
    await host.lead()
    logged = Logged()
    monkeypatch.setattr(supervisors, "_log", logged)
    running = asyncio.create_task(run(supervisor(host)))

    # Waits for what is merely overdue would take 20 x 50 ms.
    async with asyncio.timeout(0.8):
        await eventually(lambda: host.counters.sweeps == 21)
    running.cancel()
    host.shard.stop()

    assert (host.counters.purged, host.counters.jobs_stuck, host.counters.detections_late) == (40, 20, 20)
    assert logged.events.count("job_stuck") == 20


async def test_timer_that_is_set_while_a_sweep_goes_on_counts() -> None:
    """The offers of a sweep's own batch set some after it has looked for the next one."""
    rules = Sweeping(lambda: Swept(handled=0, overdue=0, unfinished=False, next_due_led_ms=None, next_due_log_ms=None))
    host = Host(rules)
    await host.lead()
    supervising = supervisor(host)
    call = host.shard.call_here

    async def call_and_set(command: AnyCommand) -> Answer:
        answer = await call(command)
        if host.counters.sweeps == 0:
            key = keys.session_timer(host.shard.standing.head.led_ms + 20, "session-0")
            supervising.on_applied(Applied(2, 1, {key: Timer()}, [], []))
        return answer

    host.shard.call_here = call_and_set  # type: ignore[method-assign]  # what happens between the batch and the wait
    running = asyncio.create_task(run(supervising))

    async with asyncio.timeout(0.8):
        await eventually(lambda: host.counters.sweeps == 2)
    running.cancel()
    host.shard.stop()


@pytest.mark.parametrize("reason", [Reason.DISK_FULL, Reason.OVERLOADED])
async def test_supervisor_waits_until_it_can_sweep(reason: Reason, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is nobody's fault, so it ends no node, however long it lasts."""
    monkeypatch.setattr(supervisors, "_CANNOT_WAIT_MS", 5)
    swept = Swept(handled=0, overdue=0, unfinished=False, next_due_led_ms=None, next_due_log_ms=None)
    refusals = [Rejection(reason, "not now")] * 10
    host = Host(Sweeping(lambda: refusals.pop() if refusals else swept))
    await host.lead()
    logged = Logged()
    monkeypatch.setattr(supervisors, "_log", logged)
    running = asyncio.create_task(run(supervisor(host)))

    async with asyncio.timeout(S):
        await eventually(lambda: host.counters.sweeps == 1)
    running.cancel()
    host.shard.stop()

    assert host.fatal == []
    assert (host.counters.sweeps_refused, host.counters.supervisor_failures) == (10, 0)
    assert logged.events == ["supervisor_started", "sweeps_refused", "sweeps_go_on"]


class Logged:
    """A log that keeps the names of its events."""

    def __init__(self) -> None:
        self.events: list[str] = []

    def info(self, event: str, **fields: object) -> None:
        self.events.append(event)

    error = exception = info


async def test_sweep_that_does_not_fit_is_halved() -> None:
    """And the next ones grow again. One subject that does not fit is a failure."""
    asked: list[int] = []

    def rules(reader: Reader, commands: Sequence[Command], moment: Moment, /) -> Decision:
        answers: list[Answer] = []
        for command in commands:
            assert isinstance(command, Sweep)
            asked.append(command.subjects_max)
            fits = command.subjects_max <= 125 and len(asked) < 6
            swept = Swept(
                handled=command.subjects_max, overdue=1, unfinished=True, next_due_led_ms=None, next_due_log_ms=None
            )
            answers.append(swept if fits else Rejection(Reason.PAYLOAD_TOO_LARGE, "too large"))
        return Decision({}, answers, [])

    host = Host(rules)
    await host.lead()
    supervising = supervisor(host)
    running = asyncio.create_task(run(supervising))
    async with asyncio.timeout(S):
        await eventually(lambda: supervising.failures == 1)
    running.cancel()
    host.shard.stop()

    assert asked == [500, 250, 125, 250, 125, 250, 125, 62, 31, 15, 7, 3, 1]


async def eventually(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110 - what is waited for is a count, which sets no event
        await asyncio.sleep(0.005)


async def test_supervisor_dies_with_its_epoch() -> None:
    """Another epoch has another one."""
    host = Host(Sweeping(StreamClosed))
    await host.lead()
    other = Supervisor(
        host.shard,
        epoch=host.shard.standing.epoch + 1,
        clock=CLOCK,
        limits=Limits(),
        counters=host.counters,
    )

    async with asyncio.timeout(S):
        await run(other)
    host.shard.stop()

    assert host.counters.sweeps == 0


async def test_node_with_a_full_disk_stays_and_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reads work meanwhile; when there is space again, a job that waits goes on without a restart."""
    monkeypatch.setattr(supervisors, "_CANNOT_WAIT_MS", 20)
    free = [1 << 40]
    monkeypatch.setattr(LmdbStore, "free_bytes", lambda self: free[0])
    async with nodes.running(tmp_path / "data") as node, nodes.connected(node.address) as stubs:
        await nodes.define(stubs, "one", definition_pb2.Step(id="one"))
        request = job_service_pb2.SubmitJobRequest(job=nodes.submission("one"))
        job_id = (await stubs.jobs.SubmitJob(request, timeout=S)).job_id
        free[0] = 1 << 20
        async with asyncio.timeout(S):
            await eventually(lambda: node.counters.sweeps_refused > 10)
        read = await stubs.jobs.GetJob(job_service_pb2.GetJobRequest(job_id=job_id), timeout=S)
        free[0], sweeps = 1 << 40, node.counters.sweeps
        async with asyncio.timeout(S):
            await eventually(lambda: node.counters.sweeps > sweeps)
        async with agent(stubs, "one"):
            watch = stubs.jobs.WatchJob(job_service_pb2.WatchJobRequest(job_id=job_id), timeout=S)
            states = [message.job.state async for message in watch]

    assert read.job.job_id == job_id
    assert states[-1] == common_pb2.JOB_STATE_COMPLETED
