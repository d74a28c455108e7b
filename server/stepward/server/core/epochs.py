"""Leaderships and their supervisors: which have lost theirs, and what follows when several in a row have.

All of it is told by rows. The beat says when a supervisor was last at work. While none is, the node that leads has its
watch written down, which moves the clocks on; so the batch that opens the next leadership can see whether this one
had no supervisor, whoever decides it and whatever he remembers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from stepward.server.core import keys, rows
from stepward.server.core.commands import SilenceWatched
from stepward.server.core.epoch_rows import Epoch

if TYPE_CHECKING:
    from stepward.server.core.batch import Batch
    from stepward.server.core.clocks import Clocks
    from stepward.server.core.commands import WatchSilence
    from stepward.server.core.reader import Reader
    from stepward.server.core.rows import Beat, Head

# A leadership whose supervisor has not beaten for so long, of led time, has lost it. A beat comes every second.
SILENCE_MS_MAX: Final = 3_000
# After so many of these within so long, of log time, the next leader would most likely lose its own, too.
LOST_MAX: Final = 3
LOST_WINDOW_MS: Final = 60_000
# For so long, of led time, supervisors have to beat without a gap before they are trusted again.
GOOD_MS: Final = 60_000


def opened(reader: Reader, head: Head, *, epoch: int, clocks: Clocks) -> Epoch:
    """The row of a leadership that begins with `clocks` behind `head`."""
    before = reader.get(keys.EPOCH)
    if not isinstance(before, Epoch):
        return Epoch(epoch, clocks.log_ms, led_ms=clocks.led_ms)
    lost = recent(before, clocks.log_ms)
    if has_lost_supervisor(before, reader.get(keys.BEAT), head):
        lost = (*lost, head.log_ms)[-LOST_MAX:]
    return Epoch(
        epoch,
        clocks.log_ms,
        led_ms=clocks.led_ms,
        lost_log_ms=lost,
        stays=before.stays or len(lost) >= LOST_MAX,
    )


def has_lost_supervisor(epoch: Epoch, beat: object, head: Head) -> bool:
    """Whether a leadership had no supervisor at its last batch: it had led for long since the last beat of its own."""
    assert beat is None or isinstance(beat, rows.Beat), beat
    return head.led_ms - _last_sign_led_ms(epoch, beat) >= SILENCE_MS_MAX


def recent(epoch: Epoch, log_ms: int) -> tuple[int, ...]:
    """When leaderships of the last minute before `log_ms` have ended without a supervisor."""
    return tuple(lost_ms for lost_ms in epoch.lost_log_ms if lost_ms > log_ms - LOST_WINDOW_MS)


def watch_silence(batch: Batch, command: WatchSilence) -> SilenceWatched:
    """Note that the node which leads has seen no beat until now. Nothing when there was one since it looked."""
    epoch = batch.draft.require(keys.EPOCH, Epoch)
    beat = batch.draft.read(keys.BEAT, rows.Beat)
    silent_ms = batch.moment.led_ms - _last_sign_led_ms(epoch, beat)
    if silent_ms >= command.silent_ms_min:
        batch.draft.put(keys.EPOCH, replace(epoch, watched_led_ms=batch.moment.led_ms))
    return SilenceWatched(silent_ms)


def remedies_nothing(batch: Batch) -> bool:
    """Whether supervisors are not trusted at present: what they would remedy stays due."""
    epoch = batch.draft.read(keys.EPOCH, Epoch)
    return epoch is not None and epoch.stays


def beating_since_led_ms(batch: Batch, before: Beat) -> int:
    """Since when beats have come without a gap, the one of this batch among them.

    Led time tells that over a change of leaders, too: one that has lost its supervisor leaves a gap, and where
    leadership moves every minute for another reason a minute within one would never come.
    """
    led_ms = batch.moment.led_ms
    return before.since_led_ms if led_ms - before.led_ms < SILENCE_MS_MAX else led_ms


def trust_again(batch: Batch, beat: Beat) -> None:
    """Forget lost supervisors once others have beaten for a good minute. Called while leadership stays."""
    if beat.led_ms - beat.since_led_ms >= GOOD_MS:
        epoch = batch.draft.require(keys.EPOCH, Epoch)
        batch.draft.put(keys.EPOCH, replace(epoch, lost_log_ms=(), stays=False))


def _last_sign_led_ms(epoch: Epoch, beat: Beat | None) -> int:
    """When the supervisor of a leadership was last known to be at work; it has until then to begin."""
    return beat.led_ms if beat is not None and beat.epoch == epoch.epoch else epoch.led_ms
