"""Sees to it that a node which leads has a supervisor at work, or leads no more.

A supervisor that dies in silence is what this pattern fails by: what succeeds at the first try goes on, and what hangs
stays hung. So nothing here asks the supervisor how it is. What counts is the beat in the rows.
"""

from __future__ import annotations

import asyncio
from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING, Final

from stepward.server import observe
from stepward.server.core import epoch_rows, epochs, keys
from stepward.server.core.commands import SilenceWatched, WatchSilence
from stepward.server.core.rows import Beat
from stepward.server.logbook.outbox import Transfer, Transferred
from stepward.server.reading import changed

if TYPE_CHECKING:
    from collections.abc import Callable

    from stepward.server.clock import Clock
    from stepward.server.logbook.outbox import Applied, Standing
    from stepward.server.observe import Counters
    from stepward.server.shard import Shard
    from stepward.server.supervisor import Supervisor

# How often the leader looks whether its supervisor beats: what is missed is noticed so much later.
LOOK_MS: Final = 250
LOOK_S: Final = LOOK_MS / 1_000
# A beat is due every second. Without one for so long the silence is written down at each look, which keeps the clocks
# going and tells the next leader about it.
WATCHED_MS: Final = 1_500
# After so long without a beat, of led time, this node leads no more.
GIVE_UP_MS: Final = 4_000
# A supervisor that has ended is begun again after so long, as a sweep that failed is.
RESTART_MS: Final = 200
# The same once leadership has moved too often for want of a supervisor; also for one that does not beat.
RESTART_STAYING_MS: Final = 5_000

_log = observe.logger("oversight")


class SupervisorState(StrEnum):
    """How the supervisor of this node is; the names are the contract's."""

    NOT_STARTED = "NOT_STARTED"
    RUNNING = "RUNNING"
    FAILING = "FAILING"
    STALLED = "STALLED"


class Oversight:
    """Binds a supervisor to each leadership of one node, and watches its beat. Belongs to the loop."""

    def __init__(
        self,
        shard: Shard,
        *,
        make: Callable[[int], Supervisor],
        clock: Clock,
        counters: Counters,
        is_alone: bool,
        on_begun: Callable[[], None],
        on_fatal: Callable[[str], None],
    ) -> None:
        """`make` gives a supervisor for an epoch. `on_begun` is told when one of them is at work for the first time.

        `on_fatal` is told why this node cannot go on: it leads without a supervisor, and no other node can lead.
        """
        self._shard = shard
        self._make = make
        self._clock = clock
        self._counters = counters
        self._is_alone = is_alone
        self._on_begun = on_begun
        self._on_fatal = on_fatal
        self._epoch = 0
        self._supervisor: Supervisor | None = None
        self._supervision: asyncio.Task[None] | None = None
        self._watch: asyncio.Task[None] | None = None
        self._began_at_ms = self._beat_at_ms = clock.steady_ms()

    @property
    def state(self) -> SupervisorState | None:
        """How the supervisor is; None while this node does not lead."""
        if not self._epoch:
            return None
        supervisor, supervision = self._supervisor, self._supervision
        if supervision is None or supervision.done() or (supervisor is not None and supervisor.failures):
            return SupervisorState.FAILING
        if supervisor is None or supervisor.answered_at_ms is None:
            return SupervisorState.NOT_STARTED
        silent_ms = self._clock.steady_ms() - supervisor.answered_at_ms
        return SupervisorState.STALLED if silent_ms >= epochs.SILENCE_MS_MAX else SupervisorState.RUNNING

    @property
    def supervises(self) -> bool:
        """Whether this node leads and its supervisor of this epoch is at work, be it that its last sweep failed."""
        answered_at_ms = None if self._supervisor is None else self._supervisor.answered_at_ms
        if not self._epoch or answered_at_ms is None:
            return False
        return self._clock.steady_ms() - answered_at_ms < epochs.SILENCE_MS_MAX

    def on_standing(self, standing: Standing) -> None:
        """Begin with each epoch that this node opens, and end with it."""
        epoch = standing.epoch if standing.leads else 0
        if epoch == self._epoch:
            return
        self._end()
        self._epoch = epoch
        if epoch:
            self._beat_at_ms = self._clock.steady_ms()
            self._begin()
            self._watch = asyncio.create_task(self._look_after(epoch))
            self._watch.add_done_callback(partial(self._on_watch_ended, epoch))

    def on_applied(self, applied: Applied) -> None:
        """Hear beats, and let the supervisor hear of timers."""
        if not self._epoch:
            return
        for _, row in changed(applied, keys.BEAT):
            if isinstance(row, Beat) and row.epoch == self._epoch:
                self._beat_at_ms = self._clock.steady_ms()
        if self._supervisor is not None:
            self._supervisor.on_applied(applied)

    async def stop(self) -> None:
        """End supervisor and watch, and wait for them."""
        tasks = [task for task in (self._watch, self._supervision) if task is not None]
        self._end()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _end(self) -> None:
        self._epoch = 0
        for task in (self._watch, self._supervision):
            if task is not None:
                task.cancel()
        self._watch = self._supervision = self._supervisor = None

    # The supervisor.

    def _begin(self) -> None:
        """Begin a supervisor for this epoch; the one before it, if any, ends."""
        if self._supervision is not None:
            self._supervision.cancel()
        self._supervisor, self._began_at_ms = None, self._clock.steady_ms()
        self._supervision = asyncio.create_task(self._supervise(self._epoch))
        self._supervision.add_done_callback(partial(self._on_supervision_ended, self._epoch))

    async def _supervise(self, epoch: int) -> None:
        self._supervisor = supervisor = self._make(epoch)
        await supervisor.run(on_begun=self._on_begun)

    def _on_supervision_ended(self, epoch: int, supervision: asyncio.Task[None]) -> None:
        """A supervisor ends with its epoch; any other end is a failure, and another one is begun at the next look."""
        if epoch != self._epoch or supervision is not self._supervision or not self._shard.leads:
            return
        self._counters.supervisor_failures += 1
        error = None if supervision.cancelled() else supervision.exception()
        _log.error("supervisor_ended_early", epoch=epoch, cancelled=supervision.cancelled(), exc_info=error)

    def _revive(self, *, stays: bool) -> None:
        """Begin another supervisor when this one has ended; or when it only hangs, and leadership stays here."""
        since_ms = self._clock.steady_ms() - self._began_at_ms
        silent_ms = self._clock.steady_ms() - self._beat_at_ms
        has_ended = self._supervision is None or self._supervision.done()
        if not stays and has_ended and since_ms >= RESTART_MS:
            self._begin()
        elif stays and since_ms >= RESTART_STAYING_MS and (has_ended or silent_ms >= GIVE_UP_MS):
            _log.warning("supervisor_begun_again", epoch=self._epoch, silent_ms=silent_ms)
            self._begin()

    # The watch.

    async def _look_after(self, epoch: int) -> None:
        """Look whether beats come, until the epoch is over."""
        while self._epoch == epoch:
            await asyncio.sleep(LOOK_S)
            if self._clock.steady_ms() - self._beat_at_ms >= WATCHED_MS:
                await self._look_at_silence(epoch)
            elif self._supervision is None or self._supervision.done():
                self._revive(stays=self._stays())

    async def _look_at_silence(self, epoch: int) -> None:
        """No beat has come for longer than usual: have that written down, and draw conclusions from what is written."""
        answer = await self._shard.call_here(WatchSilence(WATCHED_MS))
        if self._epoch != epoch or not isinstance(answer, SilenceWatched):
            # Nothing can be decided at present: the disk is full, say. So no supervisor could do anything either.
            return
        stays = self._stays()
        if answer.silent_ms >= GIVE_UP_MS and not stays:
            await self._give_up(epoch, answer.silent_ms)
        else:
            self._revive(stays=stays)

    async def _give_up(self, epoch: int, silent_ms: int) -> None:
        """Let another node lead, whose supervisor may work."""
        reason = f"the supervisor has given no sign of life for {silent_ms} ms of its leadership; it is {self.state}"
        _log.error("supervisor_lost", epoch=epoch, silent_ms=silent_ms, state=self.state)
        if self._is_alone:
            self._on_fatal(reason)
            return
        self._counters.supervisors_lost += 1
        answer = await self._shard.ask(Transfer)
        if self._epoch == epoch:
            _log.warning("leadership_stays", epoch=epoch, answer=str(answer))
            self._shard.stand_down()
        elif isinstance(answer, Transferred):
            _log.info("leadership_given_up", epoch=epoch, leader_id=answer.leader_id)

    def _stays(self) -> bool:
        with self._shard.committed() as reader:
            row = reader.get(keys.EPOCH)
        return isinstance(row, epoch_rows.Epoch) and row.stays

    def _on_watch_ended(self, epoch: int, watch: asyncio.Task[None]) -> None:
        """Nobody would notice any more that the supervisor is gone."""
        if epoch == self._epoch and self._shard.leads:
            error = None if watch.cancelled() else watch.exception()
            self._on_fatal(f"the watch over the supervisor ended before its epoch: {error!r}")
