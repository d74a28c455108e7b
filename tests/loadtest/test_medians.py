"""Several runs as one."""

from dataclasses import replace
from typing import Any

import pytest

from loadtest.medians import medians
from tests.loadtest.test_report import made


def runs(*changes: dict[str, Any]) -> Any:
    """Three nodes' runs that differ by these."""
    return medians([replace(made(), **change) for change in changes])


def test_one_run_is_itself() -> None:
    """Nothing is made of it."""
    assert medians([made()]) == made()


def test_each_figure_has_its_own_median() -> None:
    """The run with the median rate need not have the median latency. A short and a long run count alike."""
    told = runs(
        {"jobs_per_s": 90.0, "p50_ms": 7.0, "figures": {"gap_s": 0.5}},
        {"jobs_per_s": 100.0, "p50_ms": 9.0, "figures": {"gap_s": 0.9}},
        {"jobs_per_s": 400.0, "p50_ms": 8.0, "figures": {"gap_s": 0.6}},
    )

    assert (told.jobs_per_s, told.p50_ms, told.figures) == (100.0, 8.0, {"gap_s": 0.6})
    assert told.rates == (90.0, 100.0, 400.0)
    assert "100 (median of 3: 90 to 400)" in told.table()


def test_nodes_that_do_not_lead_are_one() -> None:
    """Which of them lead differs."""
    told = runs(
        {"cpu_ms_per_job_by_process": {"server": 1.0, "n2": 0.1, "n3": 0.3, "load": 0.2}},
        {"cpu_ms_per_job_by_process": {"n1": 0.4, "server": 3.0, "n3": 0.2, "load": 0.2}},
    )

    assert told.cpu_ms_per_job_by_process == pytest.approx({"server": 2.0, "load": 0.2, "follower": 0.25})


@pytest.mark.parametrize(
    "wrong",
    [
        {"lost": 1},
        {"duplicated": 1},
        {"replicas_equal": False},
        {"failures": {"Ended": 2}},
        {"server_failures": {"x": 1}},
    ],
)
def test_one_run_that_is_wrong_is_seen(wrong: dict[str, Any]) -> None:
    """However many were right."""
    assert runs({}, {}, {}).sound
    assert not runs({}, wrong, {}).sound
    assert runs(wrong, wrong, {}).lost == 2 * wrong.get("lost", 0)
