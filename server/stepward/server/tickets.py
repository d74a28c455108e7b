"""Who waits for what becomes of a command or a question."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from stepward.server.core.rejections import Refused, Rejection
from stepward.server.logbook.outbox import Confirmed

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from stepward.server.core.commands import Answer


class Ticket(Protocol):
    """Somebody who waits for the answer to a command."""

    def answered(self, answer: Answer) -> None:
        """Called once, on the loop, after everything that the answer speaks of is durable."""
        ...


class FutureTicket:
    """Somebody who waits in a coroutine. One that has gone away is not told."""

    __slots__ = ("future",)

    def __init__(self, future: asyncio.Future[Answer]) -> None:
        self.future = future

    def answered(self, answer: Answer) -> None:
        """See `Ticket`."""
        if not self.future.done():
            self.future.set_result(answer)


class ReaderTicket(Protocol):
    """Somebody who waits to know which batches a reader must see."""

    def confirmed(self, sequence: int) -> None:
        """Called once, on the loop: this node led when it was asked, and everything up to `sequence` was committed."""
        ...

    def refused(self, rejection: Rejection) -> None:
        """Called once, on the loop, instead: it cannot tell."""
        ...


class FutureReaderTicket:
    """A reader that waits in a coroutine."""

    __slots__ = ("future",)

    def __init__(self, future: asyncio.Future[int]) -> None:
        self.future = future

    def confirmed(self, sequence: int) -> None:
        """See `ReaderTicket`."""
        if not self.future.done():
            self.future.set_result(sequence)

    def refused(self, rejection: Rejection) -> None:
        """See `ReaderTicket`."""
        if not self.future.done():
            self.future.set_exception(Refused(rejection))


class ReaderPlace:
    """A reader's place in the inbox of the replica."""

    __slots__ = ("_sequence", "_ticket")

    def __init__(self, ticket: ReaderTicket, sequence: Callable[[], int]) -> None:
        """`sequence`: of the head, as it is then."""
        self._ticket = ticket
        self._sequence = sequence

    def answered(self, answer: object) -> None:
        """See `Ticket`."""
        if isinstance(answer, Confirmed):
            # The head of now is at least as new as that of the moment when he asked.
            self._ticket.confirmed(self._sequence())
        else:
            assert isinstance(answer, Rejection), answer
            self._ticket.refused(answer)
