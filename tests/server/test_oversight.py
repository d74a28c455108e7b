"""A node that leads has a supervisor at work, or leads no more: one node, and a clock that the test moves."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from typing import NoReturn

import pytest
import structlog

from stepward.server import oversight as oversights
from stepward.server.clock import ManualClock
from stepward.server.core import keys
from stepward.server.core.commands import AnyCommand, Command
from stepward.server.core.decide import Decision, Moment, decide
from stepward.server.core.epoch_rows import Epoch
from stepward.server.core.epochs import GOOD_MS, SILENCE_MS_MAX
from stepward.server.core.limits import Limits
from stepward.server.core.reader import Reader
from stepward.server.core.rejections import Reason, Rejection
from stepward.server.observe import Counters
from stepward.server.oversight import GIVE_UP_MS, LOOK_MS, RESTART_STAYING_MS, Oversight, SupervisorState
from stepward.server.supervisor import Supervisor
from tests.server.host import Host, S

LIMITS = Limits()
# So often a minute of the test's clock passes looks of the watch.
TURNS = 4


def rules(reader: Reader, commands: Sequence[Command], moment: Moment, /) -> Decision:
    """Those of a node."""
    return decide(reader, commands, moment, LIMITS, random.Random(1))  # type: ignore[arg-type]  # all of them are known


def drop(logger: object, name: str, event: object) -> NoReturn:
    raise structlog.DropEvent


class Broken(Exception):  # noqa: N818 - what a supervisor may meet with
    """A supervisor meets with something that it cannot go on with."""


class Faulty(Supervisor):
    """A supervisor whose sweeps are what the test wants while `fault` is set."""

    fault: Callable[[], object] | None = None

    async def _sweep(self) -> int:  # type: ignore[explicit-override]  # `override` is of 3.12
        if self.fault is not None:
            outcome = self.fault()
            if asyncio.isfuture(outcome):
                await outcome
        return await super()._sweep()


def raises() -> object:
    raise Broken


def hangs() -> object:
    return asyncio.get_running_loop().create_future()


def is_cancelled() -> object:
    """What the sweep waits for is cancelled; nobody has asked for the supervisor's end."""
    future = asyncio.get_running_loop().create_future()
    future.cancel()
    return future


def cancels_itself() -> object:
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    return hangs()


class Stage:
    """A node that leads, with oversight, and the supervisors that were made."""

    def __init__(self, *, is_alone: bool = True, decider: Callable[..., Decision] = rules) -> None:
        self.clock = ManualClock(steady_ms=1_000_000, wall_ms=1_700_000_000_000)
        self.host = Host(decider, clock=self.clock)
        self.made: list[Faulty] = []
        self.fault: Callable[[], object] | None = None
        self.start_raises = False
        self.begun = 0
        self.oversight = Oversight(
            self.host.shard,
            make=self._make,
            clock=self.clock,
            counters=self.host.counters,
            is_alone=is_alone,
            on_begun=self._begin,
            on_fatal=self.host.fatal.append,
        )
        self.host.shard.on_applied(self.oversight.on_applied)
        self.host.shard.on_standing(self.oversight.on_standing)

    def _make(self, epoch: int) -> Supervisor:
        if self.start_raises:
            raise Broken
        made = Faulty(self.host.shard, epoch=epoch, clock=self.clock, limits=LIMITS, counters=self.host.counters)
        made.fault = self.fault
        self.made.append(made)
        return made

    def _begin(self) -> None:
        self.begun += 1

    def break_all(self, fault: Callable[[], object] | None) -> None:
        """From now on every supervisor has this fault; None: none has any."""
        self.fault = fault
        for made in self.made:
            made.fault = fault

    async def passes(self, ms: int, *, unless: Callable[[], object] = lambda: False) -> int:
        """Let time pass, in steps in which everybody has a turn; how much did, until `unless` was true."""
        for passed_ms in range(0, ms, LOOK_MS):
            if unless():
                return passed_ms
            self.clock.advance(LOOK_MS)
            for _ in range(TURNS):
                await asyncio.sleep(0.001)
        return ms

    def epoch_row(self) -> Epoch:
        with self.host.shard.committed() as reader:
            row = reader.get(keys.EPOCH)
        assert isinstance(row, Epoch)
        return row


@contextlib.asynccontextmanager
async def staged(monkeypatch: pytest.MonkeyPatch, **options: object) -> AsyncIterator[Stage]:
    """Timers of the loop are short: it is the clock that counts. Tracebacks are shown to nobody: that takes long."""
    monkeypatch.setattr("stepward.server.supervisor._log", structlog.wrap_logger(None, processors=[drop]))
    monkeypatch.setattr(oversights, "LOOK_S", 0.001)
    monkeypatch.setattr("stepward.server.supervisor.BEAT_MS", 1)
    monkeypatch.setattr("stepward.server.supervisor._FAILURE_WAIT_MS", 10)
    stage = Stage(**options)  # type: ignore[arg-type]  # as the test says
    try:
        await stage.host.lead()
        yield stage
    finally:
        await stage.oversight.stop()
        stage.host.shard.stop()


def _rose(counters: Counters, before: int) -> bool:
    return counters.supervisor_failures > before


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(S):
        while not condition():  # noqa: ASYNC110 - several tasks make it true
            await asyncio.sleep(0.001)


async def test_supervisor_that_beats_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """And the watch writes nothing: what an idle cluster pays is the beat."""
    async with staged(monkeypatch) as stage:
        await until(lambda: stage.begun)
        await stage.passes(20_000)

        assert stage.oversight.state is SupervisorState.RUNNING
        assert stage.oversight.supervises
        assert (len(stage.made), stage.begun, stage.host.fatal) == (1, 1, [])
        assert stage.epoch_row().watched_led_ms == 0


@pytest.mark.parametrize("fault", [raises, hangs, is_cancelled, cancels_itself])
async def test_h086_node_that_is_alone_ends_without_a_supervisor(
    fault: Callable[[], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """H086: whatever becomes of its sweeps, the process never goes on as a leader that nobody supervises."""
    async with staged(monkeypatch) as stage:
        await until(lambda: stage.begun)
        stage.break_all(fault)
        passed_ms = await stage.passes(3 * GIVE_UP_MS, unless=lambda: stage.host.fatal)

        assert "no sign of life" in stage.host.fatal[0]
        assert GIVE_UP_MS <= passed_ms <= GIVE_UP_MS + 4 * LOOK_MS
        assert not stage.oversight.supervises


async def test_h086_supervisor_that_fails_once_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """H086: each kind of end is followed by the next sweep or by another supervisor, and is counted."""
    async with staged(monkeypatch) as stage:
        await until(lambda: stage.begun)
        counters = stage.host.counters
        for fault in (raises, is_cancelled, cancels_itself):
            before = counters.supervisor_failures
            stage.break_all(fault)
            await stage.passes(2_000, unless=partial(_rose, counters, before))
            stage.break_all(None)
            await stage.passes(2_000)
            assert stage.oversight.state is SupervisorState.RUNNING, fault
        await stage.passes(2 * GIVE_UP_MS)

        assert stage.host.fatal == []
        assert stage.host.counters.supervisor_failures >= 3


@pytest.mark.parametrize("kind", ["raises", "hangs"])
async def test_h087_supervisor_that_cannot_start_ends_the_leadership(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """H087: within the bound; until then nobody is told that this node leads."""
    monkeypatch.setattr(oversights, "LOOK_S", 0.001)
    stage = Stage()
    stage.start_raises, stage.fault = kind == "raises", hangs
    await stage.host.lead()
    passed_ms = await stage.passes(3 * GIVE_UP_MS, unless=lambda: stage.host.fatal)
    supervised = stage.oversight.supervises
    await stage.oversight.stop()
    stage.host.shard.stop()

    assert GIVE_UP_MS <= passed_ms <= GIVE_UP_MS + 4 * LOOK_MS
    assert stage.begun == 0
    assert not supervised


async def test_silence_is_in_the_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """So whoever leads next knows of it, whatever happens to this process."""
    async with staged(monkeypatch) as stage:
        await until(lambda: stage.begun)
        stage.break_all(hangs)
        await stage.passes(GIVE_UP_MS - 2 * LOOK_MS)
        watched = stage.epoch_row()
        head = stage.host.shard.standing.head

        assert head.led_ms - watched.led_ms >= SILENCE_MS_MAX
        assert watched.watched_led_ms == head.led_ms


async def test_pause_of_the_process_is_no_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a stopped process misses it has not led for: one batch moves led time by two seconds at most."""
    async with staged(monkeypatch) as stage:
        await until(lambda: stage.begun)
        stage.clock.advance(60_000)
        await stage.passes(1_000)

        assert stage.host.fatal == []
        assert stage.oversight.state is SupervisorState.RUNNING


async def test_full_disk_is_no_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing can be written, so no supervisor could do more; the node stays and asks again."""
    full = False

    def decider(reader: Reader, commands: Sequence[AnyCommand], moment: Moment, /) -> Decision:
        if full:
            return Decision({}, [Rejection(Reason.DISK_FULL, "no room") for _ in commands], [])
        return rules(reader, commands, moment)

    async with staged(monkeypatch, decider=decider) as stage:
        await until(lambda: stage.begun)
        full = True
        await stage.passes(5 * GIVE_UP_MS)

        assert stage.host.fatal == []


def stay(stage: Stage) -> None:
    """Rows of a cluster in which leadership does not move any more."""
    store = stage.host.shard._replica._store
    row = Epoch(stage.host.shard.standing.epoch, 0, lost_log_ms=(0, 0, 0), stays=True)
    store.apply([(keys.EPOCH, keys.encode_row(row))], [])
    store.commit()


@pytest.mark.parametrize("fault", [raises, hangs, cancels_itself])
async def test_supervisor_is_begun_in_place_while_leadership_stays(
    fault: Callable[[], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every five seconds; the process does not end. One that works again is trusted after a good minute."""
    monkeypatch.setattr(oversights, "LOOK_S", 0.001)
    stage = Stage()
    stage.fault = fault
    await stage.host.lead()
    stay(stage)
    # The cache of this leadership was made before.
    stage.host.shard._replica._live._young.clear()  # type: ignore[union-attr]  # there is one while this node leads
    await stage.passes(5 * RESTART_STAYING_MS)
    made, stays = len(stage.made), stage.epoch_row().stays
    stage.break_all(None)
    monkeypatch.setattr("stepward.server.supervisor.BEAT_MS", 1)
    await stage.passes(RESTART_STAYING_MS + GOOD_MS + 2_000, unless=lambda: not stage.epoch_row().stays)
    trusted = not stage.epoch_row().stays
    await stage.oversight.stop()
    stage.host.shard.stop()

    assert stays
    assert stage.host.fatal == []
    assert 4 <= made <= 7
    assert trusted


async def test_watch_that_ends_ends_the_node(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody would notice any more that the supervisor is gone."""
    async with staged(monkeypatch) as stage:
        await until(lambda: stage.begun)
        watch = stage.oversight._watch
        assert watch is not None
        watch.cancel()
        await until(lambda: stage.host.fatal)

        assert "the watch over the supervisor ended" in stage.host.fatal[0]


async def test_nothing_is_left_of_an_epoch_that_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither supervisor nor watch, and nothing is fatal."""
    async with staged(monkeypatch) as stage:
        await until(lambda: stage.begun)
        tasks = stage.oversight._watch, stage.oversight._supervision
        stage.oversight.on_standing(stage.host.shard.standing._replace(leads=False))
        await until(lambda: all(task is not None and task.done() for task in tasks))

        assert stage.oversight.state is None
        assert not stage.oversight.supervises
        assert stage.host.fatal == []
