"""What a run comes to: the checks that decide whether its figures mean anything."""

from typing import Any

import pytest

from loadtest.report import Report, Yardstick, duplicated, lost, report, side_by_side
from loadtest.stage import Judged, Played, Window
from loadtest.tally import quantiles


def judged(**changes: Any) -> Judged:
    """What the jobs of a good run came to: twelve, of which ten ended in the measured seconds."""
    good: dict[str, Any] = {
        "begun": 12,
        "answered": 12,
        "distinct": 12,
        "wanted": {"COMPLETED": 12},
        "stored": {"COMPLETED": 12},
        "handled": 36,
        "failures": {},
        "replicas_equal": True,
        "peak_memory_mb": {"server": 60.0, "agent": 40.0, "load": 40.0},
    }
    return Judged(**(good | changes))


def window(**changes: Any) -> Window:
    """Ten jobs in two seconds."""
    good: dict[str, Any] = {
        "seconds": 2.0,
        "latencies_s": [0.005] * 9 + [0.009],
        "cpu_ms": {"server": 20.0, "agent": 5.0, "load": 5.0},
        "written_bytes": {"server": 81_920, "agent": 0, "load": 0},
        "counters": {"puts": 270, "log_bytes": 30_000, "batches": 40, "flushes": 41, "calls": 12, "rule_failures": 0},
        "elections": 0,
    }
    return Window(**(good | changes))


GIVEN = {"through": "leader", "agent_through": "leader"}
COUNTED = {"runs": 36, "keys": 36}


def made(measured: Window | None = None, **changes: Any) -> Report:
    """The report of such a run."""
    return report(
        given={**GIVEN, "shape": "trip", "mode": "run", "nodes": 1, "tls": False, "inflight": 2, "rate": 0.0},
        played=Played(window=measured or window(), steps=3, figures={"gap_s": 0.5}),
        judged=judged(**changes),
        counted=COUNTED,
        yardstick=Yardstick(calls_per_s=3000.0, flush_ms=0.2),
    )


def test_figures_are_of_the_measured_seconds() -> None:
    """Rates and costs are divided by what ended in them, not by what was begun."""
    good = made()

    assert (good.jobs_per_s, good.steps_per_s, good.p99_ms) == (5.0, 15.0, 9.0)
    assert (good.cpu_ms_per_job, good.cpu_ms_per_job_by_process["server"]) == (3.0, 2.0)
    assert good.counters_per_job["batches_per_job"] == 4.0
    assert good.written_bytes_per_job == {"server": 8192.0}
    assert good.sound


def test_json_has_what_comparisons_need() -> None:
    """Names are the interface of `--json`."""
    wanted = {"jobs_per_s", "p50_ms", "p99_ms", "cpu_ms_per_job", "lost", "duplicated", "yardstick_calls_per_s"}

    assert wanted <= made().as_json().keys()
    assert made().as_json()["puts_per_job"] == 27.0
    assert made().as_json()["gap_s"] == 0.5


@pytest.mark.parametrize(
    "changes",
    [
        {"answered": 11, "distinct": 11},
        {"distinct": 11},
        {"stored": {"COMPLETED": 11, "RUNNING": 1}},
        {"failures": {"DEADLINE_EXCEEDED": 1}},
        {"handled": 39},
        {"replicas_equal": False},
    ],
)
def test_run_that_means_nothing(changes: dict[str, Any]) -> None:
    """Speed at the price of jobs is none."""
    assert not made(**changes).sound


@pytest.mark.parametrize("changes", [{"latencies_s": []}, {"counters": {"rule_failures": 1}}])
def test_seconds_that_mean_nothing(changes: dict[str, Any]) -> None:
    """Nothing ended in them, or the server was wrong."""
    assert not made(window(**changes)).sound


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, 0),
        # No answer came.
        ({"answered": 10, "distinct": 10, "stored": {"COMPLETED": 12}}, 2),
        # Answered as completed, and not stored so.
        ({"stored": {"COMPLETED": 11, "FAILED": 1}}, 1),
        # Gone from the store.
        ({"stored": {}}, 12),
        # It must have been undone.
        ({"wanted": {"COMPLETED": 11, "COMPENSATED": 1}}, 1),
        # Two handlers never ran.
        ({"handled": 38}, 2),
    ],
)
def test_lost(changes: dict[str, Any], expected: int) -> None:
    """Begun and not answered, answered and not stored so, or stored so and not done."""
    assert lost(judged(**changes), COUNTED) == expected


@pytest.mark.parametrize(
    ("changes", "counted", "expected"),
    [
        ({}, COUNTED, 0),
        # Two submissions were answered with the same job.
        ({"distinct": 11}, COUNTED, 1),
        # More jobs are stored than were begun.
        ({"stored": {"COMPLETED": 12, "RUNNING": 2}}, COUNTED, 2),
        # A handler ran twice for the same key.
        ({}, {"runs": 37, "keys": 36}, 1),
    ],
)
def test_duplicated(changes: dict[str, Any], counted: dict[str, int], expected: int) -> None:
    """Answered, stored or run twice."""
    assert duplicated(judged(**changes), counted) == expected


@pytest.mark.parametrize(
    ("latencies_s", "expected"),
    [
        ([], {"p50": 0.0, "p99": 0.0, "max": 0.0}),
        ([0.5], {"p50": 500.0, "p99": 500.0, "max": 500.0}),
        ([number / 1000 for number in range(1, 101)], {"p50": 50.0, "p99": 100.0, "max": 100.0}),
        ([number / 1000 for number in range(1, 1001)], {"p50": 500.0, "p99": 991.0, "max": 1000.0}),
    ],
)
def test_quantiles(latencies_s: list[float], expected: dict[str, float]) -> None:
    """Ranks, not interpolations: every figure was really seen."""
    assert quantiles(latencies_s) == expected


def test_table_shows_what_failed() -> None:
    """A reader sees at once that the figures mean nothing."""
    table = made(failures={"DEADLINE_EXCEEDED": 3}).table()

    assert "failed: DEADLINE_EXCEEDED" in table
    assert "lost / duplicated" in table


def test_runs_side_by_side() -> None:
    """What was kept as JSON becomes a table for a page."""
    *_, row = side_by_side([made().as_json()]).splitlines()

    assert row == (
        "| trip, run | 2 in flight | 5 | 5 / 9 | 3.00 | server 2.00, agent 0.50, load 0.50 | 8 kB | 4.00 "
        "| 3,000 calls/s, flush 0.20 ms |"
    )
