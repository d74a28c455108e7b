"""The supervisor's loop: proposes sweeps on the leader, at the earliest due time and at latest each second.

It holds no queue and judges nothing: the rules look at rows that are due and decide in the same batch. It is bound to
one epoch and ends with it.
"""

from __future__ import annotations

import asyncio
import math
from typing import TYPE_CHECKING, Final

from stepward.server import observe
from stepward.server.core import keys
from stepward.server.core.commands import Sweep, Swept
from stepward.server.core.rejections import Reason, Rejection
from stepward.server.core.rows import Clock as TimerClock
from stepward.server.reading import changed

if TYPE_CHECKING:
    from collections.abc import Callable

    from stepward.server.clock import Clock
    from stepward.server.core.limits import Limits
    from stepward.server.logbook.replica import Applied
    from stepward.server.observe import Counters
    from stepward.server.shard import Shard

# The beat is written with a sweep; others judge by it whether supervision goes on.
BEAT_MS: Final = 1_000
# What is noticed later than this is late: a supervisor that is well looks at least once a second.
LATE_MS: Final = 2_000
# A full sweep left more that is due: the next one follows at once, but lets other commands in between.
_FULL_WAIT_MS: Final = 1
# What is still due after a sweep that was not full waits for another sweep, or for a rule of ours to be mended.
_OVERDUE_WAIT_MS: Final = 50
_FAILURE_WAIT_MS: Final = 200
# The disk is full or too much waits: the next sweep tells whether that has passed.
_CANNOT_WAIT_MS: Final = 1_000

# Answers that say that the epoch is over or the node is ending: no fault of the supervisor.
_EPOCH_OVER: Final = frozenset({Reason.NOT_LEADER, Reason.NO_LEADER, Reason.COMMIT_UNKNOWN, Reason.NODE_DRAINING})

# Answers that say that no sweep can be decided now, and that one can be later: no fault of the supervisor either.
_CANNOT_NOW: Final = frozenset({Reason.DISK_FULL, Reason.OVERLOADED})

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
        counters: Counters,
    ) -> None:
        self._shard = shard
        self._epoch = epoch
        self._clock = clock
        self._limits = limits
        self._counters = counters
        # Sweeps that have failed since the last one that did not, and when one was last answered as it should be.
        self.failures = 0
        self.answered_at_ms: int | None = None
        # When the next sweep is planned; the earliest timer that was set since the last one was proposed.
        self._sweep_at_ms = math.inf
        self._set_at_ms = math.inf
        self._sooner = asyncio.Event()
        self._subjects_max = limits.sweep_subjects_max
        # Why no sweep can be decided now.
        self._cannot: Reason | None = None
        # By how much what was judged in this epoch had been due for, at most: the next beat tells it.
        self._late_ms_max = 0

    async def run(self, *, on_begun: Callable[[], None]) -> None:
        """Sweep until the epoch is over. `on_begun` is told when the first sweep was answered.

        A sweep that fails is followed by the next one, however often: whether this goes on for too long is judged by
        the beats that do not come (`oversight`).
        """
        _log.info("supervisor_started", epoch=self._epoch)
        while self._is_current:
            try:
                wait_ms = await self._sweep()
                if self.answered_at_ms is None:
                    on_begun()
                self.failures, self.answered_at_ms = 0, self._clock.steady_ms()
                await self._wait(wait_ms)
            except asyncio.CancelledError as error:
                # Only whoever cancels this task may end it; any other cancellation is one that a sweep has met with.
                task = asyncio.current_task()
                assert task is not None
                if task.cancelling():
                    raise
                await self._failed(error)
            except Exception as error:  # noqa: BLE001 - the loop must go on: supervision is what everything hangs on
                await self._failed(error)
        _log.info("supervisor_ended", epoch=self._epoch)

    @property
    def _is_current(self) -> bool:
        return self._shard.leads and self._shard.standing.epoch == self._epoch

    async def _failed(self, error: BaseException) -> None:
        self.failures += 1
        self._counters.supervisor_failures += 1
        _log.error("sweep_failed", epoch=self._epoch, failures_in_a_row=self.failures, exc_info=error)
        await asyncio.sleep(_FAILURE_WAIT_MS / 1_000)

    def on_applied(self, applied: Applied) -> None:
        """Sweep sooner when a batch has set a timer that is due before the next sweep."""
        for key, row in changed(applied, keys.TIMER):
            if row is not None:
                due_at_ms = self._due_at_ms(TimerClock(key[1]), keys.parse_timer(key)[0])
                self._set_at_ms = min(self._set_at_ms, due_at_ms)
        if self._set_at_ms < self._sweep_at_ms:
            self._sooner.set()

    async def _wait(self, wait_ms: int) -> None:
        """Wait so long, or until a timer is set that is due sooner; the sweep then tells how much sooner.

        Timers that were set while the sweep went on count as well: its own offers set some after it has looked.
        """
        now_ms = self._clock.steady_ms()
        if self._cannot is None and self._set_at_ms < now_ms + wait_ms:
            wait_ms = max(_FULL_WAIT_MS, int(self._set_at_ms - now_ms))
        self._sweep_at_ms = now_ms + wait_ms
        self._sooner.clear()
        try:
            async with asyncio.timeout(wait_ms / 1_000):
                await self._sooner.wait()
        except TimeoutError:
            pass

    async def _sweep(self) -> int:
        """Sweep once; how long to wait before the next one (ms)."""
        self._set_at_ms = self._sweep_at_ms = math.inf
        subjects_max = self._subjects_max
        answer = await self._shard.call_here(Sweep(subjects_max, self._late_ms_max))
        if isinstance(answer, Swept):
            self._note_late(answer)
            self._note_cannot(None)
            self._counters.sweeps += 1
            self._counters.swept += answer.handled
            self._counters.purged += answer.purged
            self._counters.jobs_stuck += len(answer.stuck)
            for job_id in answer.stuck:
                _log.error("job_stuck", epoch=self._epoch, job_id=job_id)
            self._subjects_max = min(2 * subjects_max, self._limits.sweep_subjects_max)
            return self._wait_ms(answer, subjects_max)
        if isinstance(answer, Rejection):
            if answer.reason in _EPOCH_OVER:
                return _FAILURE_WAIT_MS
            if answer.reason in _CANNOT_NOW:
                self._note_cannot(answer)
                return _CANNOT_WAIT_MS
            if answer.reason is Reason.PAYLOAD_TOO_LARGE and subjects_max > 1:
                # What is due together may follow from one outage, and need more rows than one batch can hold.
                self._subjects_max = subjects_max // 2
                return _FULL_WAIT_MS
        msg = f"a sweep was answered with {answer!r}"
        raise SupervisionFailed(msg)

    def _note_late(self, swept: Swept) -> None:
        self._late_ms_max = max((self._late_ms_max, *swept.late_ms))
        for late_ms in swept.late_ms:
            self._counters.detection_s.note(late_ms / 1_000)
            self._counters.detections_late += late_ms > LATE_MS

    def _note_cannot(self, refused: Rejection | None) -> None:
        """Count each sweep that could not be decided, and log when that begins, changes and ends."""
        reason = None if refused is None else refused.reason
        if refused is not None:
            self._counters.sweeps_refused += 1
        if reason is self._cannot:
            return
        self._cannot = reason
        if refused is None:
            _log.info("sweeps_go_on", epoch=self._epoch)
        else:
            _log.error("sweeps_refused", epoch=self._epoch, reason=refused.reason.value, message=refused.message)

    def _wait_ms(self, swept: Swept, subjects_max: int) -> int:
        if swept.unfinished:
            return _FULL_WAIT_MS
        if swept.overdue > swept.held:
            return _OVERDUE_WAIT_MS
        now_ms = self._clock.steady_ms()
        waits = [BEAT_MS]
        if swept.look_again_in_ms is not None:
            # The brake holds what is due: looking again sooner would change nothing.
            waits.append(swept.look_again_in_ms)
        if swept.next_due_led_ms is not None:
            waits.append(self._due_at_ms(TimerClock.LED, swept.next_due_led_ms) - now_ms)
        if swept.next_due_log_ms is not None:
            waits.append(self._due_at_ms(TimerClock.LOG, swept.next_due_log_ms) - now_ms)
        return max(_FULL_WAIT_MS, min(waits))

    def _due_at_ms(self, clock: TimerClock, at_ms: int) -> int:
        """The steady instant at which a timer falls due, if the epoch goes on."""
        head = self._shard.standing.head
        return head.decided_steady_ms + at_ms - (head.led_ms if clock is TimerClock.LED else head.log_ms)
