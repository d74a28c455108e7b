"""What is worse is told at once, what is better when it has lasted."""

from __future__ import annotations

import pytest

from stepward.client.watchdog.settling import CALM_S, Settled
from stepward.client.watchdog.verdicts import Kind, Level, Reason, Verdict

WELL, WARNING, CRITICAL, UNKNOWN = Level.WELL, Level.WARNING, Level.CRITICAL, Level.UNKNOWN


def verdict(level: Level) -> Verdict:
    return Verdict(() if level is WELL else (Reason(Kind.BRAKE, level, "why"),))


@pytest.mark.parametrize(
    ("seen", "told"),
    [
        # The first proof counts at once, in both directions.
        ([(0, WELL)], [WELL]),
        ([(0, UNKNOWN), (1, WELL)], [WELL]),
        ([(0, CRITICAL)], [CRITICAL]),
        ([(0, UNKNOWN)], []),
        # Worse at once.
        ([(0, WELL), (1, WARNING), (2, CRITICAL)], [WELL, WARNING, CRITICAL]),
        ([(0, WELL), (1, UNKNOWN)], [WELL, UNKNOWN]),
        # Better when it has lasted, to the level that it is then.
        ([(0, CRITICAL), (1, WELL), (1 + CALM_S - 0.1, WELL)], [CRITICAL]),
        ([(0, CRITICAL), (1, WELL), (1 + CALM_S, WELL)], [CRITICAL, WELL]),
        ([(0, CRITICAL), (1, WELL), (1 + CALM_S, WARNING)], [CRITICAL, WARNING]),
        # What flickers stays at its worst.
        ([(0, CRITICAL), (1, WELL), (4, CRITICAL), (5, WELL), (6 + CALM_S - 2, WELL)], [CRITICAL]),
        ([(0, WELL), (1, UNKNOWN), (2, WELL), (2 + CALM_S, WELL)], [WELL, UNKNOWN, WELL]),
    ],
)
def test_settled(seen: list[tuple[float, Level]], told: list[Level]) -> None:
    settled = Settled()
    changes = [settled.level for at_s, level in seen if settled.take(verdict(level), at_s)]

    assert changes == told
