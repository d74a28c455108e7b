"""Who waits for what becomes of a command or a question."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from stepward.server.core.rejections import Refused

if TYPE_CHECKING:
    import asyncio

    from stepward.server.core.commands import Answer
    from stepward.server.core.rejections import Rejection


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
