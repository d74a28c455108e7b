"""Answers that changed no row: they leave when it is certain that this node led after they were asked for.

Another node may lead already while this one has not heard of it. Then rows that were read here may be older than what
was acknowledged there, and a renewal that is granted here is one of which the new leader knows nothing. The leader's
lease says at once that nobody else leads; without it the answers wait here until a majority has answered a message that
was sent after they were decided.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stepward.server.logbook.engine import Engine
    from stepward.server.logbook.outbox import Answered


class Reads:
    """Lets answers go under the lease, or keeps them until a round of messages confirms them; oldest first."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._parked: deque[tuple[int, Sequence[Answered]]] = deque()
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def cleared(self, answers: Sequence[Answered], now_ms: int) -> Sequence[Answered]:
        """The answers, if they may leave at once; else they are kept.

        `now_ms` was read after the questions had come. It does not matter how much later the answers leave: what they
        say was true at that instant, and an agent counts its lease from when it asked.
        """
        if now_ms < self._engine.lease_until_ms(now_ms):
            return answers
        self._parked.append((self._engine.round(), answers))
        self._count += len(answers)
        return ()

    def confirmed(self) -> list[Answered]:
        """Take out those whose round was answered by a majority."""
        found: list[Answered] = []
        while self._parked and self._engine.confirmed(self._parked[0][0]):
            found += self._parked.popleft()[1]
        self._count -= len(found)
        return found

    def drain(self) -> list[Answered]:
        """Take out all: nobody will ever confirm them."""
        found = [answered for _stamp, answers in self._parked for answered in answers]
        self._parked.clear()
        self._count = 0
        return found
