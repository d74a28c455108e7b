"""What goes wrong on a bench, and when: for each action a line of faults, one for each of its next attempts."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from stepward.agents import outcomes
from stepward.agents.testing.errors import BenchError


@dataclass(frozen=True)
class Instead:
    """The handler is not called; this is what became of the attempt."""

    outcome: outcomes.Outcome


@dataclass(frozen=True)
class AnswerLost:
    """The handler is called and does its work; that it did is not known."""

    kind: str


@dataclass(frozen=True)
class Hangs:
    """The attempt starts and does not end before it is cancelled. The handler is not called."""


@dataclass(frozen=True)
class Crash:
    """The agent's process dies, before the handler is called or after it has done its work."""

    after: bool


@dataclass(frozen=True)
class Takes:
    """The handler is called, and its outcome comes so much later."""

    duration_ms: int


Fault = Instead | AnswerLost | Hangs | Crash | Takes


class FaultPlan:
    """Which faults are still to come."""

    def __init__(self, actions: frozenset[str]) -> None:
        self._actions = actions
        self._waiting: dict[str, deque[Fault]] = {}
        self._always: dict[str, Fault] = {}

    def add(self, action: str, fault: Fault, times: int | None) -> None:
        """Have a fault happen at the next so many attempts of an action, behind those added before; None: at all.

        Raises:
            BenchError: Nothing on this bench runs such an action.
        """
        if action not in self._actions:
            known = ", ".join(sorted(self._actions))
            raise BenchError(f"no step of this bench has the action {action!r}; there are {known}")
        if times is None:
            self._always[action] = fault
            return
        if times < 1:
            raise BenchError(f"times is {times}; it must be at least 1, or None for every attempt")
        self._waiting.setdefault(action, deque()).extend([fault] * times)

    def next(self, action: str) -> Fault | None:
        """What happens at an attempt that starts now."""
        waiting = self._waiting.get(action)
        return waiting.popleft() if waiting else self._always.get(action)

    def unused(self) -> dict[str, int]:
        """How many faults have not happened, by action. Those for every attempt are none of them."""
        return {action: len(waiting) for action, waiting in self._waiting.items() if waiting}
