"""How long commands gather for one batch: not at all for one caller alone, and longer the more a step costs.

Calls come out of the event loop one at a time, and a step stops the loop. A step for each command would leave the loop
no time to take in the next ones, so that every batch stays small. So under load commands gather, slice by slice, for as
long as each slice brings another one.
"""

from __future__ import annotations

from typing import Final

# The timers of the loop are no finer.
SLICE_MS: Final = 1.0
# How many steps for one command alone lie between two trials of whether waiting would bring another.
_TRIAL_STEPS: Final = 16
# How many times as long as a step may be waited where the disk is slow, so that the loop has most of the time.
_STEPS_MAX: Final = 3
# Which part of a step the loop is given to take in calls while commands wait for the next one.
_INTAKE_SHARE: Final = 0.25
# A call needs some turns to come in, so the loop is looked at less often than commands are.
INTAKE_SLICES: Final = 4
# How much the newest step counts in their average duration.
_WEIGHT: Final = 0.1


class Gathering:
    """Decides how long the first of some commands waits for the others, and learns from what came of it."""

    def __init__(self, ms_max: float, ms_max_slow: float) -> None:
        """`ms_max`: the longest wait; `ms_max_slow`: the same where a step takes so long that it is too short."""
        self._ms_max = ms_max
        self._ms_max_slow = ms_max_slow
        self._step_ms = 0.0
        self._steps_alone = 0
        self._waits = False

    @property
    def first_ms(self) -> float:
        """How long the first command waits before anyone looks whether others have come."""
        return min(SLICE_MS, self._ms_max) if self._waits else 0.0

    @property
    def intake_ms(self) -> float:
        """How long the loop may take in calls between two steps of which the second has its commands already.

        gRPC hands over one call a turn of the loop. Where each turn holds a step of a slow disk, a cancel would stand
        behind every call that came before it, those that are to be shed, too.
        """
        return min(self._step_ms * _INTAKE_SHARE, self._ms_max_slow)

    def goes_on(self, waited_ms: float, *, came: int) -> bool:
        """Whether to wait for another slice, when so many commands came in the last one."""
        longest_ms = max(self._ms_max, min(_STEPS_MAX * self._step_ms, self._ms_max_slow))
        return came > 0 and waited_ms + SLICE_MS <= longest_ms

    def learn(self, gathered: int, step_ms: float) -> None:
        """A step took so long for so many commands."""
        self._step_ms += _WEIGHT * (step_ms - self._step_ms)
        if gathered > 1:
            self._waits, self._steps_alone = True, 0
            return
        self._steps_alone += 1
        self._waits = self._steps_alone % _TRIAL_STEPS == 0
