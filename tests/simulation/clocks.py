"""The clocks of one machine: a steady one that is a little fast or slow, and a wall clock that may jump."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tests.simulation.agenda import MS

if TYPE_CHECKING:
    import random

    from tests.simulation.agenda import Agenda

WALL_MS: Final = 1_700_000_000_000
# Two clocks may drift apart by one in a hundred: that is what the lease inequality has room for.
DRIFT_MAX: Final = 0.005
# Between any two wall clocks, as long as nobody sets them.
WALL_ERROR_MS: Final = 400
_UPTIME_MS_MAX: Final = 100_000


class MachineClock:
    """Counts from the boot of the machine, through pauses of processes, and anew after each reboot."""

    def __init__(self, agenda: Agenda, rng: random.Random, name: str) -> None:
        self._agenda = agenda
        self._rng = rng
        self._name = name
        self._boots = 0
        self._rate = rng.uniform(1 - DRIFT_MAX, 1 + DRIFT_MAX)
        self._wall_offset_ms = rng.randint(-WALL_ERROR_MS // 2, WALL_ERROR_MS // 2)
        self.boot_id = ""
        self._booted_us = 0
        self._uptime_ms = 0
        self.reboot()

    def reboot(self) -> None:
        """A new boot: the steady clock begins somewhere else, and says nothing about the time before."""
        self._boots += 1
        self.boot_id = f"{self._name}-{self._boots}"
        self._booted_us = self._agenda.now_us
        self._uptime_ms = self._rng.randint(0, _UPTIME_MS_MAX)

    def jump_wall(self, ms: int) -> None:
        """Somebody, or a time server, sets the wall clock."""
        self._wall_offset_ms += ms

    def steady_ms(self) -> int:
        """What the steady clock says now."""
        return self._uptime_ms + int((self._agenda.now_us - self._booted_us) * self._rate) // MS

    def wall_ms(self) -> int:
        """What the wall clock says now."""
        return WALL_MS + self._agenda.now_us // MS + self._wall_offset_ms

    def until_us(self, steady_ms: int) -> int:
        """How long until the steady clock shows an instant, in the world's time; 0 when it is past."""
        passed_ms = steady_ms - self._uptime_ms
        return max(0, self._booted_us + int(passed_ms * MS / self._rate) + 1 - self._agenda.now_us)
