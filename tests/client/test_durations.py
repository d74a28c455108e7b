"""Durations as people write them."""

from __future__ import annotations

import re

import pytest

from stepward.client.durations import DURATION_MS_MAX, format_duration, parse_duration


@pytest.mark.parametrize(
    ("text", "expected_ms"),
    [
        ("500ms", 500),
        ("30s", 30_000),
        ("5m", 300_000),
        ("5min", 300_000),
        ("2h", 7_200_000),
        ("1d", 86_400_000),
        ("0s", 0),
        # Parts add up, and fractions are exact.
        ("1h30m", 5_400_000),
        ("1h 30m", 5_400_000),
        ("1.5s", 1_500),
        ("0.001s", 1),
        ("3650000d", DURATION_MS_MAX),
    ],
)
def test_parse(text: str, expected_ms: int) -> None:
    """A number and its unit, several of them if you like."""
    assert round(parse_duration(text).total_seconds() * 1000) == expected_ms


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("30", "30 has no unit; write 30s for seconds, or 30ms"),
        ("1.5", "1.5 has no unit"),
        ("", "'' is not a duration"),
        ("s", "'s' is not a duration"),
        ("-1s", "'-1s' is negative"),
        ("5 parsecs", "unknown unit 'parsecs' in '5 parsecs'; the units are ms, s, m, min, h, d"),
        ("1s2", "'1s2' is not a duration"),
        ("1s!", "'1s!' is not a duration"),
        ("1S", "'1S' is not a duration"),
        ("0.5ms", "finer than a millisecond"),
        ("3650001d", "too long; at most 3650000d"),
    ],
)
def test_parse_refuses(text: str, complaint: str) -> None:
    """The message says what to write instead."""
    with pytest.raises(ValueError, match=re.escape(complaint)):
        parse_duration(text)


@pytest.mark.parametrize("text", ["0s", "500ms", "30s", "1m30s", "1h30m", "1d", "2d1h5m7s9ms"])
def test_format(text: str) -> None:
    """What is written is what was read."""
    assert format_duration(parse_duration(text)) == text


@pytest.mark.parametrize(
    ("text", "shorter"), [("90s", "1m30s"), ("5400s", "1h30m"), ("0.500s", "500ms"), ("24h", "1d")]
)
def test_format_is_short(text: str, shorter: str) -> None:
    """As a person would write it."""
    assert format_duration(parse_duration(text)) == shorter
