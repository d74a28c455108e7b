"""Who watches the watchdog: a thread that ends the process when its loop stands still.

A watchdog that hangs looks like one to which nothing happens. Its end is seen: by the service manager, which starts it
again, and by whoever waits for its pings.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

TICK_S: Final = 1.0
# Ticks without a verdict. They are counted, not measured: a process that was stopped and goes on has missed them, too.
TICKS_MAX: Final = 15


class SelfCheck:
    """Counts the ticks since the last verdict."""

    def __init__(self, on_hang: Callable[[], None], *, tick_s: float = TICK_S, ticks_max: int = TICKS_MAX) -> None:
        """`on_hang` is called on the thread of the check, once, and is to end the process."""
        self.ticks = 0
        self._on_hang = on_hang
        self._tick_s = tick_s
        self._ticks_max = ticks_max
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="self-check", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def alive(self) -> None:
        """Called by the loop at each verdict."""
        self.ticks = 0

    def stop(self) -> None:
        self._ended.set()
        self._thread.join()

    def unhealthy(self) -> str:
        """Why the watchdog should be started anew; empty: it works. Any thread may ask."""
        # Half of what ends it: whoever asks is told before it is gone.
        if 2 * self.ticks <= self._ticks_max:
            return ""
        return f"the last verdict was {self.ticks * self._tick_s:.0f} s ago"

    def _run(self) -> None:
        while not self._ended.wait(self._tick_s):
            self.ticks += 1
            if self.ticks > self._ticks_max:
                self._on_hang()
                return
