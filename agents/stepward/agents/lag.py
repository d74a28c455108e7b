"""Notices when the user's event loop is blocked, or the whole interpreter, so that somebody learns why. Pure.

A blocked loop does not hurt the lease, since heartbeats live on another thread; but async handlers stand still, and so
do cancels. A blocked interpreter stops that thread, too, and with it the lease.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

LAG_MS_MAX: Final = 1_000
PROBE_INTERVAL_MS: Final = 250

_log = logging.getLogger("stepward.agents.lag")


class LagWatch:
    """Asks the loop for a sign of life now and then; one question at a time."""

    def __init__(self, *, sight: Callable[[], str]) -> None:
        """`sight` says what the loop is doing at the moment: which handler, and where it stands."""
        self._sight = sight
        self._asked_at_ms: int | None = None
        self._next_at_ms = 0
        self.lagging = False

    def ask(self, now_ms: int) -> bool:
        """Whether to ask the loop now. Notices that the last question has no answer for too long."""
        if self._asked_at_ms is not None:
            if not self.lagging and now_ms - self._asked_at_ms >= LAG_MS_MAX:
                self.lagging = True
                _log.warning(
                    "loop_blocked for_ms=%s: an async handler blocks the event loop of all handlers; await what takes "
                    "long, or make it a plain function, which runs on a thread, or in a process with process=True. "
                    "It is at %s",
                    now_ms - self._asked_at_ms,
                    self._sight(),
                )
            return False
        if now_ms < self._next_at_ms:
            return False
        self._asked_at_ms = now_ms
        self._next_at_ms = now_ms + PROBE_INTERVAL_MS
        return True

    def answered(self, now_ms: int) -> None:
        """The loop has answered."""
        if self.lagging and self._asked_at_ms is not None:
            self.lagging = False
            _log.warning("loop_unblocked after_ms=%s", now_ms - self._asked_at_ms)
        self._asked_at_ms = None


class StallWatch:
    """Notices afterwards that the I/O thread itself stood still."""

    def __init__(self, *, tick_ms: int) -> None:
        self._tick_ms = tick_ms
        self._woke_at_ms: int | None = None
        self._cpu_ms = 0

    def woke(self, now_ms: int, *, cpu_ms: Callable[[], int], ttl_ms: int) -> str:
        """The thread is awake. Says how long it was not, if that was too long; else nothing.

        Args:
            now_ms: On the steady clock.
            cpu_ms: What this process has computed in all. Dear to ask, so it is asked once in a tick at most.
            ttl_ms: A sixth of it, the time between two heartbeats, is what an agent may be late. 0: not known.
        """
        before_ms, before_cpu_ms = self._woke_at_ms, self._cpu_ms
        if before_ms is not None and now_ms - before_ms < self._tick_ms:
            return ""
        self._woke_at_ms, self._cpu_ms = now_ms, cpu_ms()
        if before_ms is None:
            return ""
        late_ms = now_ms - before_ms - self._tick_ms
        if late_ms <= (ttl_ms // 6 or LAG_MS_MAX):
            return ""
        return f"for_ms={late_ms} cpu_ms={self._cpu_ms - before_cpu_ms} ttl_ms={ttl_ms}"
