"""How long to wait before the next attempt."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import random

    from stepward.server.core.rows import RetrySpec


def retry_delay_ms_max(attempt: int, retry: RetrySpec) -> int:
    """The longest wait after attempt number `attempt`: initial x factor^(attempt-1), rounded down, at most the cap.

    Exact for every attempt and never falls from one attempt to the next: floats would round, and overflow after a
    thousand doublings.
    """
    assert attempt >= 1, attempt
    exponent = attempt - 1
    if not 0 < retry.initial_ms < retry.cap_ms:
        return min(retry.initial_ms, retry.cap_ms)
    # The logarithms only tell what is far beyond the cap, so that no power grows without bound.
    if exponent * math.log2(retry.factor) > math.log2(retry.cap_ms / retry.initial_ms) + 1:
        return retry.cap_ms
    numerator, denominator = retry.factor.as_integer_ratio()
    exact_ms: int = retry.initial_ms * numerator**exponent // denominator**exponent
    return min(retry.cap_ms, exact_ms)


def retry_delay_ms(attempt: int, retry: RetrySpec, rng: random.Random) -> int:
    """A wait drawn evenly from zero to the longest one: full jitter, so that those who failed together part.

    Source: https://aws.amazon.com/blogs/architecture/exponential-backoff-and-jitter/
    """
    return rng.randint(0, retry_delay_ms_max(attempt, retry))
