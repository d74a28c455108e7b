"""`stepward demo --nodes 3 --kill-leader`: what it shows, and the claims that it makes."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import psutil
import pytest

from stepward.agents.examples import travel_record
from stepward.client.cli.exits import ExitCode
from stepward.client.demo.failover import GAP_S_MAX, Failover, gap_s, judge, note
from stepward.client.values import HistoryEvent, Job, JobResult, JobState
from tests.client.command_line import run
from tests.examples.demo_process import start
from tests.examples.journeys import BEGAN

RECORD = travel_record.check([], {})


def at(*seconds: float) -> list[HistoryEvent]:
    return [
        HistoryEvent(revision=number, type="x", at=BEGAN + timedelta(seconds=second))
        for number, second in enumerate(seconds)
    ]


KILLED = BEGAN + timedelta(seconds=2)


@pytest.mark.parametrize(
    ("events", "gap"),
    [
        (at(0, 1.9, 2.6, 3), 0.7),
        # The order in which histories were read does not matter.
        (at(3, 2.6, 0, 1.9), 0.7),
        # What the old leader committed in the moment of its death.
        (at(2, 2.5), 0.5),
        (at(0, 1), None),
        (at(3), None),
        ([], None),
    ],
)
def test_gap(events: Sequence[HistoryEvent], gap: float | None) -> None:
    """From the last batch of one to the first of the other."""
    found = gap_s(events, KILLED)

    assert found == (None if gap is None else pytest.approx(gap))


def test_note() -> None:
    """One line: who led, who leads, how long it took."""
    failover = Failover("n1", "n3", KILLED)

    assert note(failover, 0.614) == "n1 led, n3 leads; from its last batch to the first of the other: 0.61 s"
    assert note(failover, None).endswith("an unknown time")


RIGHT: dict[str, Any] = {
    "failover": Failover("n1", "n3", KILLED),
    "events": at(1.9, 1.9 + GAP_S_MAX),
    "results": [JobResult(job=Job(job_id="0-1", state=JobState.COMPLETED))],
    "same": "",
    "record": RECORD,
}


@pytest.mark.parametrize(
    ("change", "broken"),
    [
        ({}, None),
        ({"events": at(1.9, 1.91 + GAP_S_MAX)}, "another node led"),
        ({"events": []}, "another node led"),
        ({"failover": Failover("n1", "n1", KILLED)}, "another node led"),
        ({"results": [JobResult(job=Job(job_id="0-1", state=JobState.FAILED))]}, "all 1 trips completed"),
        ({"results": []}, "all 0 trips completed"),
        ({"same": "n1: 9 ab, n2: 9 cd"}, "all nodes hold the same rows"),
        ({"record": replace(RECORD, booked_twice=("k",))}, "nothing was booked twice"),
    ],
)
def test_claims(change: dict[str, Any], broken: str | None) -> None:
    """Each is found false when the one thing that it is about is wrong."""
    findings = judge(**{**RIGHT, **change})

    wrong = [finding.claim for finding in findings if not finding.holds]
    assert bool(wrong) is (broken is not None)
    assert broken is None or wrong[0].startswith(broken)


def test_without_a_kill_nothing_is_said_about_one() -> None:
    """Three nodes may be shown at peace."""
    findings = judge(**{**RIGHT, "failover": Failover("n1", "n1")})

    assert all(finding.holds for finding in findings)


def test_it_shows_a_failover(tmp_path: Path) -> None:
    """Trips go on, all is as promised, and nothing is left behind."""
    with start(tmp_path, "--nodes", "3", "--kill-leader", docs=False) as demo:
        demo.wait_until_said("kill -9")
        children = demo.children()
        code = demo.end(90)
        output = demo.output.read_text()

    assert code == 0, output
    assert re.search(
        r"^n(\d) led, n(\d) leads; from its last batch to the first of the other: [0-9.]+ s$", output, re.M
    )
    assert "✘" not in output
    assert "All as promised" in output
    assert psutil.wait_procs(children, 10)[1] == []
    assert list(tmp_path.glob("stepward-demo-*")) == []


@pytest.mark.parametrize(
    "arguments",
    [("--kill-leader",), ("--nodes", "2"), ("machines", "--nodes", "3"), ("--nodes", "3", "--docs", "x")],
)
def test_what_makes_no_sense(arguments: tuple[str, ...]) -> None:
    """Refused before anything is started."""
    assert run("demo", *arguments).code == ExitCode.USAGE
