"""The wall clock jumps for a process that runs, and its steady clocks do not, unless its machine has slept."""

import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.faults.wall_clock import WallClock

# Says both clocks for every line that it is given, after a wait that must be one.
CLOCKS = """
import sys, threading, time
for _ in sys.stdin:
    began = time.monotonic()
    threading.Event().wait(0.05)
    print(time.time(), time.monotonic() - began, flush=True)
"""

# The same of the one that counts suspension.
SLEEPING = (
    "import sys, time\nfor _ in sys.stdin: print(time.time(), time.clock_gettime(time.CLOCK_BOOTTIME), flush=True)"
)


def test_wall_clock_jumps_alone(tmp_path: Path) -> None:
    clock = WallClock(tmp_path, "one")
    seen = []
    command = (*clock.prefix, sys.executable, "-c", CLOCKS)
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        for ahead_s in (0.0, 3_600.0, -7_200.5):
            clock.set(ahead_s)
            process.stdin.write("\n")
            process.stdin.flush()
            seen.append([float(number) for number in process.stdout.readline().split()])
        process.stdin.close()
    clock.close()
    walls, waits = zip(*seen, strict=True)

    assert 3_600 <= walls[1] - walls[0] < 3_630
    assert -7_200.5 <= walls[2] - walls[0] < -7_170
    assert all(0.05 <= wait < 5 for wait in waits)


def test_machine_that_has_slept(tmp_path: Path) -> None:
    """Both clocks that count suspension have gone on, by the same; the wall clock keeps what it was ahead."""
    clock = WallClock(tmp_path, "one")
    clock.set(-7.5)
    command = (*clock.prefix, sys.executable, "-c", SLEEPING)
    ahead = []
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        for seconds in (0.0, 3_600.0, 60.25):
            clock.sleep(seconds)
            process.stdin.write("\n")
            process.stdin.flush()
            wall_s, steady_s = map(float, process.stdout.readline().split())
            ahead.append((wall_s - time.time(), steady_s - time.clock_gettime(time.CLOCK_BOOTTIME)))
        process.stdin.close()
    clock.close()

    # What was read in the process was a moment older here.
    assert [wall_s for wall_s, _ in ahead] == pytest.approx([-7.5, 3_592.5, 3_652.75], abs=5)
    assert [steady_s for _, steady_s in ahead] == pytest.approx([0, 3_600, 3_660.25], abs=5)
