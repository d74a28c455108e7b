"""Keeps a verdict from flickering: what is worse counts at once, what is better when it has lasted. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from stepward.client.watchdog.verdicts import Level, Verdict

# So long a better verdict must have held before it is told.
CALM_S: Final = 5.0


@dataclass(slots=True)
class Settled:
    """The level that is told."""

    level: Level = Level.UNKNOWN
    """Before the first proof of anything nothing is known; that proof counts at once."""
    _proved: bool = False
    _better_since_s: float | None = None

    def take(self, verdict: Verdict, now_s: float) -> bool:
        """Add a verdict; returns whether the level that is told is another now."""
        level = verdict.level
        if level.gravity >= self.level.gravity:
            self._better_since_s = None
        elif self._proved:
            if self._better_since_s is None:
                self._better_since_s = now_s
            if now_s - self._better_since_s < CALM_S:
                return False
        self._proved = self._proved or level is not Level.UNKNOWN
        if level is self.level:
            return False
        self.level, self._better_since_s = level, None
        return True
