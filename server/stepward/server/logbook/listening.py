"""Letters sorted: what peers say goes to the engine, questions to their place; proposals are what is left."""

from __future__ import annotations

from typing import TYPE_CHECKING, assert_never

from stepward.server.logbook.errors import FrameUnreadable
from stepward.server.logbook.frames import AgeAnswer, AgeQuestion
from stepward.server.logbook.outbox import Arrived, Confirm, Linked, Proposal, Recover, Serves, Transfer, Unlinked

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stepward.server.core.rows import Head
    from stepward.server.logbook.engine import Engine
    from stepward.server.logbook.gap import HeadAge
    from stepward.server.logbook.outbox import Instant, Letter
    from stepward.server.logbook.questions import Questions


class Listener:
    """Hears the letters of a step in their order."""

    def __init__(self, *, engine: Engine, questions: Questions, head_age: HeadAge) -> None:
        self._engine = engine
        self._questions = questions
        self._head_age = head_age
        # The stream of each peer on which something stood that could not be read.
        self._refused_streams: dict[str, int] = {}
        self._unreadable: list[str] = []

    def hear(self, inbox: Sequence[Letter], head: Head, now: Instant) -> list[Proposal]:
        """Take in all letters; the proposals among them are the caller's."""
        proposals: list[Proposal] = []
        for letter in inbox:
            match letter:
                case Proposal():
                    proposals.append(letter)
                case Arrived():
                    self._arrived(letter, head, now)
                case Linked(peer_id=peer_id):
                    self._engine.linked(peer_id)
                case Unlinked(peer_id=peer_id):
                    self._engine.unlinked(peer_id)
                case Serves(peer_id=peer_id, for_ms=for_ms):
                    self._engine.serves(peer_id, for_ms, now.steady_ms)
                case Confirm() | Transfer() | Recover():
                    self._questions.ask(letter)
                case never:
                    assert_never(never)
        return proposals

    def unreadable(self) -> list[str]:
        """The peers of which something could not be read since this was asked last."""
        found, self._unreadable = self._unreadable, []
        return found

    def _arrived(self, arrived: Arrived, head: Head, now: Instant) -> None:
        """A message of a peer. One that cannot be read ends its stream: what follows may not be taken without it."""
        if arrived.connection <= self._refused_streams.get(arrived.peer_id, -1):
            return
        try:
            message = self._engine.receive(arrived.peer_id, arrived.connection, arrived.content, now.steady_ms)
        except FrameUnreadable:
            self._refused_streams[arrived.peer_id] = arrived.connection
            self._unreadable.append(arrived.peer_id)
            return
        match message:
            case None:
                pass
            case AgeQuestion():
                self._head_age.answer(arrived.peer_id, message, head, now)
            case AgeAnswer():
                self._head_age.hear(arrived.peer_id, message, now)
            case never:
                assert_never(never)
