"""The power goes off while a node acknowledges: nothing acknowledged is lost. And what it would be like otherwise."""

import random
from pathlib import Path

import pytest

from stepward.server.logbook.identity import create_cluster
from stepward.server.store.errors import StoreError
from stepward.server.store.write_ahead import LOG_FILE
from tests.faults.powercut import PowerCutDisk
from tests.logbook.counting import Acknowledged, CountingNode, check

CUTS = 5
CUTS_MANY = 50
# How soon a node that does not keep the rule has to show it.
CUTS_UNTIL_RED_MAX = 30
# With every commit in the data, and with a log that is full now and then.
LOGS = [0, 64 << 10]


def count_and_cut(
    disk: PowerCutDisk, directory: Path, variant: str, chance: random.Random, log_bytes: int
) -> Acknowledged:
    """Let a node count, cut the power, and bring the disk back. Gives what was acknowledged before the cut."""
    node = CountingNode(directory, "--variant", variant, "--log-bytes", str(log_bytes))
    node.wait_for_lines(chance.choice([1, 5, 50, 200]))
    # What it says after this line it may say: the machine is still on.
    acknowledged = node.acknowledged
    disk.cut()
    node.kill()
    disk.restore()
    return acknowledged


def cut_many_times(tmp_path: Path, *, cuts: int, log_bytes: int, seed: int | None) -> None:
    seed = random.randrange(1 << 32) if seed is None else seed
    print(f"--seed {seed}")
    chance = random.Random(seed)
    with PowerCutDisk(tmp_path) as disk:
        create_cluster(disk.folder / "data", "n1")
        for _ in range(cuts):
            acknowledged = count_and_cut(disk, disk.folder / "data", "whole", chance, log_bytes)
            assert acknowledged.counter > 0
            assert (disk.folder / "data" / LOG_FILE).exists() is (log_bytes > 0)
            check(disk.folder / "data", acknowledged)


@pytest.mark.root
@pytest.mark.parametrize("log_bytes", LOGS)
def test_nothing_acknowledged_is_lost(tmp_path: Path, log_bytes: int, only_seed: int | None) -> None:
    cut_many_times(tmp_path, cuts=CUTS, log_bytes=log_bytes, seed=only_seed)


@pytest.mark.root
@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("log_bytes", LOGS)
def test_nothing_acknowledged_is_lost_in_many_cuts(tmp_path: Path, log_bytes: int, only_seed: int | None) -> None:
    cut_many_times(tmp_path, cuts=CUTS_MANY, log_bytes=log_bytes, seed=only_seed)


@pytest.mark.root
@pytest.mark.parametrize("log_bytes", LOGS)
@pytest.mark.parametrize("variant", ["no-flush", "late-flush"])
def test_without_the_rule_something_is_lost(
    tmp_path: Path, variant: str, log_bytes: int, only_seed: int | None
) -> None:
    """A test that cannot fail proves nothing: without the flush, or with the flush after the answers, this one does."""
    chance = random.Random(only_seed)
    for cut in range(CUTS_UNTIL_RED_MAX):
        workplace = tmp_path / str(cut)
        workplace.mkdir()
        with PowerCutDisk(workplace) as disk:
            create_cluster(disk.folder / "data", "n1")
            acknowledged = count_and_cut(disk, disk.folder / "data", variant, chance, log_bytes)
            try:
                check(disk.folder / "data", acknowledged)
            except (AssertionError, StoreError):
                return
    pytest.fail(f"{variant}: nothing was lost in {CUTS_UNTIL_RED_MAX} cuts")


@pytest.mark.root
def test_new_cluster_survives_a_cut(tmp_path: Path) -> None:
    """Its files are there, and their names in the directory too."""
    with PowerCutDisk(tmp_path) as disk:
        made = create_cluster(disk.folder / "new" / "data", "n1")
        disk.cut()
        disk.restore()
        node = CountingNode(disk.folder / "new" / "data")
        node.wait_for_lines(1)
        node.kill()

    assert made.node_id == "n1"
