"""A leadership that is being handed to another node, and what is told to those who asked for it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from stepward.server.core.rejections import Reason, Rejection
from stepward.server.logbook.outbox import Answered, Transferred

if TYPE_CHECKING:
    from collections.abc import Iterator

    from stepward.server.core.commands import Answer
    from stepward.server.logbook.engine import Engine
    from stepward.server.logbook.outbox import Transfer

# How long to wait, once this node leads no more, until it hears who does: a few elections.
_SUCCESSOR_MS_MAX: Final = 3_000


class Handover:
    """At most one at a time. Meanwhile nothing may be proposed, or the other node would never have all of it."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._asked: Transfer | None = None
        self._term = 0
        self._began_ms = 0

    def __bool__(self) -> bool:
        """Whether one is under way."""
        return self._asked is not None

    def begin(self, asked: Transfer, now_ms: int) -> Rejection | None:
        """Start to hand over; or the reason why not."""
        reason = self._engine.transfer(asked.target_id, now_ms)
        if reason:
            return Rejection(Reason.NODE_STATE, f"leadership stays as it is: {reason}")
        assert self._asked is None, "what the engine has ended was answered"
        self._asked, self._term, self._began_ms = asked, self._engine.term, now_ms
        return None

    def ended(self, now_ms: int, sequence: int) -> Iterator[Answered]:
        """The answer, once it is known who leads now. It may be this node: the other one did not catch up, or stand."""
        if self._asked is None:
            return
        answer = self._outcome(now_ms)
        if answer is not None:
            yield Answered(self._asked.token, answer, sequence)
            self._asked = None

    def _outcome(self, now_ms: int) -> Answer | Transferred | None:
        engine = self._engine
        if engine.leads and engine.term == self._term:
            return None if engine.transferring else Transferred(engine.leader_id, engine.term)
        if engine.leader_id:
            return Transferred(engine.leader_id, engine.term)
        if now_ms - self._began_ms < _SUCCESSOR_MS_MAX:
            return None
        return Rejection(Reason.NO_LEADER, "leadership was given up here, and nobody is known to have it; look again")
