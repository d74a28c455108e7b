"""The clocks of this machine: a steady one that counts suspension, and the wall clock that may lie."""

from __future__ import annotations

import sys
import time
import uuid
from pathlib import Path
from typing import Final, Protocol

_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")

# A laptop that slept has let leases end. On Linux CLOCK_MONOTONIC stands still in suspension, on macOS it does not.
_STEADY_CLOCK: Final = time.CLOCK_BOOTTIME if sys.platform == "linux" else time.CLOCK_MONOTONIC


class Clock(Protocol):
    """What the host tells the time by, in milliseconds."""

    def steady_ms(self) -> int:
        """Rises evenly, in suspension too; means something within one boot only."""
        ...

    def wall_ms(self) -> int:
        """Since the Unix epoch. May jump in either direction."""
        ...


class SystemClock:
    """The clocks of the operating system."""

    def steady_ms(self) -> int:
        """See `Clock`."""
        return time.clock_gettime_ns(_STEADY_CLOCK) // 1_000_000

    def wall_ms(self) -> int:
        """See `Clock`."""
        return time.time_ns() // 1_000_000


class ManualClock:
    """A clock that stands still until it is told to move; both clocks move together."""

    def __init__(self, *, steady_ms: int, wall_ms: int) -> None:
        self._steady_ms = steady_ms
        self._wall_ms = wall_ms

    def steady_ms(self) -> int:
        """See `Clock`."""
        return self._steady_ms

    def wall_ms(self) -> int:
        """See `Clock`."""
        return self._wall_ms

    def advance(self, ms: int) -> None:
        """Let time pass."""
        assert ms >= 0, ms
        self._steady_ms += ms
        self._wall_ms += ms


def boot_id() -> str:
    """Names the boot of this machine, to which steady instants belong.

    Where the system does not tell, every process counts as a boot of its own: then gaps are taken from the wall clock.
    """
    try:
        return _BOOT_ID.read_text().strip()
    except OSError:
        return uuid.uuid4().hex
