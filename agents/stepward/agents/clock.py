"""The steady clock of an agent: the one that also counts the time in which the machine slept.

A lease goes on while a laptop sleeps, so a clock that stops meanwhile would show a lease that is long over.
"""

from __future__ import annotations

import sys
import time

_NS_PER_MS = 1_000_000

# Linux keeps a clock for this purpose; on macOS the monotonic one counts suspension already.
_CLOCK_ID = time.CLOCK_BOOTTIME if sys.platform == "linux" else time.CLOCK_MONOTONIC


def steady_ms() -> int:
    """Milliseconds since some moment before this process, never backwards."""
    return time.clock_gettime_ns(_CLOCK_ID) // _NS_PER_MS
