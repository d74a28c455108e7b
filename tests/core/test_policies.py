"""How long to wait before the next attempt."""

import math
import random
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepward.server.core.policies import retry_delay_ms, retry_delay_ms_max
from stepward.server.core.rows import RetrySpec

DAY_MS = 86_400_000
YEAR_MS = 365 * DAY_MS

specs = st.builds(
    lambda waits, factor: RetrySpec(initial_ms=min(waits), cap_ms=max(waits), factor=factor),
    st.tuples(st.integers(0, YEAR_MS), st.integers(0, YEAR_MS)),
    st.floats(1, 100),
)


@pytest.mark.parametrize(
    ("attempt", "initial_ms", "factor", "cap_ms", "expected_ms"),
    [
        # The first wait is the initial one.
        (1, 100, 2.0, 10_000, 100),
        (2, 100, 2.0, 10_000, 200),
        # The last one below the cap, and the first at it.
        (7, 100, 2.0, 10_000, 6_400),
        (8, 100, 2.0, 10_000, 10_000),
        # The powers end at the cap exactly.
        (4, 100, 10.0, 100_000, 100_000),
        # Doubled 64 and 1,100 times: past every machine integer, past every float.
        (65, 300, 2.0, 300_000, 300_000),
        (1_101, 300, 2.0, 300_000, 300_000),
        (1_000_000, 300, 2.0, 300_000, 300_000),
        (10_000, DAY_MS, 10.0, YEAR_MS, YEAR_MS),
        # A factor of 1 never grows.
        (10_000, 100, 1.0, 10_000, 100),
        # The shortest wait that grows.
        (3, 1, 2.0, 100, 4),
        # Rounded down: 100 x 1.5^3 = 337.5.
        (4, 100, 1.5, 10_000, 337),
        # No wait at all, and a wait that is its own cap.
        (5, 0, 2.0, 10_000, 0),
        (5, 0, 2.0, 0, 0),
        (5, 7, 100.0, 7, 7),
    ],
)
def test_longest_wait(attempt: int, initial_ms: int, factor: float, cap_ms: int, expected_ms: int) -> None:
    """The wait grows by the factor from the initial one up to the cap, and never overflows."""
    retry = RetrySpec(initial_ms=initial_ms, factor=factor, cap_ms=cap_ms)

    assert retry_delay_ms_max(attempt, retry) == expected_ms


@pytest.mark.parametrize(
    "retry",
    [
        RetrySpec(initial_ms=300, factor=2.0, cap_ms=300_000),
        RetrySpec(initial_ms=DAY_MS, factor=10.0, cap_ms=YEAR_MS),
    ],
)
def test_ten_thousand_attempts(retry: RetrySpec) -> None:
    """H028: the longest wait never falls, stays within initial and cap, and the drawn wait stays within the longest."""
    rng = random.Random(28)
    before_ms = retry.initial_ms
    for attempt in range(1, 10_001):
        longest_ms = retry_delay_ms_max(attempt, retry)
        assert before_ms <= longest_ms <= retry.cap_ms
        assert 0 <= retry_delay_ms(attempt, retry, rng) <= longest_ms
        before_ms = longest_ms

    assert before_ms == retry.cap_ms


@given(specs, st.integers(1, 300))
def test_longest_wait_is_exact(retry: RetrySpec, attempt: int) -> None:
    """As fractions have it, for factors that no binary float holds exactly, too."""
    exact = min(Fraction(retry.cap_ms), retry.initial_ms * Fraction(retry.factor) ** (attempt - 1))

    assert retry_delay_ms_max(attempt, retry) == math.floor(exact)


@given(specs, st.integers(1, 10_000))
def test_longest_wait_never_falls(retry: RetrySpec, attempt: int) -> None:
    """Whatever the factor: a later attempt never waits less."""
    earlier_ms, later_ms = retry_delay_ms_max(attempt, retry), retry_delay_ms_max(attempt + 1, retry)

    assert retry.initial_ms <= earlier_ms <= later_ms <= retry.cap_ms


def test_wait_is_drawn_from_the_whole_range() -> None:
    """Full jitter: zero and the longest wait are both possible."""
    retry = RetrySpec(initial_ms=3, factor=1.0, cap_ms=3)
    rng = random.Random(1)

    assert {retry_delay_ms(1, retry, rng) for _ in range(200)} == {0, 1, 2, 3}
