"""Durations as people write them: "500ms", "30s", "5m", "1h30m", "1d"."""

from __future__ import annotations

import re
from datetime import timedelta
from decimal import Decimal

UNITS_MS = {"ms": 1, "s": 1_000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}

# More than the contract's Duration can hold is a slip of the finger in any case.
DURATION_MS_MAX = 10_000 * 365 * 86_400_000

_PART = re.compile(r"(\d+(?:\.\d+)?)\s*([a-z]+)\s*")
_EXAMPLES = 'such as "500ms", "30s", "5m", "1h30m" or "1d"'


def parse_duration(text: str) -> timedelta:
    """The duration that a text stands for, in whole milliseconds.

    Raises:
        ValueError: It is none; the message says what is wrong.
    """
    total_ms, position = Decimal(0), 0
    for part in _PART.finditer(text):
        if part.start() != position:
            break
        number, unit = part.groups()
        if unit not in UNITS_MS:
            raise ValueError(f"unknown unit {unit!r} in {text!r}; the units are {', '.join(UNITS_MS)}")
        total_ms += Decimal(number) * UNITS_MS[unit]
        position = part.end()
    if position != len(text) or not text:
        raise ValueError(_complaint(text))
    if total_ms != int(total_ms):
        raise ValueError(f"{text!r} is finer than a millisecond; write whole milliseconds")
    if total_ms > DURATION_MS_MAX:
        raise ValueError(f"{text!r} is too long; at most {DURATION_MS_MAX // UNITS_MS['d']}d")
    return timedelta(milliseconds=int(total_ms))


def format_duration(duration: timedelta) -> str:
    """The shortest text that `parse_duration` gives back as this duration, in whole milliseconds."""
    left_ms = round(duration.total_seconds() * 1000)
    parts = []
    for unit in ("d", "h", "m", "s", "ms"):
        number, left_ms = divmod(left_ms, UNITS_MS[unit])
        if number:
            parts.append(f"{number}{unit}")
    return "".join(parts) or "0s"


def _complaint(text: str) -> str:
    if re.fullmatch(r"\d+(\.\d+)?", text):
        return f"{text} has no unit; write {text}s for seconds, or {text}ms"
    if text.startswith("-"):
        return f"{text!r} is negative; a duration is {_EXAMPLES}"
    return f"{text!r} is not a duration; write one {_EXAMPLES}"
