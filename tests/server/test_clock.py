"""The system's clock and the manual one: what both promise."""

from __future__ import annotations

import time

import pytest

from stepward.server.clock import Clock, ManualClock, SystemClock, boot_id


@pytest.mark.parametrize("clock", [SystemClock(), ManualClock(steady_ms=5, wall_ms=1_900_000_000_000)])
def test_steady_clock_never_goes_back(clock: Clock) -> None:
    """Whatever else happens."""
    read = [clock.steady_ms() for _ in range(100)]

    assert read == sorted(read)
    assert clock.wall_ms() > 1_000_000_000_000


def test_manual_clock_moves_when_told() -> None:
    """Both of its clocks, by the same."""
    clock = ManualClock(steady_ms=5, wall_ms=100)
    clock.advance(7)

    assert (clock.steady_ms(), clock.wall_ms()) == (12, 107)


def test_steady_clock_counts_suspension() -> None:
    """It is the one that Linux lets run while the machine sleeps."""
    before = time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000
    read = SystemClock().steady_ms()
    after = time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000

    assert before <= read <= after


def test_boot_has_one_name() -> None:
    """For as long as the machine is up."""
    assert boot_id() == boot_id() != ""
