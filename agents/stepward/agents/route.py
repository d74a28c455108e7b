"""Which node to say hello to next, and how long to wait before. Pure."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Final

BACKOFF_INITIAL_MS: Final = 100
BACKOFF_MS_MAX: Final = 2_000

# Beyond this the wait is at its cap anyway; the exponent of a long outage must not grow with it.
_DOUBLINGS_MAX: Final = 10


class Route:
    """A walk over the addresses, in their order and around, from a place drawn at random so that agents spread."""

    def __init__(self, addresses: Sequence[str], rng: random.Random) -> None:
        assert addresses
        self._addresses = list(dict.fromkeys(addresses))
        self._next = rng.randrange(len(self._addresses))
        self._preferred: list[str] = []
        self._rng = rng
        self.failures = 0
        """Tries since the last welcome."""

    @property
    def alone(self) -> bool:
        """Whether there is one address only."""
        return len(self._addresses) == 1

    def next_address(self) -> str:
        """The address to try now: one that a node has named, else the next of the list."""
        if self._preferred:
            return self._preferred.pop(0)
        address = self._addresses[self._next]
        self._next = (self._next + 1) % len(self._addresses)
        return address

    def prefer(self, addresses: Sequence[str]) -> None:
        """A node that goes down names others."""
        self._preferred = list(addresses)

    def welcomed(self) -> None:
        """A node has welcomed the agent."""
        self.failures = 0

    def failed_wait_ms(self) -> int:
        """A stream has ended: how long to wait before the next, exponential with full jitter."""
        bound_ms = min(BACKOFF_MS_MAX, BACKOFF_INITIAL_MS << min(self.failures, _DOUBLINGS_MAX))
        self.failures += 1
        return self._rng.randint(0, bound_ms)
