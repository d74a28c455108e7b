"""Timers, attempts and deadlines across leaderships: what stands in rows is all that a new leader needs."""

from __future__ import annotations

import random

import pytest

from stepward.server.core import epoch_rows, keys, rows
from stepward.server.core.commands import Failed, RenewSession, Started, Stopped, Sweep, Swept
from stepward.server.core.leases import session_end_led_ms
from stepward.server.core.limits import Limits
from stepward.server.core.rows import DefinitionBody, Effect, EventType, OnUnknown, RetrySpec, StartMode
from stepward.server.store.live import LiveRows
from tests.core.world import World, actions_of, step_spec
from tests.scenarios.trips import (
    BROKEN,
    DONE,
    GONE,
    KILL_GRACE_MS,
    SESSION_END_MS,
    TTL_MS,
    cancel,
    pass_time,
    renew,
    single,
    sweep,
    world_with,
)

HOUR_MS = 3_600_000
MINUTE_MS = 60_000


def new_leader(world: World) -> None:
    """Another leadership: nothing is known but the rows."""
    world.epoch += 1
    world.reader = LiveRows(world.store)


def opens_epoch(world: World) -> None:
    """The batch with which a new leader begins."""
    with world.batch() as batch:
        batch.draft.put(keys.EPOCH, epoch_rows.Epoch(world.epoch, world.now_ms))


def times_of(world: World, job_id: str, type_: EventType) -> list[int]:
    return [led_ms for led_ms, event in world.events(job_id) if event.type is type_]


def test_h029_attempts_are_counted_in_rows() -> None:
    """H029: the leader changes after each failure, and each of ten steps is tried exactly three times."""
    retry = RetrySpec(attempts_max=3, initial_ms=0, cap_ms=0)
    world = world_with(single(retry=retry), slots=20)
    # Thirty failures in a row would else open the breaker of the action.
    world.limits = Limits(session_ttl_ms=TTL_MS, breaker_outcomes_min=100)
    jobs = [f"j{n}" for n in range(10)]
    for job_id in jobs:
        world.submit(job_id, "single")
    while any(world.step_state(job_id, "pay") != "FAILED" for job_id in jobs):
        for job_id in jobs:
            world.report("agent-one", job_id, "pay", BROKEN)
            new_leader(world)
        sweep(world)

    assert {len(times_of(world, job_id, EventType.StepOffered)) for job_id in jobs} == {3}


def test_h034_a_deadline_stays_where_it_was_set() -> None:
    """H034: leaders and agents change, and the job is undone an hour after its submission all the same."""
    body = single(retry=RetrySpec(attempts_max=100, initial_ms=1_000, factor=1.0))
    world = World(limits=Limits(session_ttl_ms=TTL_MS, lease_losses_max=100))
    world.define(DefinitionBody(body.name, body.steps, b"", b"", deadline_ms=HOUR_MS))
    world.submit("j1", "single")
    for number, minute in enumerate((20, 40, 55, 60)):
        agent = f"agent-{number}"
        world.open(agent, actions_of(body))
        pass_time(world, world.now_ms + 2_000, alive=(agent,))
        assert world.report(agent, "j1", "pay", Started()) == "RECORDED"
        # It goes silent, is lost, and the step waits for the next one, under another leader.
        world.now_ms = minute * MINUTE_MS - 1
        sweep(world)
        new_leader(world)
        if minute < 60:
            assert world.job_state("j1") == "RUNNING"
    world.now_ms = HOUR_MS
    sweep(world)

    assert times_of(world, "j1", EventType.JobDeadlinePassed) == [HOUR_MS]
    failure = world.progress("j1").failure
    assert failure is not None
    assert failure.kind == "JOB_DEADLINE"


def test_h037_a_backlog_is_worked_off_once() -> None:
    """H037: many timers are due at once and sweeps are small; each is handled exactly once, oldest first."""
    world = world_with(single(retry=RetrySpec(attempts_max=3, initial_ms=1_000, factor=1.0)), slots=500)
    jobs = [f"j{n:03d}" for n in range(500)]
    for job_id in jobs:
        world.submit(job_id, "single")
    for job_id in jobs:
        world.report("agent-one", job_id, "pay", BROKEN)
    world.now_ms = 1_000
    world.one(RenewSession("agent-one", 1, 0))
    handled = []
    while True:
        answer = world.one(Sweep(30))
        assert isinstance(answer, Swept)
        handled.append(answer.handled)
        if not answer.overdue:
            break

    assert (sum(handled), max(handled)) == (500, 30)
    assert {len(times_of(world, job_id, EventType.StepReady)) for job_id in jobs} == {2}


def test_h038_a_timer_that_is_looked_at_too_early_stays() -> None:
    """H038: the look changes nothing, and the timer fires when it is due."""
    world = world_with(single(retry=RetrySpec(attempts_max=3, initial_ms=1_000, factor=1.0)))
    world.submit("j1", "single")
    world.report("agent-one", "j1", "pay", Failed("Busy", "", retryable=True, retry_after_ms=1_000))
    for now_ms in (950, 999):
        world.now_ms = now_ms
        world.do(RenewSession("agent-one", 1, 0), Sweep(10))
        assert world.step_state("j1", "pay") == "RETRY_WAIT"
    world.now_ms = 1_000
    answer = world.one(Sweep(10))

    assert isinstance(answer, Swept)
    assert answer.handled == 1
    assert world.step_state("j1", "pay") == "OFFERED"


def test_h039_what_fell_due_while_nobody_led_fires_once() -> None:
    """H039: all nodes are down from before until long after; the first sweep of the new leader finds it."""
    world = world_with(single(retry=RetrySpec(attempts_max=3)))
    world.submit("j1", "single")
    world.report("agent-one", "j1", "pay", Failed("Busy", "", retryable=True, retry_after_ms=10_000))
    world.now_ms = HOUR_MS
    new_leader(world)
    for _ in range(3):
        sweep(world)

    assert times_of(world, "j1", EventType.StepReady) == [0, HOUR_MS]


@pytest.mark.parametrize("seed", range(5))
def test_h040_nothing_fires_before_its_time(seed: int) -> None:
    """H040: waits from a second to an hour, with leaders that come and go; each ends in its time, not with them."""
    rng = random.Random(seed)
    world = world_with(single(retry=RetrySpec(attempts_max=3)), slots=50)
    world.limits = Limits(session_ttl_ms=TTL_MS, breaker_outcomes_min=100)
    waits_ms = {f"j{n:02d}": rng.randint(1_000, HOUR_MS) for n in range(50)}
    for job_id, wait_ms in waits_ms.items():
        world.submit(job_id, "single")
        world.report("agent-one", job_id, "pay", Failed("Busy", "", retryable=True, retry_after_ms=wait_ms))
    while world.now_ms < HOUR_MS:
        if rng.random() < 0.3:
            new_leader(world)
        answer = world.one(Sweep(10))
        assert isinstance(answer, Swept)
        # A sweep comes at latest a second after something has fallen due.
        world.now_ms += rng.randint(1, 1_000) if answer.overdue else 1_000
    sweep(world)

    for job_id, wait_ms in waits_ms.items():
        fired_ms = times_of(world, job_id, EventType.StepReady)[1]
        assert wait_ms <= fired_ms <= wait_ms + 6_000, job_id


def test_h046_no_undo_begins_beside_an_attempt_that_still_acts() -> None:
    """H046: one branch has failed for good, the other is at work on an agent that lives and does not answer."""
    body = DefinitionBody("pair", (step_spec("flight"), step_spec("hotel"), step_spec("car", verify=True)), b"", b"")
    world = world_with(body)
    world.submit("j1", "pair")
    world.report("agent-one", "j1", "flight", DONE)
    world.report("agent-one", "j1", "car", Started())
    world.report("agent-one", "j1", "hotel", GONE)
    pass_time(world, 3 * TTL_MS, alive=("agent-one",))
    assert times_of(world, "j1", EventType.UndoReady) == []
    assert times_of(world, "j1", EventType.VerifyReady) == []

    world.report("agent-one", "j1", "car", Stopped(draining=False))

    # Nor is it asked about before: what can still act can still happen.
    assert times_of(world, "j1", EventType.VerifyReady) == [3 * TTL_MS]
    assert times_of(world, "j1", EventType.UndoReady) == [3 * TTL_MS]
    assert world.step_state("j1", "flight") == "UNDO_OFFERED"


@pytest.mark.parametrize(
    ("retry_after_ms", "wait_ms"),
    [(0, 0), (1, 1), (1_000, 1_000), (1_001, 1_000), (10**15, 1_000)],
)
def test_what_an_agent_asks_for_is_bounded(retry_after_ms: int, wait_ms: int) -> None:
    """Its wait counts instead of the policy's, up to the longest duration that there is."""
    world = World(limits=Limits(session_ttl_ms=TTL_MS, duration_ms_max=1_000))
    world.define(single())
    world.open("agent-one", ("pay",))
    world.submit("j1", "single")
    world.report("agent-one", "j1", "pay", Failed("Busy", "", retryable=True, retry_after_ms=retry_after_ms))

    step = world.step("j1", "pay")

    assert step is not None
    assert step.timer_at_ms == wait_ms


def test_failures_and_lost_agents_are_counted_apart() -> None:
    """H063: neither uses up what the other has; an attempt that a lost agent had started is one of both."""
    world = world_with(single(retry=RetrySpec(attempts_max=5, initial_ms=0, cap_ms=0)))
    world.submit("j1", "single")
    for number in range(2):
        world.report("agent-one", "j1", "pay", BROKEN)
        world.one(Sweep(10))
        assert world.step_state("j1", "pay") == "OFFERED", number
    world.now_ms = 20_000
    sweep(world)

    step = world.step("j1", "pay")
    assert step is not None
    assert (step.attempts, step.lease_losses) == (2, 1)
    world.open("agent-two", ("pay",))
    sweep(world)
    world.report("agent-two", "j1", "pay", Started())
    world.now_ms = 40_000
    sweep(world)
    step = world.step("j1", "pay")
    assert step is not None
    assert (step.attempts, step.lease_losses) == (3, 2)


def test_a_lost_attempt_that_ends_its_job_takes_the_offers_of_its_agent_with_it() -> None:
    """The agent was granted a shorter TTL than an offer may stay without word now, and is lost with both."""
    pay = step_spec("pay", effect=Effect.NON_IDEMPOTENT, start=StartMode.ON_OFFER, on_unknown=OnUnknown.COMPENSATE)
    world = world_with(DefinitionBody("pair", (pay, step_spec("ship", start=StartMode.ON_ACCEPT)), b"", b""))
    world.limits = Limits(session_ttl_ms=60_000)
    world.submit("j1", "pair")
    world.report("agent-one", "j1", "pay", Started())
    world.now_ms = 7_000

    sweep(world)

    assert (world.step_state("j1", "pay"), world.step_state("j1", "ship")) == ("OUTCOME_UNKNOWN", "CANCELLED")
    assert world.reader.get(keys.session("agent-one")) is None


def test_nothing_is_left_of_a_deadline_when_its_job_has_ended() -> None:
    """The timer goes with the end, so that it never wakes anybody."""
    world = World()
    world.define(DefinitionBody("single", single().steps, b"", b"", deadline_ms=5_000))
    world.open("agent-one", ("pay",))
    world.submit("j1", "single")
    assert world.reader.get(keys.deadline_timer(5_000, "j1")) == rows.Timer()

    world.report("agent-one", "j1", "pay", DONE)

    assert world.reader.get(keys.deadline_timer(5_000, "j1")) is None


def test_silence_that_nobody_could_hear_ends_no_attempt() -> None:
    """The server is away for three times the heartbeat timeout. The work goes on, and has its whole bound again."""
    body = DefinitionBody("single", (step_spec("pay", heartbeat_ms=2_000),), b"", b"")
    world = World(limits=Limits(session_ttl_ms=60_000))
    world.define(body)
    world.open("agent-one", actions_of(body))
    world.submit("j1", "single")
    assert world.report("agent-one", "j1", "pay", Started()) == "RECORDED"
    world.now_ms += 6_000
    new_leader(world)
    opens_epoch(world)
    sweep(world)
    assert world.step_state("j1", "pay") == "RUNNING"
    world.now_ms += 1_999
    sweep(world)
    assert world.step_state("j1", "pay") == "RUNNING"
    world.now_ms += 1
    sweep(world)

    assert len(times_of(world, "j1", EventType.StepAttemptTimedOut)) == 1


def leaderless(world: World, ms: int) -> None:
    """Nobody leads for a while; then somebody does."""
    world.leaderless_ms += ms
    new_leader(world)


def test_no_lease_ends_in_the_time_in_which_nobody_led() -> None:
    """Nobody could hear of an agent then: it has as much time to speak as it had before."""
    world = world_with(single())
    world.submit("j1", "single")
    world.report("agent-one", "j1", "pay", Started())
    end_ms = session_end_led_ms(renewed_led_ms=0, ttl_ms=TTL_MS, kill_grace_ms=KILL_GRACE_MS)
    world.now_ms = 2_000
    renew(world, "agent-one")

    leaderless(world, HOUR_MS)
    for now_ms, there in ((end_ms, True), (end_ms + 1_999, True), (end_ms + 2_000, False)):
        world.now_ms = now_ms
        sweep(world)
        assert (world.reader.get(keys.session("agent-one")) is not None) == there, now_ms


def test_waits_go_on_in_the_time_in_which_nobody_led() -> None:
    """What was to be tried again in a minute is due when a minute has passed, whoever led."""
    world = world_with(single(retry=RetrySpec(attempts_max=3)))
    world.submit("j1", "single")
    world.report("agent-one", "j1", "pay", Failed("Busy", "", retryable=True, retry_after_ms=MINUTE_MS))

    leaderless(world, MINUTE_MS - 1)
    sweep(world)
    assert world.step_state("j1", "pay") == "RETRY_WAIT"
    leaderless(world, 1)
    sweep(world)
    assert world.step_state("j1", "pay") == "OFFERED"


def test_h033_a_new_leader_gives_an_attempt_no_new_time() -> None:
    """H033: leaders come and go, and the attempt ends at its time all the same."""
    world = world_with(single())
    world.submit("j1", "single")
    world.report("agent-one", "j1", "pay", Started())
    for second in range(1, 11):
        assert world.step_state("j1", "pay") == "RUNNING"
        pass_time(world, second * 1_000 - 1, alive=("agent-one",))
        new_leader(world)
        world.now_ms = second * 1_000
        sweep(world)

    assert times_of(world, "j1", EventType.StepAttemptTimedOut) == [10_000]


def test_h046_the_word_of_one_lost_attempt_is_not_that_of_another() -> None:
    """H046: two agents were lost with the same step; the one that is heard of says nothing of the other."""
    world = world_with(single(retry=RetrySpec(attempts_max=3, initial_ms=0)), agents=())
    world.submit("j1", "single")
    tokens = []
    for agent in ("agent-one", "agent-two"):
        world.open(agent, actions_of(single()))
        assert world.report(agent, "j1", "pay", Started()) == "RECORDED"
        tokens.append(world.step("j1", "pay").token)  # type: ignore[union-attr]  # it was offered
        world.now_ms += SESSION_END_MS
        sweep(world)
        sweep(world)
    cancel(world, "j1")
    world.open("agent-three", actions_of(single()))
    assert world.step_state("j1", "pay") == "OUTCOME_UNKNOWN"

    world.report("agent-three", "j1", "pay", Stopped(draining=False), token=tokens[0])
    assert world.step_state("j1", "pay") == "OUTCOME_UNKNOWN"
    world.report("agent-three", "j1", "pay", Stopped(draining=False), token=tokens[1])
    assert world.step_state("j1", "pay") == "UNDO_OFFERED"
