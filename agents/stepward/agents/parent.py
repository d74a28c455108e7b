"""A parent process that starts the worker again when it ends by itself.

Used by `stepward agent run`. SIGTERM and SIGINT are passed on to the worker; after its drain the parent ends with the
worker's exit code.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkerOptions:
    """What `stepward agent run` may change about an agent. None: as the agent says."""

    slots: int | None = None
    queue: str | None = None
    drain_timeout_seconds: float | None = None
    once: bool = False
    """Do not start the worker again when it ends by itself."""


def run(target: str, addresses: Sequence[str], options: WorkerOptions) -> int:
    """Run the agent `target` (MODULE or MODULE:ATTR) in worker processes until told to stop. Returns the exit code."""
    raise NotImplementedError
