"""What `docs/watchdog.md` promises is what the watchdog has."""

from __future__ import annotations

import re

from stepward.client.watchdog.exposition import METRICS, PREFIX
from stepward.client.watchdog.telling import environment_of
from stepward.client.watchdog.verdicts import Change, Kind, Level, Verdict
from tests.repo.sources import ROOT

PAGE = (ROOT / "docs/watchdog.md").read_text(encoding="utf-8")


def rows(head: str) -> list[list[str]]:
    """The rows of the table whose first column is this."""
    lines = iter(PAGE.splitlines())
    next(line for line in lines if line.startswith(f"| {head} |"))
    next(lines)
    found = []
    for line in lines:
        if not line.startswith("|"):
            break
        found.append([cell.strip() for cell in line.strip("|").split("|")])
    return found


def test_every_metric_is_on_the_page() -> None:
    told = [[PREFIX + metric.name, ", ".join(metric.labels), metric.help] for metric in METRICS]

    assert rows("metric") == told


def test_every_kind_of_reason_is_on_the_page() -> None:
    told = {name for row in rows("reason") for name in row[0].split(", ")}

    assert told == set(Kind)


def test_every_level_is_on_the_page_with_its_exit_code() -> None:
    assert {row[0]: int(row[1]) for row in rows("level")} == {level.name: level.value for level in Level}


def test_every_variable_of_the_command_is_on_the_page() -> None:
    change = Change(number=1, before=Level.WELL, verdict=Verdict(), level=Level.WELL, at_wall_s=0, cluster_id="")

    assert set(re.findall(r"STEPWARD_WATCHDOG_[A-Z_]+", PAGE)) == set(environment_of(change))
