"""What can be undone, and when: the order of a definition around its point of no return, and what is hardly meant.

`broken` gives rules that a definition may not break; each has to do with an effect or option that it names itself.
`warnings` gives what may be stored and yet will hardly be meant.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from stepward.server.core import graph, latencies
from stepward.server.core.definition_source import retry_spec, timeouts_spec
from stepward.server.core.rejections import Violation
from stepward.server.core.rows import Approval, Effect, OnExhausted, OnUnknown

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from stepward.server.core.definition_source import DefinitionSource, StepSource
    from stepward.server.core.limits import Limits

# Warnings of one definition that are told.
WARNINGS_MAX: Final = 100
# Effects of which an attempt of unknown outcome is never repeated blindly, and that have no undo.
FINAL_EFFECTS: Final = frozenset({Effect.PIVOT, Effect.IRREVERSIBLE})
_NEVER_BLINDLY: Final = FINAL_EFFECTS | {Effect.NON_IDEMPOTENT}


class _Place(NamedTuple):
    """A step, and where it stands to the point of no return: -1 before it, 1 behind it, 0 beside it or it itself."""

    at: int
    step: StepSource
    side: int


def broken(source: DefinitionSource, before: Sequence[int]) -> Iterator[Violation]:
    """The rules about order that a definition breaks. `before` has what each step needs, as bits (`graph`)."""
    pivots = [at for at, step in enumerate(source.steps) if step.effect == Effect.PIVOT]
    for at in pivots[1:]:
        text = (
            f"{source.steps[pivots[0]].id!r} is the point of no return already, and there is one at most; what comes "
            "after it and cannot be undone is irreversible"
        )
        yield Violation(f"steps[{at}].effect", text)
    for at, step in enumerate(source.steps):
        if step.effect in FINAL_EFFECTS and step.undo is not None:
            text = (
                f"a step of effect {Effect(step.effect).name} cannot be undone; leave out its undo, or name its effect"
            )
            yield Violation(f"steps[{at}].undo", f"{text} NON_IDEMPOTENT")
        if step.undo is not None and step.undo.effect in FINAL_EFFECTS:
            name = Effect(step.undo.effect).name
            text = f"it is {name}, which an undo cannot be; it must be IDEMPOTENT or NON_IDEMPOTENT"
            yield Violation(f"steps[{at}].undo.effect", text)
        if step.effect == Effect.PIVOT and step.on_unknown == OnUnknown.COMPENSATE:
            text = "nobody would know whether the point of no return was passed, so nothing may be undone; leave it out"
            yield Violation(f"steps[{at}].on_unknown", text)
    for place in _around(source, before):
        effect, step = place.step.effect, place.step
        if place.side < 0 and (effect == Effect.IRREVERSIBLE or (effect == Effect.NON_IDEMPOTENT and not step.undo)):
            pivot = source.steps[pivots[0]].id
            text = (
                f"it cannot be undone, and comes before {pivot!r}, the point of no return, up to which everything can; "
                "give it an undo, or let it come after that"
            )
            yield Violation(f"steps[{place.at}].effect", text)


def warnings(source: DefinitionSource, limits: Limits) -> tuple[Violation, ...]:
    """What may be stored and yet will hardly be meant, of a definition that breaks no rule: the first WARNINGS_MAX."""
    positions = {step.id: at for at, step in enumerate(source.steps)}
    needs = [[positions[need] for need in step.needs] for step in source.steps]
    found: list[Violation] = []
    for each in (_beside_pivot(source, graph.ancestors(needs)), _unknown(source), _bounds(source, limits)):
        for warning in each:
            if len(found) == WARNINGS_MAX:
                return tuple(found)
            found.append(warning)
    return tuple(found)


def _around(source: DefinitionSource, before: Sequence[int]) -> Iterator[_Place]:
    """The steps of a definition that has a point of no return, and where they stand to it."""
    pivot = next((at for at, step in enumerate(source.steps) if step.effect == Effect.PIVOT), None)
    if pivot is None:
        return
    for at, step in enumerate(source.steps):
        yield _Place(at, step, (before[at] >> pivot & 1) - (before[pivot] >> at & 1))


def _beside_pivot(source: DefinitionSource, before: Sequence[int]) -> Iterator[Violation]:
    for place in _around(source, before):
        at, step = place.at, place.step
        if step.effect == Effect.PIVOT:
            continue
        if place.side < 0 and step.undo is None:
            text = "it has no undo: if the job is undone before its point of no return, what this did remains done"
            yield Violation(f"steps[{at}]", text)
        elif place.side > 0 and step.undo is not None:
            text = "it comes after the point of no return, behind which nothing is undone by itself"
            yield Violation(f"steps[{at}].undo", text)
        elif place.side == 0:
            text = "it may run before the point of no return or after it; let one of them need the other"
            yield Violation(f"steps[{at}].needs", text)


def _unknown(source: DefinitionSource) -> Iterator[Violation]:
    """What only a person will be able to tell, or will be asked for nothing."""
    for at, step in enumerate(source.steps):
        if step.effect in _NEVER_BLINDLY and step.verify is None and step.undo is None:
            text = (
                "it may not be repeated, and has neither verify nor undo: after an attempt of unknown outcome only a "
                "person can say what became of it"
            )
            yield Violation(f"steps[{at}]", text)
        asks_anyway = step.on_exhausted == OnExhausted.ESCALATE and step.on_unknown != OnUnknown.COMPENSATE
        if step.approval == Approval.REQUIRED and asks_anyway:
            text = "it waits for a person after every trouble anyway, so there is nothing to approve; leave it out"
            yield Violation(f"steps[{at}].approval", text)


def _bounds(source: DefinitionSource, limits: Limits) -> Iterator[Violation]:
    """Bounds that are out of order: heartbeat < lease < attempt < deadline."""
    lease_ms, crash_ms = limits.session_ttl_ms, latencies.lost_agent_ms(limits)
    for at, step in enumerate(source.steps):
        bounds, field = timeouts_spec(step.timeouts), f"steps[{at}].timeouts"
        if bounds.heartbeat_ms >= lease_ms:
            text = (
                f"it is {bounds.heartbeat_ms} ms; an agent that is gone is noticed by its lease of {lease_ms} ms, so "
                "this finds only a handler that hangs in an agent that lives"
            )
            yield Violation(f"{field}.heartbeat", text)
        if bounds.start_to_close_ms <= lease_ms:
            text = (
                f"it is {bounds.start_to_close_ms} ms, and no longer than a lease ({lease_ms} ms): an attempt of an "
                f"agent that is gone, which is noticed within {crash_ms} ms, counts as one that took too long"
            )
            yield Violation(f"{field}.start_to_close", text)
        over_all = (
            ("start_to_close", step.timeouts.start_to_close_ms),
            ("schedule_to_close", bounds.schedule_to_close_ms),
        )
        for name, value_ms in over_all:
            if source.deadline_ms is not None and value_ms is not None and value_ms > source.deadline_ms:
                text = (
                    f"it is {value_ms} ms, beyond the deadline of the job, {source.deadline_ms} ms: it is never reached"
                )
                yield Violation(f"{field}.{name}", text)
        time_ms_max = retry_spec(step.retry).time_ms_max
        if source.deadline_ms is not None and time_ms_max > source.deadline_ms:
            text = (
                f"it is {time_ms_max} ms, beyond the deadline of the job, {source.deadline_ms} ms: it is never reached"
            )
            yield Violation(f"steps[{at}].retry.time_max", text)
