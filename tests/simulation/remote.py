"""The travel service of the simulated world: what really happened, whatever anybody reported, lost or forgot.

It remembers effects by idempotency key and the highest token of each step, and refuses whoever comes with a lower one:
a process that was paused and wakes up must not act any more.
"""

from __future__ import annotations

from collections import Counter, defaultdict

from stepward.server.core.parts import Part

Step = tuple[str, str]


class Remote:
    """Effects by step and key."""

    def __init__(self) -> None:
        self._highest: dict[Step, int] = {}
        self._effects: dict[Step, set[str]] = {}
        # By part of a step: the tokens under which it was carried out.
        self.tokens: defaultdict[tuple[Step, Part], set[int]] = defaultdict(set)
        self.counts: Counter[str] = Counter()

    def do(self, step: Step, key: str, token: int) -> bool:
        """The action of a step takes effect, once for each key. False: its token is too old."""
        if not self._admit(step, token):
            return False
        self._effects.setdefault(step, set()).add(key)
        self.tokens[step, Part.ACTION].add(token)
        return True

    def undo(self, step: Step, keys: list[str], token: int) -> bool:
        """The undo of a step takes away what its action has left under these keys. False: its token is too old."""
        if not self._admit(step, token):
            return False
        self._effects.setdefault(step, set()).difference_update(keys)
        self.tokens[step, Part.UNDO].add(token)
        return True

    def _admit(self, step: Step, token: int) -> bool:
        self.counts["calls"] += 1
        if token < self._highest.get(step, 0):
            self.counts["stale"] += 1
            return False
        self._highest[step] = token
        return True

    def standing(self, job_id: str, step_id: str) -> int:
        """How many effects of a step are there."""
        return len(self._effects.get((job_id, step_id), ()))

    def jobs(self) -> set[str]:
        """Every job that has left something."""
        return {job_id for (job_id, _), effects in self._effects.items() if effects}
