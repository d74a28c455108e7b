"""How long a call may wait inside."""

from __future__ import annotations

from typing import Final

# A wait ends this long before the deadline of its call, so that the answer still arrives.
DEADLINE_MARGIN_S: Final = 0.1


def seconds_left(remaining_s: float | None) -> float | None:
    """How long to wait at most, of what remains until a call's deadline. None: it has none."""
    if remaining_s is None:
        return None
    return max(0.0, remaining_s - min(DEADLINE_MARGIN_S, remaining_s / 10))
