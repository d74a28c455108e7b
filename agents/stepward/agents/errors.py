"""What a handler may raise, what it may be interrupted with, and what can be wrong with an agent.

    AgentError
    ├── StepFailed             raised by handlers: the attempt failed; try again by the step's policy
    │   ├── Permanent          do not try again
    │   └── RetryAfter         try again, not before so many seconds
    ├── Unknown                raised by handlers: nobody can tell whether it happened
    ├── ActionError            a function cannot be a handler; its signature says why
    ├── TargetError            MODULE[:ATTR] leads to no agent
    ├── DefinitionRefused      the cluster refuses a definition that the agent brings
    └── AgentRefused           the cluster will never take this agent as it is

    asyncio.CancelledError
    └── Cancelled              raised in handlers by `ctx.raise_if_cancelled()`
        └── LeaseLost          the same, because another agent may be given the step

Any other exception of a handler is a failure that may be tried again, with the name of its class as its kind.
`Cancelled` is none of them, so that `except Exception` in a handler does not swallow it.
"""

# ruff: noqa: N818 - they read as what happened; the root says that they are errors

from __future__ import annotations

import asyncio
from typing import NamedTuple


class AgentError(Exception):
    """Something did not work. The message says what, with which value, and what to do."""


class StepFailed(AgentError):
    """The attempt failed and did not happen; it is tried again by the step's retry policy.

    `kind` is a short stable name that retry policies and people know it by; by default the name of the class.
    """

    def __init__(self, message: str = "", *, kind: str | None = None) -> None:
        super().__init__(message)
        # Also when somebody passes an exception on: what is said must be able to travel.
        self.message = str(message)
        self.kind = str(kind or type(self).__name__)


class Permanent(StepFailed):
    """The attempt failed, and trying again would not help."""


class RetryAfter(StepFailed):
    """The attempt failed; try again after so many seconds instead of the policy's wait."""

    def __init__(self, seconds: float, message: str = "", *, kind: str | None = None) -> None:
        super().__init__(message, kind=kind)
        if not 0 <= seconds < float("inf"):
            raise ValueError(f"RetryAfter takes seconds from 0 on, not {seconds}")
        self.seconds = seconds


class Unknown(AgentError):
    """Nobody can tell whether the work happened: a request was sent and no answer came.

    The step's policy decides: its verify action, a retry with the same key, its undo, or a person.
    """

    def __init__(self, message: str = "", *, kind: str | None = None) -> None:
        super().__init__(message)
        self.message = str(message)
        self.kind = str(kind or type(self).__name__)


class ActionError(AgentError):
    """A function cannot be a handler."""


class TargetError(AgentError):
    """MODULE[:ATTR] leads to no agent. Starting again does not help."""


class Violation(NamedTuple):
    """One broken rule of a definition: where, and what is wrong."""

    field: str
    description: str


class DefinitionRefused(AgentError):
    """The cluster refuses a definition that the agent brings. Starting again does not help."""

    def __init__(self, message: str, violations: tuple[Violation, ...] = ()) -> None:
        super().__init__("\n".join([message, *(f"  {field}: {description}" for field, description in violations)]))
        self.violations = violations


class AgentRefused(AgentError):
    """The cluster will never take this agent as it is: its hello breaks a rule. Starting again does not help."""


class Cancelled(asyncio.CancelledError):
    """The attempt is no longer wanted, or may no longer go on. Clean up and let it pass."""


class LeaseLost(Cancelled):
    """The agent's lease has ended: the step may be given to another agent."""
