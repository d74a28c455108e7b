"""Notices when the user's event loop is blocked, so that somebody learns why their handlers are late. Pure.

The lease does not suffer, since heartbeats live on another thread; but async handlers stand still, and so do cancels.
"""

from __future__ import annotations

import logging
from typing import Final

LAG_MS_MAX: Final = 1_000
PROBE_INTERVAL_MS: Final = 250

_log = logging.getLogger("stepward.agents.lag")


class LagWatch:
    """Asks the loop for a sign of life now and then; one question at a time."""

    def __init__(self) -> None:
        self._asked_at_ms: int | None = None
        self._next_at_ms = 0
        self.lagging = False

    def ask(self, now_ms: int) -> bool:
        """Whether to ask the loop now. Notices that the last question has no answer for too long."""
        if self._asked_at_ms is not None:
            if not self.lagging and now_ms - self._asked_at_ms >= LAG_MS_MAX:
                self.lagging = True
                _log.warning(
                    "loop_blocked for_ms=%s: an async handler blocks the event loop of all handlers; "
                    "await what takes long, or make it a plain function, which runs on a thread of its own",
                    now_ms - self._asked_at_ms,
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
