"""What waits to be sent until the step in which it was said is durable."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stepward.server.logbook import frames
from stepward.server.logbook.outbox import Frame

if TYPE_CHECKING:
    from stepward.server.logbook.frames import Message


class Post:
    """Messages to peers, in their order. Bounded by what one step of the engine says."""

    def __init__(self) -> None:
        self._frames: list[Frame] = []

    def put(self, peer_id: str, message: Message) -> None:
        """Let a message wait."""
        self.put_encoded(peer_id, frames.encode(message))

    def put_encoded(self, peer_id: str, content: bytes) -> None:
        """Let a message wait that goes to several peers, and was encoded once."""
        self._frames.append(Frame(peer_id, content))

    def take(self) -> list[Frame]:
        """Everything that waits. Call it when all that was written so far is durable: a message is a promise."""
        taken, self._frames = self._frames, []
        return taken
