"""What is stored of a leadership."""

from __future__ import annotations

from stepward.server.core.rows import Row


class Epoch(Row, frozen=True):
    """When the leadership that is at work began (`L`): before that nobody could hear anything for a while.

    `lost_log_ms` are ends of earlier leaderships that had lost their supervisor, the newest ones of the last minute.
    `stays`: there were so many of them that leadership does not move any more for want of a supervisor, and nothing is
    remedied until one has worked for a while. `watched_led_ms` is until when its node has seen that no beat came.
    """

    epoch: int
    log_ms: int
    led_ms: int = 0
    lost_log_ms: tuple[int, ...] = ()
    stays: bool = False
    watched_led_ms: int = 0
