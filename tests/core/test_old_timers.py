"""Data of version 0.1.0, whose timers stood in one queue a clock: nothing that waited there is forgotten."""

from __future__ import annotations

import pytest

from stepward.server.core import invariants, keys, old_timers
from stepward.server.core.commands import Failed, Started, Sweep
from stepward.server.core.rows import DefinitionBody, Row, Timer
from stepward.server.store.live import LiveRows
from tests.core.world import World, actions_of, step_spec
from tests.scenarios.trips import SESSION_END_MS, renew

BODY = DefinitionBody("single", (step_spec("pay"),), b"", b"", deadline_ms=60_000)


def timers(world: World) -> set[bytes]:
    """All timers there are, wherever they stand."""
    return set(world.reader.scan(keys.TIMER))


def aged(world: World) -> None:
    """Let all timers stand where the old version put them."""
    for key in timers(world):
        world.store.apply([(key[:2] + key[3:], keys.encode_row(Timer()))], [key])
    world.store.commit()
    world.reader = LiveRows(world.store)


@pytest.fixture
def world() -> World:
    """Steps that are ready, run and wait for a retry, with deadlines, of two sessions, one of which is ending."""
    world = World()
    world.define(BODY)
    world.open("agent-one", actions_of(BODY), slots=3)
    for job_id in ("runs", "waits", "offered", "ready"):
        world.submit(job_id, "single")
    world.report("agent-one", "runs", "pay", Started())
    world.report("agent-one", "waits", "pay", Failed("Busy", "", retryable=True, retry_after_ms=20_000))
    return world


def test_every_timer_finds_its_place(world: World) -> None:
    """After one sweep all stand where this version puts them, and all that must hold of rows holds."""
    before = timers(world)
    aged(world)
    assert not timers(world) & before

    world.one(Sweep(500))

    assert timers(world) == before
    assert invariants.violations(world.reader, led_ms=world.now_ms) == []


def test_what_was_due_is_acted_on_in_the_same_sweep(world: World) -> None:
    """A retry whose wait was over when the new version came, and a session that was lost."""
    aged(world)
    world.now_ms = 20_000

    world.one(Sweep(500))

    assert world.step_state("waits", "pay") == "READY"
    assert world.reader.get(keys.session("agent-one")) is None


def test_many_are_moved_in_slices(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that no batch grows without bound; the next sweep follows at once."""
    monkeypatch.setattr(old_timers, "_SLICE", 2)
    before = timers(world)
    aged(world)
    sweeps = 0
    while timers(world) != before:
        answer: Row | object = world.one(Sweep(500))
        sweeps += 1
        assert getattr(answer, "unfinished", False) is (timers(world) != before)

    assert sweeps > 1


def test_a_timer_that_nothing_names_goes(world: World) -> None:
    """It would be judged for ever."""
    aged(world)
    stray = keys.step_timer(*keys.TIMER_QUEUES[3], 77, "runs", 0)
    world.store.apply([(stray[:2] + stray[3:], keys.encode_row(Timer()))], [])
    world.store.commit()
    world.now_ms = 500
    renew(world, "agent-one")

    world.one(Sweep(500))

    assert stray not in timers(world)
    assert invariants.violations(world.reader, led_ms=world.now_ms) == []
    assert world.now_ms < SESSION_END_MS
