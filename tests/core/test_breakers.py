"""Circuit breakers: when one opens, what passes over it, how it closes, and that there is none while all is well."""

from __future__ import annotations

import pytest

from stepward.server.core import breakers, invariants, keys
from stepward.server.core.breaker_rows import Breaker, Outcomes
from stepward.server.core.commands import AttemptEvent, Failed, Started, Stopped, Sweep, TerminateJob, Unknown
from stepward.server.core.limits import Limits
from stepward.server.core.rows import DefinitionBody, RetrySpec
from tests.core.world import World, step_spec
from tests.scenarios.trips import DONE, SESSION_END_MS, renew

DOWN = Failed("ServiceDown", "503", retryable=True)
SOLD_OUT = Failed("SoldOut", "no seats", retryable=False)
# The next attempt is far away, so that each job is one outcome.
RETRY = RetrySpec(
    attempts_max=10_000, initial_ms=3_600_000, factor=1.0, cap_ms=3_600_000, non_retryable_kinds=("Never",)
)


def world_of(*, slots: int = 1, agents: int = 1) -> World:
    """A world with actions "pay" and "ship", and agents that run both."""
    world = World(limits=Limits(session_ttl_ms=3_000, mass_loss_sessions_min=1_000, breaker_outcomes_min=20))
    for name in ("pay", "ship"):
        step = step_spec(name, retry=RETRY, undo=False, start_to_close_ms=10_000)
        world.define(DefinitionBody(name, (step,), b"", b""))
    for number in range(agents):
        world.open(f"agent-{number}", ("pay", "ship"), slots=slots)
    return world


def play(world: World, event: AttemptEvent, count: int, *, action: str = "pay", prefix: str = "j") -> None:
    """So many jobs, one after the other, of which each attempt ends in the same way."""
    for _ in range(count):
        job_id = f"{prefix}{world.sequence:06}"
        world.submit(job_id, action)
        step = world.step(job_id, action)
        assert step is not None
        assert step.state.name == "OFFERED", step
        world.report(step.session_id, job_id, action, event)


def row_of(world: World, action: str = "pay") -> Breaker | None:
    """The breaker's row."""
    row = world.reader.get(keys.breaker("default", "q", action))
    assert row is None or isinstance(row, Breaker)
    return row


def is_open(world: World, action: str = "pay") -> bool:
    """Whether it is open, or half open."""
    return breakers.of_action(world.reader, "default", "q", action, led_ms=world.now_ms) is not None


def at(world: World, now_ms: int) -> None:
    """Let time come, with a heartbeat of those who are there and a look of the supervisor."""
    for world.now_ms in (*range(world.now_ms + 500, now_ms, 500), now_ms):  # noqa: B020 - the clock is what is moved
        renew(world, *(key[1:].decode() for key in list(world.reader.scan(keys.SESSION))))
        world.one(Sweep(500))
    assert invariants.violations(world.reader, led_ms=world.now_ms) == []


@pytest.mark.parametrize(
    ("good", "bad", "opens"),
    [
        # Twenty outcomes, of which half are bad; nineteen say too little.
        (10, 10, True),
        (9, 10, False),
        (11, 9, False),
        (0, 20, True),
        (0, 19, False),
        (20, 19, False),
    ],
)
def test_when_it_opens(good: int, bad: int, opens: bool) -> None:
    """At half of at least twenty outcomes. The first one is bad: before that nothing is counted."""
    world = world_of()
    play(world, DOWN, 1)
    play(world, DONE, good)
    play(world, DOWN, bad - 1)

    assert is_open(world) is opens
    assert not is_open(world, "ship")


@pytest.mark.parametrize(
    ("event", "counts"),
    [
        (DOWN, True),
        (Unknown("NoAnswer", ""), True),
        (Failed("Broken", "", retryable=True, may_have_happened=True), True),
        # A handler vouches for it, or the definition says so of its kind: it is an answer.
        (SOLD_OUT, False),
        (Failed("Never", "", retryable=True), False),
        (Failed("Busy", "", retryable=True, retry_after_ms=3_600_000), False),
        # It is the agent that stops.
        (Stopped(draining=False), False),
        (DONE, False),
    ],
)
def test_what_is_bad(event: AttemptEvent, counts: bool) -> None:
    """What may pass by itself."""
    world = world_of()
    play(world, event, 20)

    assert is_open(world) is counts
    assert (row_of(world) is not None) is counts


def test_timeouts_count() -> None:
    """Twenty attempts that do not end in time are twenty bad outcomes."""
    world = world_of(slots=20)
    for number in range(20):
        world.submit(f"j{number}", "pay")
        world.report("agent-0", f"j{number}", "pay", Started())
    at(world, 10_000)

    assert is_open(world)


def test_a_lost_session_is_one_outcome_for_each_action() -> None:
    """An agent that dies with a hundred steps says no more than one that dies with one; twenty of them say enough."""
    world = world_of(slots=50, agents=1)
    for number in range(40):
        world.submit(f"j{number}", "pay" if number % 2 else "ship")
    world.now_ms = SESSION_END_MS
    world.one(Sweep(500))
    for action in ("pay", "ship"):
        row = row_of(world, action)
        assert row is not None
        assert [(part.good, part.bad) for part in row.outcomes] == [(0, 1)]

    many = world_of(slots=2, agents=20)
    for number in range(40):
        many.submit(f"j{number}", "pay")
    many.now_ms = SESSION_END_MS
    many.one(Sweep(500))
    assert is_open(many)


def test_outcomes_count_for_a_window() -> None:
    """Nineteen bad ones, and the twentieth a minute later: nothing opens, and later nothing is left to be said."""
    world = world_of()
    play(world, DOWN, 19)
    at(world, 60_000)
    play(world, DOWN, 1)
    assert not is_open(world)
    assert row_of(world) is not None
    at(world, 60_000 + 61_000)
    assert row_of(world) is None


def opened() -> World:
    """A world with an open breaker, and what waits for the action and for another one."""
    world = world_of(slots=10)
    play(world, DOWN, 20)
    for number in range(5):
        world.submit(f"pay-{number}", "pay")
        world.submit(f"ship-{number}", "ship")
    return world


def states(world: World) -> list[str]:
    """The states of what waits."""
    return [world.step_state(f"pay-{number}", "pay") for number in range(5)]


def test_offers_pass_over_an_open_breaker() -> None:
    """No attempt of the action is used up, and another action on the same queue goes on."""
    world = opened()

    assert states(world) == ["READY"] * 5
    assert [world.step_state(f"ship-{number}", "ship") for number in range(5)] == ["OFFERED"] * 5
    told = list(breakers.standing(world.reader, led_ms=world.now_ms))
    assert [(one.action, one.probes_in_ms) for one in told] == [("pay", 30_000)]
    assert "20 of 20 attempts" in told[0].reason
    assert "ServiceDown: 503" in told[0].reason
    at(world, 29_999)
    assert states(world) == ["READY"] * 5


def test_probes_close_it_one_after_the_other() -> None:
    """One at a time; three that end well close it, its row is gone, and all that waits is offered."""
    world = opened()
    at(world, 30_000)
    for number in range(3):
        assert states(world).count("OFFERED") == 1
        assert is_open(world)
        world.report("agent-0", f"pay-{number}", "pay", DONE)

    assert row_of(world) is None
    assert states(world) == ["SUCCEEDED"] * 3 + ["OFFERED"] * 2


def test_a_probe_that_ends_badly_opens_it_again() -> None:
    """For as long as before; what ended well before that does not count any more."""
    world = opened()
    at(world, 30_000)
    world.report("agent-0", "pay-0", "pay", DONE)
    world.report("agent-0", "pay-1", "pay", DOWN)

    assert states(world).count("OFFERED") == 0
    row = row_of(world)
    assert row is not None
    assert (row.until_led_ms, row.successes) == (60_000, 0)
    assert "a probe ended badly: ServiceDown" in row.reason


def test_a_probe_that_tells_nothing_makes_room_for_another() -> None:
    """Its agent is lost, or its job is cancelled: the breaker does not wait for it for ever."""
    world = opened()
    at(world, 30_000)
    assert states(world)[0] == "OFFERED"
    world.one(TerminateJob("pay-0", "not wanted", "ada"))
    world.one(Sweep(500))

    assert states(world)[1] == "OFFERED"
    assert is_open(world)


@pytest.mark.parametrize("needed", [False, True])
def test_a_window_without_a_bad_probe_closes_it(needed: bool) -> None:
    """Nobody needs the action any more, or a probe takes hours: neither holds it, and its warning, for ever."""
    world = world_of(slots=10)
    play(world, DOWN, 20)
    if needed:
        step = step_spec("pay", retry=RETRY, undo=False, start_to_close_ms=3_600_000)
        world.define(DefinitionBody("long", (step,), b"", b""))
        for number in range(5):
            world.submit(f"pay-{number}", "long")
        at(world, 30_000)
        world.report("agent-0", "pay-0", "pay", Started())
    at(world, 89_500)
    assert is_open(world)
    at(world, 91_000)

    assert row_of(world) is None
    if needed:
        assert states(world) == ["RUNNING"] + ["OFFERED"] * 4


def test_all_that_have_nothing_to_say_are_forgotten() -> None:
    """However many there are that have."""
    world = world_of()
    for number in range(150):
        world.put(keys.breaker("default", "q", f"a{number:03}"), Breaker((Outcomes(0, 0, 1),)))
    world.put(keys.breaker("default", "q", "z"), Breaker((Outcomes(-120_000, 0, 1),)))
    world.one(Sweep(500))

    assert row_of(world, "z") is None
    assert world.reader.count(keys.BREAKER) == 150


def test_what_was_at_work_when_it_opened_neither_closes_nor_prolongs_it() -> None:
    """Only probes tell of the service as it is now."""
    world = world_of(slots=10)
    for number in range(3):
        world.submit(f"old-{number}", "pay")
    play(world, DOWN, 20)
    before = row_of(world)
    for number in range(2):
        world.report("agent-0", f"old-{number}", "pay", DONE)
    world.report("agent-0", "old-2", "pay", DOWN)

    assert row_of(world) == before


def test_there_is_no_row_and_nothing_is_read_while_all_is_well() -> None:
    """Nor of a business that fails: what its handlers vouch for is no trouble."""
    world = world_of()
    play(world, DONE, 30)
    play(world, SOLD_OUT, 30)

    assert world.reader.count(keys.BREAKER) == 0
