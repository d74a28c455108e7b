"""H054: a job that nothing will ever move does not stand in RUNNING for ever."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from stepward.server.core import keys, rows, states
from stepward.server.core.commands import CancelJob, Sweep, Swept, TerminateJob
from stepward.server.core.decide import decide
from stepward.server.core.limits import Limits
from stepward.server.core.rows import Clock, DefinitionBody, EventType, JobState
from stepward.server.core.supervision import BEAT_INTERVAL_MS
from tests.core.crew import Crew
from tests.core.world import World, step_spec

if TYPE_CHECKING:
    from collections.abc import Callable

PAIR = DefinitionBody("pair", (step_spec("a", dependents=(1,)), step_spec("b", needs=(0,))), b"", b"")
LOOSE = DefinitionBody("loose", tuple(step_spec(f"s{n}") for n in range(10)), b"", b"")


def world_of(**bounds: int) -> tuple[World, Crew]:
    world = World(limits=Limits(**{"session_ttl_ms": 3_600_000, **bounds}))
    world.define(PAIR)
    world.define(LOOSE)
    return world, Crew(world, PAIR)


def beat(world: World) -> tuple[str, ...]:
    """The next beat; what its patrol found."""
    world.now_ms += BEAT_INTERVAL_MS
    answer = world.one(Sweep(500))
    assert isinstance(answer, Swept)
    return answer.stuck


def row_of_beat(world: World) -> rows.Beat:
    row = world.reader.get(keys.BEAT)
    assert isinstance(row, rows.Beat)
    return row


def lose_timer(world: World, job_id: str, step_id: str) -> None:
    """What no rule does: a step that waits loses the row that would move it."""
    step = world.step(job_id, step_id)
    assert step is not None
    with world.batch() as batch:
        batch.draft.delete(states.timer_key(job_id, world.ordinal(job_id, step_id), step))
        if step.session_id:
            batch.draft.delete(keys.assignment(step.session_id, step.token, job_id, world.ordinal(job_id, step_id)))


def lose_step(world: World, job_id: str) -> None:
    """The step that is at work is gone, timer and all."""
    lose_timer(world, job_id, "a")
    with world.batch() as batch:
        batch.draft.delete(keys.step(job_id, 0))


def forget_timer(world: World, job_id: str) -> None:
    """The step says that it has no timer, and there is none."""
    step = world.step(job_id, "a")
    assert step is not None
    lose_timer(world, job_id, "a")
    with world.batch() as batch:
        batch.draft.put(keys.step(job_id, 0), replace(step, timer_clock=Clock.NONE, timer_at_ms=0))


@pytest.mark.parametrize("harm", [lambda world, job_id: lose_timer(world, job_id, "a"), lose_step, forget_timer])
def test_h054_a_job_that_nothing_will_move_is_given_to_a_person(harm: Callable[[World, str], None]) -> None:
    """It is escalated with a reason, told in its history and counted, once; a sound job beside it is left alone."""
    world, _ = world_of()
    world.submit("j1", "pair")
    world.submit("j2", "pair")
    assert beat(world) == ()
    harm(world, "j1")

    assert beat(world) == ("j1",)

    progress = world.progress("j1")
    assert progress.state is JobState.ESCALATED
    assert progress.failure is not None
    assert progress.failure.kind == "STUCK"
    assert "2 steps have not succeeded" in progress.failure.message
    assert [event.type for _, event in world.events("j1")][-1] is EventType.JobStuck
    assert world.job_state("j2") == "RUNNING"
    assert [beat(world) for _ in range(3)] == [()] * 3
    assert row_of_beat(world).stuck == 1


def test_a_stuck_job_can_be_cancelled() -> None:
    """A person undoes it: the walk goes over the steps as they are, whatever the counters say."""
    world, crew = world_of()
    world.submit("j1", "pair")
    crew.report(*crew.held())
    with world.batch() as batch:
        batch.draft.delete(keys.assignment("crew", crew.held()[0].token, "j1", 1))
        step = batch.step("j1", 1)
        assert step is not None
        batch.draft.delete(states.timer_key("j1", 1, step))
        batch.draft.delete(keys.step("j1", 1))
        batch.put_progress("j1", batch.progress("j1"), settling=7)
    assert beat(world) == ("j1",)

    world.one(CancelJob("j1", "stuck"))
    crew.work("j1")

    assert world.job_state("j1") == "CANCELLED"
    assert world.step_state("j1", "a") == "COMPENSATED"


def test_a_stuck_job_that_lost_what_an_agent_holds_can_be_cancelled() -> None:
    """Of an attempt without its row nobody knows what became of it: it is undone as one that may have happened."""
    world, crew = world_of()
    world.submit("j1", "pair")
    lose_timer(world, "j1", "a")
    assert beat(world) == ("j1",)

    world.one(CancelJob("j1", "stuck"))
    assert world.step_state("j1", "a") == "UNDO_OFFERED"
    crew.work("j1")

    assert world.job_state("j1") == "CANCELLED"


def test_a_job_that_is_being_undone_may_be_stuck_as_well() -> None:
    """An undo that lost its timer and its place."""
    world, crew = world_of()
    world.submit("j1", "pair")
    crew.report(*crew.held())
    world.one(CancelJob("j1", "no"))
    crew.report(*crew.held())
    assert world.step_state("j1", "a") == "SUCCEEDED"
    assert world.step_state("j1", "b") == "UNDO_OFFERED"
    lose_timer(world, "j1", "b")

    assert beat(world) == ("j1",)
    assert world.job_state("j1") == "ESCALATED"
    failure = world.progress("j1").failure
    assert failure is not None
    # To cancel it once more would begin nothing anew.
    assert failure.message.endswith("then terminate the job")
    world.one(TerminateJob("j1", "stuck", "ada"))
    assert world.job_state("j1") == "FAILED"


def test_each_beat_looks_at_some_jobs_and_the_next_goes_on() -> None:
    """Twelve jobs, five a beat, in turn; the last of them is found in the third beat, and then it begins again."""
    world, _ = world_of(patrol_jobs_max=5)
    for number in range(12):
        world.submit(f"j{number:02d}", "pair")
    lose_step(world, "j11")

    assert [beat(world) for _ in range(3)] == [(), (), ("j11",)]
    lose_step(world, "j00")
    assert ("j00",) in [beat(world) for _ in range(3)]


def test_jobs_that_have_ended_are_passed_over() -> None:
    """Many ended jobs stand behind an open one: they cost one look together, so its turn comes again at once."""
    world, crew = world_of(patrol_jobs_max=4)
    for number in range(30):
        world.submit(f"j{number:02d}", "pair")
        crew.work(f"j{number:02d}")
    world.submit("j30", "pair")
    assert beat(world) == ()
    lose_step(world, "j30")

    assert ("j30",) in [beat(world) for _ in range(2)]


def test_a_wide_job_is_looked_at_in_slices() -> None:
    """Ten steps, four a beat: it is found when all have been looked at, and not while something happens to it."""
    for disturbed in (False, True):
        world, _ = world_of(patrol_steps_max=4)
        world.submit("j1", "loose")
        for number in range(10):
            lose_timer(world, "j1", f"s{number}")
        found = []
        for _ in range(3):
            found.append(beat(world))
            if disturbed:
                with world.batch() as batch:
                    batch.put_progress("j1", batch.progress("j1"))
        assert found == ([(), (), ()] if disturbed else [(), (), ("j1",)])


def test_a_step_that_is_due_far_behind_is_seen() -> None:
    """The last of many steps waits for its agent: the job moves."""
    world, _ = world_of(patrol_steps_max=4)
    world.submit("j1", "loose")
    for number in range(9):
        lose_timer(world, "j1", f"s{number}")

    assert [beat(world) for _ in range(6)] == [()] * 6


def test_a_job_that_cannot_be_looked_at_does_not_keep_the_others() -> None:
    """A row of another kind stands in the place of its walk: told as a failure of ours, and the next one is found."""
    world, _ = world_of()
    world.submit("j1", "pair")
    world.submit("j2", "pair")
    lose_step(world, "j1")
    lose_step(world, "j2")
    with world.batch() as batch:
        batch.draft.put(keys.job_pass("j1"), rows.Join(99))
    world.now_ms += BEAT_INTERVAL_MS

    decision = decide(world.reader, [Sweep(500)], world.moment(), world.limits, world.rng)

    assert len(decision.failures) == 1
    assert decision.answers[0].stuck == ("j2",)  # type: ignore[union-attr]  # a sweep is never refused here
