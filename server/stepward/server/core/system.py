"""What belongs to stepward itself among the jobs: a namespace whose only definition is the canary's."""

from __future__ import annotations

from typing import Final

# Namespaces that begin so are nobody else's.
RESERVED_PREFIX: Final = "stepward."
SYSTEM_NAMESPACE: Final = "stepward.system"
CANARY_DEFINITION: Final = "canary"
CANARY_QUEUE: Final = "stepward.canary"
CANARY_ACTION: Final = "canary"
# How long its ended jobs are kept, on log time: 1 hour. They come every few seconds, for ever.
RETENTION_MS: Final = 3_600_000


def refusal_of_definition(namespace: str, name: str) -> str:
    """Why nobody may apply a definition of this name there; empty: anybody may."""
    if not namespace.startswith(RESERVED_PREFIX) or (namespace, name) == (SYSTEM_NAMESPACE, CANARY_DEFINITION):
        return ""
    return (
        f"namespaces that begin with {RESERVED_PREFIX!r} are stepward's own: only the definition "
        f"{CANARY_DEFINITION!r} of {SYSTEM_NAMESPACE!r} may be applied there; use another namespace"
    )


def refusal_of_agent(namespace: str) -> str:
    """Why no agent but the nodes' own may work there; empty: any may."""
    if not namespace.startswith(RESERVED_PREFIX):
        return ""
    return f"namespaces that begin with {RESERVED_PREFIX!r} have agents of the nodes' own; use another namespace"


def retention_ms(namespace: str, usual_ms: int) -> int:
    """How long an ended job is kept."""
    return min(RETENTION_MS, usual_ms) if namespace == SYSTEM_NAMESPACE else usual_ms
