"""A step of a job, and the tries of its parts, as the model knows them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from stepward.server.core.rows import Effect, StepState

if TYPE_CHECKING:
    from stepward.server.core.rows import RetrySpec, StepSpec

S = StepState


class ViolationError(AssertionError):
    """The history holds something that must not be."""


def require(condition: object, what: str) -> None:
    """Something must hold."""
    if not condition:
        raise ViolationError(what)


@dataclass
class Attempt:
    """One try of a part of a step. It can act while it is `open`, and until `acts_until_ms` (None: until heard of)."""

    part: str
    session_id: str
    open: bool = True
    acts_until_ms: int | None = 0


@dataclass
class Subject:
    """A step. `ended` is how an attempt has just ended, until something follows from it."""

    spec: StepSpec
    state: StepState = S.PENDING
    tries: int = 0
    losses: int = 0
    maybe: bool = False
    ended: str = ""
    kind: str = ""
    final: bool = False
    kept: tuple[StepState, int, int, str, str, bool] | None = None
    generation: int = 1
    began_undo: bool = False
    attempts: dict[int, Attempt] = field(default_factory=dict)

    @property
    def part(self) -> str:
        """Which part is at work, or was last."""
        name = self.state.name
        return "Verify" if name.startswith("VERIFY_") else "Undo" if self.state >= S.UNDO_READY else "Step"

    @property
    def held(self) -> bool:
        """Whether an agent holds it."""
        return not self.ended and self.state.name.endswith(("OFFERED", "RUNNING"))

    @property
    def newest(self) -> int:
        """The newest token."""
        return max(self.attempts, default=0)

    @property
    def stands(self) -> bool:
        """Whether it succeeded or may have happened, and is not undone."""
        undoing = self.state.name.startswith("UNDO_")
        return self.state is not S.COMPENSATED and (self.state is S.SUCCEEDED or undoing or self.maybe)

    def retry(self, part: str) -> RetrySpec:
        """How attempts of a part are repeated."""
        policy = {"Step": self.spec, "Undo": self.spec.undo, "Verify": self.spec.verify}[part]
        require(policy is not None, f"{self.spec.id} has no {part}")
        assert policy is not None
        return policy.retry

    def harmless(self, part: str) -> bool:
        """Whether an attempt that may have happened may be followed by another."""
        if part == "Verify":
            return True
        undo = self.spec.undo
        return (self.spec.effect if part == "Step" or undo is None else undo.effect) is Effect.IDEMPOTENT

    def can_act(self, now_ms: int) -> bool:
        """Whether an attempt that has ended, as far as anybody knows, can still do something."""
        return any(
            attempt.acts_until_ms is None or now_ms < attempt.acts_until_ms
            for attempt in self.attempts.values()
            if not attempt.open and attempt.part != "Verify"
        )
