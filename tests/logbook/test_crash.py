"""kill -9 at any moment: what was acknowledged is there, whole and in order, and counting goes on."""

import random
from pathlib import Path

import pytest

from stepward.server.logbook.identity import create_cluster
from stepward.server.store.write_ahead import LOG_FILE
from tests.logbook.counting import CountingNode, check


def kill_and_check(
    directory: Path, *, rounds: int, seed: int | None, log_bytes: int = 64 << 10, arguments: tuple[str, ...] = ()
) -> None:
    seed = random.randrange(1 << 32) if seed is None else seed
    print(f"--seed {seed}")
    chance = random.Random(seed)
    create_cluster(directory, "n1")
    for _ in range(rounds):
        node = CountingNode(directory, "--log-bytes", str(log_bytes), *arguments)
        # What the child is doing when the signal comes is chance, whatever the seed says.
        node.wait_for_lines(chance.choice([1, 3, 20, 100, 400]))
        node.kill()
        assert (directory / LOG_FILE).exists() is (log_bytes > 0)
        check(directory, node.acknowledged)


def test_kill_at_any_moment(tmp_path: Path, only_seed: int | None) -> None:
    kill_and_check(tmp_path / "data", rounds=4, seed=only_seed)


def test_kill_without_a_log_in_front_of_the_data(tmp_path: Path, only_seed: int | None) -> None:
    """As where the disk has little room."""
    kill_and_check(tmp_path / "data", rounds=3, log_bytes=0, seed=only_seed)


def test_kill_while_the_journal_is_compacted_all_the_time(tmp_path: Path, only_seed: int | None) -> None:
    kill_and_check(tmp_path / "data", rounds=6, arguments=("--journal-entries", "4"), seed=only_seed)


@pytest.mark.slow
@pytest.mark.parametrize("log_bytes", [0, 16 << 10, 64 << 10])
@pytest.mark.parametrize("entries", ["4", "64", "4096"])
@pytest.mark.timeout(600)
def test_kill_many_times(tmp_path: Path, entries: str, log_bytes: int, only_seed: int | None) -> None:
    arguments = ("--journal-entries", entries)
    kill_and_check(tmp_path / "data", rounds=30, log_bytes=log_bytes, arguments=arguments, seed=only_seed)


@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("commit", [1, 2, 3, 7])
def test_kill_around_a_commit(tmp_path: Path, moment: str, commit: int) -> None:
    """Right before it nothing of the step is there; right after it all of it is, although nobody was told."""
    create_cluster(tmp_path, "n1")
    first = CountingNode(tmp_path, "--kill-at-commit", str(commit), *(["--kill-before"] if moment == "before" else []))
    first.end()
    counter = check(tmp_path, first.acknowledged)

    told = first.acknowledged.counter
    assert counter == told if moment == "before" else counter > told
    second = CountingNode(tmp_path)
    second.wait_for_lines(10)
    second.kill()
    assert check(tmp_path, second.acknowledged) >= counter + 10
