"""Wide and deep jobs: everything goes in slices, and an outcome costs what its own step is connected to."""

from __future__ import annotations

import random
import time
from collections import Counter
from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from stepward.server.core import invariants, keys, rows, slice_rows, views
from stepward.server.core.commands import (
    Accepted,
    AttemptRef,
    AttemptReport,
    CancelJob,
    Declined,
    Failed,
    RenewSession,
    ReportAttempts,
    Succeeded,
    Sweep,
)
from stepward.server.core.limits import Limits
from stepward.server.core.rejections import Reason, Rejection
from stepward.server.core.rows import DefinitionBody, EventType, JobState, PassKind, Payload, StartMode, StepState
from tests.core.crew import DONE, Crew, counted
from tests.core.world import World, step_spec

if TYPE_CHECKING:
    from stepward.server.core.rows import StepSpec

STEPS_MAX = Limits().steps_max


def fan(width: int, *, undo: bool = True) -> DefinitionBody:
    """A step, `width` branches that need it, and a step that needs all of them."""
    last = width + 1
    branches = tuple(step_spec(f"b{n}", needs=(0,), dependents=(last,), undo=undo) for n in range(1, last))
    return DefinitionBody(
        f"fan-{width}-{undo}",
        (
            step_spec("first", dependents=tuple(range(1, last)), undo=undo),
            *(_action(spec, "branch") for spec in branches),
            step_spec("last", needs=tuple(range(1, last)), undo=undo),
        ),
        b"",
        b"",
    )


def _action(spec: StepSpec, action: str) -> StepSpec:
    undo = None if spec.undo is None else replace(spec.undo, action=f"undo-{action}")
    return replace(spec, action=action, undo=undo)


def chain(length: int, *, undo: bool = True) -> DefinitionBody:
    """Each step needs the one before."""
    steps = tuple(
        _action(
            step_spec(f"s{n}", needs=(n - 1,) if n else (), dependents=(n + 1,) if n + 1 < length else (), undo=undo),
            "link",
        )
        for n in range(length)
    )
    return DefinitionBody(f"chain-{length}-{undo}", steps, b"", b"")


def started(body: DefinitionBody, *, limits: Limits | None = None, slots: int = 1_000) -> tuple[World, Crew]:
    """A world with one job, "j1", and a crew that can do all of it."""
    world = World(limits=limits or Limits(session_ttl_ms=3_600_000))
    world.define(body)
    crew = Crew(world, body, slots=slots)
    world.submit("j1", body.name)
    return world, crew


def check(world: World) -> None:
    assert invariants.violations(world.reader, led_ms=world.now_ms) == []


def left_over(world: World) -> int:
    """Rows of passes and spreads."""
    return world.store.count(keys.PASS) + world.store.count(keys.SPREAD)


def batch_changes_max(limits: Limits) -> int:
    """The row changes of the largest batch: full, one subject of some rows beyond it, and its offers."""
    return limits.batch_writes_max + 100 + 5 * limits.offers_max


def test_the_widest_job_completes_at_the_cost_of_a_narrow_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """10,000 steps: no batch is larger than the bound, and a step costs at most twice what it costs in a trip."""
    per_step = {}
    for width in (3, STEPS_MAX - 2):
        world, crew = started(fan(width))
        with counted(monkeypatch) as cost:
            crew.work("j1", at_once=10)
        assert world.job_state("j1") == "COMPLETED"
        assert left_over(world) == 0
        check(world)
        assert crew.changes_most <= batch_changes_max(world.limits)
        per_step[width] = (cost.gets / (width + 2), cost.puts / (width + 2))

    (narrow_gets, narrow_puts), (wide_gets, wide_puts) = per_step.values()
    assert wide_gets <= 2 * narrow_gets
    assert wide_puts <= 2 * narrow_puts


def test_walks_that_fill_every_batch_leave_room_for_what_is_due_on_log_time() -> None:
    """A retry whose wait is over does not wait for the end of wide jobs, which may follow each other for ever."""
    loose = DefinitionBody("loose", tuple(step_spec(f"s{n}") for n in range(60)), b"", b"")
    world, _ = started(loose, slots=1)
    world.define(DefinitionBody("single", (step_spec("pay"),), b"", b""))
    world.open("agent-one", ("pay",))
    world.submit("j2", "single")
    world.report("agent-one", "j2", "pay", Failed("Busy", "", retryable=True))
    world.now_ms += 60_000
    world.one(RenewSession("agent-one", 1, 0))
    world.limits = replace(world.limits, activation_slice=9, batch_writes_max=10)

    world.one(CancelJob("j1", "no"))
    world.one(Sweep(500))

    assert left_over(world) == 1
    assert world.step_state("j2", "pay") == "OFFERED"


def test_nothing_is_told_on_of_a_job_that_has_ended() -> None:
    """What a full batch had left to tell goes with the job: its removal would leave a timer that leads nowhere."""
    world, _ = started(
        DefinitionBody("loose", tuple(step_spec(f"s{n}") for n in range(9)), b"", b""),
        limits=Limits(batch_writes_max=15, told_least=2),
        slots=1,
    )
    assert world.store.count(keys.SPREAD) == 1
    # The batches that follow have room.
    world.limits = Limits()

    world.one(CancelJob("j1", "no"))
    for key in list(world.reader.scan(keys.ASSIGNMENT)):
        _, token, job_id, ordinal = keys.parse_assignment(key)
        world.report("crew", job_id, f"s{ordinal}", Declined(handed_back=False), token=token)

    assert world.job_state("j1") == "CANCELLED"
    assert left_over(world) == 0
    check(world)


def test_an_outcome_costs_what_its_step_is_connected_to(monkeypatch: pytest.MonkeyPatch) -> None:
    """The success of one of many branches reads and writes as many rows with 10 branches as with 5,000 beside it."""
    costs = []
    for width in (10, 5_000):
        _, crew = started(fan(width), slots=5)
        crew.work("j1", until=lambda crew=crew: len(crew.held()) == 5)  # type: ignore[misc]  # mypy cannot infer it
        with counted(monkeypatch) as cost:
            crew.report(crew.held()[0])
        costs.append((cost.gets, cost.puts))

    assert costs[0] == costs[1]


def test_a_fan_is_told_in_slices() -> None:
    """At the slice everything is told in the batch of the success; one more waits in a row, and the sweep says so."""
    limits = Limits(session_ttl_ms=3_600_000, activation_slice=10)
    for width, waiting in ((10, 0), (11, 1)):
        world, crew = started(fan(width), limits=limits)
        crew.report(*crew.held())

        assert world.store.count(keys.SPREAD) == waiting
        assert len(crew.held()) == 10
        check(world)
        crew.sweep()
        assert left_over(world) == 0
        assert len(crew.held()) == width


def test_the_first_steps_of_a_wide_job_are_begun_in_slices() -> None:
    """H056: a step that needs nothing is a first step, however many there are; none waits for a join that is empty."""
    body = DefinitionBody("loose", tuple(_action(step_spec(f"s{n}"), "loose") for n in range(1_200)), b"", b"")
    world, crew = started(body, slots=2_000)
    assert world.store.count(keys.steps("j1")) == 500
    check(world)

    answer = world.one(Sweep(500))
    assert answer.unfinished  # type: ignore[union-attr]  # a sweep is never refused here
    assert world.store.count(keys.steps("j1")) == 1_000
    crew.work("j1")

    assert world.job_state("j1") == "COMPLETED"
    assert world.store.count(keys.JOIN) == 0


def test_a_submission_into_a_full_batch_begins_few_steps() -> None:
    """What comes behind many others in a batch is told to a few steps at once, so that the batch ends."""
    limits = Limits(session_ttl_ms=3_600_000, batch_writes_max=50, told_least=16)
    body = DefinitionBody("loose", tuple(_action(step_spec(f"s{n}"), "loose") for n in range(17)), b"", b"")

    world, crew = started(body, limits=limits)

    assert world.store.count(keys.steps("j1")) == 16
    crew.work("j1")
    assert world.job_state("j1") == "COMPLETED"


def test_h062_a_fan_in_starts_once_after_every_branch() -> None:
    """6,000 branches, results in any order, each reported twice, some of them together with the first time."""
    width = 6_000
    world, crew = started(fan(width), slots=10_000)
    crew.report(*crew.held())
    while len(crew.held()) < width:
        crew.sweep()
    refs = crew.held()
    random.Random(62).shuffle(refs)
    done = 0
    while done < width:
        # The last one comes alone, or nobody would see what began just before it.
        some = refs[done : min(done + 97, width - 1)] or refs[done:]
        crew.report(*some, *some[:10])
        crew.report(*refs[max(0, done - 50) : done + 50])
        done += len(some)
        assert (world.step("j1", "last") is not None) == (done == width), done
    crew.work("j1")

    events = Counter(event.type for _, event in world.events("j1"))
    last = Counter(event.type for _, event in world.events("j1") if event.ordinal == width + 1)
    assert events[EventType.StepSucceeded] == width + 2
    assert (last[EventType.StepReady], last[EventType.StepOffered], last[EventType.StepSucceeded]) == (1, 1, 1)
    assert world.job_state("j1") == "COMPLETED"


@pytest.mark.parametrize("undo", [True, False])
def test_a_wide_job_that_is_half_done_is_cancelled(undo: bool) -> None:
    """10,000 steps, half of them done and some held: all is undone in bounded batches, and each step once."""
    width = STEPS_MAX - 2
    world, crew = started(fan(width, undo=undo))
    crew.work("j1", until=lambda: world.progress("j1").steps_open <= width // 2)
    crew.changes_most = 0
    done = STEPS_MAX - world.progress("j1").steps_open

    world.one(CancelJob("j1", "no longer wanted"))
    assert len(world.changes) <= batch_changes_max(world.limits)
    assert world.store.count(keys.PASS) == 1
    check(world)
    crew.sweep()
    check(world)
    crew.work("j1")

    progress = world.progress("j1")
    assert progress.state is (JobState.CANCELLED if undo else JobState.FAILED)
    # The crew reports success of what it held when it was told to stop: that is done, too.
    succeeded = sum(event.type is EventType.StepSucceeded for _, event in world.events("j1"))
    assert succeeded >= done
    undone = Counter(event.ordinal for _, event in world.events("j1") if event.type is EventType.UndoSucceeded)
    assert len(undone) == (succeeded if undo else 0)
    assert set(undone.values()) <= {1}
    assert progress.remaining == (0 if undo else succeeded)
    assert crew.changes_most <= batch_changes_max(world.limits)
    assert left_over(world) == 0
    check(world)


@pytest.mark.parametrize(
    ("length", "undo"),
    [
        (2_000, True),
        (2_000, False),
        pytest.param(STEPS_MAX, True, marks=pytest.mark.slow),
        pytest.param(STEPS_MAX, False, marks=pytest.mark.slow),
    ],
)
def test_a_deep_chain_is_undone(length: int, undo: bool) -> None:
    """Deeper than recursion could go. Without undos the walk back passes over all of it, a slice in each batch."""
    world, crew = started(chain(length, undo=undo), slots=1)
    crew.work("j1", until=lambda: world.progress("j1").steps_open == 1)
    crew.changes_most, crew.batches = 0, 0
    (ref,) = crew.held()
    world.one(ReportAttempts("crew", 1, (AttemptReport(ref, Failed("Full", "no", retryable=False)),)))
    changes = len(world.changes)
    crew.work("j1")

    assert world.job_state("j1") == ("COMPENSATED" if undo else "FAILED")
    assert world.progress("j1").remaining == (0 if undo else length - 1)
    assert max(changes, crew.changes_most) <= batch_changes_max(world.limits)
    if not undo:
        assert length / world.limits.activation_slice <= crew.batches <= 8 * length / world.limits.activation_slice
    check(world)


def test_a_chain_of_200_completes_at_the_cost_of_a_short_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """A step costs the same wherever it stands."""
    per_step = []
    for length in (10, 200):
        world, crew = started(chain(length))
        with counted(monkeypatch) as cost:
            crew.work("j1")
        assert world.job_state("j1") == "COMPLETED"
        per_step.append(cost.gets / length)

    assert per_step[1] <= 1.1 * per_step[0]


def stopping() -> tuple[World, Crew]:
    """A job of 30 branches that is being cancelled: the walk that stops them has come to a few."""
    limits = Limits(session_ttl_ms=3_600_000, activation_slice=5, offers_max=1_000)
    body = fan(30)
    on_accept = tuple(_starting(spec, StartMode.ON_ACCEPT) for spec in body.steps)
    body = DefinitionBody("stopping", on_accept, b"", b"")
    world, crew = started(body, limits=limits, slots=20)
    (ref,) = crew.held()
    for event in (Accepted(), DONE):
        world.one(ReportAttempts("crew", 1, (AttemptReport(ref, event),)))
    while world.store.count(keys.SPREAD):
        crew.sweep()
    world.one(CancelJob("j1", "no longer wanted"))
    pass_ = world.reader.get(keys.job_pass("j1"))
    assert isinstance(pass_, slice_rows.Pass)
    assert (pass_.kind, pass_.after) == (PassKind.STOP, 4)
    return world, crew


def _starting(spec: StepSpec, start: StartMode) -> StepSpec:
    return replace(spec, start=start)


def test_nothing_starts_while_its_job_is_being_stopped() -> None:
    """The walk has not come to a step that is offered: its agent asks, and may not start. Nor is anything offered."""
    world, crew = stopping()
    ref = crew.held()[-1]
    assert world.step_state("j1", ref.step_id) == "OFFERED"

    assert world.report("crew", "j1", ref.step_id, Accepted()) == "CANCELLED"

    assert world.step_state("j1", ref.step_id) == "CANCELLED"
    assert [state for state in states(world) if state is StepState.READY] == [StepState.READY] * 10
    assert world.store.count(keys.assignments("crew")) < 20
    check(world)


def test_a_queue_timeout_while_its_job_is_being_stopped_stops_the_step() -> None:
    """It did not fail: it was not wanted any more."""
    world, _ = stopping()
    world.now_ms = 2 * 86_400_000
    # What is due comes in the order of its instants: the branches' queue timeouts stand before the walk in no queue.
    world.one(Sweep(500))

    assert StepState.FAILED not in states(world)
    check(world)


def states(world: World) -> list[StepState]:
    """The states of the steps that have begun."""
    found = [world.reader.get(key) for key in list(world.reader.scan(keys.steps("j1")))]
    return [step.state for step in found if isinstance(step, rows.Step)]


def test_undos_that_failed_are_tried_again_in_slices() -> None:
    """A person asks once more; while the walk is under way another request is told to come back."""
    limits = Limits(session_ttl_ms=3_600_000, activation_slice=5)
    world, crew = started(fan(12), limits=limits)
    crew.work("j1", until=lambda: world.progress("j1").steps_open == 1)
    last, refused = crew.held()[0], Failed("Down", "no", retryable=False)
    world.one(ReportAttempts("crew", 1, (AttemptReport(last, refused),)))
    while world.step_state("j1", "first") == "SUCCEEDED" and world.progress("j1").waiting < 12:
        for ref in crew.held():
            world.one(ReportAttempts("crew", 1, (AttemptReport(ref, refused),)))
        crew.sweep()
    assert world.job_state("j1") == "ESCALATED"

    world.one(CancelJob("j1", "again"))
    check(world)
    assert world.progress("j1").waiting == 12 - 4
    refusal = world.one(CancelJob("j1", "and again"))
    assert isinstance(refusal, Rejection)
    assert refusal.reason is Reason.OVERLOADED
    crew.work("j1")

    assert world.job_state("j1") == "COMPENSATED"
    check(world)


@pytest.mark.parametrize("room", range(0, 60, 2))
def test_an_undo_is_told_over_what_its_success_had_left_to_tell(room: int) -> None:
    """A success that came in a full batch is not told to all when its job is cancelled, in a batch with little room."""
    limits = Limits(session_ttl_ms=3_600_000, activation_slice=100, told_least=1)
    needs = tuple(step_spec(f"n{n}", dependents=(3,), undo=False) for n in range(3))
    middle = step_spec("m", needs=(0, 1, 2), dependents=(4, 5, 6), undo=False)
    ends = tuple(step_spec(f"e{n}", needs=(3,), undo=False) for n in range(3))
    world, crew = started(DefinitionBody("hourglass", (*needs, middle, *ends), b"", b""), limits=limits, slots=1)
    crew.work("j1", until=lambda: world.step("j1", "m") is not None and bool(crew.held()))
    world.limits = replace(limits, batch_writes_max=0)
    crew.report(*crew.held())
    assert world.store.count(keys.SPREAD) == 1

    world.now_ms += 1
    world.limits = replace(limits, batch_writes_max=room)
    world.one(CancelJob("j1", "no"))
    check(world)
    crew.work("j1")

    crew.sweep()
    assert world.job_state("j1") == "FAILED"
    assert left_over(world) == 0
    check(world)


@pytest.mark.slow
def test_a_step_of_the_widest_job_takes_twice_the_time_of_a_narrow_one_at_most() -> None:
    """Measured over whole jobs, the better of three each, with the same number of reports in a batch."""
    width = STEPS_MAX - 2
    took = {}
    for jobs, each in ((width // 3, 3), (1, width)):
        best = float("inf")
        for _ in range(3):
            body = fan(each)
            world = World(limits=Limits(session_ttl_ms=3_600_000))
            world.define(body)
            crew = Crew(world, body)
            began = time.perf_counter()
            for number in range(jobs):
                world.submit(f"j{number}", body.name)
            for number in range(jobs):
                crew.work(f"j{number}", at_once=50)
            best = min(best, (time.perf_counter() - began) / (jobs * (each + 2)))
        took[each] = best

    assert took[width] <= 2 * took[3], took


def test_the_output_of_many_last_steps_may_be_too_large() -> None:
    """The job has completed all the same; what it gives is told to be too large, and each step's output is there."""
    count = 1_300
    body = DefinitionBody("loose", tuple(_action(step_spec(f"s{n}"), "loose") for n in range(count)), b"", b"")
    for size, failure_kind in ((100, None), (300, "OUTPUT_TOO_LARGE")):
        world, crew = started(body)
        crew.gives = Succeeded(Payload(b'"' + b"x" * size + b'"'))
        crew.work("j1")

        view = views.job_view(world.reader, "j1", world.limits, with_steps=False)
        assert view is not None
        assert view.progress.state is JobState.COMPLETED
        assert (view.failure.kind if view.failure else None) == failure_kind
        assert (view.output is None) == (failure_kind is not None)


def test_ids_are_looked_up_where_they_stand() -> None:
    """A report names its step by id, whatever its place among thousands, and an unknown one is not found."""
    world, crew = started(fan(600))
    crew.work("j1", until=lambda: len(crew.held()) > 400)
    ref = crew.held()[-1]

    assert world.report("crew", "j1", ref.step_id, DONE) == "RECORDED"
    unknown = ReportAttempts("crew", 1, (AttemptReport(AttemptRef("j1", "nobody", ref.token), DONE),))
    assert world.one(unknown).results[0].result == "NOT_FOUND"  # type: ignore[union-attr]  # never refused as a whole
