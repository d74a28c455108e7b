"""What is stored of the brake: how much was remedied lately, and why it holds."""

from __future__ import annotations

from enum import IntEnum

from stepward.server.core.rows import Row, Value


class Cause(IntEnum):
    """Why the brake lets only a few remediations through, and then holds the others for a while."""

    NONE = 0
    MASS_LOSS = 1
    NEW_LEADER = 2


class Losses(Value, frozen=True):
    """Sessions that were found lost within one second of led time, and how many were open when the first one was."""

    at_led_s: int
    lost: int
    open: int


class Canary(Value, frozen=True):
    """A remediation that was let through to see what comes of it. `lease_losses` of its step, that one included."""

    job_id: str
    ordinal: int
    lease_losses: int


class Brake(Row, frozen=True):
    """How much was remedied lately, and whether the next ones wait (`Z`). There only while that says something.

    `spent` is what has been taken and not refilled, at `led_ms`, in the unit of `brake.COST`. With a `cause`,
    `canaries_left` may still be taken; then nothing is until `hold_until_led_ms`. `began_led_ms` is when the cause was
    found. `tried_epoch` is the last leadership whose first loss has been tried with canaries.
    """

    spent: int = 0
    led_ms: int = 0
    losses: tuple[Losses, ...] = ()
    cause: Cause = Cause.NONE
    began_led_ms: int = 0
    canaries_left: int = 0
    canaries: tuple[Canary, ...] = ()
    hold_until_led_ms: int = 0
    tried_epoch: int = 0
