"""The long form of a test of rounds, from the command line: `python -m tests.cluster.test_node_kills --rounds 100`."""

from __future__ import annotations

import argparse
import asyncio
import random
import shutil
import tempfile
from collections.abc import Coroutine
from pathlib import Path
from typing import Protocol

from tests.cluster.traffic import drawn_seed


class Rounds(Protocol):
    """So many rounds in a folder."""

    def __call__(self, folder: Path, rounds: int, chance: random.Random, /) -> Coroutine[None, None, None]: ...


def run_rounds(description: str | None, rounds_of: Rounds) -> None:
    """Run as many as the command line asks for. What is wrong is raised, and then the folder is kept."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--seed", type=int, help="draw as a run did that printed it")
    given = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="stepward-rounds-"))
    print(folder)
    asyncio.run(rounds_of(folder, given.rounds, drawn_seed(given.seed)))
    shutil.rmtree(folder)
