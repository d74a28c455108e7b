"""Walks over jobs against a plain filter over all of them."""

from __future__ import annotations

import random
from typing import NamedTuple

import pytest
from msgspec.structs import replace

from stepward.server.core import keys, lists, rows
from stepward.server.core.commands import CancelJob
from stepward.server.core.lists import JobFilter
from stepward.server.core.rows import DefinitionBody, JobState, VerifySpec
from tests.core.world import WALL_MS, World, step_spec

DEFINITIONS = ("one", "other", "third")
LABELS = (("team", "red"), ("team", "blue"), ("size", "l"))


class Known(NamedTuple):
    """What the oracle knows of a job."""

    job_id: str
    state: JobState
    job: rows.Job


def random_world(rng: random.Random, *, jobs: int) -> World:
    """Jobs of three definitions with labels in several states. Many share a millisecond; ids and times lie apart."""
    world = World(seed=rng.randrange(1 << 30))
    for name in DEFINITIONS:
        world.define(DefinitionBody(name, (replace(step_spec("a"), queue=f"queue-of-{name}"),), b"", b""))
    drawn_ms, number = WALL_MS, 0
    while number < jobs:
        drawn_ms += rng.choice([0, 0, 1, 40])
        # The batch of some ids comes later than that of others that were drawn after them.
        world.now_ms = max(0, drawn_ms - WALL_MS + rng.choice([0, 0, 3, 90, -25]))
        batch = [f"0-{drawn_ms:012x}{number + n:020x}" for n in range(rng.randint(1, 4))]
        number += len(batch)
        rng.shuffle(batch)
        labels = [dict(rng.sample(LABELS, rng.randint(0, 2))) for _ in batch]
        submissions = (
            world.submission(job_id, rng.choice(DEFINITIONS), labels=given)
            for job_id, given in zip(batch, labels, strict=True)
        )
        world.do(*submissions)
        world.do(*(CancelJob(job_id, "no longer wanted") for job_id in batch if rng.random() < 0.4))
    return world


def known_jobs(world: World) -> list[Known]:
    """All jobs, the newest first, by reading every row."""
    found = []
    for key in sorted(world.reader.scan(keys.JOB), reverse=True):
        job = world.reader.get(key)
        assert isinstance(job, rows.Job)
        found.append(Known(key[1:].decode(), world.progress(key[1:].decode()).state, job))
    return found


def random_filter(rng: random.Random, known: list[Known]) -> JobFilter:
    """Any of what may be said, and each of it alone and together."""
    moments = [job.submitted_wall_ms + d for _, _, job in known[:: max(1, len(known) // 9)] for d in (-1, 0, 1)]
    return JobFilter(
        namespace="default",
        states=tuple(sorted(rng.sample(list(JobState), rng.choice([0, 1, 2])))),
        definition_name=rng.choice(["", *DEFINITIONS]),
        labels=tuple(sorted(dict(rng.sample(LABELS, rng.choice([0, 0, 1, 2]))).items())),
        submitted_from_wall_ms=rng.choice([None, *moments]),
        submitted_before_wall_ms=rng.choice([None, *moments]),
        queue=rng.choice(["", "", "queue-of-other", "absent"]),
    )


def wanted(filter_: JobFilter, known: list[Known]) -> list[str]:
    """The oracle: a plain filter over all jobs."""
    first_ms, end_ms = filter_.submitted_from_wall_ms, filter_.submitted_before_wall_ms
    return [
        job_id
        for job_id, state, job in known
        if (not filter_.states or state in filter_.states)
        and filter_.definition_name in ("", job.definition_name)
        and set(filter_.labels) <= set(job.labels.items())
        and (first_ms is None or job.submitted_wall_ms >= first_ms)
        and (end_ms is None or job.submitted_wall_ms < end_ms)
        and filter_.queue in ("", f"queue-of-{job.definition_name}")
    ]


def matching(world: World, filter_: JobFilter, before_job_id: str = "") -> list[str]:
    """The jobs that a walk finds."""
    return [met.job_id for met in lists.walk(world.reader, filter_, before_job_id=before_job_id) if met.job is not None]


@pytest.mark.parametrize("seed", range(12))
def test_h097_walk_finds_what_a_plain_filter_finds(seed: int) -> None:
    """In its order, with every filter, and from every place on."""
    rng = random.Random(seed)
    world = random_world(rng, jobs=60)
    known = known_jobs(world)
    for _ in range(40):
        filter_ = random_filter(rng, known)
        expected = wanted(filter_, known)
        behind = rng.choice(known).job_id

        assert matching(world, filter_) == expected, filter_
        assert matching(world, filter_, behind) == [one for one in expected if one < behind], filter_


def test_h093_lists_of_all_states_add_up_to_the_whole() -> None:
    """A thousand jobs, many of the same millisecond: none is in two lists, none in no list."""
    world = random_world(random.Random(93), jobs=1_000)
    whole = matching(world, JobFilter("default"))
    parts = [matching(world, JobFilter("default", (state,))) for state in JobState]

    assert whole == [one.job_id for one in known_jobs(world)]
    assert sorted(job_id for part in parts for job_id in part) == sorted(whole)


def test_walk_reads_only_jobs_that_may_lie_in_its_time() -> None:
    """What is far away in time costs nothing, on both sides."""
    world = World()
    world.define(DefinitionBody("one", (step_spec("a"),), b"", b""))
    for hour in range(10):
        world.now_ms = hour * 3_600_000
        world.submit(f"0-{WALL_MS + world.now_ms:012x}{hour:020x}", "one")
    from_ms, before_ms = WALL_MS + 4 * 3_600_000, WALL_MS + 6 * 3_600_000
    filter_ = JobFilter("default", submitted_from_wall_ms=from_ms, submitted_before_wall_ms=before_ms)

    assert [int(met.job_id[-2:]) for met in lists.walk(world.reader, filter_)] == [5, 4]


@pytest.mark.parametrize("moment_ms", [-(10**15), -1, 0, 1 << 48, 10**15])
def test_times_that_no_id_can_have(moment_ms: int) -> None:
    """Before all, or behind all."""
    world = World()
    world.define(DefinitionBody("one", (step_spec("a"),), b"", b""))
    world.submit(f"0-{WALL_MS:012x}{0:020x}", "one")
    since, until = (
        JobFilter("default", submitted_from_wall_ms=moment_ms),
        JobFilter("default", submitted_before_wall_ms=moment_ms),
    )

    assert len(matching(world, since)) == (moment_ms <= WALL_MS)
    assert len(matching(world, until)) == (moment_ms > WALL_MS)


def test_queues_of_a_definition() -> None:
    """A step's own, that of its undo, and that of its question what became of it."""
    spec = step_spec("a")
    assert spec.undo is not None
    verify = VerifySpec("ask", "verify-queue", spec.retry, 1, 1)
    body = DefinitionBody("x", (replace(spec, undo=replace(spec.undo, queue="undo-queue"), verify=verify),), b"", b"")

    assert [lists.is_on_queue(body, queue) for queue in ("q", "undo-queue", "verify-queue", "other")] == [
        True,
        True,
        True,
        False,
    ]
