"""What a bench shows of its jobs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Failure:
    """Why a job or a step did not succeed."""

    kind: str
    message: str
    step_id: str = ""


@dataclass(frozen=True)
class StepResult:
    """What became of one step. `state` is that of the contract without its prefix, such as "SUCCEEDED"."""

    step_id: str
    state: str
    attempts: int
    lease_losses: int
    output: Any
    failure: Failure | None
    maybe_done: bool


@dataclass(frozen=True)
class JobResult:
    """A job as it is now. `state` is that of the contract without its prefix, such as "COMPLETED"."""

    job_id: str
    state: str
    output: Any
    failure: Failure | None
    steps: dict[str, StepResult]
    remaining: tuple[str, ...] = ()
    """Steps that did something that was not undone."""


@dataclass(frozen=True)
class Call:
    """One attempt of an action. `called` is False where a fault happened in place of the handler."""

    action: str
    step_id: str
    job_id: str
    input: Any
    idempotency_key: str
    token: int
    attempt: int
    undo: bool
    at_seconds: float
    """On the bench's own clock, which began at 0."""
    called: bool
    verify: bool = False
    last_progress: Any = None


@dataclass(frozen=True)
class BenchEvent:
    """One thing that happened to a job: `type` is that of the contract, such as "StepStarted"."""

    at_seconds: float
    type: str
    step_id: str
    attempt: int = 0
    token: int = 0
    detail: str = ""
    actor: str = field(default="", compare=False)
