"""Commands of this node's callers on their way to the leader, and what waits until this node has caught up."""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from typing import TYPE_CHECKING, Final, NamedTuple

from stepward.server.core.commands import (
    CloseStream,
    DrainSession,
    ReportAttempts,
    SubmitJob,
)
from stepward.server.peers import encoding
from stepward.server.tickets import FutureTicket

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Iterable

    from stepward.server.core.commands import Answer, AnyCommand
    from stepward.server.tickets import Ticket

# What one message to the leader carries at most, unless one command alone is larger. More would only hold up renewals.
MESSAGE_COMMANDS_MAX: Final = 1_000
MESSAGE_BYTES_MAX: Final = 1 << 20
# What a command costs in memory beside its bytes.
_ERRAND_BYTES: Final = 1_000


class Errand:
    """A command on its way to whoever decides it, and who waits for what becomes of it.

    It stands in the replica of this node as a ticket of its own, so that it can go on to another node when this one
    does not lead any more.
    """

    __slots__ = ("_came", "command", "encoded", "ends_at_ms", "hops", "number", "share", "ticket", "unknown", "urgent")

    def __init__(
        self,
        command: AnyCommand,
        ticket: Ticket,
        came: Callable[[Errand, Answer], None],
        *,
        number: int,
        urgent: bool,
        share: str,
        ends_at_ms: int,
    ) -> None:
        """`came` is told what this node's replica answered. `ends_at_ms`: until when to look for a leader."""
        self.command = command
        self.ticket = ticket
        self.number = number
        self.urgent = urgent
        self.share = share
        self.ends_at_ms = ends_at_ms
        self.encoded = b""
        # How often a node has said that it does not lead; whether one may have decided it without a word.
        self.hops = 0
        self.unknown = False
        self._came = came

    def answered(self, answer: Answer) -> None:
        """See `Ticket`."""
        self._came(self, answer)

    @property
    def is_wanted(self) -> bool:
        """Whether anybody still waits for the answer; what was never decided may be dropped otherwise."""
        return not (isinstance(self.ticket, FutureTicket) and self.ticket.future.done())

    @property
    def may_repeat(self) -> bool:
        """Whether twice is once, so that it may be sent again when nobody knows what became of it.

        A renewal is not: what its list lacks says something about the moment at which it was made.
        """
        if isinstance(self.command, SubmitJob):
            return bool(self.command.idempotency_key)
        return isinstance(self.command, ReportAttempts | CloseStream | DrainSession)


class Errands:
    """Errands that wait for a leader, in the order in which they came; urgent ones first."""

    def __init__(self) -> None:
        self._urgent: deque[Errand] = deque()
        self._others: deque[Errand] = deque()
        self.size_bytes = 0

    def __len__(self) -> int:
        return len(self._urgent) + len(self._others)

    def push(self, errand: Errand) -> None:
        """Let one more wait."""
        if not errand.encoded:
            errand.encoded = encoding.encode_command(errand.command)
        (self._urgent if errand.urgent else self._others).append(errand)
        self.size_bytes += _size(errand)

    def put_back(self, errands: Iterable[Errand]) -> None:
        """Let some wait again, where they stood before: what an agent reports must not overtake itself."""
        for errand in errands:
            self.push(errand)
        self._urgent = deque(sorted(self._urgent, key=_number))
        self._others = deque(sorted(self._others, key=_number))

    def take(self) -> list[Errand]:
        """Take out as many as one message carries; nothing when none waits."""
        taken: list[Errand] = []
        size_bytes = 0
        while len(taken) < MESSAGE_COMMANDS_MAX and (line := self._urgent or self._others):
            size_bytes += len(line[0].encoded)
            if taken and size_bytes > MESSAGE_BYTES_MAX:
                break
            taken.append(line.popleft())
            self.size_bytes -= _size(taken[-1])
        return taken

    def take_all(self) -> list[Errand]:
        """Take out everything."""
        taken = [*self._urgent, *self._others]
        self._urgent.clear()
        self._others.clear()
        self.size_bytes = 0
        return taken

    def take_over(self, now_ms: int) -> list[Errand]:
        """Take out those whose time is over, and those that nobody waits for any more."""
        over: list[Errand] = []
        for line in (self._urgent, self._others):
            if any(now_ms >= errand.ends_at_ms or not errand.is_wanted for errand in line):
                kept: list[Errand] = []
                for errand in line:
                    is_over = now_ms >= errand.ends_at_ms or not errand.is_wanted
                    (over if is_over else kept).append(errand)
                line.clear()
                line.extend(kept)
        self.size_bytes -= sum(map(_size, over))
        return over


def _size(errand: Errand) -> int:
    return len(errand.encoded) + _ERRAND_BYTES


def _number(errand: Errand) -> int:
    return errand.number


class Question:
    """A reader that waits until this node has everything that was acknowledged before it asked."""

    __slots__ = ("ends_at_ms", "future")

    def __init__(self, future: asyncio.Future[None], ends_at_ms: int) -> None:
        self.future = future
        self.ends_at_ms = ends_at_ms


class _Held(NamedTuple):
    sequence: int
    number: int
    ends_at_ms: int
    arrived: Callable[[], None]
    late: Callable[[], None]


class Ahead:
    """What came from the leader and speaks of batches that this node has not applied yet."""

    def __init__(self) -> None:
        self._held: list[_Held] = []
        self._numbers = itertools.count()

    def __len__(self) -> int:
        return len(self._held)

    def hold(self, sequence: int, ends_at_ms: int, arrived: Callable[[], None], late: Callable[[], None]) -> None:
        """Call `arrived` when the batch is applied, in order, or `late` when that takes too long."""
        heapq.heappush(self._held, _Held(sequence, next(self._numbers), ends_at_ms, arrived, late))

    def release(self, sequence: int) -> None:
        """Everything up to `sequence` is applied."""
        held = self._held
        while held and held[0].sequence <= sequence:
            heapq.heappop(held).arrived()

    def expire(self, now_ms: int) -> None:
        """Let go of those that have waited too long."""
        if not any(now_ms >= held.ends_at_ms for held in self._held):
            return
        over = sorted(held for held in self._held if now_ms >= held.ends_at_ms)
        self._held = [held for held in self._held if now_ms < held.ends_at_ms]
        heapq.heapify(self._held)
        for held in over:
            held.late()

    def drop_all(self) -> None:
        """This node is ending: let go of all of them."""
        over, self._held = sorted(self._held), []
        for held in over:
            held.late()
