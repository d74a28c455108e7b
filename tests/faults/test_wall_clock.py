"""The wall clock jumps for a process that runs, and its steady clocks do not."""

import subprocess
import sys
from pathlib import Path

from tests.faults.wall_clock import WallClock

# Says both clocks for every line that it is given, after a wait that must be one.
CLOCKS = """
import sys, threading, time
for _ in sys.stdin:
    began = time.monotonic()
    threading.Event().wait(0.05)
    print(time.time(), time.monotonic() - began, flush=True)
"""


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
