"""How long things may take, as definitions say it: what is refused, and what defaults become."""

import pytest

from stepward.server.core.definition import compile_definition
from stepward.server.core.definition_source import (
    DefinitionSource,
    RetrySource,
    TimeoutsSource,
    UndoSource,
    VerifySource,
)
from stepward.server.core.rows import DefinitionBody, OnDeadline
from tests.core.definitions import LIMITS, compiled, step, trip, violations


@pytest.mark.parametrize(
    ("timeouts", "field"),
    [
        (TimeoutsSource(start_to_close_ms=0), "start_to_close"),
        (TimeoutsSource(start_to_close_ms=31_536_000_001), "start_to_close"),
        (TimeoutsSource(queue_ms=-1), "queue"),
        (TimeoutsSource(queue_ms=31_536_000_001), "queue"),
        (TimeoutsSource(heartbeat_ms=0), "heartbeat"),
        (TimeoutsSource(heartbeat_ms=31_536_000_001), "heartbeat"),
        (TimeoutsSource(schedule_to_close_ms=0), "schedule_to_close"),
        (TimeoutsSource(schedule_to_close_ms=31_536_000_001), "schedule_to_close"),
    ],
)
def test_timeouts_refused(timeouts: TimeoutsSource, field: str) -> None:
    """A timeout of nothing, or of more than a year, is refused."""
    (violation,) = violations(trip(step("a", timeouts=timeouts)))

    assert violation.field == f"steps[0].timeouts.{field}"
    assert "it must be between 1 and 31536000000 ms" in violation.description


@pytest.mark.parametrize(
    ("timeouts", "retry", "field", "description"),
    [
        (
            TimeoutsSource(start_to_close_ms=5, heartbeat_ms=6),
            RetrySource(),
            "timeouts.heartbeat",
            "it is 6 ms; it must be at most start_to_close, 5 ms",
        ),
        (
            TimeoutsSource(heartbeat_ms=600_001),
            RetrySource(),
            "timeouts.heartbeat",
            "it is 600001 ms; it must be at most start_to_close, 600000 ms (the default)",
        ),
        (
            TimeoutsSource(start_to_close_ms=6, schedule_to_close_ms=5),
            RetrySource(),
            "timeouts.start_to_close",
            "it is 6 ms; it must be at most schedule_to_close, 5 ms",
        ),
        (
            TimeoutsSource(queue_ms=6, schedule_to_close_ms=5),
            RetrySource(),
            "timeouts.queue",
            "it is 6 ms; it must be at most schedule_to_close, 5 ms",
        ),
        # The default of start_to_close follows schedule_to_close.
        (
            TimeoutsSource(heartbeat_ms=6, schedule_to_close_ms=5),
            RetrySource(),
            "timeouts.heartbeat",
            "it is 6 ms; it must be at most start_to_close, 5 ms (the default)",
        ),
        (
            TimeoutsSource(schedule_to_close_ms=5),
            RetrySource(time_ms_max=6),
            "retry.time_max",
            "it is 6 ms; it must be at most timeouts.schedule_to_close, 5 ms",
        ),
        (
            TimeoutsSource(),
            RetrySource(time_ms_max=0),
            "retry.time_max",
            "it is 0 ms; it must be between 1 and 31536000000 ms",
        ),
    ],
)
def test_bounds_that_would_never_be_reached(
    timeouts: TimeoutsSource, retry: RetrySource, field: str, description: str
) -> None:
    """One violation each, with both values; of the undo and the question as of the action."""
    undo, verify = UndoSource("u", retry, timeouts), VerifySource("v", retry, timeouts)

    found = violations(trip(step("a", timeouts=timeouts, retry=retry, undo=undo, verify=verify)))

    assert [(violation.field, violation.description) for violation in found] == [
        (f"steps[0].{owner}{field}", description) for owner in ("", "undo.", "verify.")
    ]


def test_defaults_follow_the_bound_over_all_attempts() -> None:
    """A default that is longer than schedule_to_close is cut to it; a shorter one stays."""
    short, long = TimeoutsSource(schedule_to_close_ms=5_000), TimeoutsSource(schedule_to_close_ms=3_600_000)

    one, other = compiled(trip(step("a", timeouts=short, undo=UndoSource("u", timeouts=long)), step("b"))).steps

    assert (one.start_to_close_ms, one.queue_ms, one.schedule_to_close_ms) == (5_000, 5_000, 5_000)
    assert one.undo is not None
    assert (one.undo.start_to_close_ms, one.undo.queue_ms) == (600_000, 3_600_000)
    assert (other.start_to_close_ms, other.queue_ms, other.heartbeat_ms) == (600_000, 86_400_000, 0)


@pytest.mark.parametrize(
    ("deadline_ms", "on_deadline", "field"),
    [
        (None, 0, None),
        (1, 1, None),
        (31_536_000_000, 3, None),
        (0, 0, "deadline"),
        (31_536_000_001, 0, "deadline"),
        (1, 4, "on_deadline"),
    ],
)
def test_deadline(deadline_ms: int | None, on_deadline: int, field: str | None) -> None:
    """Of a millisecond to a year, or none."""
    source = DefinitionSource("trip", (step("a"),), deadline_ms=deadline_ms, on_deadline=on_deadline)

    outcome = compile_definition(source, LIMITS, b"source")

    if field is None:
        assert isinstance(outcome, DefinitionBody)
        assert outcome.deadline_ms == (deadline_ms or 0)
        assert outcome.on_deadline is (OnDeadline(on_deadline) if on_deadline else OnDeadline.COMPENSATE)
    else:
        assert [violation.field for violation in violations(source)] == [field]
