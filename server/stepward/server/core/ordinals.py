"""Where the steps of a definition stand in it, looked up by id.

A memo beside the rows: a definition never changes, and of a wide one every report and every reference would otherwise
go through all steps.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from stepward.server.core.options import Effect

if TYPE_CHECKING:
    from stepward.server.core.rows import DefinitionBody

# Definitions whose positions are kept, as many as a leader keeps decoded.
BODIES_KEPT_MAX: Final = 256


class Places(NamedTuple):
    """Positions by id, those of the steps that need nothing, and that of the point of no return, if there is one."""

    by_id: dict[str, int]
    roots: tuple[int, ...]
    pivot: int | None


# Of each there may be two at a time: who decides and who answers calls decode their rows on their own.
DECODED_MAX: Final = 2

# By hash, which two tests may have given to different bodies; so a body has to be the same one.
_kept: dict[bytes, list[tuple[DefinitionBody, Places]]] = {}


def places(hash_: bytes, body: DefinitionBody) -> Places:
    """Where the steps of the definition with this hash stand."""
    decoded = _kept.get(hash_)
    if decoded is None:
        while len(_kept) >= BODIES_KEPT_MAX:
            del _kept[next(iter(_kept))]
        decoded = _kept[hash_] = []
    for known, found in decoded:
        if known is body:
            return found
    del decoded[: len(decoded) - DECODED_MAX + 1]
    decoded.append((body, _find(body)))
    return decoded[-1][1]


def _find(body: DefinitionBody) -> Places:
    return Places(
        {spec.id: ordinal for ordinal, spec in enumerate(body.steps)},
        tuple(ordinal for ordinal, spec in enumerate(body.steps) if not spec.needs),
        next((ordinal for ordinal, spec in enumerate(body.steps) if spec.effect is Effect.PIVOT), None),
    )
