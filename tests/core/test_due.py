"""What is due, counted by whoever wants to know from the rows of one replica: exact, bounded, and told apart."""

from __future__ import annotations

from collections import Counter
from typing import ClassVar

import pytest
from typing_extensions import override

from stepward.server.core import counts, incidents, keys, rows
from stepward.server.core.clocks import Clocks
from stepward.server.core.commands import CancelJob, Failed, Started
from stepward.server.core.due import COUNTED_MAX, KINDS, OVERDUE_MS, TOLD_APART_MAX, look
from stepward.server.core.epochs import opened
from stepward.server.core.ledger_rows import Incident
from stepward.server.core.rows import Clock, JobState, RetrySpec, Timer
from tests.core.test_epochs import head
from tests.core.test_histories import History
from tests.core.world import DAY_MS, World
from tests.scenarios.trips import single, world_with

# Seeds of some two hundred batches each.
SEEDS = 70


@pytest.mark.parametrize(
    ("late_ms", "counted"),
    [
        # Not yet due; due; due for as long as a supervisor may take; and longer.
        (-1, (0, 0, 0)),
        (0, (1, 0, 0)),
        (OVERDUE_MS, (1, 0, 0)),
        (OVERDUE_MS + 1, (1, 1, OVERDUE_MS + 1)),
    ],
)
def test_due_and_overdue(late_ms: int, counted: tuple[int, int, int]) -> None:
    world = world_with(single(), agents=())
    world.submit("j1", "single")

    found = look(world.reader, led_ms=0, log_ms=DAY_MS + late_ms)

    assert (found.due, found.overdue, found.oldest_ms) == counted
    assert found.by_kind == ({"QUEUE": 1} if found.overdue else {})


def test_kinds_are_told_apart() -> None:
    """Each by what its subject is now."""
    world = world_with(single(retry=RetrySpec(attempts_max=3)), agents=("one", "two", "three"), slots=1)
    for number in range(5):
        world.submit(f"j{number}", "single")
    world.report("one", "j0", "pay", Started())
    world.report("two", "j1", "pay", Failed("Refused", "", True))
    world.one(CancelJob("j4", "enough"))

    found = look(world.reader, led_ms=DAY_MS * 2, log_ms=DAY_MS * 2)

    assert set(found.by_kind) <= set(KINDS)
    assert found.by_kind["LEASE"] == 3
    assert found.by_kind["RUNNING"] == 1
    assert found.by_kind["OFFER"] == 2
    assert sum(found.by_kind.values()) == found.overdue == found.due


def test_counting_is_bounded() -> None:
    """In what is counted, and in what is looked at more closely."""
    world = World()
    puts = [
        (keys.deadline_timer(number, f"0-{number:06d}"), keys.encode_row(Timer())) for number in range(COUNTED_MAX + 1)
    ]
    world.store.apply(puts, [])
    world.store.commit()

    found = look(world.reader, led_ms=0, log_ms=DAY_MS)

    assert (found.due, found.overdue) == (COUNTED_MAX, COUNTED_MAX)
    assert found.by_kind == {"DEADLINE": TOLD_APART_MAX}
    assert found.oldest_ms == DAY_MS


class Recounted(History):
    """A random history in which leaders change, too, and what gauges tell is recounted after every batch."""

    batches = 0
    seen: ClassVar[Counter[str]] = Counter()

    @override
    def _check(self) -> None:
        Recounted.batches += 1
        if self.rng.random() < 0.02:
            self._change_leader()
        world = self.world
        found = look(world.reader, led_ms=world.now_ms, log_ms=world.now_ms)
        Recounted.seen.update(found.by_kind)
        assert found.by_kind == _recounted(world), self.seed
        assert incidents.counts(world.reader).open == _open_incidents(world), self.seed
        told = counts.of_all(world.reader)
        assert all(told.get(state, 0) == count for state, count in _jobs(world).items()), self.seed
        assert min([found.due, found.overdue, found.oldest_ms, *found.by_kind.values(), *told.values()]) >= 0
        self._note_ends()

    def _change_leader(self) -> None:
        """Another node opens an epoch, as it does in a cluster."""
        world = self.world
        last = head(world.now_ms, epoch=world.epoch)
        world.epoch += 1
        clocks = Clocks(world.now_ms, world.now_ms, world.now_ms)
        world.put(keys.EPOCH, opened(world.reader, last, epoch=world.epoch, clocks=clocks))


def _recounted(world: World) -> dict[str, int]:
    """From the rows of sessions, steps and jobs, not from their timers."""
    found: Counter[str] = Counter()
    late_ms = world.now_ms - OVERDUE_MS
    for key in world.reader.scan(keys.SESSION):
        session = world.reader.get(key)
        assert isinstance(session, rows.Session)
        found["LEASE"] += session.timer_at_led_ms < late_ms
    for key in world.reader.scan(keys.STEP):
        step = world.reader.get(key)
        assert isinstance(step, rows.Step)
        if step.timer_clock is not Clock.NONE and step.timer_at_ms < late_ms:
            found[_kind(step.state.name)] += 1
    for key in world.reader.scan(keys.PROGRESS):
        progress = world.reader.get(key)
        assert isinstance(progress, rows.Progress)
        open_ = progress.state not in rows.JOB_STATES_FINAL and not progress.deadline_passed
        found["DEADLINE"] += bool(progress.deadline_log_ms) and open_ and progress.deadline_log_ms < late_ms
    # These have no instant in their rows: there is one timer for each.
    for prefix, kind in ((keys.TIMER_PASS, "PASS"), (keys.TIMER_SPREAD, "SPREAD")):
        timers = (
            keys.parse_timer(key) for queue in keys.TIMER_QUEUES for key in world.reader.scan(keys.timers(*queue))
        )
        found[kind] += sum(at_ms < late_ms for at_ms, one, _ in timers if one == prefix)
    return {kind: count for kind, count in found.items() if count}


def _kind(state: str) -> str:
    for suffix, kind in (("READY", "QUEUE"), ("OFFERED", "OFFER"), ("RUNNING", "RUNNING"), ("RETRY_WAIT", "RETRY")):
        if state.removeprefix("UNDO_").removeprefix("VERIFY_") == suffix:
            return kind
    return "SETTLING"


def _open_incidents(world: World) -> int:
    found = [world.reader.get(key) for key in world.reader.scan(keys.INCIDENT)]
    return sum(isinstance(row, Incident) and not row.resolved_wall_ms for row in found)


def _jobs(world: World) -> Counter[JobState]:
    found: Counter[JobState] = Counter()
    for key in world.reader.scan(keys.PROGRESS):
        progress = world.reader.get(key)
        assert isinstance(progress, rows.Progress)
        if world.reader.get(keys.job(keys.progress_job_id(key))) is not None:
            found[progress.state] += 1
    return found


def test_h090_gauges_equal_a_recount_after_every_batch() -> None:
    """H090: in ten thousand random events, with agents that are lost and leaders that change; none is negative."""
    for seed in range(90_000, 90_000 + SEEDS):
        Recounted(seed).run()

    assert Recounted.batches >= 10_000
    # It was about something.
    assert {"LEASE", "OFFER", "RUNNING", "RETRY"} <= set(Recounted.seen)
