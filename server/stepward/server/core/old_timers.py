"""Timers as version 0.1.0 kept them, in one queue a clock, whatever they were for; a sweep moves them to their places.

Such a key has an instant where ours have the duty. Ours is never 0; the first byte of an instant always is.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Final

from stepward.server.core import keys, rows, states
from stepward.server.core.rows import Clock

if TYPE_CHECKING:
    from stepward.server.core.batch import Batch

# Those that one sweep moves.
_SLICE: Final = 1_000


def take_over(batch: Batch) -> None:
    """Move what is left of them. A timer that nothing names any more goes."""
    for clock in (Clock.LED, Clock.LOG):
        found = list(islice(batch.draft.keys(keys.TIMER + bytes((clock, 0))), _SLICE + 1))
        for key in found[:_SLICE]:
            batch.draft.delete(key)
            now = _key_now(batch, clock, key)
            if now is not None:
                batch.draft.put(now, rows.Timer())
        batch.unfinished |= len(found) > _SLICE


def _key_now(batch: Batch, clock: Clock, key: bytes) -> bytes | None:
    at_ms, kind, subject = int.from_bytes(key[2:10], "big"), key[10:11], key[11:]
    match kind:
        case keys.TIMER_SESSION:
            session = batch.draft.read(keys.session(subject.decode()), rows.Session)
            return None if session is None else keys.session_timer(at_ms, subject.decode(), ending=session.ending)
        case keys.TIMER_STEP:
            job_id, ordinal = keys.parse_subject(subject)
            step = batch.step(job_id, ordinal)
            named = step is not None and (step.timer_clock, step.timer_at_ms) == (clock, at_ms)
            return states.timer_key(job_id, ordinal, step) if step is not None and named else None
        case _:
            duty = keys.Duty.JUDGE if kind == keys.TIMER_DEADLINE else keys.Duty.WAKE
            return keys.timers_from(clock, duty, at_ms) + kind + subject
