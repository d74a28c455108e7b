"""Three clocks that only batches move: led time, log time and wall time (ms).

Led time counts only while an epoch is open: session and lease ends run on it, so no lease dies in a leaderless gap.
Log time adds the gaps: timeouts and retry waits run on it. Wall time is for display and never goes backwards.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from msgspec import Struct

if TYPE_CHECKING:
    from stepward.server.core.rows import Head

# One batch moves led time by at most this. What is longer was a pause of the process, in which it heard no
# heartbeats; it goes to log time only.
LED_STEP_MS_MAX: Final = 2_000


class Clocks(Struct, frozen=True):
    """The three clocks of one batch."""

    led_ms: int
    log_ms: int
    wall_ms: int


def advance(head: Head, *, steady_ms: int, wall_ms: int) -> Clocks:
    """The clocks of the next batch within an epoch. `steady_ms` is on the same clock as the head's."""
    passed_ms = max(0, steady_ms - head.decided_steady_ms)
    return Clocks(
        led_ms=head.led_ms + min(passed_ms, LED_STEP_MS_MAX),
        log_ms=head.log_ms + passed_ms,
        wall_ms=max(head.wall_ms, wall_ms),
    )


def reopen(head: Head, *, gap_ms: int, wall_ms: int) -> Clocks:
    """The clocks of the batch that opens an epoch, so long after the head was decided: the gap goes to log time only.

    Nobody led and nobody was heard meanwhile, so no lease has grown older. How long it was is never overestimated:
    see `logbook.gap`.
    """
    assert gap_ms >= 0, gap_ms
    return Clocks(led_ms=head.led_ms, log_ms=head.log_ms + gap_ms, wall_ms=max(head.wall_ms, wall_ms))
