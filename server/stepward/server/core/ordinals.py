"""Where the steps of a definition stand in it, looked up by id.

A memo beside the rows: a definition never changes, and of a wide one every report and every reference would otherwise
go through all steps.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from stepward.server.core.rows import DefinitionBody

# Definitions whose positions are kept, as many as a leader keeps decoded.
BODIES_KEPT_MAX: Final = 256


class Places(NamedTuple):
    """Positions by id, and the positions of the steps that need nothing."""

    by_id: dict[str, int]
    roots: tuple[int, ...]


# By the identity of the body. The body itself is kept beside it, so that no other one can come to have its identity.
_kept: dict[int, tuple[DefinitionBody, Places]] = {}


def places(body: DefinitionBody) -> Places:
    """Where the steps of a definition stand."""
    known = _kept.get(id(body))
    if known is not None:
        return known[1]
    found = Places(
        {spec.id: ordinal for ordinal, spec in enumerate(body.steps)},
        tuple(ordinal for ordinal, spec in enumerate(body.steps) if not spec.needs),
    )
    while len(_kept) >= BODIES_KEPT_MAX:
        del _kept[next(iter(_kept))]
    _kept[id(body)] = (body, found)
    return found
