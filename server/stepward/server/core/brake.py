"""The brake: how much the supervisor may change, so that a mistake about many at once does little harm.

Every remediation of a sweep takes a token. There are `remediations_burst_max` of them, and so many are refilled that no
minute sees more than `remediations_per_minute_max`. When many sessions are lost at once, or the first one under a new
leader, a few go first (the canaries), then all others are held for a while, and until whoever was given those has been
heard from: perhaps our own network is broken.
What is held stays due, is counted as overdue, and says until when.

What agents report is never held, nor what merely goes on: the end of a wait, a walk over steps, a session that lives.
All of it is in one row, on led time; a minute in which nobody led refills nothing.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Final, NamedTuple

from msgspec.structs import replace

from stepward.server.core import epoch_rows, epochs, keys, leases, rows, states
from stepward.server.core.brake_rows import Brake as BrakeRow
from stepward.server.core.brake_rows import Canary, Cause, Losses

if TYPE_CHECKING:
    from stepward.server.core.batch import Batch
    from stepward.server.core.limits import Limits
    from stepward.server.core.reader import Reader
    from stepward.server.core.rows import Session

# What one remediation takes. A millisecond refills as many units as remediations are refilled in a minute.
COST: Final = 60_000
# How soon to look again at what is held until a supervisor is trusted again: with the next beat.
LOCKED_LOOK_MS: Final = 1_000
# How soon to look again whether those who were given canaries have been heard from.
CANARY_LOOK_MS: Final = 1_000


class Hold(NamedTuple):
    """Why remediations wait, in words, and for how long (ms of led time)."""

    reason: str
    ends_in_ms: int


class Brake:
    """The brake for the length of one sweep. `taken` counts the remediations that it has let through."""

    def __init__(self, batch: Batch) -> None:
        self._batch = batch
        self._before = batch.draft.read(keys.BRAKE, BrakeRow)
        self._entered = self._row = _as_of_now(batch, self._before or BrakeRow())
        # Sessions that were open when this sweep looked at those that are lost.
        self._open = 0
        self.taken = 0
        # Several supervisors in a row were lost: nothing is remedied until one is trusted again (`epochs`).
        self.is_locked = epochs.remedies_nothing(batch)

    @property
    def lets_through(self) -> bool:
        """Whether a remediation may be taken now."""
        held = hold(self._row, led_ms=self._batch.moment.led_ms, limits=self._batch.limits)
        return held is None and not self.is_locked

    @property
    def left(self) -> int:
        """How many remediations may be taken one after the other."""
        if not self.lets_through:
            return 0
        left = self._batch.limits.remediations_burst_max - -(-self._row.spent // COST)
        return left if self._row.cause is Cause.NONE else min(left, self._row.canaries_left)

    @property
    def look_again_in_ms(self) -> int | None:
        """When what is held may go on; None: nothing has to wait."""
        if self.is_locked:
            return LOCKED_LOOK_MS
        held = hold(self._row, led_ms=self._batch.moment.led_ms, limits=self._batch.limits)
        return None if held is None else held.ends_in_ms

    def take(self, job_id: str, ordinal: int = -1, *, lost: bool = False) -> bool:
        """Take a token for one remediation, of a lost session's work or not. False: it is held, and stays as it is."""
        if not self.lets_through:
            return False
        self.taken += 1
        self._row = replace(self._row, spent=self._row.spent + COST)
        if self._row.cause is not Cause.NONE:
            self._row = self._with_canary(job_id, ordinal, lost=lost)
        return True

    def _with_canary(self, job_id: str, ordinal: int, *, lost: bool) -> BrakeRow:
        batch, row, canaries = self._batch, self._row, self._row.canaries
        step = batch.step(job_id, ordinal) if ordinal >= 0 else None
        if step is not None:
            # The loss that is being remedied is not counted in its row yet.
            canaries = (*canaries, Canary(job_id, ordinal, step.lease_losses + lost))
        left = row.canaries_left - 1
        until_led_ms = 0 if left else batch.moment.led_ms + batch.limits.brake_hold_ms
        return replace(row, canaries_left=left, canaries=canaries, hold_until_led_ms=until_led_ms)

    def look(self, lost: list[Session]) -> None:
        """Sessions are found lost: perhaps so many, in this batch and lately, that they are to be dealt with carefully.

        Those that are lost while the brake holds belong to what it holds for.
        """
        row, batch, limits = self._row, self._batch, self._batch.limits
        self._open = batch.draft.count(keys.SESSION)
        if not lost or self.is_locked or row.cause is not Cause.NONE:
            return
        if row.tried_epoch != batch.moment.epoch and any(_is_news_to_leader(batch, session) for session in lost):
            self._row = self._begun(Cause.NEW_LEADER, tried_epoch=batch.moment.epoch)
            return
        count = len(lost) + sum(each.lost for each in row.losses)
        open_ = row.losses[0].open if row.losses else self._open
        if count >= limits.mass_loss_sessions_min and 100 * count >= limits.mass_loss_percent_min * open_:
            self._row = self._begun(Cause.MASS_LOSS, tried_epoch=row.tried_epoch)

    def count_lost(self) -> None:
        """A session that was looked at is being ended now."""
        row, led_s = self._row, self._batch.moment.led_ms // 1_000
        if row.cause is not Cause.NONE:
            return
        *before, last = row.losses or (Losses(led_s, 0, self._open),)
        if last.at_led_s == led_s:
            losses = (*before, replace(last, lost=last.lost + 1))
        else:
            losses = (*before, last, Losses(led_s, 1, self._open))
        self._row = replace(row, losses=losses)

    def _begun(self, cause: Cause, *, tried_epoch: int) -> BrakeRow:
        return replace(
            self._row,
            losses=(),
            cause=cause,
            began_led_ms=self._batch.moment.led_ms,
            canaries_left=self._batch.limits.brake_canaries,
            canaries=(),
            hold_until_led_ms=0,
            tried_epoch=tried_epoch,
        )

    def savepoint(self) -> tuple[BrakeRow, int]:
        """Where to go back to when what took a token comes to nothing."""
        return self._row, self.taken

    def rollback(self, savepoint: tuple[BrakeRow, int]) -> None:
        """Give back what was taken since."""
        self._row, self.taken = savepoint

    def write(self, *, with_beat: bool) -> None:
        """Put the row if it says something new. A refill alone is not news.

        One that says nothing any more is deleted along with a beat, so that this costs no batch.
        """
        row, before = self._row, self._before
        if row == BrakeRow(led_ms=row.led_ms):
            if before is not None and with_beat:
                self._batch.draft.delete(keys.BRAKE)
        elif before is None or row != self._entered or _lasting(row) != _lasting(before):
            self._batch.draft.put(keys.BRAKE, row)


def _lasting(row: BrakeRow) -> BrakeRow:
    """A row without what time alone changes."""
    return replace(row, spent=0, led_ms=0)


def _as_of_now(batch: Batch, row: BrakeRow) -> BrakeRow:
    """A row with what has been refilled since, without losses that are too old, and without a cause that is over."""
    led_ms, limits = batch.moment.led_ms, batch.limits
    since_s = (led_ms - limits.mass_loss_window_ms) // 1_000
    row = replace(
        row,
        spent=max(0, row.spent - (led_ms - row.led_ms) * _refill(limits)),
        led_ms=led_ms,
        losses=tuple(each for each in row.losses if each.at_led_s > since_s),
        tried_epoch=row.tried_epoch if row.tried_epoch == batch.moment.epoch else 0,
    )
    if row.cause is Cause.NONE:
        return row
    if row.canaries_left:
        # Perhaps so few were to be remedied that nothing had to be held.
        return _over(row) if led_ms - row.began_led_ms >= limits.mass_loss_window_ms else row
    if led_ms < row.hold_until_led_ms:
        return row
    fates = {_fate(batch, canary) for canary in row.canaries}
    if _Fate.LOST in fates:
        return replace(row, began_led_ms=led_ms, canaries_left=limits.brake_canaries, canaries=(), hold_until_led_ms=0)
    return replace(row, hold_until_led_ms=led_ms + CANARY_LOOK_MS) if _Fate.OPEN in fates else _over(row)


def _over(row: BrakeRow) -> BrakeRow:
    """Nothing is held any more but by the rate."""
    return replace(row, cause=Cause.NONE, began_led_ms=0, canaries_left=0, canaries=(), hold_until_led_ms=0)


class _Fate(Enum):
    """What has become of what was let through."""

    WELL = 1
    # It was given to a session that has not been heard from since, and may yet be.
    OPEN = 2
    LOST = 3


def _fate(batch: Batch, canary: Canary) -> _Fate:
    """Whether what was let through has been lost with another session since. What is gone has ended.

    A lease that ends shows that only after a TTL and a third, long after the others would have been let go. Whoever was
    given a canary and has not been heard from for a third of a TTL counts as lost, too, until his lease has ended.
    """
    step = batch.step(canary.job_id, canary.ordinal)
    if step is None:
        return _Fate.WELL
    if step.lease_losses > canary.lease_losses:
        return _Fate.LOST
    if step.state not in states.HELD:
        return _Fate.WELL
    session = batch.draft.require(keys.session(step.session_id), rows.Session)
    key = keys.assignment(step.session_id, step.token, canary.job_id, canary.ordinal)
    if not leases.heard_lately(session, led_ms=batch.moment.led_ms):
        return _Fate.LOST
    was_heard = session.renewed_led_ms > batch.draft.require(key, rows.Assignment).offered_led_ms
    return _Fate.WELL if was_heard else _Fate.OPEN


def _is_news_to_leader(batch: Batch, session: Session) -> bool:
    """Whether a leader that has heard little so far lost a session: perhaps it is the leader that hears nothing."""
    if session.renewed_epoch != batch.moment.epoch:
        return True
    opened = batch.draft.read(keys.EPOCH, epoch_rows.Epoch)
    return opened is not None and batch.moment.log_ms - opened.log_ms < batch.limits.brake_new_leader_ms


def _refill(limits: Limits) -> int:
    """Remediations that a minute refills. With a full burst before it no minute sees more than the bound."""
    return limits.remediations_per_minute_max - limits.remediations_burst_max


def hold(row: BrakeRow, *, led_ms: int, limits: Limits) -> Hold | None:
    """Why no remediation may be taken now; None: one may."""
    if led_ms < row.hold_until_led_ms:
        left_ms = row.hold_until_led_ms - led_ms
        if row.cause is Cause.NEW_LEADER:
            text = "a session was lost under a leader that had only begun"
        else:
            text = "many sessions were lost at once"
        return Hold(f"{text}: {len(row.canaries)} steps went first, the others wait for what comes of them", left_ms)
    spent = max(0, row.spent - (led_ms - row.led_ms) * _refill(limits))
    missing = spent + COST - limits.remediations_burst_max * COST
    if missing <= 0:
        return None
    most, at_once = limits.remediations_per_minute_max, limits.remediations_burst_max
    return Hold(f"at most {most} remediations a minute, and {at_once} at once", -(-missing // _refill(limits)))


class Standing(NamedTuple):
    """How the brake stands, for those who ask. `used` is what was taken and has not been refilled."""

    on: Hold | None
    used: int


def standing(reader: Reader, *, led_ms: int, limits: Limits) -> Standing:
    """How the brake stands at an instant of led time."""
    row = reader.get(keys.BRAKE)
    if row is None:
        return Standing(None, 0)
    assert isinstance(row, BrakeRow), type(row)
    spent = max(0, row.spent - (led_ms - row.led_ms) * _refill(limits))
    return Standing(hold(row, led_ms=led_ms, limits=limits), -(-spent // COST))
