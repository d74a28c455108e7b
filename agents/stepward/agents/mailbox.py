"""Hands what happens on other threads to an event loop, with one wake-up for all that gathers meanwhile."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable


class Mailbox:
    """Calls that other threads want made on a loop, in the order in which they were posted."""

    def __init__(self, loop: asyncio.AbstractEventLoop, *, after: Callable[[], None]) -> None:
        """`after` is called on the loop when a set of calls has been made."""
        self._loop = loop
        self._after = after
        self._calls: deque[Callable[[], None]] = deque()
        self._woken = False

    def post(self, call: Callable[[], None]) -> None:
        """Have something called on the loop. On any thread; a loop that is closed has no use for it any more."""
        # No lock: the reader lowers the flag before it looks, so what is appended is seen by it or wakes it again.
        self._calls.append(call)
        if self._woken:
            return
        self._woken = True
        try:
            self._loop.call_soon_threadsafe(self._deliver)
        except RuntimeError:
            if not self._loop.is_closed():
                raise

    def _deliver(self) -> None:
        self._woken = False
        while self._calls:
            self._calls.popleft()()
        self._after()
