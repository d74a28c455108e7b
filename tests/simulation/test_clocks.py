"""The clocks of the simulated machines."""

from __future__ import annotations

import random

import pytest

from tests.simulation.agenda import SECOND, Agenda
from tests.simulation.clocks import DRIFT_MAX, MachineClock


@pytest.mark.parametrize("seed", range(10))
def test_clocks_drift_no_further_than_leases_have_room_for(seed: int) -> None:
    agenda = Agenda()
    clock = MachineClock(agenda, random.Random(seed), "n1")
    before_ms = clock.steady_ms()
    agenda.run_until(1_000 * SECOND)
    passed_ms = clock.steady_ms() - before_ms

    assert abs(passed_ms - 1_000_000) <= 1_000_000 * DRIFT_MAX + 1
    assert passed_ms != 1_000_000


def test_reboot_is_another_boot() -> None:
    agenda = Agenda()
    clock = MachineClock(agenda, random.Random(1), "n1")
    agenda.run_until(500 * SECOND)
    boot_id = clock.boot_id
    clock.reboot()

    assert clock.boot_id != boot_id
    assert clock.steady_ms() <= 100_000


def test_wall_jumps_and_the_steady_clock_does_not() -> None:
    clock = MachineClock(Agenda(), random.Random(1), "n1")
    steady_ms, wall_ms = clock.steady_ms(), clock.wall_ms()
    clock.jump_wall(-600_000)

    assert clock.steady_ms() == steady_ms
    assert clock.wall_ms() == wall_ms - 600_000


@pytest.mark.parametrize("seed", range(10))
def test_waiting_until_an_instant_ends_at_that_instant(seed: int) -> None:
    """Not before it, or whoever waits would have to wait again."""
    agenda = Agenda()
    clock = MachineClock(agenda, random.Random(seed), "n1")
    wanted_ms = clock.steady_ms() + 1_234
    agenda.run_until(clock.until_us(wanted_ms))

    assert clock.steady_ms() in (wanted_ms, wanted_ms + 1)
    assert clock.until_us(wanted_ms) <= 1_000
    assert clock.until_us(wanted_ms - 10) == 0
