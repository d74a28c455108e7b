"""Very many rows: what it costs in memory and time to carry them from one process to another."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
ROWS = 1_000_000
MEMORY_MIB_MAX = 300
SECONDS_MAX = 60


def start(side: str, directory: Path, argument: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.server.rows_process", side, str(directory), argument]
    return subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_million_rows_in_bounded_memory(tmp_path: Path) -> None:
    """Neither side holds them, nor keeps the files mapped that it walked over; they are there within a minute."""
    giving = start("give", tmp_path / "giver", str(ROWS))
    assert giving.stdout is not None
    getting = start("get", tmp_path / "getter", giving.stdout.readline().strip())
    got, _ = getting.communicate(timeout=2 * SECONDS_MAX)
    gave, _ = giving.communicate(timeout=SECONDS_MAX)
    count, took_s, *getter_mib = got.split()
    giver_mib = gave.split()
    print(f"{count} rows in {took_s} s; MiB (own, most with files): giver {giver_mib}, getter {getter_mib}")

    assert int(count) == ROWS
    assert float(took_s) < SECONDS_MAX
    assert all(int(mib) < MEMORY_MIB_MAX for mib in giver_mib + getter_mib)
