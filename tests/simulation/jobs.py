"""What jobs of the simulated world are made of."""

from __future__ import annotations

from typing import Final

from stepward.server.core.rows import DefinitionBody, Effect, OnUnknown, RetrySpec, StartMode, StepSpec, UndoSpec

_DAY_MS: Final = 86_400_000
_QUEUE: Final = "q"
# Attempts do not run out while everything goes wrong.
_RETRY: Final = RetrySpec(attempts_max=1_000, initial_ms=50, cap_ms=500, non_retryable_kinds=("Declined",))


def _step(
    name: str,
    *,
    needs: tuple[int, ...] = (),
    dependents: tuple[int, ...] = (),
    start: StartMode = StartMode.ON_OFFER,
) -> StepSpec:
    # No attempt runs out of time by itself: so whoever is given a step that another still holds was given it wrongly.
    return StepSpec(
        id=name,
        action=name,
        queue=_QUEUE,
        needs=needs,
        dependents=dependents,
        input=b"",
        retry=_RETRY,
        start_to_close_ms=_DAY_MS,
        queue_ms=_DAY_MS,
        effect=Effect.IDEMPOTENT,
        start=start,
        on_unknown=OnUnknown.ESCALATE,
        undo=UndoSpec(f"undo-{name}", _QUEUE, _RETRY, _DAY_MS, _DAY_MS, 0, 0, effect=Effect.IDEMPOTENT),
        verify=None,
        heartbeat_ms=0,
        schedule_to_close_ms=0,
    )


def _definition(name: str, *steps: StepSpec) -> DefinitionBody:
    return DefinitionBody(name, steps, b"", b"")


DEFINITIONS: Final = (
    _definition(
        "trip",
        _step("flight", dependents=(1,)),
        _step("hotel", needs=(0,), dependents=(2,)),
        _step("car", needs=(1,)),
    ),
    _definition(
        "order",
        _step("stock", dependents=(2,)),
        _step("payment", dependents=(2,), start=StartMode.ON_ACCEPT),
        _step("parcel", needs=(0, 1)),
    ),
    _definition("letter", _step("letter")),
)
ACTIONS: Final = tuple(
    action for definition in DEFINITIONS for step in definition.steps for action in (step.action, f"undo-{step.action}")
)
