"""Leases: who may hold a step for how long, and what a late sign of life is worth."""

from __future__ import annotations

import itertools

import pytest

from stepward.server.core import keys, leases, rows
from stepward.server.core.commands import Accepted, Failed, RenewSession, SessionRenewed, Started, Sweep
from stepward.server.core.limits import Limits
from stepward.server.core.rejections import Reason, Rejection
from stepward.server.core.rows import DefinitionBody, EventType, RetrySpec, StartMode
from tests.core.world import World, actions_of, step_spec
from tests.scenarios.trips import (
    DONE,
    SESSION_END_MS,
    TTL_MS,
    cancel,
    free_slots,
    pass_time,
    renew,
    single,
    sweep,
    world_with,
)


def test_h003_a_renewal_before_the_sweep_saves_the_session() -> None:
    """H003: what was overdue when the supervisor looked is judged again when the sweep is decided."""
    world = world_with(single())
    world.submit("j1", "single")
    world.report("agent-one", "j1", "pay", Started())
    world.now_ms = SESSION_END_MS

    world.do(RenewSession("agent-one", 1, 0), Sweep(100))

    assert world.step_state("j1", "pay") == "RUNNING"
    assert world.report("agent-one", "j1", "pay", DONE) == "RECORDED"


@pytest.mark.parametrize("renewal_first", [True, False])
def test_h004_renewed_or_lost_but_never_both(renewal_first: bool) -> None:
    """H004: a renewal and the end of the lease meet; in both orders one of them holds, and the answer says which."""
    world = world_with(single())
    world.submit("j1", "single")
    world.report("agent-one", "j1", "pay", Started())
    world.now_ms = SESSION_END_MS
    renewal, end = RenewSession("agent-one", 1, 0), Sweep(100)

    answers = world.do(renewal, end) if renewal_first else world.do(end, renewal)

    renewed = answers[0 if renewal_first else 1]
    if renewal_first:
        assert isinstance(renewed, SessionRenewed)
        assert world.step_state("j1", "pay") == "RUNNING"
    else:
        assert isinstance(renewed, Rejection)
        assert renewed.reason is Reason.SESSION_ENDED
        assert world.step_state("j1", "pay") == "RETRY_WAIT"


def test_h004_a_session_that_is_being_ended_cannot_be_renewed() -> None:
    """H004: a lease whose end needs several sweeps stays over in between."""
    world = World(limits=Limits(session_ttl_ms=TTL_MS, sweep_subjects_max=1))
    world.define(single())
    world.open("agent-one", actions_of(single()))
    for n in range(3):
        world.submit(f"j{n}", "single")
        world.report("agent-one", f"j{n}", "pay", Started())
    world.now_ms = SESSION_END_MS
    world.one(Sweep(1))

    answer = world.one(RenewSession("agent-one", 1, 0))

    assert isinstance(answer, Rejection)
    assert answer.reason is Reason.SESSION_ENDED
    pass_time(world, SESSION_END_MS + TTL_MS)
    assert world.reader.get(keys.session("agent-one")) is None


def test_h009_an_agent_is_given_no_more_than_it_has_room_for() -> None:
    """H009: one slot and five steps of 10 s; what waits is not with the agent, so no clock of it runs there."""
    world = World()
    spec = step_spec("pay", start_to_close_ms=15_000, heartbeat_ms=14_000)
    world.define(DefinitionBody("single", (spec,), b"", b""))
    world.open("agent-one", ("pay",), slots=1)
    jobs = [f"j{number}" for number in range(5)]
    for job_id in jobs:
        world.submit(job_id, "single")
    while open_ := [job_id for job_id in jobs if world.job_state(job_id) != "COMPLETED"]:
        assert world.reader.count(keys.assignments("agent-one")) == 1
        assert world.report("agent-one", open_[0], "pay", Started()) == "RECORDED"
        pass_time(world, world.now_ms + 10_000, alive=("agent-one",))
        assert world.report("agent-one", open_[0], "pay", DONE) == "RECORDED"

    offered = [
        event.attempt for job_id in jobs for _, event in world.events(job_id) if event.type is EventType.StepOffered
    ]
    assert offered == [1] * 5


def test_h012_a_new_attempt_is_judged_by_its_own_grant() -> None:
    """H012: the second attempt inherits no sign of life from the first, which is long gone."""
    world = world_with(single())
    world.submit("j1", "single")
    world.report("agent-one", "j1", "pay", Started())
    pass_time(world, 600_000)
    world.open("agent-two", ("pay", "undo-pay"))
    world.do()
    assert world.step_state("j1", "pay") == "OFFERED"

    world.now_ms += 50
    sweep(world)

    assert world.step_state("j1", "pay") == "OFFERED"
    step = world.step("j1", "pay")
    assert step is not None
    assert step.session_id == "agent-two"


def test_h014_an_offer_that_is_not_accepted_goes_back_and_costs_no_attempt() -> None:
    """H014: the agent never saw the offer; after the accept deadline it is ready again, with a new token."""
    world = world_with(single(start=StartMode.ON_ACCEPT))
    world.submit("j1", "single")
    first = world.step("j1", "pay")
    assert first is not None

    pass_time(world, TTL_MS, alive=("agent-one",))

    again = world.step("j1", "pay")
    assert again is not None
    assert (again.state.name, again.attempts) == ("OFFERED", 0)
    assert again.token > first.token
    assert world.report("agent-one", "j1", "pay", Accepted(), token=first.token) == "STALE_TOKEN"


def test_h014_an_accept_after_its_deadline_starts_nothing() -> None:
    """H014: the step is ready again and has no newer token yet; to say yes now would let it run without a lease."""
    world = world_with(single(start=StartMode.ON_ACCEPT))
    world.submit("j1", "single")
    token = _token(world, "j1")
    world.now_ms = TTL_MS
    sweep(world)
    assert world.step_state("j1", "pay") == "READY"

    assert world.report("agent-one", "j1", "pay", Accepted(), token=token) == "STALE_TOKEN"
    assert world.step_state("j1", "pay") == "READY"


def test_h016_sweeps_leave_an_offer_alone_until_its_deadline() -> None:
    """H016: between offered and started a sweep changes nothing, however often it comes."""
    world = world_with(single())
    world.submit("j1", "single")
    before = world.step("j1", "pay")

    for world.now_ms in range(0, TTL_MS, 100):
        renew(world, "agent-one")
        sweep(world)

        assert world.step("j1", "pay") == before


def test_h017_a_wait_of_twelve_hours_is_one_grant() -> None:
    """H017: a step that waits for its retry holds no lease, so nothing delivers it again and again meanwhile."""
    half_day_ms = 12 * 3_600_000
    body = single(retry=RetrySpec(attempts_max=2, initial_ms=half_day_ms, cap_ms=half_day_ms))
    world = World(limits=Limits(session_ttl_ms=10 * TTL_MS))
    world.define(body)
    world.open("agent-one", actions_of(body))
    world.submit("j1", "single")
    world.report("agent-one", "j1", "pay", failed_after(half_day_ms))

    # Heartbeats every third of a lease, and a sweep with each.
    for world.now_ms in range(10 * TTL_MS // 3, half_day_ms, 10 * TTL_MS // 3):
        world.do(RenewSession("agent-one", 1, 0), Sweep(100))
    world.now_ms = half_day_ms - 1
    assert world.step_state("j1", "pay") == "RETRY_WAIT"
    world.now_ms += 1
    world.do(Sweep(100))
    world.report("agent-one", "j1", "pay", DONE)

    offered = [event for _, event in world.events("j1") if event.type is EventType.StepOffered]
    assert len(offered) == 2
    assert world.job_state("j1") == "COMPLETED"


def failed_after(wait_ms: int) -> Failed:
    """A failure that asks for a wait."""
    return Failed("Later", "come back", retryable=True, retry_after_ms=wait_ms)


def test_h030_only_a_start_uses_an_attempt() -> None:
    """H030: ten minutes without an agent and two offers that nobody accepted leave the one attempt unused."""
    world = World()
    world.define(single(start=StartMode.ON_ACCEPT, retry=RetrySpec(attempts_max=1)))
    world.submit("j1", "single")
    pass_time(world, 600_000)
    world.open("agent-one", ("pay",))
    pass_time(world, 600_000 + 2 * TTL_MS, alive=("agent-one",))
    step = world.step("j1", "pay")
    assert step is not None
    assert step.attempts == 0

    assert world.report("agent-one", "j1", "pay", Accepted()) == "RECORDED"
    assert world.report("agent-one", "j1", "pay", DONE) == "RECORDED"
    assert world.job_state("j1") == "COMPLETED"


def test_h031_a_lost_lease_keeps_the_other_attempts() -> None:
    """H031: the agent dies in attempt 1 of 5; four are left, with the normal wait."""
    world = world_with(single(retry=RetrySpec(attempts_max=5)))
    world.submit("j1", "single")
    world.report("agent-one", "j1", "pay", Started())

    world.now_ms = SESSION_END_MS
    sweep(world)

    step = world.step("j1", "pay")
    assert step is not None
    assert (step.state.name, step.attempts, step.lease_losses) == ("RETRY_WAIT", 1, 1)
    assert SESSION_END_MS <= step.timer_at_ms <= SESSION_END_MS + 1_000


def test_h063_a_step_that_kills_its_agents_is_set_aside() -> None:
    """H063: after three agents are lost on it, it is poison; the fourth agent never sees it, and other work goes on."""
    world = World()
    world.define(single(retry=RetrySpec(attempts_max=10, initial_ms=1, cap_ms=1)))
    world.submit("killer", "single")
    for n in range(3):
        world.open(f"agent-{n}", ("pay",), slots=1)
        world.report(f"agent-{n}", "killer", "pay", Started())
        world.now_ms += SESSION_END_MS + 100
        sweep(world)
        world.now_ms += 100
        sweep(world)
    world.open("agent-3", ("pay",), slots=1)
    world.submit("other", "single")

    step = world.step("killer", "pay")

    assert step is not None
    assert (step.state.name, step.failure and step.failure.kind) == ("ESCALATED", "POISON")
    assert (step.lease_losses, world.job_state("killer")) == (3, "ESCALATED")
    assert world.report("agent-3", "other", "pay", DONE) == "RECORDED"


def test_h063_an_agent_that_dies_before_it_can_say_started_counts_too() -> None:
    """H063: an offer lost with its session uses no attempt, yet three of them are poison all the same."""
    world = World()
    world.define(single(retry=RetrySpec(attempts_max=10, initial_ms=1, cap_ms=1)))
    world.submit("killer", "single")
    for n in range(3):
        world.open(f"agent-{n}", ("pay",), slots=1)
        world.now_ms += SESSION_END_MS + 100
        sweep(world)
        world.now_ms += 100
        sweep(world)

    step = world.step("killer", "pay")

    assert step is not None
    assert (step.state.name, step.attempts, step.lease_losses) == ("ESCALATED", 0, 3)


def test_h111_free_slots_are_recounted_not_counted() -> None:
    """H111: a thousand losses, cancels, timeouts and repeated reports later, every slot is free again."""
    world = world_with(single(retry=RetrySpec(attempts_max=1)), slots=32)
    endings = itertools.cycle(["done twice", "cancel", "timeout", "failed"])
    for n, ending in zip(range(1_000), endings, strict=False):
        job_id = f"j{n:04d}"
        world.submit(job_id, "single")
        world.report("agent-one", job_id, "pay", Started())
        match ending:
            case "done twice":
                world.report("agent-one", job_id, "pay", DONE)
                world.report("agent-one", job_id, "pay", DONE)
            case "cancel":
                cancel(world, job_id)
                world.report("agent-one", job_id, "pay", DONE)
            case "timeout":
                token = _token(world, job_id)
                pass_time(world, world.now_ms + 10_000, alive=("agent-one",))
                world.report("agent-one", job_id, "pay", DONE, token=token)
            case "failed":
                world.report("agent-one", job_id, "pay", failed_after(1))
        _work_off(world)

    assert free_slots(world, "agent-one") == 32
    assert world.reader.count(keys.ASSIGNMENT) == 0


def _token(world: World, job_id: str) -> int:
    step = world.step(job_id, "pay")
    assert step is not None
    return step.token


def _work_off(world: World) -> None:
    """Let the agent do whatever it still holds."""
    for key in list(world.reader.scan(keys.ASSIGNMENT)):
        session_id, token, job_id, _ = keys.parse_assignment(key)
        world.report(session_id, job_id, "pay", DONE, token=token)


@pytest.mark.parametrize("ttl_ms", [1_000, 3_000, 10_000, 33_333, 600_000])
def test_the_lease_inequality(ttl_ms: int) -> None:
    """An agent whose heartbeat was acknowledged knows that its lease is over before any leader may end its session.

    The worst case: the leader answers at the last moment that rule (a) allows, and the heartbeat took no time at all,
    so the agent counts from the latest instant; its clock is slow by 1%.
    """
    acknowledged_ms = ttl_ms // 3
    agent_knows_ms = acknowledged_ms + ttl_ms * 101 // 100
    stopped_ms = agent_knows_ms + 2_000

    ends_ms = leases.session_end_led_ms(renewed_led_ms=0, ttl_ms=ttl_ms, kill_grace_ms=2_000)

    assert stopped_ms <= ends_ms
    session = _session(ttl_ms)
    assert leases.may_acknowledge(session, epoch=1, steady_ms=acknowledged_ms)
    assert not leases.may_acknowledge(session, epoch=1, steady_ms=acknowledged_ms + 1)
    assert not leases.may_acknowledge(session, epoch=2, steady_ms=0)


def _session(ttl_ms: int) -> rows.Session:
    return rows.Session("default", "q", ("pay",), 1, "a", "l", "n1", 1, ttl_ms, 0, 0, 0, 1, 0)


def test_what_was_not_accepted_when_its_session_ended_has_not_happened() -> None:
    """A session with a shorter TTL than the bound for accepts of today ends first: that costs no attempt either."""
    world = world_with(single(start=StartMode.ON_ACCEPT))
    world.limits = Limits(session_ttl_ms=60_000)
    world.submit("j1", "single")
    assert world.step_state("j1", "pay") == "OFFERED"

    world.now_ms = SESSION_END_MS
    sweep(world)

    step = world.step("j1", "pay")
    assert step is not None
    assert (step.state.name, step.attempts, step.lease_losses, step.maybe_done) == ("READY", 0, 0, False)
