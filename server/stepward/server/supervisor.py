"""The supervisor's loop: proposes sweeps on the leader, at the earliest due time and at latest each second.

It holds no queue and judges nothing: the rules look at rows that are due and decide in the same batch. It is bound to
one epoch and ends with it.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

from stepward.server import observe
from stepward.server.core import keys
from stepward.server.core.commands import Sweep, Swept
from stepward.server.core.rejections import Reason, Rejection
from stepward.server.core.rows import Clock as TimerClock
from stepward.server.shard import changed

if TYPE_CHECKING:
    from collections.abc import Callable

    from stepward.server.clock import Clock
    from stepward.server.config import NodeConfig
    from stepward.server.core.limits import Limits
    from stepward.server.logbook.replica import Applied
    from stepward.server.observe import Counters
    from stepward.server.shard import Shard

# The beat is written with a sweep; others judge by it whether supervision goes on.
BEAT_MS: Final = 1_000
# A full sweep left more that is due: the next one follows at once, but lets other commands in between.
_FULL_WAIT_MS: Final = 1
# What is still due after a sweep that was not full waits for another sweep, or for a rule of ours to be mended.
_OVERDUE_WAIT_MS: Final = 50
_FAILURE_WAIT_MS: Final = 200

# Answers that say that the epoch is over or the node is ending: no fault of the supervisor.
_EPOCH_OVER: Final = frozenset({Reason.NOT_LEADER, Reason.NO_LEADER, Reason.COMMIT_UNKNOWN, Reason.NODE_DRAINING})

_log = observe.logger("supervisor")


class SupervisionFailed(Exception):  # noqa: N818 - it is a state of the loop, which ends with it
    """A sweep was answered with something that says that we are wrong."""


class Supervisor:
    """One loop for one epoch."""

    def __init__(
        self,
        shard: Shard,
        *,
        epoch: int,
        clock: Clock,
        limits: Limits,
        config: NodeConfig,
        counters: Counters,
        on_fatal: Callable[[str], None],
    ) -> None:
        """`on_fatal` is told when the loop cannot go on: a leader without a supervisor is worse than none."""
        self._shard = shard
        self._epoch = epoch
        self._clock = clock
        self._limits = limits
        self._config = config
        self._counters = counters
        self._on_fatal = on_fatal
        self._sweep_at_ms = 0
        self._sooner = asyncio.Event()

    async def run(self) -> None:
        """Sweep until the epoch is over."""
        _log.info("supervisor_started", epoch=self._epoch)
        failures = 0
        while self._shard.leads and self._shard.standing.epoch == self._epoch:
            try:
                wait_ms = await self._sweep()
                failures = 0
            except Exception as error:  # noqa: BLE001 - the loop must go on: supervision is what everything hangs on
                failures += 1
                wait_ms = _FAILURE_WAIT_MS
                self._counters.supervisor_failures += 1
                _log.exception("sweep_failed", epoch=self._epoch, failures_in_a_row=failures)
                if failures >= self._config.supervisor_failures_max:
                    self._on_fatal(f"the supervisor failed {failures} times in a row: {error}")
                    return
            await self._wait(wait_ms)
        _log.info("supervisor_ended", epoch=self._epoch)

    def on_applied(self, applied: Applied) -> None:
        """Sweep sooner when a batch has set a timer that is due before the next sweep."""
        for key, row in changed(applied, keys.TIMER):
            if row is not None and self._due_at_ms(TimerClock(key[1]), keys.parse_timer(key)[0]) < self._sweep_at_ms:
                self._sooner.set()
                return

    async def _wait(self, wait_ms: int) -> None:
        """Wait so long, or until a timer is set that is due sooner; the sweep then tells how much sooner."""
        self._sweep_at_ms = self._clock.steady_ms() + wait_ms
        self._sooner.clear()
        try:
            async with asyncio.timeout(wait_ms / 1_000):
                await self._sooner.wait()
        except TimeoutError:
            pass

    async def _sweep(self) -> int:
        """Sweep once; how long to wait before the next one (ms)."""
        answer = await self._shard.call(Sweep(self._limits.sweep_subjects_max))
        if isinstance(answer, Swept):
            self._counters.sweeps += 1
            self._counters.swept += answer.handled
            return self._wait_ms(answer)
        if isinstance(answer, Rejection) and answer.reason in _EPOCH_OVER:
            return _FAILURE_WAIT_MS
        msg = f"a sweep was answered with {answer!r}"
        raise SupervisionFailed(msg)

    def _wait_ms(self, swept: Swept) -> int:
        if swept.overdue:
            return _FULL_WAIT_MS if swept.handled >= self._limits.sweep_subjects_max else _OVERDUE_WAIT_MS
        now_ms = self._clock.steady_ms()
        waits = [BEAT_MS]
        if swept.next_due_led_ms is not None:
            waits.append(self._due_at_ms(TimerClock.LED, swept.next_due_led_ms) - now_ms)
        if swept.next_due_log_ms is not None:
            waits.append(self._due_at_ms(TimerClock.LOG, swept.next_due_log_ms) - now_ms)
        return max(_FULL_WAIT_MS, min(waits))

    def _due_at_ms(self, clock: TimerClock, at_ms: int) -> int:
        """The steady instant at which a timer falls due, if the epoch goes on."""
        head = self._shard.standing.head
        return head.decided_steady_ms + at_ms - (head.led_ms if clock is TimerClock.LED else head.log_ms)
