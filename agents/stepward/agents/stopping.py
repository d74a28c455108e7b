"""When a handler is stopped, and when the process must end because one does not stop.

Two clocks meet here. After the end of a lease the cluster waits a known time before it gives the work to another, so
the process must be gone by then, whatever its other handlers do. After a cancel or at a drain nobody is given
the work before this agent says that the handler has ended: a deaf handler costs time, not safety, so its
neighbours may finish before the process ends.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from stepward.agents.attempts import Attempt
from stepward.agents.stops import StopReason

# After a pause in which everything came due at once, what is cancelled gets this long to hear of it.
KILL_TURN_MS: Final = 100

# How long a drain waits for answers after the last handler has ended.
ANSWERS_MS_MAX: Final = 5_000

# A handler that ignores these may use up the attempt's own time: the job has agreed to wait that long for it.
_PATIENT_REASONS: Final = frozenset({StopReason.JOB_ENDING, StopReason.STALE, StopReason.LEASE_LOST})


@dataclass(slots=True)
class Drain:
    """An agent that takes nothing more and ends."""

    deadline_ms: int
    """Until then handlers may finish."""
    exit_code: int
    told_at_ms: int | None = None
    """When the node of the present stream was told. None: not yet."""
    idle_since_ms: int | None = None
    """Since when no handler runs that could still end by itself."""
    probe_number: int | None = None
    """Heartbeats from this number on were sent when nothing was held any more."""
    probed_at_ms: int = 0
    settled: bool = False
    """The cluster agrees that this session holds nothing."""


def stop_due_at_ms(attempt: Attempt, *, ttl_ms: int) -> int | None:
    """When a handler whose lease has ended is cancelled. None: its lease runs.

    An idempotent one may go on for one more TTL, so that a short time without a leader does not lose its work.
    """
    if attempt.lease_ended_at_ms is None:
        return None
    return attempt.lease_ended_at_ms + (ttl_ms if attempt.offer.idempotent else 0)


def kill_due_at_ms(attempt: Attempt, *, ttl_ms: int, kill_grace_ms: int) -> int:
    """When the process of a handler that was cancelled is killed: half of the grace before anything else must end."""
    due_at_ms = attempt.stopped_at_ms
    lost_at_ms = stop_due_at_ms(attempt, ttl_ms=ttl_ms)
    if lost_at_ms is not None:
        # After a pause this may be long ago.
        due_at_ms = min(due_at_ms, lost_at_ms)
    return due_at_ms + kill_grace_ms // 2


def must_end_process(attempt: Attempt, *, now_ms: int, ttl_ms: int, kill_grace_ms: int) -> bool:
    """Whether a handler whose lease has ended still runs when the cluster may give its work to another."""
    due_at_ms = stop_due_at_ms(attempt, ttl_ms=ttl_ms)
    if due_at_ms is None or attempt.stop_reason is None:
        return False
    return now_ms >= max(due_at_ms + kill_grace_ms, attempt.stopped_at_ms + KILL_TURN_MS)


def is_deaf(attempt: Attempt, *, now_ms: int, kill_grace_ms: int, drain: Drain | None) -> bool:
    """Whether a handler was cancelled and is not expected to end any more."""
    if attempt.stop_reason is None:
        return False
    until_ms = attempt.stopped_at_ms + kill_grace_ms
    if attempt.stop_reason in _PATIENT_REASONS:
        until_ms = max(until_ms, attempt.deadline_ms)
    if drain is not None:
        until_ms = min(until_ms, max(attempt.stopped_at_ms, drain.deadline_ms) + kill_grace_ms)
    return now_ms >= until_ms
