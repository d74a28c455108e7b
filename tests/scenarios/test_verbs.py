"""What a person does by hand: every verb in every situation, as one table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import pytest
from msgspec.structs import replace

from stepward.server.core import invariants, keys
from stepward.server.core.commands import (
    CancelJob,
    JobCancelled,
    PauseJob,
    ProgressMade,
    ResumeJob,
    RetryStep,
    SkipStep,
    TerminateJob,
    VerbDone,
)
from stepward.server.core.limits import Limits
from stepward.server.core.rejections import Rejection
from stepward.server.core.rows import JOB_STATES_FINAL, DefinitionBody, EventType, JobState, Payload, StepState
from tests.core.world import World, actions_of, step_spec
from tests.scenarios.situations import BODY, JOB, PAYMENTS, SITUATIONS, STEP, agents_of_all
from tests.scenarios.trips import DONE, GONE, renew, sweep
from tests.scenarios.verb_table import TABLE

if TYPE_CHECKING:
    from stepward.server.core.commands import Answer, AnyCommand

NOTHING = Payload(b"null")
VERBS: Final[dict[str, AnyCommand]] = {
    "cancel": CancelJob(JOB, "why", "ada"),
    "terminate": TerminateJob(JOB, "why", "ada"),
    "pause": PauseJob(JOB, "why", "ada"),
    "resume": ResumeJob(JOB, "why", "ada"),
    "retry": RetryStep(JOB, STEP, "why", "ada"),
    "skip": SkipStep(JOB, STEP, NOTHING, False, "why", "ada"),
    "skip undone": SkipStep(JOB, STEP, NOTHING, True, "why", "ada"),
}


def told(answer: Answer) -> str:
    """An answer in one word."""
    match answer:
        case Rejection(reason=reason):
            return reason.value
        case VerbDone(already=already) | JobCancelled(already=already):
            return "already" if already else "done"
    raise AssertionError(answer)


def reach(situation: str) -> World:
    world = World()
    SITUATIONS[situation](world)
    return world


def states(world: World) -> str:
    return f"{world.job_state(JOB)} {world.step_state(JOB, STEP)}"


def check(world: World) -> None:
    assert invariants.violations(world.reader, led_ms=world.now_ms) == []


@pytest.mark.parametrize("situation", SITUATIONS)
def test_situation_is_what_it_is_called(situation: str) -> None:
    """Otherwise the table would speak of something else."""
    world = reach(situation)

    assert states(world) == " ".join(situation.split()[:2])
    check(world)


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("situation", SITUATIONS)
def test_verb(situation: str, verb: str) -> None:
    """Every verb has one answer in every situation. When it is refused it changes nothing."""
    world = reach(situation)
    before = world.sequence
    answer = told(world.one(VERBS[verb]))
    check(world)

    assert (f"{answer}: {states(world)}" if world.sequence > before else answer) == TABLE[situation][verb]


def test_table_is_whole() -> None:
    """A situation or a verb that is added needs its answers."""
    assert set(TABLE) == set(SITUATIONS)
    assert all(set(answers) == set(VERBS) for answers in TABLE.values())


def test_situations_cover_the_states() -> None:
    """Every state of a job is met, and every state in which a step can rest while its job has not ended."""
    met = {tuple(situation.split()[:2]) for situation in SITUATIONS}
    assert {job_state for job_state, _ in met} == {state.name for state in JobState}
    assert {state.name for state in StepState} == {step_state for _, step_state in met}


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("situation", SITUATIONS)
def test_twice_is_once(situation: str, verb: str) -> None:
    """What was done is not done again, and the second answer says so."""
    world = reach(situation)
    if told(world.one(VERBS[verb])) == "done":
        once = world.sequence

        assert told(world.one(VERBS[verb])) == "already"
        assert world.sequence == once


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("situation", SITUATIONS)
def test_the_job_ends_all_the_same(situation: str, verb: str) -> None:
    """Whatever was done, a good agent brings the job to an end, or to where it waits for a person."""
    world = reach(situation)
    world.one(VERBS[verb])
    world.one(ResumeJob(JOB, "", "ada"))
    work_off(world)

    assert world.progress(JOB).state in JOB_STATES_FINAL | {JobState.ESCALATED}
    check(world)


def work_off(world: World) -> None:
    """A good agent does all that is left, and sessions that are silent end."""
    good = "agent-good"
    agents_of_all(world, good)
    for _ in range(100):
        world.now_ms += 900
        renew(world, good)
        sweep(world)
        for key in list(world.reader.scan(keys.assignments(good))):
            _, token, job_id, ordinal = keys.parse_assignment(key)
            world.report(good, job_id, BODY.steps[ordinal].id, DONE, token=token)
    assert world.reader.count(keys.ASSIGNMENT) == 0


@pytest.mark.parametrize(
    ("verb", "situation", "type_"),
    [
        ("cancel", "RUNNING READY", EventType.JobCancelRequested),
        ("cancel", "ESCALATED UNDO_FAILED", EventType.JobCancelRequested),
        ("terminate", "RUNNING READY", EventType.JobTerminated),
        ("pause", "RUNNING READY", EventType.JobPaused),
        ("resume", "PAUSED READY", EventType.JobResumed),
        ("retry", "ESCALATED ESCALATED", EventType.StepRetryRequested),
        ("retry", "RUNNING RETRY_WAIT", EventType.StepRetryRequested),
        ("retry", "ESCALATED UNDO_FAILED", EventType.UndoRetryRequested),
        ("retry", "COMPENSATING UNDO_RETRY_WAIT", EventType.UndoRetryRequested),
        ("skip", "RUNNING READY", EventType.StepSkipped),
        ("skip", "ESCALATED UNDO_FAILED", EventType.UndoSkipped),
        ("skip undone", "ESCALATED UNDO_FAILED", EventType.UndoSkipped),
    ],
)
def test_history_says_who_did_what_and_why(verb: str, situation: str, type_: EventType) -> None:
    """The one who acted stands in the job's history, with the reason; what follows from it names nobody."""
    world = reach(situation)
    before = len(list(world.events(JOB)))
    world.one(VERBS[verb])

    acts = [(e.type, e.actor, "why" in e.detail) for _, e in list(world.events(JOB))[before:] if e.actor]
    assert acts == [(type_, "ada", True)]


@pytest.mark.parametrize(("maybe_done", "generation"), [(True, 1), (False, 2)])
def test_a_rerun_is_a_new_generation_only_when_surely_nothing_happened(maybe_done: bool, generation: int) -> None:
    """Otherwise the remote service must find what an earlier attempt did, by the same key."""
    world = reach("ESCALATED ESCALATED")
    key = keys.step(JOB, world.ordinal(JOB, STEP))
    step = world.step(JOB, STEP)
    assert step is not None
    world.put(key, replace(step, maybe_done=maybe_done))

    world.one(VERBS["retry"])

    again = world.step(JOB, STEP)
    assert again is not None
    assert (again.generation, again.attempts, again.lease_losses) == (generation, 0, 0)


def test_progress_of_what_is_passed_over_is_forgotten() -> None:
    """Nobody goes on from it."""
    world = reach("RUNNING RUNNING")
    key = keys.step_progress(JOB, world.ordinal(JOB, STEP))
    world.report(PAYMENTS, JOB, STEP, ProgressMade(Payload(b"1")))
    assert world.reader.get(key) is not None

    world.one(VERBS["skip"])

    assert world.reader.get(key) is None


def test_a_job_that_is_ended_leaves_nobody_to_be_told() -> None:
    """Also when its slices have become larger since, as with a newer version, so that it ends in one batch."""
    count = 4
    needed = tuple(range(count))
    steps = [step_spec(f"s{n}", dependents=(count,)) for n in needed]
    body = DefinitionBody("wide", (*steps, step_spec("last", needs=needed)), b"", b"")
    world = World(limits=Limits(session_ttl_ms=3_000, activation_slice=1, told_least=1))
    world.define(body)
    world.open(PAYMENTS, actions_of(body), slots=10)
    world.submit(JOB, "wide")
    for n in needed:
        sweep(world)
        world.report(PAYMENTS, JOB, f"s{n}", DONE)
    world.report(PAYMENTS, JOB, "last", GONE)
    while not world.reader.count(keys.spreads(JOB)):
        world.now_ms += 1
        sweep(world)

    world.limits = Limits(session_ttl_ms=3_000)
    world.one(VERBS["terminate"])

    assert world.job_state(JOB) == "FAILED"
    assert world.reader.count(keys.spreads(JOB)) == 0
    check(world)
