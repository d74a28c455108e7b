"""What an agent remembers of attempts that it no longer holds.

An offer may arrive twice, and a cancel may arrive before its offer or after the end. Only the agent can prove that
something never started, so it must not forget that something did: what falls out of the bounded memory leaves its
token behind as a mark, below which nothing is claimed and nothing is started.
"""

from __future__ import annotations

from collections import OrderedDict
from enum import Enum
from typing import Final

from stepward.agents.attempts import AttemptKey

REMEMBERED_MAX: Final = 10_000


class Past(Enum):
    """What became of an attempt that is no longer held."""

    NEVER_STARTED = "NEVER_STARTED"
    STARTED = "STARTED"
    FORGOTTEN = "FORGOTTEN"
    """Old enough that it may have fallen out of the memory: it may have started."""


class Memory:
    """The newest attempts that were answered or refused."""

    def __init__(self, remembered_max: int = REMEMBERED_MAX) -> None:
        self._remembered_max = remembered_max
        # A plain dict would step over all that was removed from its front to find the oldest.
        self._past: OrderedDict[AttemptKey, Past] = OrderedDict()
        self._forgotten_token: dict[str, int] = {}
        """By shard, the highest token that was forgotten."""

    def remember(self, key: AttemptKey, past: Past) -> None:
        """Keep what became of an attempt. What has started stays started."""
        if self._past.get(key) is not Past.STARTED:
            self._past[key] = past
        if len(self._past) > self._remembered_max:
            oldest, _ = self._past.popitem(last=False)
            self._forgotten_token[oldest.shard] = max(oldest.token, self._forgotten_token.get(oldest.shard, 0))

    def recall(self, key: AttemptKey) -> Past | None:
        """What became of it. None: it was surely never here."""
        past = self._past.get(key)
        if past is None and key.token <= self._forgotten_token.get(key.shard, 0):
            return Past.FORGOTTEN
        return past
