"""The verdict of one node about supervision: a table."""

from __future__ import annotations

import pytest

from stepward.server.core import breakers
from stepward.server.core.brake import Hold, Standing
from stepward.server.core.due import Due
from stepward.server.supervision_health import CRITICAL_MS, WARNING_MS, Findings, Health, judge

S = 1_000


@pytest.mark.parametrize(
    ("findings", "silent_ms", "leaderless_ms", "health", "reason"),
    [
        (Findings(), 0, 0, Health.WELL, ""),
        (Findings(), WARNING_MS - 1, CRITICAL_MS - 1, Health.WELL, ""),
        (Findings(), WARNING_MS, 0, Health.WARNING, "no sign of life for 3000 ms"),
        (Findings(), CRITICAL_MS - 1, 0, Health.WARNING, "no sign of life for 7999 ms"),
        (Findings(), CRITICAL_MS, 0, Health.CRITICAL, "no sign of life for 8000 ms"),
        (Findings(), 0, CRITICAL_MS, Health.CRITICAL, "no leader has been heard of for 8000 ms"),
        (Findings(epochs_lost=1), 0, 0, Health.WARNING, "1 of the leaderships of the last 60 s lost their supervisor"),
        (Findings(epochs_lost=3, stays=True), 0, 0, Health.CRITICAL, "nothing is remedied"),
        # Late in clearing it: the lost ones are long ago, but no supervisor has had a good minute.
        (Findings(epochs_lost=0, stays=True), 0, 0, Health.CRITICAL, "nothing is remedied"),
        (
            Findings(breakers=(breakers.Standing("default", "q", "pay", "20 of 20 attempts failed", 9),)),
            0,
            0,
            Health.WARNING,
            "the breaker of action 'pay' is open: 20 of 20 attempts failed",
        ),
        (
            Findings(brake=Standing(Hold("too many", 9), 100), held=7),
            0,
            0,
            Health.WARNING,
            "holds back 7 remedies: too many",
        ),
        # What is due is no trouble of supervision: it may have fallen due in this moment.
        (Findings(due=Due(due=9)), 0, 0, Health.WELL, ""),
    ],
)
def test_verdict(findings: Findings, silent_ms: int, leaderless_ms: int, health: Health, reason: str) -> None:
    """At each bound and just below it; the worst counts, and every reason is told."""
    verdict = judge(findings, silent_ms=silent_ms, leaderless_ms=leaderless_ms)

    assert verdict.health is health
    assert reason in verdict.reason
    assert bool(verdict.reason) == (health is not Health.WELL)


def test_every_reason_is_told() -> None:
    """The critical ones first."""
    verdict = judge(Findings(epochs_lost=2), silent_ms=WARNING_MS, leaderless_ms=CRITICAL_MS)

    assert verdict.health is Health.CRITICAL
    assert [part.split()[0] for part in verdict.reason.split("; ")[:1]] == ["no"]
    assert "no sign of life" in verdict.reason
    assert "lost their supervisor" in verdict.reason
