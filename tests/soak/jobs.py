"""What jobs of bad days are made of: every bound that the supervisor watches is one of some step."""

from __future__ import annotations

from typing import Final

from msgspec.structs import replace

from stepward.server.core.rows import DefinitionBody, Effect, OnUnknown, RetrySpec, StartMode, StepSpec
from tests.core.world import step_spec

_RETRY: Final = RetrySpec(attempts_max=6, initial_ms=500, cap_ms=4_000)


def _step(spec: StepSpec, *, queue_ms: int = 120_000) -> StepSpec:
    """Undos have no bound over all attempts: they may have to wait for one that can still act, however long."""
    undo = spec.undo and replace(spec.undo, schedule_to_close_ms=0, queue_ms=queue_ms)
    return replace(spec, queue_ms=queue_ms, undo=undo)


TRIP: Final = DefinitionBody(
    "trip",
    (
        _step(step_spec("flight", dependents=(1,), retry=_RETRY, start_to_close_ms=20_000)),
        _step(
            step_spec("hotel", needs=(0,), dependents=(2,), retry=_RETRY, start_to_close_ms=90_000, heartbeat_ms=12_000)
        ),
        _step(step_spec("car", needs=(1,), retry=_RETRY, start_to_close_ms=20_000, schedule_to_close_ms=80_000)),
    ),
    b"",
    b"",
    240_000,
)
ORDER: Final = DefinitionBody(
    "order",
    (
        _step(
            step_spec(
                "payment",
                dependents=(1,),
                effect=Effect.NON_IDEMPOTENT,
                start=StartMode.ON_ACCEPT,
                on_unknown=OnUnknown.COMPENSATE,
                verify=True,
                retry=_RETRY,
                start_to_close_ms=20_000,
            )
        ),
        _step(step_spec("parcel", needs=(0,), retry=_RETRY, start_to_close_ms=20_000)),
    ),
    b"",
    b"",
)
# Agents offer this only from time to time.
RARE: Final = DefinitionBody("rare", (_step(step_spec("engrave", undo=False), queue_ms=15_000),), b"", b"")
DEFINITIONS: Final = (TRIP, ORDER, RARE)
RARE_ACTIONS: Final = ("engrave",)
