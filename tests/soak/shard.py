"""One shard of the shipped rules on a simulated clock: batches, leaderships with gaps between them, and a supervisor.

Everything that is decided goes through `decide` as in a node, on the clocks that `core.clocks` moves. The supervisor
sweeps when something falls due and at latest each second, as the shipped loop does.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from typing_extensions import override

from stepward.server.core import brake, clocks, epochs, keys
from stepward.server.core.commands import Sweep, Swept
from stepward.server.core.decide import Moment, decide
from stepward.server.core.rows import Clock, Head
from tests.core.world import WALL_MS, RuleRaisedError, World
from tests.simulation.agenda import MS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from stepward.server.core.commands import Answer, AnyCommand
    from stepward.server.core.limits import Limits
    from stepward.server.core.rows import Row
    from tests.simulation.agenda import Agenda

# What has come within so long is decided together.
_BATCH_MS: Final = 10
_BEAT_MS: Final = 1_000
_UNFINISHED_MS: Final = 1
_OVERDUE_MS: Final = 50


class Decided(NamedTuple):
    """A batch, for whoever looks on."""

    moment: Moment
    commands: Sequence[AnyCommand]
    answers: Sequence[Answer]
    changes: Mapping[bytes, Row | None]


class Onlooker(Protocol):
    """Sees each batch."""

    def decided(self, decided: Decided) -> None:
        """A batch was decided and applied."""


class Shard(World):
    """Rows, whoever leads them, and when nobody did or the brake held (`blocked`)."""

    def __init__(self, agenda: Agenda, *, limits: Limits, seed: int) -> None:
        super().__init__(limits=limits, seed=seed)
        self.agenda = agenda
        self.leads = True
        self.onlookers: list[Onlooker] = []
        self.blocked = Blocked()
        self.batches = 0
        self.sweeps = 0
        self.held_most = 0
        self.opened_log_ms = 0
        self._head = Head(0, b"", 1, 0, 0, 0, WALL_MS, 0, "boot")
        self._inbox: list[tuple[AnyCommand, Callable[[Answer], None]]] = []
        self._plan = 0
        self._sweep_at_ms = math.inf

    @property
    def steady_ms(self) -> int:
        """The true time."""
        return self.agenda.now_us // MS

    @override
    def moment(self) -> Moment:
        """That of the next batch."""
        now = clocks.advance(self._head, steady_ms=self.steady_ms, wall_ms=WALL_MS + self.steady_ms)
        return Moment(self.sequence + 1, self.epoch, 0, now.led_ms, now.log_ms, now.wall_ms, self.steady_ms)

    @override
    def do(self, *commands: AnyCommand) -> list[Answer]:
        """Decide and apply a batch, and show it."""
        assert self.leads, commands
        moment = self.moment()
        decision = decide(self.reader, commands, moment, self.limits, self.rng)
        if decision.failures:
            raise RuleRaisedError(decision.failures[0][0]) from decision.failures[0][1]
        self._apply(decision.changes)
        if decision.changes:
            self._move(moment.led_ms, moment.log_ms, moment.wall_ms)
        self.batches += 1
        for onlooker in self.onlookers:
            onlooker.decided(Decided(moment, commands, decision.answers, decision.changes))
        self._sweep_sooner(decision.changes)
        return decision.answers

    def _move(self, led_ms: int, log_ms: int, wall_ms: int) -> None:
        self._head = Head(self.sequence, b"", self.epoch, 0, led_ms, log_ms, wall_ms, self.steady_ms, "boot")

    def send(self, command: AnyCommand, answered: Callable[[Answer], None]) -> None:
        """Let something be decided with what else comes about now. While nobody leads it is lost, and not answered."""
        if not self.leads:
            return
        self._inbox.append((command, answered))
        if len(self._inbox) == 1:
            self.agenda.after(_BATCH_MS * MS, self._decide_inbox, self.epoch)

    def _decide_inbox(self, epoch: int) -> None:
        if epoch != self.epoch or not self.leads or not self._inbox:
            return
        came, self._inbox = self._inbox, []
        answers = self.do(*(command for command, _ in came))
        for (_, answered), answer in zip(came, answers, strict=True):
            answered(answer)

    # Leaderships.

    def lead_no_more(self, gap_ms: int) -> None:
        """Nobody leads for so long; what waits is lost."""
        if self.leads:
            self.leads, self._inbox = False, []
            self.blocked.begins(self.steady_ms)
            self.agenda.after(gap_ms * MS, self._open)

    def _open(self) -> None:
        """The batch with which the next leadership begins."""
        wall_ms, gap_ms = WALL_MS + self.steady_ms, self.steady_ms - self._head.decided_steady_ms
        moved = clocks.reopen(self._head, gap_ms=gap_ms, wall_ms=wall_ms)
        self.epoch += 1
        self._apply({keys.EPOCH: epochs.opened(self.reader, self._head, epoch=self.epoch, clocks=moved)})
        self._move(moved.led_ms, moved.log_ms, moved.wall_ms)
        self.leads, self.opened_log_ms = True, moved.log_ms
        self.begin()

    # The supervisor.

    def begin(self) -> None:
        """Supervise."""
        self._plan_sweep(0)

    def _plan_sweep(self, wait_ms: float) -> None:
        self._plan += 1
        self._sweep_at_ms = self.steady_ms + wait_ms
        self.agenda.after(wait_ms * MS, self._sweep, self._plan)

    def _sweep(self, plan: int) -> None:
        if plan != self._plan or not self.leads:
            return
        self._sweep_at_ms = math.inf
        waiting = [command for command, _ in self._inbox]
        if waiting:
            # What has come is heard before anything is judged.
            self._decide_inbox(self.epoch)
        answer = self.do(Sweep(self.limits.sweep_subjects_max))[0]
        assert isinstance(answer, Swept), answer
        assert not answer.stuck, answer.stuck
        self.sweeps += 1
        self.held_most = max(self.held_most, answer.held)
        holds = brake.standing(self.reader, led_ms=self._head.led_ms, limits=self.limits).on is not None
        if holds:
            self.blocked.begins(self.steady_ms)
        else:
            self.blocked.ends(self.steady_ms)
        self._plan_sweep(min(self._wait_ms(answer), max(_UNFINISHED_MS, self._sweep_at_ms - self.steady_ms)))

    def _wait_ms(self, swept: Swept) -> int:
        if swept.unfinished:
            return _UNFINISHED_MS
        if swept.overdue > swept.held:
            return _OVERDUE_MS
        waits = [_BEAT_MS]
        if swept.look_again_in_ms is not None:
            waits.append(swept.look_again_in_ms)
        for clock, due_ms in ((Clock.LED, swept.next_due_led_ms), (Clock.LOG, swept.next_due_log_ms)):
            if due_ms is not None:
                waits.append(self._due_steady_ms(clock, due_ms) - self.steady_ms)
        return max(_UNFINISHED_MS, min(waits))

    def _due_steady_ms(self, clock: Clock, at_ms: int) -> int:
        head = self._head
        return head.decided_steady_ms + at_ms - (head.led_ms if clock is Clock.LED else head.log_ms)

    def _sweep_sooner(self, changes: Mapping[bytes, Row | None]) -> None:
        """Sweep sooner when a batch has set a timer that falls due before the next sweep."""
        set_ = [key for key, row in changes.items() if row is not None and key[:1] == keys.TIMER]
        if not set_:
            return
        due_ms = min(self._due_steady_ms(Clock(key[1]), keys.parse_timer(key)[0]) for key in set_)
        due_ms = max(due_ms, self.steady_ms + _UNFINISHED_MS)
        if due_ms < self._sweep_at_ms:
            self._plan_sweep(due_ms - self.steady_ms)


class Blocked:
    """When nothing could be remedied: nobody led, or the brake held. True time, in ms."""

    def __init__(self) -> None:
        self._spans: list[tuple[int, int]] = []
        self._since_ms = -1
        self.longest_ms = 0

    def begins(self, now_ms: int) -> None:
        """It does from now on, if it does not already."""
        if self._since_ms < 0:
            self._since_ms = now_ms

    def ends(self, now_ms: int) -> None:
        """It does no more."""
        if self._since_ms >= 0:
            self._spans.append((self._since_ms, now_ms))
            self.longest_ms = max(self.longest_ms, now_ms - self._since_ms)
            self._since_ms = -1

    def within_ms(self, from_ms: int, until_ms: int) -> int:
        """How much of a time was blocked."""
        spans = [*self._spans[-_SPANS_LOOKED_AT:], *([(self._since_ms, until_ms)] if self._since_ms >= 0 else [])]
        return sum(max(0, min(end, until_ms) - max(begin, from_ms)) for begin, end in spans)


# Nothing waits for longer than so many of them take.
_SPANS_LOOKED_AT: Final = 500
