"""Ended jobs are kept for a time, then removed with everything that is theirs, in bounded batches and once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from stepward.server.core import keys, rows
from stepward.server.core.commands import (
    AttemptRef,
    AttemptReport,
    CancelJob,
    JobSubmitted,
    RenewSession,
    ReportAttempts,
    Started,
    Sweep,
    Swept,
)
from stepward.server.core.decide import decide
from stepward.server.core.limits import Limits
from stepward.server.core.rejections import Reason, Rejection
from stepward.server.core.rows import DefinitionBody, EventType
from tests.core.crew import DONE, Crew
from tests.core.test_wide_jobs import check, fan, started
from tests.core.world import DAY_MS, RuleRaisedError, World, step_spec

if TYPE_CHECKING:
    from collections.abc import Iterable

HOUR_MS = 3_600_000
SINGLE = DefinitionBody("single", (step_spec("pay"),), b"", b"")
KINDS = (
    *(keys.JOB, keys.PROGRESS, keys.STEP, keys.OUTPUT, keys.STEP_PROGRESS, keys.JOIN, keys.PASS, keys.SPREAD),
    *(keys.READY, keys.ASSIGNMENT, keys.JOB_INDEX, keys.JOB_COUNTS, keys.IDEMPOTENCY, keys.HISTORY, keys.PURGE),
)


def limits_of(**bounds: int) -> Limits:
    """Sessions that outlive every test, and jobs that are kept for a day."""
    return Limits(**{"session_ttl_ms": 40 * DAY_MS, "retention_ms": DAY_MS, **bounds})


def world_of(body: DefinitionBody = SINGLE, *, limits: Limits | None = None) -> tuple[World, Crew]:
    world = World(limits=limits or limits_of())
    world.define(body)
    return world, Crew(world, body)


def left_of_jobs(world: World) -> dict[str, int]:
    """Rows by kind that belong to jobs."""
    counts = {kind.decode(): world.store.count(kind) for kind in KINDS}
    return {kind: count for kind, count in counts.items() if count}


def sweep(world: World) -> Swept:
    answer = world.one(Sweep(world.limits.sweep_subjects_max))
    assert isinstance(answer, Swept)
    return answer


@pytest.mark.parametrize(("after_ms", "there"), [(DAY_MS - 1, True), (DAY_MS, False)])
def test_a_job_is_kept_for_the_time_from_its_end(after_ms: int, there: bool) -> None:
    """However long it ran."""
    world, crew = world_of()
    world.submit("j1", "single", key="order-1")
    world.now_ms = 3 * HOUR_MS
    crew.work("j1")
    ended_ms = world.now_ms

    world.now_ms = ended_ms + after_ms
    swept = sweep(world)

    assert (world.reader.get(keys.job("j1")) is not None) == there
    assert swept.purged == (not there)
    if not there:
        assert left_of_jobs(world) == {}
    check(world)


def test_h018_nothing_of_a_removed_job_is_ever_run_again() -> None:
    """Removed with all that could make it look as if it had not run; leaders change, agents return, sweeps go on."""
    world, crew = world_of()
    world.submit("j1", "single")
    crew.work("j1")
    world.now_ms += DAY_MS
    sweep(world)

    for _ in range(5):
        world.epoch += 1
        world.reader = type(world.reader)(world.store)
        world.now_ms += HOUR_MS
        world.open("crew", ("pay", "undo-pay"))
        world.do(RenewSession("crew", world.epoch, 0), Sweep(500))
        assert left_of_jobs(world) == {}
        check(world)


def test_a_late_report_of_a_removed_job_finds_nothing() -> None:
    """Nor does a cancel."""
    world, crew = world_of()
    world.submit("j1", "single")
    (ref,) = crew.held()
    crew.work("j1")
    world.now_ms += DAY_MS
    sweep(world)

    answer = world.one(ReportAttempts("crew", 1, (AttemptReport(ref, DONE),)))
    cancelled = world.one(CancelJob("j1", "no"))

    assert answer.results[0].result == "NOT_FOUND"  # type: ignore[union-attr]  # never refused as a whole
    assert isinstance(cancelled, Rejection)
    assert cancelled.reason is Reason.JOB_NOT_FOUND
    assert left_of_jobs(world) == {}


def test_h052_the_key_lives_until_the_job_has_been_kept() -> None:
    """A job runs for three days, and is kept for one: the key answers with it on day 2 and 23 h after its end."""
    world, crew = world_of()

    def submitted(job_id: str) -> JobSubmitted:
        answer = world.submit(job_id, "single", key="K")
        assert isinstance(answer, JobSubmitted)
        sweep(world)
        return answer

    submitted("j1")
    world.now_ms = 2 * DAY_MS
    assert (submitted("j2").job_id, submitted("j2").duplicate) == ("j1", True)
    world.now_ms = 3 * DAY_MS
    world.limits = limits_of()
    crew_ended_ms = finish(world, crew)
    world.now_ms = crew_ended_ms + 23 * HOUR_MS
    assert (submitted("j3").job_id, submitted("j3").duplicate) == ("j1", True)
    world.now_ms = crew_ended_ms + 25 * HOUR_MS
    sweep(world)
    assert (submitted("j4").job_id, submitted("j5").duplicate) == ("j4", True)
    check(world)


def finish(world: World, crew: Crew) -> int:
    """Do what is left of "j1"; the instant of its end."""
    crew.work("j1")
    return world.now_ms


def test_the_key_of_another_job_is_left_alone() -> None:
    """A key that came to name another job, by whatever way, stays with that one."""
    world, crew = world_of()
    world.submit("j1", "single", key="K")
    crew.work("j1")
    with world.batch() as batch:
        batch.draft.put(keys.idempotency("default", "K"), rows.IdempotencyKey("j9", b""))

    world.now_ms += DAY_MS
    sweep(world)

    named = world.reader.get(keys.idempotency("default", "K"))
    assert isinstance(named, rows.IdempotencyKey)
    assert named.job_id == "j9"


def test_h099_what_is_stored_stays_flat() -> None:
    """Jobs come all the time and are kept for ten seconds: after ten rounds as many rows stand as after a hundred."""
    world, crew = world_of(fan(2), limits=limits_of(retention_ms=10_000))
    stored = []
    for round_ in range(100):
        for number in range(3):
            world.submit(f"j{round_:03d}{number}", "fan-2-True", key=f"k{round_}{number}")
        for number in range(3):
            crew.work(f"j{round_:03d}{number}")
        world.now_ms = (round_ + 1) * 1_000
        sweep(world)
        stored.append(world.store.count(b""))

    assert max(stored[20:]) - min(stored[20:]) <= 3
    assert max(stored[20:]) <= 1.2 * stored[12]


def test_h100_what_is_behind_catches_up_and_no_job_is_removed_twice() -> None:
    """1,000 jobs fall due while nobody sweeps: bounded batches follow at once, each job vanishes once, and all do."""
    limits = limits_of(purge_writes_max=100)
    world, crew = world_of(limits=limits)
    for number in range(1_000):
        world.submit(f"j{number:04d}", "single")
    for number in range(1_000):
        crew.work(f"j{number:04d}", at_once=200)
    world.now_ms += DAY_MS + 5_000
    removed: list[str] = []
    late_ms, backlogs = [], []

    while True:
        swept = sweep(world)
        removed += vanished(world)
        assert len(world.changes) <= 100 + 20
        beat = world.reader.get(keys.BEAT)
        assert isinstance(beat, rows.Beat)
        backlogs.append(beat.purge_backlog)
        late_ms.append(beat.purge_late_ms)
        world.now_ms += 1_000
        if not swept.unfinished:
            break

    assert len(removed) == len(set(removed)) == 1_000
    assert backlogs == sorted(backlogs, reverse=True)
    assert backlogs[0] > 900
    assert backlogs[-1] == 0
    assert late_ms[0] >= 5_000
    assert left_of_jobs(world) == {}


def vanished(world: World) -> Iterable[str]:
    """Jobs that the last batch has removed."""
    return [key[1:].decode() for key, row in world.changes.items() if key[:1] == keys.JOB and row is None]


def test_one_sweep_removes_at_most_so_many_jobs() -> None:
    """At the bound it is done, one more follows."""
    for count, unfinished in ((3, False), (4, True)):
        world, crew = world_of(limits=limits_of(purges_max=3))
        for number in range(count):
            world.submit(f"j{number}", "single")
            crew.work(f"j{number}")
        world.now_ms += DAY_MS
        swept = sweep(world)
        assert (swept.purged, swept.unfinished) == (3, unfinished)


def test_a_wide_job_vanishes_at_once_and_is_removed_in_slices() -> None:
    """Of 2,002 steps: no batch is larger than its bound, and from the first one that hides it nothing finds it."""
    world, crew = started(fan(2_000), limits=limits_of())
    crew.work("j1")
    world.now_ms += DAY_MS
    batches = 0
    while left_of_jobs(world):
        sweep(world)
        batches += 1
        assert len(world.changes) <= world.limits.purge_writes_max + 20
        there = {kind: world.store.count(kind + b"j1") for kind in (keys.JOB, keys.PROGRESS)}
        assert len(set(there.values())) == 1
        assert world.store.count(keys.JOB_INDEX) == there[keys.JOB]
        check(world)

    assert 5 <= batches <= 30


def test_what_an_attempt_still_holds_is_taken_from_it() -> None:
    """Its session lives, and it never said that it has stopped: when its job is removed its slot is free again."""
    world, crew = world_of(limits=limits_of(activation_slice=1))
    ref = done_after_a_timeout(world, crew)
    assert world.job_state("j1") == "COMPLETED"
    assert world.store.count(keys.ASSIGNMENT) == 1

    world.now_ms += DAY_MS
    sweep(world)

    assert left_of_jobs(world) == {}
    answer = world.one(RenewSession("crew", 1, 1, held=(ref,), busy_slots=1))
    assert answer.unknown == (ref,)  # type: ignore[union-attr]  # the session is open
    check(world)


def done_after_a_timeout(world: World, crew: Crew) -> AttemptRef:
    """A job whose first attempt timed out and was never heard of again, and whose second one succeeded. The first."""
    world.submit("j1", "single")
    (ref,) = crew.held()
    world.report("crew", "j1", "pay", Started())
    world.now_ms += 10_000
    while len(crew.held()) < 2:
        world.now_ms += 1_000
        sweep(world)
    crew.report(*(held for held in crew.held() if held.token != ref.token))
    return ref


def test_a_job_that_is_heard_of_in_the_same_batch_is_removed_with_the_next() -> None:
    """A late report is written into its history: not behind its removal."""
    world, crew = world_of()
    ref = done_after_a_timeout(world, crew)

    world.now_ms += DAY_MS
    world.do(ReportAttempts("crew", 1, (AttemptReport(AttemptRef("j1", "pay", ref.token), DONE),)), Sweep(500))
    assert [event.type for _, event in world.events("j1")][-1] is EventType.StaleReportObserved
    check(world)

    sweep(world)
    assert left_of_jobs(world) == {}


def test_a_job_that_cannot_be_removed_does_not_keep_the_others() -> None:
    """Its rows break a rule of ours: it is told, and the next one goes."""
    world, crew = world_of()
    for job_id in ("j1", "j2"):
        world.submit(job_id, "single")
        crew.work(job_id)
    with world.batch() as batch:
        batch.draft.delete(keys.progress("j1"))
    world.now_ms += DAY_MS

    with pytest.raises(RuleRaisedError):
        sweep(world)
    decision = decide(world.reader, [Sweep(500)], world.moment(), world.limits, world.rng)

    assert decision.answers[0].purged == 1  # type: ignore[union-attr]  # a sweep is never refused here
    assert keys.job("j1") not in decision.changes
    assert decision.changes[keys.job("j2")] is None
