"""Time that passes only while everybody waits, and then jumps to whatever is due next.

What a test says of time then holds on the busiest machine, and an hour costs nothing. It is for tests all of whose work
is done on the loop: nobody outside of it, such as a thread or a socket, is given time to do anything.
"""

from __future__ import annotations

import asyncio
import selectors
from typing import Final

from typing_extensions import override

# The steady clock of a machine that has been up for a while.
BEGIN_S: Final = 1_000.0
# The wall clock then.
BEGIN_WALL_MS: Final = 1_700_000_000_000
# Of a sum of waits; far below the millisecond in which clocks count.
_ROUNDING_S: Final = 1e-7


class _JumpingSelector(selectors.DefaultSelector):
    """Waits for nothing: the time for which it should have counts as passed."""

    def __init__(self) -> None:
        super().__init__()
        self.passed_s = 0.0

    @override
    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        found = super().select(0)
        if found or timeout == 0:
            return found
        assert timeout is not None, "everybody waits for somebody else, and no timer will ever change that"
        self.passed_s += max(0.0, timeout)
        return found


class PlayedTimeLoop(asyncio.SelectorEventLoop):
    """An event loop in whose time nothing takes any but waiting."""

    def __init__(self) -> None:
        self._jumping = _JumpingSelector()
        super().__init__(self._jumping)

    @override
    def time(self) -> float:
        return BEGIN_S + self._jumping.passed_s


class LoopClock:
    """The clocks of a node whose time is that of the running loop."""

    def steady_ms(self) -> int:
        """See `stepward.server.clock.Clock`."""
        return int((asyncio.get_running_loop().time() + _ROUNDING_S) * 1_000)

    def wall_ms(self) -> int:
        """See `stepward.server.clock.Clock`."""
        return BEGIN_WALL_MS + self.steady_ms()
