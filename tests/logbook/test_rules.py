"""Every guard is tried without, and stands in the list that says what it prevents."""

from pathlib import Path

import pytest

from tests.logbook.rules import RULES

HERE = Path(__file__).parent
DESIGN = HERE.parents[1] / "server" / "DESIGN.md"
# The replica flushes, and is tried without by `tests/museum`: an engine alone has nothing to flush.
ELSEWHERE = {"flush before promise"}


@pytest.mark.parametrize("name", RULES)
def test_guard_stands_where_it_is_taken_away(name: str) -> None:
    rule = RULES[name]

    assert rule.name in vars(rule.owner)


@pytest.mark.parametrize("name", sorted(set(RULES) - ELSEWHERE))
def test_guard_is_tried_without(name: str) -> None:
    tests = "".join(path.read_text() for path in HERE.glob("test_*.py"))

    assert any(name in line for line in tests.splitlines() if "take_away(monkeypatch" in line)


@pytest.mark.parametrize("name", RULES)
def test_guard_is_explained(name: str) -> None:
    rows = [line for line in DESIGN.read_text().splitlines() if line.startswith(f"| {name} |")]

    assert len(rows) == 1
