"""Definitions as their authors write them, and the defaults of what they leave out.

The structs mirror the public messages. What was left out is None, 0 or ""; durations are milliseconds.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from msgspec import Struct

from stepward.server.core.rows import RetrySpec

QUEUE_DEFAULT: Final = "default"
RETRY_DEFAULT: Final = RetrySpec(attempts_max=5, initial_ms=1_000, factor=2.0, cap_ms=60_000)
START_TO_CLOSE_MS_DEFAULT: Final = 600_000
QUEUE_MS_DEFAULT: Final = 86_400_000


class RetrySource(Struct, frozen=True):
    """A `RetryPolicy`."""

    attempts_max: int = 0
    initial_ms: int | None = None
    factor: float = 0.0
    cap_ms: int | None = None
    non_retryable_kinds: tuple[str, ...] = ()
    time_ms_max: int | None = None


class TimeoutsSource(Struct, frozen=True):
    """A `Timeouts`."""

    start_to_close_ms: int | None = None
    queue_ms: int | None = None
    heartbeat_ms: int | None = None
    schedule_to_close_ms: int | None = None


class UndoSource(Struct, frozen=True):
    """An `Undo`."""

    action: str = ""
    retry: RetrySource = RetrySource()
    timeouts: TimeoutsSource = TimeoutsSource()
    queue: str = ""
    effect: int = 0


class VerifySource(Struct, frozen=True):
    """A `Verify`."""

    action: str = ""
    retry: RetrySource = RetrySource()
    timeouts: TimeoutsSource = TimeoutsSource()
    queue: str = ""


class StepSource(Struct, frozen=True):
    """A `Step`. The enums are plain numbers, as the wire may bring ones that this software does not know."""

    id: str = ""
    action: str = ""
    queue: str = ""
    needs: tuple[str, ...] = ()
    input: str = ""
    retry: RetrySource = RetrySource()
    timeouts: TimeoutsSource = TimeoutsSource()
    effect: int = 0
    start: int = 0
    undo: UndoSource | None = None
    on_unknown: int = 0
    verify: VerifySource | None = None
    on_exhausted: int = 0
    reassign: int = 0
    approval: int = 0


class DefinitionSource(Struct, frozen=True):
    """A `Definition`."""

    name: str = ""
    steps: tuple[StepSource, ...] = ()
    output: str = ""
    description: str = ""
    deadline_ms: int | None = None
    on_deadline: int = 0


def retry_spec(retry: RetrySource) -> RetrySpec:
    """A retry policy with its defaults filled in, whether or not it keeps the rules."""
    return RetrySpec(
        attempts_max=retry.attempts_max or RETRY_DEFAULT.attempts_max,
        initial_ms=either(retry.initial_ms, RETRY_DEFAULT.initial_ms),
        factor=float(retry.factor or RETRY_DEFAULT.factor),
        cap_ms=either(retry.cap_ms, RETRY_DEFAULT.cap_ms),
        non_retryable_kinds=tuple(sorted(set(retry.non_retryable_kinds))),
        time_ms_max=retry.time_ms_max or 0,
    )


class TimeoutsSpec(NamedTuple):
    """Timeouts with their defaults filled in; 0: none."""

    start_to_close_ms: int
    queue_ms: int
    heartbeat_ms: int
    schedule_to_close_ms: int


def timeouts_spec(timeouts: TimeoutsSource) -> TimeoutsSpec:
    """Timeouts with their defaults filled in. A default never exceeds the bound over all attempts."""
    over_all = timeouts.schedule_to_close_ms
    longest_ms = START_TO_CLOSE_MS_DEFAULT + QUEUE_MS_DEFAULT if over_all is None else over_all
    return TimeoutsSpec(
        start_to_close_ms=either(timeouts.start_to_close_ms, min(START_TO_CLOSE_MS_DEFAULT, longest_ms)),
        queue_ms=either(timeouts.queue_ms, min(QUEUE_MS_DEFAULT, longest_ms)),
        heartbeat_ms=timeouts.heartbeat_ms or 0,
        schedule_to_close_ms=over_all or 0,
    )


def either(value: int | None, default: int) -> int:
    """The value, or the default when it was left out. Zero is a value."""
    return default if value is None else value
