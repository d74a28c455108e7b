"""Which node to say hello to next, and how long to wait before. Pure."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Final

BACKOFF_INITIAL_MS: Final = 100
BACKOFF_MS_MAX: Final = 2_000
# A cluster has fewer nodes.
LEARNT_MAX: Final = 16

# Beyond this the wait is at its cap anyway; the exponent of a long outage must not grow with it.
_DOUBLINGS_MAX: Final = 10


class Route:
    """A walk over the addresses, in their order and around, from a place drawn at random so that agents spread."""

    def __init__(self, addresses: Sequence[str], rng: random.Random) -> None:
        assert addresses
        self._given = list(dict.fromkeys(addresses))
        self._addresses = self._given
        self._next = rng.randrange(len(self._addresses))
        self._preferred: list[str] = []
        self._rng = rng
        self.failures = 0
        """Tries since the last welcome."""

    @property
    def alone(self) -> bool:
        """Whether one address only is known."""
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

    def learn(self, addresses: Sequence[str], *, at: str) -> None:
        """The node at an address names all nodes: those that were not given stand behind those that were.

        The walk goes on behind that node: whoever was told of one only, and loses it, must not try it first.
        """
        self._addresses = list(dict.fromkeys((*self._given, *addresses[:LEARNT_MAX])))
        if at in self._addresses:
            self._next = self._addresses.index(at) + 1
        self._next %= len(self._addresses)

    def welcomed(self) -> None:
        """A node has welcomed the agent."""
        self.failures = 0

    def failed_wait_ms(self) -> int:
        """A stream has ended: how long to wait before the next, exponential with full jitter."""
        bound_ms = min(BACKOFF_MS_MAX, BACKOFF_INITIAL_MS << min(self.failures, _DOUBLINGS_MAX))
        self.failures += 1
        return self._rng.randint(0, bound_ms)
