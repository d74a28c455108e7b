"""Those who wait for the answer to a command or a question."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from stepward.server import tickets as server_tickets


class Ticket(Protocol):
    """Somebody who waits. `floor` is what had been acknowledged when the replica was asked."""

    floor: int

    def answered(self, answer: Any, sequence: int) -> None:
        """Called once, with the newest batch that the answer speaks of."""
        ...


class ShardTicket:
    """A ticket of the shipped node, which cares for no sequence."""

    def __init__(self, ticket: server_tickets.Ticket) -> None:
        self._ticket = ticket
        self.floor = 0

    def answered(self, answer: Any, sequence: int) -> None:
        """See `Ticket`."""
        self._ticket.answered(answer)
