"""The outside world of a job: services in which its steps leave effects, and what they know about them.

It is the truth that no engine sees: an effect is there or it is not, whatever anybody reported, lost or forgot.
"""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple


class Act(NamedTuple):
    """Something that a handler asked of the outside world. Refused acts leave nothing."""

    at_ms: int
    step_id: str
    part: str
    key: str
    token: int
    refused: bool = False


class Remote:
    """Services that remember effects by key, and the highest token that they have seen of each step.

    An idempotent one takes the same key for the same effect; any other does again what it is asked again. An undo takes
    away whatever it is told of. One that is fenced refuses a token below the highest, so that a process which was
    paused and wakes up cannot act any more.
    """

    def __init__(self, *, idempotent: dict[str, bool], fenced: bool) -> None:
        self._idempotent = idempotent
        self._fenced = fenced
        self._highest: dict[str, int] = {}
        self.effects: Counter[str] = Counter()
        self.acts: list[Act] = []

    def do(self, act: Act) -> bool:
        """The action of a step takes effect. False: its token is too old."""
        if not self._admit(act):
            return False
        if not (self._idempotent[act.step_id] and self.effects[act.key]):
            self.effects[act.key] += 1
        return True

    def undo(self, act: Act, keys: list[str]) -> bool:
        """The undo of a step takes effect on all that its action has left under these keys."""
        if not self._admit(act):
            return False
        for key in keys:
            self.effects.pop(key, None)
        return True

    def ask(self, act: Act) -> bool | None:
        """Whether there is an effect under a key. None: the token is too old for an answer."""
        return self.effects[act.key] > 0 if self._admit(act) else None

    def _admit(self, act: Act) -> bool:
        refused = self._fenced and act.token < self._highest.get(act.step_id, 0)
        self.acts.append(act._replace(refused=refused))
        if not refused:
            self._highest[act.step_id] = max(act.token, self._highest.get(act.step_id, 0))
        return not refused

    def standing(self, step_id: str) -> int:
        """How many effects of a step are there, over all its generations."""
        return sum(count for key, count in self.effects.items() if key.split("/")[1] == step_id)

    def clean_up(self, step_id: str) -> None:
        """A person takes away by hand what a step has left."""
        for key in [key for key in self.effects if key.split("/")[1] == step_id]:
            del self.effects[key]

    def of(self, step_id: str, part: str) -> list[Act]:
        """What was done for a part of a step, in order."""
        return [act for act in self.acts if act.part == part and act.step_id == step_id and not act.refused]
