"""The ends of a caller's jobs stand in rows: one for each batch, each job once, gone with the job and not unnoticed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from stepward.server.core import caller_ends, keys
from stepward.server.core.caller_ends import Ends
from stepward.server.core.caller_rows import EndsGone
from stepward.server.core.commands import (
    AttemptReport,
    CancelJob,
    ReportAttempts,
    RetryStep,
    Started,
    Succeeded,
    Unknown,
)
from stepward.server.core.rows import DefinitionBody, Effect, JobState, Payload
from tests.core.crew import DONE, Crew
from tests.core.test_retention import limits_of, sweep
from tests.core.test_wide_jobs import check
from tests.core.world import DAY_MS, World, actions_of, step_spec

if TYPE_CHECKING:
    from stepward.server.core.limits import Limits

SINGLE = DefinitionBody("single", (step_spec("pay", effect=Effect.NON_IDEMPOTENT),), b"", b"")


def world_of(*, limits: Limits | None = None) -> World:
    world = World(limits=limits or limits_of())
    world.define(SINGLE)
    return world


def submit(world: World, *job_ids: str, caller: str) -> None:
    world.do(*(world.submission(job_id, "single", caller=caller) for job_id in job_ids))


def ends(world: World, caller: str, behind: int = 0) -> list[Ends]:
    return list(caller_ends.behind(world.reader, caller, behind))


def told(world: World, caller: str) -> list[tuple[str, ...]]:
    return [one.job_ids for one in ends(world, caller)]


def test_ends_of_one_batch_share_a_row() -> None:
    """In the order in which they ended, apart for each caller; those of nobody stand nowhere."""
    world = world_of()
    crew = Crew(world, SINGLE)
    submit(world, "j1", "j2", caller="ann")
    submit(world, "j3", caller="bob")
    world.submit("j4", "single")

    first, *others = crew.held()
    crew.report(*others)
    one = world.sequence
    crew.report(first)

    assert ends(world, "ann") == [Ends(one, (others[0].job_id,)), Ends(one + 1, (first.job_id,))]
    assert told(world, "bob") == [("j3",)]
    assert told(world, "") == told(world, "an") == []
    assert ends(world, "ann", one) == [Ends(one + 1, (first.job_id,))]
    assert ends(world, "ann", one + 1) == []
    check(world)


@pytest.mark.parametrize(("caller", "rows"), [("", 0), ("ann", 1)])
def test_a_batch_writes_one_row_more_for_the_ends_of_a_caller(caller: str, rows: int) -> None:
    """However many there are; jobs of nobody cost nothing."""
    costs = []
    for who in ("", caller):
        world = world_of()
        crew = Crew(world, SINGLE)
        submit(world, *(f"j{n}" for n in range(10)), caller=who)
        submitted = len(world.changes)
        crew.report(*crew.held())
        costs.append((submitted, len(world.changes)))

    assert costs[1] == (costs[0][0], costs[0][1] + rows)


def escalate(world: World, job_id: str) -> None:
    world.open("agent-one", actions_of(SINGLE))
    submit(world, job_id, caller="ann")
    world.report("agent-one", job_id, "pay", Started())
    world.report("agent-one", job_id, "pay", Unknown("NoAnswer", ""))
    assert world.progress(job_id).state is JobState.ESCALATED


def test_a_job_that_waits_for_a_person_is_told_and_told_anew_when_it_ends() -> None:
    """It stands at its newest end only; while it goes on it stays where it was."""
    world = world_of()
    escalate(world, "j1")
    waited = ends(world, "ann")
    world.one(RetryStep("j1", "pay", "again", "eve"))
    gone_on = ends(world, "ann")
    check(world)

    world.report("agent-one", "j1", "pay", Succeeded(Payload(b"1")))

    assert waited == gone_on == [Ends(waited[0].sequence, ("j1",))]
    assert ends(world, "ann") == [Ends(world.sequence, ("j1",))]
    assert world.progress("j1").told_sequence == world.sequence
    check(world)


def test_a_late_report_does_not_tell_an_end_again() -> None:
    """It changes the job, and not that it has ended."""
    world = world_of()
    crew = Crew(world, SINGLE)
    submit(world, "j1", caller="ann")
    (ref,) = crew.held()
    crew.report(ref)
    before = ends(world, "ann")

    world.one(ReportAttempts("crew", 1, (AttemptReport(ref, DONE),)))
    world.one(CancelJob("j1", "late"))

    assert ends(world, "ann") == before
    check(world)


def test_ends_go_with_their_jobs_and_leave_a_mark() -> None:
    """Those of one batch may go in several; the mark is the newest batch of which any is gone."""
    world = world_of(limits=limits_of(purges_max=2))
    crew = Crew(world, SINGLE)
    submit(world, "j1", "j2", "j3", caller="ann")
    crew.report(*crew.held())
    first = world.sequence
    world.now_ms += 1_000
    submit(world, "j4", caller="ann")
    crew.report(*crew.held())
    second = world.sequence
    assert caller_ends.gone_sequence(world.reader) == 0

    world.now_ms += DAY_MS - 1_000
    sweep(world)
    some = (told(world, "ann"), caller_ends.gone_sequence(world.reader))
    check(world)
    sweep(world)
    all_of_first = (told(world, "ann"), caller_ends.gone_sequence(world.reader))
    check(world)
    world.now_ms += 1_000
    sweep(world)

    assert some == ([("j3",), ("j4",)], first)
    assert all_of_first == ([("j4",)], first)
    assert told(world, "ann") == []
    assert world.reader.get(keys.ENDS_GONE) == EndsGone(second)
    check(world)


def test_jobs_of_nobody_leave_no_mark() -> None:
    """Nobody can miss them."""
    world = world_of()
    crew = Crew(world, SINGLE)
    submit(world, "j1", caller="")
    crew.report(*crew.held())

    world.now_ms += DAY_MS
    sweep(world)

    assert caller_ends.gone_sequence(world.reader) == 0
    assert world.store.count(keys.ENDS_GONE) == 0
