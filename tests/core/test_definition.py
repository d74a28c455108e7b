"""Definitions: what is refused, with which words, and what a job of a good one runs."""

import math
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from stepward.server.core import graph
from stepward.server.core.definition import compile_definition
from stepward.server.core.definition_rules import COMPARISONS_MAX, VIOLATIONS_MAX
from stepward.server.core.definition_source import (
    DefinitionSource,
    RetrySource,
    StepSource,
    TimeoutsSource,
    UndoSource,
)
from stepward.server.core.limits import Limits
from stepward.server.core.rows import (
    Approval,
    DefinitionBody,
    Effect,
    OnExhausted,
    OnUnknown,
    Reassign,
    RetrySpec,
    StartMode,
    StepSpec,
    UndoSpec,
)
from tests.core.definitions import LIMITS, compiled, step, trip, violations

CIRCLE = "each of these needs the next, so none can start: "
NAMES = "only A-Z a-z 0-9 . _ - are allowed"


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        # No steps at all.
        (trip(), [("steps", "there are 0 steps; there must be 1 to 10000")]),
        # A step that needs itself.
        (
            trip(step("a", "a")),
            [("steps[0].needs[0]", '"a" is the step itself, which would wait for ever: a -> a')],
        ),
        # Circles of two and of three, the latter beside steps that could run.
        (trip(step("a", "b"), step("b", "a")), [("steps[1].needs[0]", CIRCLE + "a -> b -> a")]),
        (
            trip(step("x"), step("y", "x"), step("a", "c"), step("b", "a"), step("c", "x", "b")),
            [("steps[3].needs[0]", CIRCLE + "a -> c -> b -> a")],
        ),
        # Two circles that share a step are two circles, each told once.
        (
            trip(step("a", "b", "c"), step("b", "a"), step("c", "a")),
            [("steps[1].needs[0]", CIRCLE + "a -> b -> a"), ("steps[2].needs[0]", CIRCLE + "a -> c -> a")],
        ),
        # Needs that are no steps, with and without a similar one.
        (
            trip(step("flight"), step("hotel", "flihgt")),
            [("steps[1].needs[0]", '"flihgt" is not the id of a step; did you mean "flight"?')],
        ),
        (trip(step("a", "zebra")), [("steps[0].needs[0]", '"zebra" is not the id of a step')]),
        (trip(step("a", "")), [("steps[0].needs[0]", '"" is not the id of a step')]),
        (
            trip(step("a"), step("b", "a", "a")),
            [("steps[1].needs[1]", '"a" is steps[1].needs[0] too; name each step once')],
        ),
        # Ids that are equal, or only look so.
        (
            trip(step("a"), step("b"), step("a")),
            [("steps[2].id", '"a" is the id of steps[0] too; ids must differ')],
        ),
        (trip(step("a"), step("a ")), [("steps[1].id", f'"a " has " " (U+0020) at 1; {NAMES}')]),
        (trip(step("é")), [("steps[0].id", f'"é" has "é" (U+00E9) at 0; {NAMES}')]),
        (trip(step("e\u0301")), [("steps[0].id", f'"e\u0301" has "\u0301" (U+0301) at 1; {NAMES}')]),
        (trip(step("fl\u0456ght")), [("steps[0].id", f'"fl\u0456ght" has "\u0456" (U+0456) at 2; {NAMES}')]),
        (trip(step("a\0b")), [("steps[0].id", f'"a\\u0000b" has "\\u0000" (U+0000) at 1; {NAMES}')]),
        (trip(step("a\n")), [("steps[0].id", f'"a\\n" has "\\n" (U+000A) at 1; {NAMES}')]),
        (trip(step("a/b")), [("steps[0].id", f'"a/b" has "/" (U+002F) at 1; {NAMES}')]),
        (trip(step("")), [("steps[0].id", "it is empty; it must have 1 to 128 of A-Z a-z 0-9 . _ -")]),
        # Two empty ones are empty, and that is all that can be said of them.
        (
            trip(step(""), step("")),
            [(f"steps[{at}].id", "it is empty; it must have 1 to 128 of A-Z a-z 0-9 . _ -") for at in range(2)],
        ),
        (trip(step("a/" + "a" * 62)), [("steps[0].id", f'"a/{"a" * 62}" has "/" (U+002F) at 1; {NAMES}')]),
        (trip(step("a/" + "a" * 63)), [("steps[0].id", f'"a/{"a" * 62}..." has "/" (U+002F) at 1; {NAMES}')]),
        (trip(step("a" * 129)), [("steps[0].id", f'"{"a" * 64}..." has 129 characters; at most 128')]),
        (
            DefinitionSource("", (step("a"),)),
            [("name", "it is empty; it must have 1 to 128 of A-Z a-z 0-9 . _ -")],
        ),
        (trip(step("a", action="do it")), [("steps[0].action", f'"do it" has " " (U+0020) at 2; {NAMES}')]),
        (trip(step("a", queue="q?")), [("steps[0].queue", f'"q?" has "?" (U+003F) at 1; {NAMES}')]),
        # An undo.
        (
            trip(step("a", undo=UndoSource())),
            [("steps[0].undo.action", "it is empty; it must have 1 to 128 of A-Z a-z 0-9 . _ -")],
        ),
        (
            trip(step("a", undo=UndoSource("u", RetrySource(factor=0.5), TimeoutsSource(queue_ms=0), "q?"))),
            [
                ("steps[0].undo.queue", f'"q?" has "?" (U+003F) at 1; {NAMES}'),
                ("steps[0].undo.retry.factor", "it is 0.5; it must be between 1 and 100.0"),
                ("steps[0].undo.timeouts.queue", "it is 0 ms; it must be between 1 and 31536000000 ms"),
            ],
        ),
        # Numbers that this software gives no name to.
        (
            trip(step("a", effect=7, start=9, on_unknown=-1, on_exhausted=5, reassign=3, approval=3)),
            [
                (
                    "steps[0].effect",
                    "it is 7, which is unknown here; it must be IDEMPOTENT (1), NON_IDEMPOTENT (2), PIVOT (3), "
                    "IRREVERSIBLE (4) or left out",
                ),
                (
                    "steps[0].start",
                    "it is 9, which is unknown here; it must be ON_OFFER (1), ON_ACCEPT (2) or left out",
                ),
                (
                    "steps[0].on_unknown",
                    "it is -1, which is unknown here; it must be ESCALATE (1), COMPENSATE (2) or left out",
                ),
                (
                    "steps[0].on_exhausted",
                    "it is 5, which is unknown here; it must be COMPENSATE (1), ESCALATE (2), CONTINUE (3), FAIL (4) "
                    "or left out",
                ),
                (
                    "steps[0].reassign",
                    "it is 3, which is unknown here; it must be ANY_AGENT (1), AVOID_SAME_AGENT (2) or left out",
                ),
                (
                    "steps[0].approval",
                    "it is 3, which is unknown here; it must be NOT_REQUIRED (1), REQUIRED (2) or left out",
                ),
            ],
        ),
        # All that is wrong is told at once.
        (
            DefinitionSource("no good", (step("a", "b"), step("a", "a")), "nope"),
            [
                ("name", f'"no good" has " " (U+0020) at 2; {NAMES}'),
                ("steps[0].needs[0]", '"b" is not the id of a step'),
                ("steps[1].id", '"a" is the id of steps[0] too; ids must differ'),
                ("steps[1].needs[0]", '"a" is the step itself, which would wait for ever: a -> a'),
                ("output", 'it is not JSON: expected a value at byte 0, found "nope"'),
            ],
        ),
    ],
)
def test_refused(source: DefinitionSource, expected: list[tuple[str, str]]) -> None:
    """A definition that could never run, or would run as nobody meant, is refused: place, value and what to do."""
    assert [(violation.field, violation.description) for violation in violations(source)] == expected


@pytest.mark.parametrize(
    ("retry", "expected"),
    [
        (RetrySource(attempts_max=10_001), ("attempts_max", "it is 10001; it must be between 1 and 10000")),
        (RetrySource(factor=0.999), ("factor", "it is 0.999; it must be between 1 and 100.0")),
        (RetrySource(factor=100.1), ("factor", "it is 100.1; it must be between 1 and 100.0")),
        (RetrySource(factor=-2.0), ("factor", "it is -2.0; it must be between 1 and 100.0")),
        (RetrySource(factor=math.nan), ("factor", "it is nan; it must be between 1 and 100.0")),
        (RetrySource(factor=math.inf), ("factor", "it is inf; it must be between 1 and 100.0")),
        (RetrySource(initial_ms=-1), ("initial", "it is -1 ms; it must be between 0 and 31536000000 ms")),
        (
            RetrySource(cap_ms=31_536_000_001),
            ("cap", "it is 31536000001 ms; it must be between 0 and 31536000000 ms"),
        ),
        (
            RetrySource(initial_ms=5_001, cap_ms=5_000),
            ("initial", "it is 5001 ms; it must be at most the cap, 5000 ms"),
        ),
        # A default on one side is named, since nobody can see it in what was written.
        (
            RetrySource(initial_ms=60_001),
            ("initial", "it is 60001 ms; it must be at most the cap, 60000 ms (the default)"),
        ),
        (RetrySource(cap_ms=999), ("initial", "it is 1000 ms (the default); it must be at most the cap, 999 ms")),
        (RetrySource(non_retryable_kinds=("",)), ("non_retryable_kinds[0]", '"" has 0 characters; 1 to 128')),
        (RetrySource(non_retryable_kinds=("k",) * 65), ("non_retryable_kinds", "there are 65 kinds; at most 64")),
    ],
)
def test_retry_refused(retry: RetrySource, expected: tuple[str, str]) -> None:
    """A retry policy out of bounds is refused."""
    (violation,) = violations(trip(step("a", retry=retry)))

    assert (violation.field, violation.description) == (f"steps[0].retry.{expected[0]}", expected[1])


@pytest.mark.parametrize(
    "fields",
    [
        {"retry": RetrySource(attempts_max=1, initial_ms=0, factor=1.0, cap_ms=0)},
        {"retry": RetrySource(10_000, 31_536_000_000, 100.0, 31_536_000_000, ("k" * 128,) * 64)},
        {"timeouts": TimeoutsSource(start_to_close_ms=1, queue_ms=1)},
        {"timeouts": TimeoutsSource(start_to_close_ms=31_536_000_000, queue_ms=31_536_000_000)},
        {"timeouts": TimeoutsSource(heartbeat_ms=600_000)},
        {"timeouts": TimeoutsSource(5, 5, 5, 5), "retry": RetrySource(time_ms_max=5)},
        {"timeouts": TimeoutsSource(*(31_536_000_000,) * 4), "retry": RetrySource(time_ms_max=31_536_000_000)},
        {"id": "a" * 128},
        {"id": "A-Z_0.9"},
        {"undo": UndoSource("a")},
        {"effect": 2, "start": 1},
    ],
)
def test_accepted_at_the_bounds(fields: dict[str, Any]) -> None:
    """Bounds are inclusive."""
    compiled(trip(StepSource(**{"id": "a", **fields})))


@pytest.mark.parametrize(
    ("limits", "source", "field"),
    [
        (Limits(steps_max=2), trip(step("a"), step("b")), None),
        (Limits(steps_max=1), trip(step("a"), step("b")), "steps"),
        (Limits(needs_max=2), trip(step("a"), step("b"), step("c", "a", "b")), None),
        (Limits(needs_max=1), trip(step("a"), step("b"), step("c", "a", "b")), "steps[2].needs"),
        (Limits(edges_max=2), trip(step("a"), step("b"), step("c", "a", "b")), None),
        (Limits(edges_max=1), trip(step("a"), step("b"), step("c", "a", "b")), "steps"),
        (Limits(definition_bytes_max=6), trip(step("a")), None),
        (Limits(definition_bytes_max=5), trip(step("a")), ""),
    ],
)
def test_size(limits: Limits, source: DefinitionSource, field: str | None) -> None:
    """At a bound a definition is accepted, one past it refused."""
    outcome = compile_definition(source, limits, b"source")

    if field is None:
        assert isinstance(outcome, DefinitionBody)
    else:
        assert not isinstance(outcome, DefinitionBody)
        assert [violation.field for violation in outcome] == [field]


CHAIN = (step("a"), step("b", "a"), step("c", "b"), step("d", "a"))


@pytest.mark.parametrize(
    ("at", "template", "expected"),
    [
        # The job's input, and what any step before gave, needed directly or not.
        (2, '"${input.x}"', None),
        (2, '{"a": "${steps.a.output}", "b": "x ${steps.b.output.y}"}', None),
        (2, "", None),
        (1, '"${steps.b.output}"', '"${steps.b.output}" refers to the step itself, which has not run yet'),
        (1, '"${steps.c.output.x}"', '"${steps.c.output.x}" refers to "c", which runs after this step'),
        (
            3,
            '["${steps.b.output.x}", "${steps.b.output.y}"]',
            '"${steps.b.output.x}" refers to "b", which may not have run yet; add "b" to needs',
        ),
        (3, '"${steps.e.output}"', '"${steps.e.output}" refers to "e", which is not the id of a step'),
        (
            3,
            '"${steps.aa.output}"',
            '"${steps.aa.output}" refers to "aa", which is not the id of a step; did you mean "a"?',
        ),
        (3, "{", "it is not JSON: expected a key or } at byte 1, found the end"),
        (3, '"${stepz.a}"', 'in "${stepz.a}", at byte 0: a reference begins with'),
        (3, "\u00a0", 'it is not JSON: expected a value at byte 0, found "\u00a0"'),
        (3, "\ud83d", "it is not JSON: it is not UTF-8 at byte 0"),
    ],
)
def test_input_template(at: int, template: str, expected: str | None) -> None:
    """An input may refer to what has surely been given before the step starts, and to nothing else."""
    steps = [*CHAIN]
    steps[at] = StepSource(steps[at].id, needs=steps[at].needs, input=template)
    if expected is None:
        compiled(trip(*steps))
        return

    (violation,) = violations(trip(*steps))

    assert violation.field == f"steps[{at}].input"
    assert violation.description.startswith(expected)


def test_output_template() -> None:
    """The job's output may refer to every step, since all of them have ended by then."""
    everything = '["${steps.a.output}", "${steps.b.output}", "${steps.c.output}", "${steps.d.output}", "${input}"]'

    assert compiled(trip(*CHAIN, output=f" {everything}\n")).output == everything.encode()
    assert [violation.field for violation in violations(trip(*CHAIN, output='"${steps.x.output}"'))] == ["output"]


def test_defaults() -> None:
    """What was left out is filled in."""
    body = compiled(trip(step("pay")))

    assert body == DefinitionBody(
        name="trip",
        steps=(
            StepSpec(
                id="pay",
                action="pay",
                queue="default",
                needs=(),
                dependents=(),
                input=b"",
                retry=RetrySpec(attempts_max=5, initial_ms=1_000, factor=2.0, cap_ms=60_000),
                start_to_close_ms=600_000,
                queue_ms=86_400_000,
                effect=Effect.IDEMPOTENT,
                start=StartMode.ON_OFFER,
                on_unknown=OnUnknown.ESCALATE,
                undo=None,
            ),
        ),
        output=b"",
        source=b"source",
    )


def test_what_is_given_stays() -> None:
    """Nothing that was written is lost on the way to the step, nor to its undo."""
    retry = RetrySource(2, 10, 3.0, 100, ("B", "A", "B"))
    undo = UndoSource("unpay", RetrySource(7), TimeoutsSource(5, 6))
    spec = compiled(
        trip(
            StepSource(
                *("p", "pay", "bank", (), " {} ", retry, TimeoutsSource(3, 4)),
                effect=2,
                start=2,
                undo=undo,
                on_unknown=2,
                on_exhausted=3,
                reassign=2,
                approval=2,
            )
        )
    ).steps[0]

    assert (spec.action, spec.queue, spec.input) == ("pay", "bank", b"{}")
    assert spec.retry == RetrySpec(2, 10, 3.0, 100, ("A", "B"))
    assert (spec.start_to_close_ms, spec.queue_ms) == (3, 4)
    assert (spec.effect, spec.start, spec.on_unknown) == (
        Effect.NON_IDEMPOTENT,
        StartMode.ON_ACCEPT,
        OnUnknown.COMPENSATE,
    )
    assert (spec.on_exhausted, spec.reassign, spec.approval) == (
        OnExhausted.CONTINUE,
        Reassign.AVOID_SAME_AGENT,
        Approval.REQUIRED,
    )
    assert spec.undo == UndoSpec("unpay", "bank", RetrySpec(7), 5, 6)


def test_undo_may_have_a_queue_of_its_own() -> None:
    """Otherwise it has the step's."""
    assert compiled(trip(step("a", queue="q", undo=UndoSource("u", queue="v")))).steps[0].undo == UndoSpec(
        "u", "v", RetrySpec(), 600_000, 86_400_000
    )


@pytest.mark.parametrize(
    ("effect", "undo", "start", "expected"),
    [
        (0, None, 0, StartMode.ON_OFFER),
        (1, None, 0, StartMode.ON_OFFER),
        (2, None, 0, StartMode.ON_ACCEPT),
        (2, UndoSource("u"), 0, StartMode.ON_OFFER),
        (1, None, 2, StartMode.ON_ACCEPT),
        (2, None, 1, StartMode.ON_OFFER),
        (3, None, 0, StartMode.ON_ACCEPT),
        (4, None, 0, StartMode.ON_ACCEPT),
    ],
)
def test_start_mode(effect: int, undo: UndoSource | None, start: int, expected: StartMode) -> None:
    """Asked first is what may do harm when repeated and cannot be undone; unless the author says otherwise."""
    assert compiled(trip(step("a", effect=effect, undo=undo, start=start))).steps[0].start is expected


def test_edges_are_positions() -> None:
    """In the order of the steps, whatever the order of needs. A step without needs is a root, a join has some."""
    body = compiled(trip(step("join", "right", "left"), step("left", "root"), step("right", "root"), step("root")))

    assert [(spec.needs, spec.dependents) for spec in body.steps] == [
        ((1, 2), ()),
        ((3,), (0,)),
        ((3,), (0,)),
        ((), (1, 2)),
    ]


def test_long_chain_and_long_circle() -> None:
    """As many steps in a row as a definition may have, and then closed to a circle."""
    count = LIMITS.steps_max
    chain = [step(f"s{at}", *([f"s{at + 1}"] if at + 1 < count else [])) for at in range(count)]
    assert len(compiled(trip(*chain)).steps) == count

    (violation,) = violations(trip(*chain[:-1], step(chain[-1].id, "s0")))

    assert violation.field == "steps[9999].needs[0]"
    assert "s8 -> s9 -> ... 9981 more ... -> s9991 -> s9992" in violation.description
    assert violation.description.endswith("s9998 -> s9999 -> s0")


@pytest.mark.parametrize(("count", "named"), [(19, 20), (20, 20)])
def test_long_circle_names_its_ends(count: int, named: int) -> None:
    """As many steps as fit are named, and of more the first and the last."""
    (violation,) = violations(trip(*(step(f"s{at}", f"s{(at + 1) % count}") for at in range(count))))

    path = violation.description.removeprefix(CIRCLE).split(" -> ")
    assert sum(name.startswith("s") for name in path) == named
    assert any("1 more" in name for name in path) is (count == 20)


def test_references_in_a_circle() -> None:
    """Who comes before whom means nothing there; the circle is told, and what is surely wrong."""
    a = step("a", "b", input='"${steps.c.output}"')
    b = step("b", "a", input='"${steps.x.output}"')

    assert [violation.field for violation in violations(trip(a, b, step("c")))] == [
        "steps[1].needs[0]",
        "steps[1].input",
    ]


def test_violations_are_bounded() -> None:
    """Whoever has many is told some; looking for similar names would take the server minutes otherwise."""
    wrong = [step(f"s{at}", *(f"x{need}" for need in range(100))) for at in range(500)]

    assert len(violations(trip(*wrong))) == VIOLATIONS_MAX


def test_similar_names_are_looked_for_within_a_bound() -> None:
    """As many ids as a check compares allow one suggestion; one more, and there is none."""
    for count, suggested in ((COMPARISONS_MAX, 1), (COMPARISONS_MAX // 2, 2)):
        wrong = [step(f"s{at}", *(["s1x", "s2x", "s3x"] if at == 0 else [])) for at in range(count)]

        assert sum("did you mean" in broken.description for broken in violations(trip(*wrong))) == suggested

    wrong = [step(f"s{at}", *(["s1x"] if at == 0 else [])) for at in range(COMPARISONS_MAX + 1)]
    beyond = violations(trip(*wrong), structs.replace(LIMITS, steps_max=COMPARISONS_MAX + 1))
    assert "did you mean" not in beyond[0].description


@dataclass(frozen=True)
class Graph:
    """Some needs, and whether they make a circle, as a slower way tells."""

    needs: list[list[int]]

    def reach(self, start: int) -> set[int]:
        """All positions that can be reached along needs."""
        found: set[int] = set()
        waiting = [*self.needs[start]]
        while waiting:
            position = waiting.pop()
            if position not in found:
                found.add(position)
                waiting += self.needs[position]
        return found


graphs = st.integers(1, 7).flatmap(
    lambda count: st.lists(
        st.lists(st.integers(0, count - 1), max_size=3, unique=True), min_size=count, max_size=count
    ).map(Graph)
)


@given(graphs)
def test_circles_are_found_exactly_where_they_are(graph_: Graph) -> None:
    """Every circle told is one, is told once, and none is told only when there is none."""
    found = list(graph.circles(graph_.needs))

    for circle in found:
        assert all(
            after in graph_.needs[before] for before, after in zip(circle, (*circle[1:], circle[0]), strict=True)
        )
    assert len(set(found)) == len(found)
    assert bool(found) == any(at in graph_.reach(at) for at in range(len(graph_.needs)))


@given(graphs)
def test_ancestors(graph_: Graph) -> None:
    """Exactly what can be reached along needs."""
    downward = Graph([[need for need in needs if need < at] for at, needs in enumerate(graph_.needs)])

    assert graph.ancestors(downward.needs) == [
        sum(1 << position for position in downward.reach(at)) for at in range(len(downward.needs))
    ]
