"""Why a job does not move: each state has a reason, and each reason says what unblocks it."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from stepward.server.core import explain, keys, rows, states
from stepward.server.core.commands import (
    CancelJob,
    DrainSession,
    Failed,
    OpenSession,
    PauseJob,
    Started,
    Sweep,
    TerminateJob,
    Unknown,
)
from stepward.server.core.epoch_rows import Epoch
from stepward.server.core.explaining import Circumstances, Explanation, Reason, ReasonKind
from stepward.server.core.limits import Limits
from stepward.server.core.rows import Clock, DefinitionBody, Effect, Head, JobState, StepState
from stepward.server.core.states import Mover
from tests.core.world import World, actions_of, step_spec
from tests.scenarios.trips import BROKEN, DONE, GONE, TRIP, pass_time, renew, single, world_with

K = ReasonKind


def head_of(world: World) -> Head:
    """The head as the next batch would leave it."""
    moment = world.moment()
    return Head(world.sequence, b"", 1, 0, moment.led_ms, moment.log_ms, moment.wall_ms, 0, "")


def explained(world: World, job_id: str = "j1", **circumstances: str) -> Explanation:
    """Why a job does not move."""
    found = explain.explain(
        world.reader,
        job_id,
        head=head_of(world),
        limits=world.limits,
        circumstances=Circumstances(**circumstances),
    )
    assert found is not None
    return found


def only(world: World, job_id: str = "j1") -> Reason:
    """The one reason that there is."""
    found = explained(world, job_id)
    assert len(found.reasons) == 1, found.reasons
    assert found.summary == found.reasons[0].text
    return found.reasons[0]


def case_of(world: World, job_id: str, job_state: JobState, *, undoing: bool) -> explain.Case:
    """What explanations are made from, of a job in any state."""
    made = explain.case_of(world.reader, job_id, head=head_of(world), limits=world.limits)
    assert made is not None
    return made._replace(progress=replace(made.progress, state=job_state, undoing=undoing))


@pytest.mark.parametrize(
    "state", [state for state in StepState if state is not StepState.PENDING], ids=lambda s: s.name
)
def test_every_state_of_every_part_has_a_reason(state: StepState) -> None:
    """A step that something is still to move has a reason, in each state of its job in which it can be."""
    world = world_with(DefinitionBody("single", (step_spec("pay", verify=True),), b"", b""), agents=())
    world.submit("j1", "single")
    clock = Clock.LED if state is states.phase(state).offered else Clock.LOG
    timed = states.MOVERS[state] is Mover.TIMER
    step = rows.Step(
        state,
        0,
        attempts=1,
        token=7,
        session_id="gone",
        maybe_done=True,
        timer_clock=clock if timed else Clock.NONE,
        timer_at_ms=5_000 if timed else 0,
        ready_log_ms=0,
        undo_waits=0 if timed else 1,
    )
    undoing = state >= StepState.UNDO_READY or state in (StepState.SUCCEEDED, StepState.OUTCOME_UNKNOWN)
    job_state = JobState.COMPENSATING if undoing else JobState.RUNNING

    reason = explain.of_step(case_of(world, "j1", job_state, undoing=undoing), 0, step)

    is_over = state in (StepState.COMPENSATED, StepState.UNDO_SKIPPED)
    # What may have happened waits for the undos of its dependents; only what is undone, or left so, waits for nothing.
    forward_and_final = not undoing and states.MOVERS[state] is Mover.NOTHING
    assert (reason is None) is (is_over or forward_and_final), reason
    if states.MOVERS[state] is Mover.PERSON:
        assert reason is not None
        assert reason.kind is K.PERSON
        assert "stepward job retry j1 pay" in reason.fix
    if timed:
        assert reason is not None
        at_ms = 10_000 if state is states.phase(state).running else 5_000
        assert (reason.clock, reason.at_ms) == (clock, at_ms)


def test_pending_steps_name_what_they_need() -> None:
    """They have no row; the first of them tells what it waits for."""
    world = world_with(TRIP)
    world.submit("j1", "trip")

    offered, needs = explained(world).reasons

    assert (offered.kind, offered.steps) == (K.OFFERED, ("flight",))
    assert (needs.kind, needs.steps_total) == (K.NEEDS, 3)
    assert needs.text == "3 steps wait for others: hotel needs flight"


def waiting_for(action: str = "pay") -> World:
    """A world with a job whose step waits for an agent, on queue "q"."""
    world = World()
    world.define(DefinitionBody("single", (replace(step_spec("pay", undo=False), action=action),), b"", b""))
    world.submit("j1", "single")
    return world


def nearly(world: World) -> list[str]:
    """What is said of agents that nearly fit."""
    reason = only(world)
    assert reason.kind is K.NO_AGENT
    assert reason.fix
    return [cause.text for cause in reason.causes]


def test_no_agent_at_all() -> None:
    """The command that is missing is an agent's."""
    world = waiting_for()

    assert nearly(world) == ["no agent is connected for queue 'q' in namespace 'default'"]
    reason = only(world)
    assert reason.text == "no agent that is connected offers action 'pay' on queue 'q' in namespace 'default'"
    assert reason.fix == "start an agent with action 'pay' for queue 'q' in namespace 'default'"
    assert (reason.clock, reason.at_ms) == (Clock.LOG, 86_400_000)


def test_agents_that_nearly_fit_are_named() -> None:
    """The closest spelling; the same queue with other actions; the action on another queue, or in another namespace."""
    world = waiting_for("charge-card")
    world.open("a1", ("charge-cart", "ship"))
    assert nearly(world) == ["an agent on queue 'q' offers 'charge-cart': is that what is meant?"]

    world = waiting_for("charge-card")
    world.open("a1", ("ship", "mail"))
    assert nearly(world) == ["agents on queue 'q' offer 'mail', 'ship'"]

    world = waiting_for("charge-card")
    world.open("a1", ("charge-card",), queue="blue")
    world.one(OpenSession("a2", "shop", "q", ("charge-card",), 4, "two", "t", "n1"))
    assert nearly(world) == [
        "agent a1 offers 'charge-card', but on queue 'blue'",
        "agent two offers 'charge-card', but in namespace 'shop'",
    ]


def test_agents_that_take_no_work_now_say_why() -> None:
    """Draining, or not heard of."""
    world = waiting_for()
    world.open("a1", ("pay",), slots=1)
    world.one(DrainSession("a1", 1))
    world.submit("j2", "single")

    assert nearly_of(world, "j2") == ["agent a1: it is draining"]


def nearly_of(world: World, job_id: str) -> list[str]:
    return [cause.text for cause in only(world, job_id).causes]


def test_all_slots_are_taken_and_by_what() -> None:
    """So a person sees which job is in the way."""
    world = world_with(single(), slots=1)
    world.submit("j0", "single")
    world.submit("j1", "single")

    reason = only(world)

    assert reason.kind is K.AGENTS_BUSY
    assert reason.text == "all 1 slots of 1 agent for 'pay' on queue 'q' are taken"
    assert [cause.text for cause in reason.causes] == ["agent agent-one: job j0, step pay"]
    assert reason.evidence == {"slots": "1", "taken": "1", "agents": "1"}


def test_at_work_and_then_silent() -> None:
    """Until when, and when the lease of an agent that is silent ends."""
    world = world_with(single())
    world.submit("j1", "single")
    world.report("agent-one", "j1", "pay", Started())
    reason = only(world)
    assert (reason.kind, reason.clock, reason.at_ms, reason.causes) == (K.AT_WORK, Clock.LOG, 10_000, ())

    world.now_ms = 2_000
    reason = only(world)

    (cause,) = reason.causes
    assert (cause.kind, cause.clock, cause.at_ms) == (K.FENCE, Clock.LED, 6_530)
    assert "nothing was heard from the agent for 2000 ms" in cause.text


def test_waiting_for_a_retry_until_when_and_why() -> None:
    """With what went wrong."""
    world = world_with(single())
    world.submit("j1", "single")
    world.report("agent-one", "j1", "pay", Failed("Busy", "503", retryable=True, retry_after_ms=7_000))

    reason = only(world)

    assert (reason.kind, reason.text) == (K.RETRY_WAIT, "waits for attempt 2, after Busy: 503")
    assert (reason.clock, reason.at_ms) == (Clock.LOG, 7_000)


def test_waiting_for_a_fence() -> None:
    """A step that may not run beside an attempt that is not confirmed stopped."""
    world = world_with(single())
    world.submit("j1", "single")
    world.report("agent-one", "j1", "pay", Started())
    pass_time(world, 6_500)
    world.now_ms = 6_530
    world.one(Sweep(100))
    world.one(CancelJob("j1", ""))

    found = explained(world)

    kinds = [reason.kind for reason in found.reasons]
    assert kinds == [K.SETTLING, K.FENCE]
    fence = found.reasons[1]
    assert fence.clock is Clock.LED
    assert fence.at_ms >= 6_530


def test_waiting_for_a_person() -> None:
    """The commands are there to be copied."""
    world = world_with(single(effect=Effect.NON_IDEMPOTENT))
    world.submit("j1", "single")
    world.report("agent-one", "j1", "pay", Unknown("NoAnswer", "timed out"))

    reason = only(world)

    assert (reason.kind, reason.text) == (K.PERSON, "waits for a person: NoAnswer: timed out")
    assert reason.fix == 'stepward incident resolve ij1-1 --reason "..." with --retry, --skip, --compensate or --fail'


def test_waiting_for_the_undo_of_another_step() -> None:
    """In reverse order of the dependencies."""
    world = world_with(TRIP)
    world.submit("j1", "trip")
    world.report("agent-one", "j1", "flight", DONE)
    world.report("agent-one", "j1", "hotel", DONE)
    world.report("agent-one", "j1", "car", GONE)

    found = explained(world)

    assert [(reason.kind, reason.steps) for reason in found.reasons] == [
        (K.OFFERED, ("hotel",)),
        (K.UNDO_ORDER, ("flight",)),
    ]
    assert found.reasons[1].text == "is undone after 1 others: hotel"


def test_paused() -> None:
    """What is ready is held back; the fix is to let it go on."""
    world = world_with(single(), agents=())
    world.submit("j1", "single")
    world.one(PauseJob("j1", "", "ada"))

    found = explained(world)

    assert {reason.kind for reason in found.reasons} == {K.PAUSED}
    assert {reason.fix for reason in found.reasons} == {"stepward job resume j1"}


def test_ended() -> None:
    """How, and why."""
    world = world_with(single())
    world.submit("j1", "single")
    world.report("agent-one", "j1", "pay", DONE)
    assert only(world).text == "the job has ended COMPLETED"

    world.submit("j2", "single")
    world.one(TerminateJob("j2", "a mistake", "ada"))
    world.one(Sweep(100))
    reason = only(world, "j2")
    assert (reason.kind, reason.text) == (K.ENDED, "the job has ended FAILED: TERMINATED: a mistake")


def test_the_breaker_is_open() -> None:
    """Until when, and why it opened."""
    world = world_with(single(), slots=30)
    world.limits = replace(world.limits, breaker_outcomes_min=20)
    for number in range(20):
        world.submit(f"f{number:02}", "single")
        world.report("agent-one", f"f{number:02}", "pay", BROKEN)
    world.submit("j1", "single")

    reason = only(world)

    assert reason.kind is K.BREAKER
    assert "ServiceDown: 503" in reason.text
    assert (reason.clock, reason.at_ms) == (Clock.LED, 30_000)


def test_the_brake_is_on() -> None:
    """The step's time is over, and what would be done about that is held."""
    limits = Limits(session_ttl_ms=3_000, remediations_burst_max=1, remediations_per_minute_max=61)
    world = World(limits=limits)
    world.define(single())
    world.open("agent-one", ("pay", "undo-pay"), slots=4)
    for job_id in ("j0", "j1"):
        world.submit(job_id, "single")
        world.report("agent-one", job_id, "pay", Started())
    for world.now_ms in range(500, 10_500, 500):
        renew(world, "agent-one")
    world.one(Sweep(100))

    reason = only(world)

    (cause,) = reason.causes
    assert (reason.kind, cause.kind) == (K.AT_WORK, K.BRAKE)
    assert (cause.clock, cause.at_ms) == (Clock.LED, 11_000)


def test_nobody_acts_on_what_is_due() -> None:
    """Then supervision is what is wrong, and that is where to look."""
    world = world_with(single(), agents=())
    world.submit("j1", "single")
    world.one(Sweep(100))
    world.now_ms = 86_400_000

    found = explained(world)

    assert found.reasons[0].kind is K.SUPERVISION
    (cause,) = [cause for reason in found.reasons[1:] for cause in reason.causes if cause.kind is K.OVERDUE]
    assert "stepward cluster status" in cause.fix


def test_supervisors_are_not_trusted() -> None:
    """Several in a row were lost: that holds up whatever has gone wrong."""
    world = world_with(single())
    world.put(keys.EPOCH, Epoch(1, 0, stays=True))
    world.submit("j1", "single")

    found = explained(world)

    assert [reason.kind for reason in found.reasons] == [K.SUPERVISION, K.OFFERED]
    assert "not remedied" in found.summary


def test_circumstances_come_first() -> None:
    """What holds up everybody is the reason before all others."""
    world = waiting_for()

    found = explained(world, no_leader="nobody leads", disk_low="the disk is full")

    assert [reason.kind for reason in found.reasons[:2]] == [K.NO_LEADER, K.DISK_LOW]
    assert found.summary == "nobody leads, and 2 more"


def test_a_job_that_is_not_there() -> None:
    """Nothing is made up."""
    world = World()
    assert (
        explain.explain(world.reader, "nobody", head=head_of(world), limits=world.limits, circumstances=Circumstances())
        is None
    )


def test_a_wide_job_has_few_reasons_and_few_reads() -> None:
    """A thousand steps that wait for the same are one reason; beyond a bound they are not looked at, which is told."""
    count = 1_000
    body = DefinitionBody("wide", tuple(step_spec(f"s{n:04}", undo=False) for n in range(count)), b"", b"")
    same = tuple(replace(spec, action="work") for spec in body.steps)
    world = World(limits=Limits(session_ttl_ms=3_000, explain_steps_max=900))
    world.define(replace(body, steps=same))
    world.submit("j1", "wide")
    while world.reader.count(keys.steps("j1")) < count:
        world.one(Sweep(500))

    found = explained(world)

    by_kind = {reason.kind: reason for reason in found.reasons}
    assert by_kind[K.NO_AGENT].steps_total == 900
    assert len(by_kind[K.NO_AGENT].steps) == world.limits.explain_names_max
    assert "only the first 900 steps" in by_kind[K.UNDER_WAY].text
    assert len(found.reasons) == 2
    assert actions_of(replace(body, steps=same)) == ("work",)
