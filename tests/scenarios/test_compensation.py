"""Undoing: what is undone, in which order, when it may begin, and what a cancel does at every moment."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from stepward.server.core import keys, rows, views
from stepward.server.core.commands import (
    Accepted,
    CancelJob,
    Declined,
    Failed,
    JobCancelled,
    ProgressMade,
    RetryStep,
    Started,
    Stopped,
    Sweep,
)
from stepward.server.core.rejections import Reason, Rejection
from stepward.server.core.remainders import Remainder
from stepward.server.core.rows import (
    JOB_STATES_FINAL,
    DefinitionBody,
    EventType,
    OnUnknown,
    Payload,
    RetrySpec,
    StartMode,
)
from tests.core.world import World, actions_of, step_spec
from tests.scenarios.trips import (
    BROKEN,
    DONE,
    FENCE_MS,
    GONE,
    SESSION_END_MS,
    TRIP,
    TTL_MS,
    cancel,
    free_slots,
    pass_time,
    single,
    sweep,
    world_with,
)

if TYPE_CHECKING:
    from collections.abc import Callable

AGENT = "agent-one"


def undo_events(world: World, job_id: str) -> list[str]:
    """Beginnings and ends of undos, in order, such as "+hotel" and "-hotel"."""
    names = [spec.id for spec in TRIP.steps]
    marks = {EventType.UndoOffered: "+", EventType.UndoSucceeded: "-"}
    return [marks[e.type] + names[e.ordinal] for _, e in world.events(job_id) if e.type in marks]


def work_off(world: World, session_id: str = AGENT) -> None:
    """The agent does all that it is given, until nothing is left."""
    for _ in range(20):
        held = list(world.reader.scan(keys.assignments(session_id)))
        for key in held:
            _, token, job_id, ordinal = keys.parse_assignment(key)
            assignment = world.reader.get(key)
            assert isinstance(assignment, rows.Assignment)
            if assignment.start is StartMode.ON_ACCEPT:
                world.report(session_id, job_id, step_id(world, job_id, ordinal), Accepted(), token=token)
            world.report(session_id, job_id, step_id(world, job_id, ordinal), DONE, token=token)
        if not held:
            return


def step_id(world: World, job_id: str, ordinal: int) -> str:
    """A step's id by its position."""
    job = world.reader.get(keys.job(job_id))
    assert isinstance(job, rows.Job)
    body = world.reader.get(keys.definition_body(job.definition_hash))
    assert isinstance(body, rows.DefinitionBody)
    return body.steps[ordinal].id


def test_h041_undos_run_against_the_edges() -> None:
    """H041: A -> {B, C} -> D, D fails for good: B and C are undone, and A only when both are."""
    world = world_with(TRIP)
    world.submit("j1", "trip")
    for name in ("flight", "hotel", "car"):
        world.report(AGENT, "j1", name, DONE)
    world.report(AGENT, "j1", "receipt", GONE)
    assert undo_events(world, "j1") == ["+hotel", "+car"]

    world.report(AGENT, "j1", "car", DONE)
    assert world.step_state("j1", "flight") == "SUCCEEDED"
    world.report(AGENT, "j1", "hotel", DONE)
    assert world.step_state("j1", "flight") == "UNDO_OFFERED"
    world.report(AGENT, "j1", "flight", DONE)

    assert undo_events(world, "j1") == ["+hotel", "+car", "-car", "-hotel", "+flight", "-flight"]
    assert world.job_state("j1") == "COMPENSATED"


def test_h042_a_step_that_may_have_happened_is_undone_first() -> None:
    """H042: A is done, B was started and its agent is lost, with no attempt left: B's undo runs too, then A's."""
    steps = (
        step_spec("flight", dependents=(1,)),
        step_spec("hotel", needs=(0,), retry=RetrySpec(attempts_max=1), on_unknown=OnUnknown.COMPENSATE),
    )
    body = DefinitionBody("trip", steps, b"", b"")
    world = world_with(body)
    world.submit("j1", "trip")
    world.report(AGENT, "j1", "flight", DONE)
    world.report(AGENT, "j1", "hotel", Started())

    world.now_ms = SESSION_END_MS
    sweep(world)
    world.open("agent-two", actions_of(body))
    assert (world.job_state("j1"), world.step_state("j1", "hotel")) == ("COMPENSATING", "OUTCOME_UNKNOWN")
    pass_time(world, SESSION_END_MS + FENCE_MS - 1, alive=("agent-two",))
    assert undo_events(world, "j1") == []
    pass_time(world, SESSION_END_MS + FENCE_MS, alive=("agent-two",))
    work_off(world, "agent-two")

    assert undo_events(world, "j1") == ["+hotel", "-hotel", "+flight", "-flight"]
    assert world.job_state("j1") == "COMPENSATED"


def test_h042_the_fence_falls_when_the_lost_agent_is_heard_of() -> None:
    """H042: the agent comes back and says that its attempt has stopped: nothing is left to wait for."""
    world = world_with(TRIP)
    world.submit("j1", "trip")
    world.report(AGENT, "j1", "flight", Started())
    token = world.step("j1", "flight").token  # type: ignore[union-attr]  # it was offered
    world.now_ms = SESSION_END_MS
    sweep(world)
    cancel(world, "j1")
    world.open("agent-two", actions_of(TRIP))
    assert world.step_state("j1", "flight") == "OUTCOME_UNKNOWN"

    world.report("agent-two", "j1", "flight", Stopped(draining=False), token=token)

    assert world.step_state("j1", "flight") == "UNDO_OFFERED"


def test_h042_what_was_never_accepted_is_not_undone() -> None:
    """H042: an offer that starts on accept and was not accepted has surely not happened."""
    world = world_with(single(start=StartMode.ON_ACCEPT))
    world.submit("j1", "single")

    world.now_ms = SESSION_END_MS
    sweep(world)
    cancel(world, "j1")

    assert world.job_state("j1") == "CANCELLED"
    assert undo_events(world, "j1") == []


def test_h043_a_failing_undo_stops_at_its_limit_and_asks_a_person() -> None:
    """H043: exactly three tries with a wait in between, then it is loud; what must come after it waits."""
    world = world_with(TRIP)
    world.submit("j1", "trip")
    for name in ("flight", "hotel"):
        world.report(AGENT, "j1", name, DONE)
    world.report(AGENT, "j1", "car", GONE)
    tries = 0
    while world.step_state("j1", "hotel") != "UNDO_FAILED":
        tries += 1
        world.report(AGENT, "j1", "hotel", BROKEN)
        pass_time(world, world.now_ms + 5_000, alive=(AGENT,))
    pass_time(world, world.now_ms + 600_000, alive=(AGENT,))

    assert tries == 3
    assert (world.job_state("j1"), world.step_state("j1", "flight")) == ("ESCALATED", "SUCCEEDED")
    failed = [event for _, event in world.events("j1") if event.type is EventType.UndoAttemptFailed]
    assert len(failed) == 3


def test_h043_a_failed_undo_holds_only_what_comes_after_it() -> None:
    """H043: the branch beside it is undone to its end."""
    world = world_with(TRIP)
    world.submit("j1", "trip")
    for name in ("flight", "hotel", "car"):
        world.report(AGENT, "j1", name, DONE)
    world.report(AGENT, "j1", "receipt", GONE)

    world.report(AGENT, "j1", "hotel", Failed("Forbidden", "no", retryable=False))
    world.report(AGENT, "j1", "car", DONE)

    assert (world.step_state("j1", "hotel"), world.step_state("j1", "car")) == ("UNDO_FAILED", "COMPENSATED")
    assert (world.job_state("j1"), world.step_state("j1", "flight")) == ("ESCALATED", "SUCCEEDED")


def test_a_cancel_tries_failed_undos_again() -> None:
    """The one verb that a person has for a job whose undo failed; why the job is undone is not forgotten over it."""
    world = world_with(TRIP)
    world.submit("j1", "trip")
    for name in ("flight", "hotel"):
        world.report(AGENT, "j1", name, DONE)
    world.report(AGENT, "j1", "car", GONE)
    world.report(AGENT, "j1", "hotel", Failed("Forbidden", "no", retryable=False))
    failure = world.progress("j1").failure
    assert (world.job_state("j1"), failure and failure.kind) == ("ESCALATED", "SoldOut")

    cancel(world, "j1")
    assert (world.job_state("j1"), world.step_state("j1", "hotel")) == ("COMPENSATING", "UNDO_OFFERED")
    work_off(world)

    assert world.job_state("j1") == "COMPENSATED"


def test_an_undo_is_not_told_the_progress_of_the_action() -> None:
    """It would go on from a place that it has never been at."""
    world = world_with(single())
    world.submit("j1", "single")
    world.report(AGENT, "j1", "pay", ProgressMade(Payload(b'{"page":7}')))
    world.report(AGENT, "j1", "pay", Failed("Broken", "", retryable=False, may_have_happened=True))
    key = next(iter(world.reader.scan(keys.assignments(AGENT))))
    assignment = world.reader.get(key)
    assert isinstance(assignment, rows.Assignment)

    offer = views.offer_view(world.reader, key, assignment, world.limits)

    assert offer is not None
    assert (offer.part, offer.last_progress) == (rows.Part.UNDO, None)


def test_an_undo_of_a_lost_agent_waits_for_its_fence_before_it_is_repeated() -> None:
    """A second undo beside the first could undo what the retry of a person has done since; it waits the agent out."""
    world = world_with(TRIP)
    world.submit("j1", "trip")
    world.report(AGENT, "j1", "flight", DONE)
    world.report(AGENT, "j1", "hotel", Failed("SoldOut", "none", retryable=False))
    world.report(AGENT, "j1", "car", Declined(handed_back=False))
    assert world.step_state("j1", "flight") == "UNDO_OFFERED"
    world.report(AGENT, "j1", "flight", Started())

    world.now_ms = SESSION_END_MS
    sweep(world)
    world.open("agent-two", actions_of(TRIP))
    pass_time(world, SESSION_END_MS + FENCE_MS - 1, alive=("agent-two",))
    assert world.step_state("j1", "flight") == "UNDO_RETRY_WAIT"
    pass_time(world, SESSION_END_MS + FENCE_MS + TTL_MS, alive=("agent-two",))

    assert world.step_state("j1", "flight") == "UNDO_OFFERED"


def test_an_undo_that_a_person_has_tried_again_waits_for_the_lost_one() -> None:
    """H046: it was the last attempt; what a person asks for does not begin beside it either."""
    once = RetrySpec(attempts_max=1)
    body = DefinitionBody(
        "trip", (step_spec("flight", dependents=(1,), retry=once), step_spec("hotel", needs=(0,))), b"", b""
    )
    world = world_with(body)
    world.submit("j1", "trip")
    world.report(AGENT, "j1", "flight", DONE)
    world.report(AGENT, "j1", "hotel", GONE)
    world.report(AGENT, "j1", "flight", Started())
    world.now_ms = SESSION_END_MS
    sweep(world)
    assert world.step_state("j1", "flight") == "UNDO_FAILED"
    world.open("agent-two", actions_of(body))

    world.one(RetryStep("j1", "flight", "try it again", "ada"))

    assert world.step_state("j1", "flight") == "UNDO_RETRY_WAIT"
    pass_time(world, SESSION_END_MS + FENCE_MS + TTL_MS, alive=("agent-two",))
    assert world.step_state("j1", "flight") == "UNDO_OFFERED"


def test_h025_cancelling_a_wait_ends_the_wait() -> None:
    """H025: a step waits 60 s for its retry; after the cancel no attempt follows, however long one looks."""
    world = world_with(single(retry=RetrySpec(attempts_max=5, initial_ms=60_000)))
    world.submit("j1", "single")
    world.report(AGENT, "j1", "pay", Failed("Later", "busy", retryable=True, retry_after_ms=60_000))
    assert world.step_state("j1", "pay") == "RETRY_WAIT"

    cancel(world, "j1")

    assert (world.job_state("j1"), world.step_state("j1", "pay")) == ("CANCELLED", "CANCELLED")
    pass_time(world, 3_600_000, alive=(AGENT,))
    assert sum(event.type is EventType.StepOffered for _, event in world.events("j1")) == 1
    assert not [key for key in world.reader.scan(keys.TIMER) if b"j1" in key]


def trip_commands(world: World) -> list[Callable[[], object]]:
    """The ten commands of a trip that completes, sweeps between them included."""

    def do(name: str, *events: object) -> Callable[[], object]:
        return lambda: [world.report(AGENT, "j1", name, event) for event in events]  # type: ignore[arg-type]  # what agents say

    def look() -> object:
        return world.one(Sweep(100))

    return [
        look,
        do("flight", Started()),
        do("flight", DONE),
        look,
        do("hotel", Started()),
        do("car", DONE),
        look,
        do("hotel", DONE),
        do("receipt", Started()),
        do("receipt", DONE),
    ]


@pytest.mark.parametrize("position", range(11))
def test_h026_a_cancel_at_any_moment_leads_to_one_end(position: int) -> None:
    """H026: wherever the cancel falls, the job ends once, no step is left open, and no successor starts after it."""
    world = world_with(TRIP)
    world.submit("j1", "trip")
    commands = trip_commands(world)
    for command in commands[:position]:
        command()
    cancel(world, "j1")
    begun_before = [world.step_state("j1", spec.id) != "PENDING" for spec in TRIP.steps]
    for command in commands[position:]:
        command()
    work_off(world)

    # From the eighth command on the receipt has begun; what it did cannot be undone, so the job cannot be CANCELLED.
    expected = "COMPLETED" if position == 10 else "FAILED" if position >= 8 else "CANCELLED"
    assert world.job_state("j1") == expected
    assert [world.step_state("j1", spec.id) != "PENDING" for spec in TRIP.steps] == begun_before
    assert world.progress("j1").state in JOB_STATES_FINAL
    assert free_slots(world, AGENT) == 4


@pytest.mark.parametrize(
    ("order", "answer"),
    [
        # The attempt has begun; it is stopped.
        (("offer", "accept", "cancel"), "RECORDED"),
        (("offer", "cancel", "accept"), "CANCELLED"),
        # Nothing was offered that could be accepted, and what was cancelled is not offered any more.
        (("cancel", "offer", "accept"), "STALE_TOKEN"),
        (("cancel", "accept", "offer"), "STALE_TOKEN"),
        (("accept", "cancel", "offer"), "STALE_TOKEN"),
        (("accept", "offer", "cancel"), "STALE_TOKEN"),
    ],
)
def test_h027_a_cancel_between_offer_and_accept(order: tuple[str, ...], answer: str) -> None:
    """H027: an accept after the cancel is answered CANCELLED and nothing starts; before it, the attempt is stopped."""
    body = single(start=StartMode.ON_ACCEPT)
    world = World()
    world.define(body)
    world.submit("j1", "single")
    answers: list[str] = []
    for what in order:
        match what:
            case "offer":
                world.open(AGENT, actions_of(body))
            case "cancel":
                cancel(world, "j1")
            case _:
                step = world.step("j1", "pay")
                token = step.token if step is not None and step.token else 7
                answers.append(world.report(AGENT, "j1", "pay", Accepted(), token=token))

    assert answers == [answer]
    if answer == "RECORDED":
        assert (world.job_state("j1"), world.step_state("j1", "pay")) == ("COMPENSATING", "RUNNING")
        world.report(AGENT, "j1", "pay", Stopped(draining=False))
        work_off(world)
        assert world.job_state("j1") == "CANCELLED"
    else:
        assert (world.job_state("j1"), world.step_state("j1", "pay")) == ("CANCELLED", "CANCELLED")
        assert not [event for _, event in world.events("j1") if event.type is EventType.StepStarted]
    assert free_slots(world, AGENT) == 4


def test_h047_what_was_never_accepted_is_not_waited_for() -> None:
    """H047: the agent that was asked never answers; the cancel undoes the rest at once."""
    steps = (
        step_spec("flight", dependents=(1,)),
        step_spec("hotel", needs=(0,), start=StartMode.ON_ACCEPT),
    )
    world = world_with(DefinitionBody("trip", steps, b"", b""))
    world.submit("j1", "trip")
    world.report(AGENT, "j1", "flight", DONE)
    assert world.step_state("j1", "hotel") == "OFFERED"

    cancel(world, "j1")

    assert (world.step_state("j1", "hotel"), world.step_state("j1", "flight")) == ("CANCELLED", "UNDO_OFFERED")


def test_no_undo_begins_while_a_forward_attempt_may_act() -> None:
    """A branch fails for good while the other still runs: its agent is told to stop, and nothing is undone before."""
    world = world_with(TRIP)
    world.submit("j1", "trip")
    world.report(AGENT, "j1", "flight", DONE)
    world.report(AGENT, "j1", "hotel", Started())
    world.report(AGENT, "j1", "car", GONE)
    pass_time(world, 5_000, alive=(AGENT,))
    assert (world.step_state("j1", "hotel"), undo_events(world, "j1")) == ("RUNNING", [])

    world.report(AGENT, "j1", "hotel", Stopped(draining=False))

    assert undo_events(world, "j1") == ["+hotel"]
    step = world.step("j1", "hotel")
    assert step is not None
    assert step.maybe_done


def test_what_cannot_be_undone_is_listed() -> None:
    """A job with steps that have no undo ends FAILED, and says what remains done."""
    steps = (step_spec("notify", dependents=(1,), undo=False), step_spec("pay", needs=(0,)))
    world = world_with(DefinitionBody("trip", steps, b"", b""))
    world.submit("j1", "trip")
    world.report(AGENT, "j1", "notify", DONE)
    world.report(AGENT, "j1", "pay", GONE)

    view = views.job_view(world.reader, "j1", world.limits, with_steps=False)

    assert view is not None
    assert view.progress.state.name == "FAILED"
    assert view.left.remainders == (Remainder("notify", False, "has no undo"),)


def test_a_cancel_twice_is_a_cancel_once() -> None:
    """While it is being undone and after it was cancelled the answer is yes; after it completed, no."""
    world = world_with(single())
    world.submit("j1", "single")
    world.report(AGENT, "j1", "pay", Started())
    assert world.one(CancelJob("j1", "")) == JobCancelled("j1", already=False)
    assert world.one(CancelJob("j1", "")) == JobCancelled("j1", already=True)
    world.report(AGENT, "j1", "pay", Stopped(draining=False))
    work_off(world)
    assert world.one(CancelJob("j1", "")) == JobCancelled("j1", already=True)
    world.submit("j2", "single")
    world.report(AGENT, "j2", "pay", DONE)

    answer = world.one(CancelJob("j2", ""))

    assert isinstance(answer, Rejection)
    assert (answer.reason, answer.metadata["state"]) == (Reason.JOB_ENDED, "COMPLETED")


def test_an_undo_waits_for_every_attempt_that_timed_out() -> None:
    """Two attempts in a row were not stopped by their agent in time: the undo begins when both are confirmed."""
    body = single(retry=RetrySpec(attempts_max=2, initial_ms=1, cap_ms=1))
    world = world_with(body)
    world.submit("j1", "single")
    tokens = []
    for _ in range(2):
        world.report(AGENT, "j1", "pay", Started())
        tokens.append(world.step("j1", "pay").token)  # type: ignore[union-attr]  # it was offered
        pass_time(world, world.now_ms + 10_500, alive=(AGENT,))
    assert (world.job_state("j1"), world.step_state("j1", "pay")) == ("COMPENSATING", "FAILED")

    world.report(AGENT, "j1", "pay", Stopped(draining=False), token=tokens[1])
    assert world.step_state("j1", "pay") == "FAILED"
    world.report(AGENT, "j1", "pay", Stopped(draining=False), token=tokens[0])

    assert world.step_state("j1", "pay") == "UNDO_OFFERED"


def test_an_undo_waits_for_the_attempt_before_the_one_that_failed() -> None:
    """The first attempt timed out and was not stopped; the second failed for good, and has nothing to hide."""
    world = world_with(single(retry=RetrySpec(attempts_max=3, initial_ms=1, cap_ms=1)))
    world.submit("j1", "single")
    world.report(AGENT, "j1", "pay", Started())
    first = world.step("j1", "pay").token  # type: ignore[union-attr]  # it was offered
    pass_time(world, 10_500, alive=(AGENT,))
    world.report(AGENT, "j1", "pay", GONE)
    assert (world.job_state("j1"), world.step_state("j1", "pay")) == ("COMPENSATING", "FAILED")

    world.report(AGENT, "j1", "pay", Stopped(draining=False), token=first)

    assert world.step_state("j1", "pay") == "UNDO_OFFERED"


def test_an_undo_that_waits_for_a_lost_one_goes_on_when_that_is_heard_of() -> None:
    """Nothing is left to wait for, so the fence is not waited for either."""
    world = world_with(single())
    world.submit("j1", "single")
    world.report(AGENT, "j1", "pay", Failed("Broken", "", retryable=False, may_have_happened=True))
    world.report(AGENT, "j1", "pay", Started())
    token = world.step("j1", "pay").token  # type: ignore[union-attr]  # it was offered
    world.now_ms = SESSION_END_MS
    sweep(world)
    world.open("agent-two", actions_of(single()))
    pass_time(world, SESSION_END_MS + 2_000, alive=("agent-two",))
    assert world.step_state("j1", "pay") == "UNDO_RETRY_WAIT"

    world.report("agent-two", "j1", "pay", Stopped(draining=False), token=token)

    assert world.step_state("j1", "pay") == "UNDO_OFFERED"
