"""What is stored of a circuit breaker: how the attempts of one action ended lately, and whether it is offered."""

from __future__ import annotations

from stepward.server.core.rows import Row, Value


class Outcomes(Value, frozen=True):
    """How many attempts ended well and badly in one part of the window, which began at `from_led_ms`."""

    from_led_ms: int
    good: int
    bad: int


class Probe(Value, frozen=True):
    """The attempt that is let through to see whether the action works again."""

    job_id: str
    ordinal: int
    token: int


class Breaker(Row, frozen=True):
    """The breaker of one action on a queue (`Y`); there only while some of its attempts have ended badly of late.

    `until_led_ms` 0: it is closed, and only counts `outcomes`. Before that instant nothing is offered, from it on one
    `probe` at a time; `successes` counts those that ended well. `reason` says why it opened.
    """

    outcomes: tuple[Outcomes, ...] = ()
    until_led_ms: int = 0
    successes: int = 0
    probe: Probe | None = None
    reason: str = ""
