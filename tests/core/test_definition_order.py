"""The order of a definition around its point of no return, and what is told of a definition that may be stored."""

from __future__ import annotations

import pytest

from stepward.server.core import definition_order, graph
from stepward.server.core.definition_source import DefinitionSource, RetrySource, StepSource, TimeoutsSource, UndoSource
from stepward.server.core.options import Approval, Effect, OnExhausted, OnUnknown
from tests.core.definitions import LIMITS, compiled, step, trip, violations

UNDO = UndoSource("undo")
PIVOT, IRREVERSIBLE, ONCE = Effect.PIVOT, Effect.IRREVERSIBLE, Effect.NON_IDEMPOTENT


@pytest.mark.parametrize(
    ("source", "field", "rule"),
    [
        # Nothing that cannot be undone comes before the point of no return, directly or not.
        (trip(step("a", effect=IRREVERSIBLE), step("p", "a", effect=PIVOT)), "steps[0].effect", "it cannot be undone"),
        (trip(step("a", effect=ONCE), step("p", "a", effect=PIVOT)), "steps[0].effect", "comes before 'p'"),
        (
            trip(step("a", effect=ONCE), step("b", "a", undo=UNDO), step("p", "b", effect=PIVOT)),
            "steps[0].effect",
            "give it an undo, or let it come after that",
        ),
        # There is one.
        (
            trip(step("p", effect=PIVOT), step("q", "p", effect=PIVOT)),
            "steps[1].effect",
            "'p' is the point of no return",
        ),
        # It is what its name says.
        (trip(step("p", effect=PIVOT, undo=UNDO)), "steps[0].undo", "of effect PIVOT cannot be undone"),
        (trip(step("a", effect=IRREVERSIBLE, undo=UNDO)), "steps[0].undo", "of effect IRREVERSIBLE cannot be undone"),
        (trip(step("a", undo=UndoSource("u", effect=PIVOT))), "steps[0].undo.effect", "it is PIVOT"),
        (trip(step("a", undo=UndoSource("u", effect=IRREVERSIBLE))), "steps[0].undo.effect", "it is IRREVERSIBLE"),
        (
            trip(step("p", effect=PIVOT, on_unknown=OnUnknown.COMPENSATE)),
            "steps[0].on_unknown",
            "nobody would know whether the point of no return was passed",
        ),
    ],
)
def test_broken(source: DefinitionSource, field: str, rule: str) -> None:
    """One rule is broken, and named with its place."""
    found = violations(source)

    assert [one.field for one in found] == [field]
    assert rule in found[0].description


@pytest.mark.parametrize(
    "source",
    [
        trip(step("a", undo=UNDO), step("p", "a", effect=PIVOT), step("z", "p", effect=IRREVERSIBLE)),
        trip(step("a", effect=ONCE, undo=UNDO), step("p", "a", effect=PIVOT), step("z", "p", effect=ONCE)),
        # What only reads has no undo.
        trip(step("a"), step("p", "a", effect=PIVOT)),
        # Without a point of no return all is as it was.
        trip(step("a", effect=IRREVERSIBLE), step("b", "a", effect=ONCE), step("c", "b", undo=UNDO)),
        trip(step("p", effect=PIVOT, on_unknown=OnUnknown.ESCALATE)),
    ],
)
def test_fine(source: DefinitionSource) -> None:
    """Rules about order speak of nothing else."""
    compiled(source)


FAST = TimeoutsSource(start_to_close_ms=5_000)
SLOW_SIGNS = TimeoutsSource(heartbeat_ms=10_000)
LONG = TimeoutsSource(start_to_close_ms=60_001, schedule_to_close_ms=70_000)


def job(*steps: StepSource, deadline_ms: int) -> DefinitionSource:
    """A definition of jobs that have a deadline."""
    return DefinitionSource("trip", steps, deadline_ms=deadline_ms)


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        (trip(step("a")), []),
        (
            trip(step("a"), step("p", "a", effect=PIVOT), step("z", "p", undo=UNDO), step("y")),
            [
                ("steps[0]", "it has no undo"),
                ("steps[2].undo", "it comes after the point of no return"),
                ("steps[3].needs", "it may run before the point of no return or after it"),
                ("steps[1]", "it may not be repeated, and has neither verify nor undo"),
            ],
        ),
        (trip(step("a", effect=ONCE)), [("steps[0]", "only a person can say")]),
        (trip(step("a", effect=ONCE, undo=UNDO)), []),
        (
            trip(step("a", approval=Approval.REQUIRED, on_exhausted=OnExhausted.ESCALATE)),
            [("steps[0].approval", "nothing to approve")],
        ),
        (trip(step("a", approval=Approval.REQUIRED)), []),
        # Heartbeat < lease < attempt < deadline, at the bound and one past it.
        (trip(step("a", timeouts=SLOW_SIGNS)), [("steps[0].timeouts.heartbeat", "its lease of 10000 ms")]),
        (trip(step("a", timeouts=TimeoutsSource(heartbeat_ms=9_999))), []),
        (trip(step("a", timeouts=FAST)), [("steps[0].timeouts.start_to_close", "within 16934 ms")]),
        (
            trip(step("a", timeouts=TimeoutsSource(start_to_close_ms=10_000))),
            [("steps[0].timeouts.start_to_close", "no longer than a lease (10000 ms)")],
        ),
        (trip(step("a", timeouts=TimeoutsSource(start_to_close_ms=10_001))), []),
        (
            job(step("a", timeouts=LONG, retry=RetrySource(time_ms_max=60_001)), deadline_ms=60_000),
            [
                ("steps[0].timeouts.start_to_close", "beyond the deadline of the job, 60000 ms"),
                ("steps[0].timeouts.schedule_to_close", "it is 70000 ms"),
                ("steps[0].retry.time_max", "it is never reached"),
            ],
        ),
        (
            job(step("a", timeouts=TimeoutsSource(60_000), retry=RetrySource(time_ms_max=60_000)), deadline_ms=60_000),
            [],
        ),
    ],
)
def test_warnings(source: DefinitionSource, expected: list[tuple[str, str]]) -> None:
    """What may be stored is told with its place, and refused by nobody."""
    compiled(source)
    found = definition_order.warnings(source, LIMITS)

    assert [one.field for one in found] == [field for field, _ in expected]
    for one, (_, text) in zip(found, expected, strict=True):
        assert text in one.description


@pytest.mark.parametrize(("count", "told"), [(definition_order.WARNINGS_MAX, 100), (101, 100), (1, 1)])
def test_warnings_are_bounded(count: int, told: int) -> None:
    """At the bound and one past it."""
    source = trip(*(step(f"s{number}", effect=ONCE) for number in range(count)))

    assert len(definition_order.warnings(source, LIMITS)) == told


def test_a_wide_definition_is_looked_at_once() -> None:
    """Some 10,000 steps before and behind a point of no return cost no more than their number."""
    half = LIMITS.steps_max // 2
    before = [step(f"a{number}", undo=UNDO) for number in range(half - 1)]
    after = [step(f"z{number}", "p", effect=IRREVERSIBLE) for number in range(half)]
    source = trip(*before, step("p", *(one.id for one in before), effect=PIVOT), *after)
    positions = {one.id: at for at, one in enumerate(source.steps)}
    needs = [[positions[need] for need in one.needs] for one in source.steps]

    assert list(definition_order.broken(source, graph.ancestors(needs))) == []
