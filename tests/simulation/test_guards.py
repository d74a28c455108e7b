"""Without its guards the software is red: a simulation that is always green shows nothing."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.repo.sources import ROOT
from tests.simulation.guards import FIRST, FIRST_OF, NAMES, SEEN, TWO_LEADERS, without

# Shown by `make test`, since they are seen at once; all of them by `make check`.
AT_ONCE = 3
RUN_S_MAX = 110


def is_red(name: str) -> bool:
    """Whether the first seeds show that a guard is gone."""
    arguments = ["--first", FIRST_OF.get(name, FIRST), "--seeds", SEEN[name], "--until-red", "--without", name]
    arguments += ["--two-leaders"] if name in TWO_LEADERS else []
    finished = subprocess.run(
        [sys.executable, "-m", "tests.simulation", *map(str, arguments)],
        cwd=ROOT,
        env={**os.environ, "PYTHONHASHSEED": "0"},
        capture_output=True,
        text=True,
        timeout=RUN_S_MAX,
        check=False,
    )
    assert "seeds," in finished.stdout, finished.stdout[-2_000:] + finished.stderr[-2_000:]
    return finished.returncode == 1


def test_seen_guards_are_guards() -> None:
    assert SEEN.keys() <= set(NAMES)
    assert FIRST_OF.keys() <= SEEN.keys()
    assert SEEN.keys() >= TWO_LEADERS
    assert all(SEEN.values())


@pytest.mark.parametrize("name", NAMES)
def test_guard_stands_where_it_is_taken_away(name: str) -> None:
    """A guard that stands elsewhere by now would be missed by nobody."""
    with without(name):
        pass


@pytest.mark.parametrize("name", [name for name, seeds in SEEN.items() if seeds <= AT_ONCE])
def test_without_it_the_first_seeds_are_red(name: str) -> None:
    assert is_red(name)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name, seeds in SEEN.items() if seeds > AT_ONCE])
def test_without_it_a_seed_is_red(name: str) -> None:
    assert is_red(name)
