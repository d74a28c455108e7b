"""What is due by the rows of one replica: counted by whoever wants to know, without asking a supervisor."""

from __future__ import annotations

from collections import Counter
from itertools import islice
from typing import TYPE_CHECKING, Final

from msgspec import Struct

from stepward.server.core import keys, rows, states
from stepward.server.core.rows import Clock

if TYPE_CHECKING:
    from collections.abc import Iterator

    from stepward.server.core.reader import Reader

# A supervisor at work sweeps each second at latest. What has been due for longer is overdue.
OVERDUE_MS: Final = 1_000
# Timers that are counted: more are as bad, and every node counts each second, on its loop: so many take some 5 ms. And
# those of them whose subject is looked at, which costs a read.
COUNTED_MAX: Final = 2_000
TOLD_APART_MAX: Final = 200

_KINDS: Final = {
    keys.TIMER_SESSION: "LEASE",
    keys.TIMER_PASS: "PASS",
    keys.TIMER_SPREAD: "SPREAD",
    keys.TIMER_DEADLINE: "DEADLINE",
}
# In which order they are told, always all of them, so that a gauge goes back to 0.
KINDS: Final = ("LEASE", "QUEUE", "OFFER", "RUNNING", "RETRY", "SETTLING", "PASS", "SPREAD", "DEADLINE")


class Due(Struct, frozen=True):
    """Timers that are due, and those of them that a supervisor at work would have dealt with.

    `oldest_ms` is for how long the first of these has been due. `by_kind` tells the oldest ones apart.
    """

    due: int = 0
    overdue: int = 0
    oldest_ms: int = 0
    by_kind: dict[str, int] = {}


def look(reader: Reader, *, led_ms: int, log_ms: int) -> Due:
    """What is due at these instants."""
    due = overdue = oldest_ms = 0
    by_kind: Counter[str] = Counter()
    for clock, duty in keys.TIMER_QUEUES:
        timers, now_ms = keys.timers(clock, duty), led_ms if clock is Clock.LED else log_ms
        for key, late_ms in islice(_due(reader, timers, now_ms), COUNTED_MAX - due):
            due += 1
            if late_ms <= OVERDUE_MS:
                continue
            overdue += 1
            oldest_ms = max(oldest_ms, late_ms)
            if by_kind.total() < TOLD_APART_MAX:
                by_kind[_kind(reader, key)] += 1
    return Due(due, overdue, oldest_ms, dict(by_kind))


def _due(reader: Reader, timers: bytes, now_ms: int) -> Iterator[tuple[bytes, int]]:
    """Timers of one queue that are due, the oldest first, and for how long each has been."""
    for key in reader.scan(timers):
        at_ms = keys.parse_timer(key)[0]
        if at_ms > now_ms:
            return
        yield key, now_ms - at_ms


def _kind(reader: Reader, key: bytes) -> str:
    """What a timer is about."""
    _, kind, subject = keys.parse_timer(key)
    if kind != keys.TIMER_STEP:
        return _KINDS[kind]
    step = reader.get(keys.step(*keys.parse_subject(subject)))
    assert isinstance(step, rows.Step), key
    phase = states.phase(step.state)
    if step.state is phase.ready:
        return "QUEUE"
    if step.state is phase.offered:
        return "OFFER"
    if step.state is phase.running:
        return "RUNNING"
    return "RETRY" if step.state is phase.retry_wait else "SETTLING"
