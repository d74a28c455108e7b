"""Time of the simulated world, and what will happen in it. Nothing else moves time; nothing happens beside it."""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable

MS: Final = 1_000
SECOND: Final = 1_000_000


class Agenda:
    """What will happen, in order. Time is in microseconds and jumps from one event to the next."""

    def __init__(self) -> None:
        self.now_us = 0
        self.events = 0
        self._coming: list[tuple[int, int, Callable[..., None], tuple[Any, ...]]] = []

    def after(self, delay_us: float, act: Callable[..., None], *arguments: Any) -> None:
        """Let something happen; what is due at the same moment happens in the order in which it was asked for."""
        self.events += 1
        heapq.heappush(self._coming, (self.now_us + max(0, int(delay_us)), self.events, act, arguments))

    def step(self) -> bool:
        """Let the next thing happen. False: nothing is left."""
        if not self._coming:
            return False
        self.now_us, _, act, arguments = heapq.heappop(self._coming)
        act(*arguments)
        return True

    def run_until(self, at_us: int) -> None:
        """Let everything happen that is due by then."""
        while self._coming and self._coming[0][0] <= at_us:
            self.step()
        self.now_us = max(self.now_us, at_us)
