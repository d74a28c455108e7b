"""Jobs are counted by state in the batch that changes it: the counts are true after every one."""

from __future__ import annotations

import pytest
from typing_extensions import override

from stepward.server.core import counts, invariants, keys, rows
from stepward.server.core.commands import CancelJob
from stepward.server.core.rows import DefinitionBody, JobState
from tests.core.test_histories import History
from tests.core.world import WALL_MS, World, step_spec

R, C = JobState.RUNNING, JobState.CANCELLED


def world(*jobs: str) -> World:
    """A world with jobs that run, submitted in one batch."""
    made = World()
    made.define(DefinitionBody("one", (step_spec("a"),), b"", b""))
    made.do(*(made.submission(job_id, "one") for job_id in jobs))
    return made


def job_id(at_ms: int, number: int = 0) -> str:
    """An id that was drawn at some time after the world began."""
    return f"0-{WALL_MS + at_ms:012x}{number:020x}"


def test_submissions_of_one_batch_write_one_row() -> None:
    """However many there are, and whatever else becomes of them."""
    made = world("a", "b", "c")
    written = [key for key in made.changes if key[:1] == keys.JOB_COUNTS]

    assert written == [keys.job_counts("default")]
    assert counts.of_namespace(made.reader, "default") == {R: 3}


def test_a_job_moves_from_one_count_to_another() -> None:
    """A state that nothing is in is left out."""
    made = world("a", "b")
    made.do(CancelJob("a", "no longer wanted"))
    between = counts.of_namespace(made.reader, "default")
    made.do(CancelJob("b", "no longer wanted"))

    assert between == {R: 1, C: 1}
    assert counts.of_namespace(made.reader, "default") == {C: 2}


def test_a_namespace_without_jobs_counts_nothing() -> None:
    """Nobody has submitted there."""
    made = world()

    assert counts.of_namespace(made.reader, "default") == {}
    assert counts.of_all(made.reader) == {}


def test_a_refused_submission_is_not_counted() -> None:
    """It is rolled back, its count too."""
    made = world("a")
    made.do(made.submission("b", "absent"), made.submission("c", "one"))

    assert counts.of_namespace(made.reader, "default") == {R: 2}


def test_jobs_that_are_older_than_the_counts_are_counted_once() -> None:
    """A store that was written before there were counts."""
    made = world(job_id(-5_000), "b")
    made.store.apply([], [keys.job_counts("default")])
    made.reader.applied({keys.job_counts("default"): None})
    made.do(CancelJob("b", "no longer wanted"))

    assert counts.of_namespace(made.reader, "default") == {R: 1, C: 1}
    assert not invariants.violations(made.reader, led_ms=made.now_ms)


def test_a_job_that_leaves_its_list_is_counted_no_more() -> None:
    """The last one takes the row along."""
    made = world("a", "b")
    with made.batch() as batch:
        batch.list_job("a", "default", R, None)
    one_left = counts.of_namespace(made.reader, "default")
    with made.batch() as batch:
        batch.list_job("b", "default", R, None)

    assert one_left == {R: 1}
    assert made.reader.get(keys.job_counts("default")) is None


class Counted(History):
    """A random history in which only counts are looked at, and the batches are counted, too."""

    batches = 0

    @override
    def _check(self) -> None:
        Counted.batches += 1
        found = list(invariants.count_violations(self.world.reader))
        assert not found, (self.seed, found)
        self._note_ends()


def test_h090_counts_equal_a_recount_after_every_batch() -> None:
    """Whatever happens to jobs, agents and streams, in some ten thousand batches."""
    for seed in range(70_000, 70_050):
        Counted(seed).run()

    assert Counted.batches >= 10_000


@pytest.mark.parametrize(
    ("drawn_at_ms", "bounds"),
    [
        ((0,), (0, 0)),
        # Ids of a while ago: their submissions waited.
        ((-20, -50), (0, 50)),
        # Another clock was ahead.
        ((3_000,), (-3_000, 0)),
        ((3_000, -70), (-3_000, 70)),
    ],
)
def test_distance_between_ids_and_submissions(drawn_at_ms: tuple[int, ...], bounds: tuple[int, int]) -> None:
    """The widest in both directions is kept, so that a walk which is bounded by time misses nothing."""
    made = world(*(job_id(at_ms, number) for number, at_ms in enumerate(drawn_at_ms)))
    row = made.reader.get(keys.job_counts("default"))

    assert isinstance(row, rows.JobCounts)
    assert (row.submitted_late_ms_min, row.submitted_late_ms_max) == bounds


@pytest.mark.parametrize(
    ("text", "expected_ms"),
    [("0-0193f0c21a7b7cc2a0d0c0ffee000001", 0x0193F0C21A7B), ("17-" + "0" * 32, 0), ("j1", 0), ("", 0)],
)
def test_time_in_an_id(text: str, expected_ms: int) -> None:
    """An id that was made elsewhere has none."""
    assert keys.job_id_ms(text) == expected_ms


def test_bound_of_a_time_between_ids() -> None:
    """It stands before every id of that time, and behind every older one."""
    assert job_id(-1, (1 << 80) - 1) < keys.job_id_from(job_id(0), WALL_MS) <= job_id(0)
