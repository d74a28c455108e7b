"""The agent's half of the lease inequality: when its lease ends, by its own steady clock.

The lease counts from the moment at which the newest acknowledged heartbeat was SENT, not from its answer: what the
cluster recorded lies between the two, so the agent always holds its lease to be over before the cluster does.
"""

from __future__ import annotations

from typing import Final

# A hello is a sign of life too, acknowledged by its welcome. Heartbeats count from 1.
HELLO: Final = 0

# Answers outstanding on one stream. Long before this many the node counts as silent.
UNANSWERED_MAX: Final = 1_000


class Lease:
    """When the lease of the current session ends. All instants are on the steady clock."""

    def __init__(self) -> None:
        self.ttl_ms = 0
        self._counts_from_ms: int | None = None
        self._sent_at_ms: dict[int, int] = {}

    @property
    def ends_at_ms(self) -> int | None:
        """None before the first welcome."""
        return None if self._counts_from_ms is None else self._counts_from_ms + self.ttl_ms

    def runs(self, now_ms: int) -> bool:
        """Whether work may be started."""
        return self.ends_at_ms is not None and now_ms < self.ends_at_ms

    def sent(self, number: int, now_ms: int) -> None:
        """A heartbeat leaves."""
        if len(self._sent_at_ms) < UNANSWERED_MAX:
            self._sent_at_ms[number] = now_ms

    def acknowledged(self, number: int) -> None:
        """A heartbeat was answered. Older ones need no answer any more: the node is not silent, and they prove less."""
        sent_at_ms = self._sent_at_ms.get(number)
        if sent_at_ms is None:
            return
        self._sent_at_ms = {other: at_ms for other, at_ms in self._sent_at_ms.items() if other > number}
        self._counts_from_ms = sent_at_ms

    def stream_closed(self) -> None:
        """What was not answered on this stream never will be."""
        self._sent_at_ms.clear()

    def silent_since_ms(self) -> int | None:
        """When the oldest heartbeat left that still has no answer. None: all are answered."""
        return min(self._sent_at_ms.values(), default=None)
