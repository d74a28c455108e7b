"""What a job runs: a definition with every default filled in and every edge a position."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from stepward.server.core import definition_rules
from stepward.server.core.definition_source import (
    QUEUE_DEFAULT,
    retry_spec,
    timeouts_spec,
)
from stepward.server.core.rows import (
    Approval,
    DefinitionBody,
    Effect,
    OnDeadline,
    OnExhausted,
    OnUnknown,
    Reassign,
    StartMode,
    StepSpec,
    UndoSpec,
    VerifySpec,
)

if TYPE_CHECKING:
    from stepward.server.core.definition_source import DefinitionSource, StepSource, UndoSource, VerifySource
    from stepward.server.core.limits import Limits
    from stepward.server.core.rejections import Violation

JSON_SPACES: Final = " \t\n\r"


def compile_definition(
    source: DefinitionSource, limits: Limits, source_bytes: bytes
) -> DefinitionBody | tuple[Violation, ...]:
    """What a job of this definition runs, or all the rules that it breaks.

    `source_bytes` is the public message, kept to be read back; its size counts.
    """
    violations = definition_rules.check(source, limits, size_bytes=len(source_bytes))
    if violations:
        return violations
    positions = {step.id: position for position, step in enumerate(source.steps)}
    dependents: list[list[int]] = [[] for _ in source.steps]
    for position, step in enumerate(source.steps):
        for need in step.needs:
            dependents[positions[need]].append(position)
    steps = tuple(
        _step(step, tuple(sorted(positions[need] for need in step.needs)), tuple(dependents[position]))
        for position, step in enumerate(source.steps)
    )
    return DefinitionBody(
        name=source.name,
        steps=steps,
        output=source.output.strip(JSON_SPACES).encode(),
        source=source_bytes,
        deadline_ms=source.deadline_ms or 0,
        on_deadline=OnDeadline(source.on_deadline or OnDeadline.COMPENSATE),
        description=source.description,
    )


def _step(step: StepSource, needs: tuple[int, ...], dependents: tuple[int, ...]) -> StepSpec:
    effect = Effect(step.effect or Effect.IDEMPOTENT)
    queue, timeouts = step.queue or QUEUE_DEFAULT, timeouts_spec(step.timeouts)
    return StepSpec(
        id=step.id,
        action=step.action or step.id,
        queue=queue,
        needs=needs,
        dependents=dependents,
        input=step.input.strip(JSON_SPACES).encode(),
        retry=retry_spec(step.retry),
        start_to_close_ms=timeouts.start_to_close_ms,
        queue_ms=timeouts.queue_ms,
        effect=effect,
        start=StartMode(step.start or _start_default(effect, step)),
        on_unknown=OnUnknown(step.on_unknown or OnUnknown.ESCALATE),
        undo=None if step.undo is None else _undo(step.undo, queue),
        verify=None if step.verify is None else _verify(step.verify, queue),
        heartbeat_ms=timeouts.heartbeat_ms,
        schedule_to_close_ms=timeouts.schedule_to_close_ms,
        on_exhausted=OnExhausted(step.on_exhausted or OnExhausted.COMPENSATE),
        reassign=Reassign(step.reassign or Reassign.ANY_AGENT),
        approval=Approval(step.approval or Approval.NOT_REQUIRED),
    )


def _start_default(effect: Effect, step: StepSource) -> StartMode:
    """On offer where an attempt that may have happened can be repeated, undone or asked about, else on accept."""
    harmless = effect is Effect.IDEMPOTENT or step.undo is not None or step.verify is not None
    return StartMode.ON_OFFER if harmless else StartMode.ON_ACCEPT


def _undo(undo: UndoSource, step_queue: str) -> UndoSpec:
    timeouts = timeouts_spec(undo.timeouts)
    return UndoSpec(
        action=undo.action,
        queue=undo.queue or step_queue,
        retry=retry_spec(undo.retry),
        start_to_close_ms=timeouts.start_to_close_ms,
        queue_ms=timeouts.queue_ms,
        heartbeat_ms=timeouts.heartbeat_ms,
        schedule_to_close_ms=timeouts.schedule_to_close_ms,
        effect=Effect(undo.effect or Effect.IDEMPOTENT),
    )


def _verify(verify: VerifySource, step_queue: str) -> VerifySpec:
    timeouts = timeouts_spec(verify.timeouts)
    return VerifySpec(
        action=verify.action,
        queue=verify.queue or step_queue,
        retry=retry_spec(verify.retry),
        start_to_close_ms=timeouts.start_to_close_ms,
        queue_ms=timeouts.queue_ms,
        heartbeat_ms=timeouts.heartbeat_ms,
        schedule_to_close_ms=timeouts.schedule_to_close_ms,
    )
