"""The lease inequality, in one place.

(a) The leader acknowledges a renewal only while at most TTL/3 has passed on its steady clock since the batch that
    recorded `renewed_led_ms` was decided.
(b) An agent counts its lease from when the acknowledged heartbeat was sent, and holds it to have ended after TTL.
(c) No leader ends a session before led time `renewed + TTL + TTL/3 + kill grace + margin`.

So an agent always knows first, also across leaderships, and no leader needs its predecessor's memory.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from stepward.server.core.rows import Lingering, Session, Step


def margin_ms(ttl_ms: int) -> int:
    """Room for the drift between two steady clocks: 1% of the TTL plus 500 ms."""
    return ttl_ms // 100 + 500


def session_end_led_ms(*, renewed_led_ms: int, ttl_ms: int, kill_grace_ms: int) -> int:
    """The led time from which on a session may be ended (rule c)."""
    return renewed_led_ms + ttl_ms + -(-ttl_ms // 3) + kill_grace_ms + margin_ms(ttl_ms)


def may_acknowledge(session: Session, *, epoch: int, steady_ms: int) -> bool:
    """Whether a renewal may be acknowledged without recording it first (rule a)."""
    return session.renewed_epoch == epoch and 0 <= steady_ms - session.renewed_steady_ms <= session.ttl_ms // 3


def record_age_ms(ttl_ms: int) -> int:
    """Age from which on a renewal is written to its row.

    Below the heartbeat interval of ttl/6, so that a heartbeat that comes a little early is still recorded, and the
    recorded renewal never grows as old as ttl/3 while heartbeats come.
    """
    return ttl_ms // 8


def heard_lately(session: Session, *, led_ms: int) -> bool:
    """Whether anything may be offered to the session: its recorded renewal is not older than TTL/3."""
    return led_ms - session.renewed_led_ms <= session.ttl_ms // 3


def fence_led_ms(*, led_ms: int, ttl_ms: int, kill_grace_ms: int) -> int:
    """The led time until which an attempt of a session that ended now may still act.

    Handlers of idempotent steps go on for one more TTL, so that a short leaderless time does not lose their work.
    """
    return led_ms + ttl_ms + kill_grace_ms


def may_act(attempt: Lingering) -> bool:
    """Whether an attempt that has ended for us may still act, and nothing but its agent's word or its end says when."""
    return not (attempt.lost or attempt.closed or attempt.asks)


def is_clear(step: Step, *, led_ms: int) -> bool:
    """Whether no attempt of the step that has ended for us can still act."""
    return led_ms >= step.fence_at_led_ms and not any(may_act(attempt) for attempt in step.lingering)
