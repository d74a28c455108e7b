"""Seeds, in processes of their own: pysyncobj keeps its clock in its module, and the order of sets is fixed there."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.repo.sources import ROOT

KEPT = Path(__file__).with_name("seeds.txt")
# 600 in all; `make simulation` plays any number.
SHARDS = 12
SEEDS = 50
# Of `make test`.
FEW = 20
FIRST = 1_000
RUN_S_MAX = 110


def simulate(*arguments: object) -> str:
    """What a run prints. It is red when anything was."""
    finished = subprocess.run(
        [sys.executable, "-m", "tests.simulation", *map(str, arguments)],
        cwd=ROOT,
        env={**os.environ, "PYTHONHASHSEED": "0"},
        capture_output=True,
        text=True,
        timeout=RUN_S_MAX,
        check=False,
    )
    assert finished.returncode == 0, finished.stdout[-20_000:] + finished.stderr[-5_000:]
    return finished.stdout


def kept_seeds() -> list[int]:
    """Those that were red once."""
    return [int(line.split()[0]) for line in KEPT.read_text().splitlines() if line[:1].isdigit()]


@pytest.mark.parametrize("seed", kept_seeds())
def test_seed_that_was_red_once(seed: int) -> None:
    simulate("--seed", seed)


def test_few_seeds(only_seed: int | None) -> None:
    """A storm, then calm: nothing acknowledged is lost, no two nodes or agents believe the same, and all jobs end."""
    if only_seed is not None:
        print(simulate("--seed", only_seed))
        return
    simulate("--first", FIRST, "--seeds", FEW)


@pytest.mark.slow
@pytest.mark.parametrize("shard", range(SHARDS))
def test_many_seeds(shard: int) -> None:
    """The same, hundreds of times."""
    simulate("--first", FIRST + FEW + shard * SEEDS, "--seeds", SEEDS)


def test_seed_replays_exactly() -> None:
    """What a seed has shown it shows again, in another process, too."""
    ends = [re.findall(r"it ends as (\w+)", simulate("--seed", 7)) for _ in range(2)]

    assert ends[0]
    assert ends[0] == ends[1]
    assert ends[0] != re.findall(r"it ends as (\w+)", simulate("--seed", 8))
