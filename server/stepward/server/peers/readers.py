"""Readers of this node, which must see everything that was acknowledged before they asked, whoever leads."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING

from stepward.server.core.rejections import Refused
from stepward.server.peers.errands import Question
from stepward.server.tickets import FutureReaderTicket

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from stepward.server.clock import Clock
    from stepward.server.config import NodeConfig
    from stepward.server.core.rejections import Rejection
    from stepward.server.logbook.outbox import Standing
    from stepward.server.peers.errands import Ahead
    from stepward.server.peers.forwarding import Host


class Readers:
    """Who waits for an answer of the leader or for this node to catch up, and how fresh the rows of this node are.

    Those who come while a question travels share the next one: it was asked before they came, so its answer may lack
    what they must see.
    """

    def __init__(
        self,
        host: Host,
        ahead: Ahead,
        *,
        clock: Clock,
        config: NodeConfig,
        no_leader: Callable[[], Rejection],
        shut: Callable[[], Rejection | None],
        behind: Callable[[], Rejection],
        wake: Callable[[], None],
    ) -> None:
        self.waiting: list[Question] = []
        self._host = host
        self._ahead = ahead
        self._clock = clock
        self._config = config
        self._no_leader = no_leader
        self._shut = shut
        self._behind = behind
        self._wake = wake
        # Everything that was committed before this instant is applied here. 0: nobody has told this process yet.
        self._fresh_at_ms = 0

    async def caught_up(self) -> None:
        """Wait until this node has applied everything that was acknowledged before the call.

        Raises:
            Refused: NO_LEADER, when nobody tells what that is, or this node can learn of nothing new; COMMIT_UNKNOWN,
                when it is too far behind.
        """
        if refusal := self._shut():
            raise Refused(refusal)
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.waiting.append(Question(future, self._clock.steady_ms() + self._config.leader_wait_ms_max))
        self.ask_here()
        self._wake()
        await future

    async def still_leads(self) -> None:
        """Make sure that this node leads in the epoch of its last step, so that what was just read was the newest.

        Raises:
            Refused: NO_LEADER, when it does not, or nobody tells.
        """
        epoch = self._host.standing.epoch
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._host.confirm(FutureReaderTicket(future))
        try:
            async with asyncio.timeout(self._config.leader_wait_ms_max / 1_000):
                await future
        except (TimeoutError, Refused):
            raise Refused(self._no_leader()) from None
        if self._host.standing.epoch != epoch:
            raise Refused(self._no_leader())

    @property
    def staleness_ms(self) -> int:
        """So long ago everything that was committed was applied here, if not later."""
        now_ms, standing = self._clock.steady_ms(), self._host.standing
        self.stepped(standing, now_ms)
        if self._fresh_at_ms:
            return max(0, now_ms - self._fresh_at_ms)
        # Nobody has told this process anything: by the wall clocks of two nodes, which may differ.
        return max(0, self._clock.wall_ms() - standing.head.wall_ms)

    def stepped(self, standing: Standing, now_ms: int) -> None:
        """A leader has seen everything that was committed, up to the end of its lease."""
        if standing.leads:
            self._is_fresh(min(now_ms, standing.lease_until_ms))

    def ask_here(self) -> None:
        """Ask this node, if it leads."""
        if self.waiting and self._host.leads:
            questions = tuple(self.waiting)
            self.waiting.clear()
            self._host.confirm(_Asked(self, questions, self._clock.steady_ms()))

    def answered(self, questions: Iterable[Question], sequence: int, asked_at_ms: int) -> None:
        """Let readers go on when this node has what they must see."""
        for question in questions:
            self._ahead.hold(
                sequence, question.ends_at_ms, partial(_grant, question), partial(_refuse, question, self._behind())
            )
        ends_at_ms = self._clock.steady_ms() + self._config.behind_ms_max
        self._ahead.hold(sequence, ends_at_ms, partial(self._is_fresh, asked_at_ms), _nobody_waits)
        self._ahead.release(self._host.standing.head.sequence)

    def again(self, questions: Iterable[Question]) -> None:
        """Whoever was asked does not lead, or was lost: look for another leader."""
        self.waiting.extend(questions)
        self._wake()

    def expire(self, now_ms: int) -> None:
        """Refuse those who have waited too long, and forget those who have gone away."""
        if not self.waiting:
            return
        for question in self.waiting:
            if now_ms >= question.ends_at_ms:
                _refuse(question, self._no_leader())
        self.waiting[:] = [question for question in self.waiting if not question.future.done()]

    def stop(self, why: Rejection) -> None:
        """The node is ending: refuse everybody."""
        for question in self.waiting:
            _refuse(question, why)
        self.waiting.clear()

    def _is_fresh(self, at_ms: int) -> None:
        self._fresh_at_ms = max(self._fresh_at_ms, at_ms)


class _Asked:
    """Readers that ask their own node as the leader."""

    __slots__ = ("_asked_at_ms", "_questions", "_readers")

    def __init__(self, readers: Readers, questions: tuple[Question, ...], asked_at_ms: int) -> None:
        self._readers = readers
        self._questions = questions
        self._asked_at_ms = asked_at_ms

    def confirmed(self, sequence: int) -> None:
        """See `ReaderTicket`."""
        self._readers.answered(self._questions, sequence, self._asked_at_ms)

    def refused(self, rejection: Rejection) -> None:
        """See `ReaderTicket`."""
        self._readers.again(self._questions)


def _grant(question: Question) -> None:
    if not question.future.done():
        question.future.set_result(None)


def _refuse(question: Question, rejection: Rejection) -> None:
    if not question.future.done():
        question.future.set_exception(Refused(rejection))


def _nobody_waits() -> None:
    """What is late was only a note."""
