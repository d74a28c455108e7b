"""Is there an order of these calls in which each took effect at one moment between its beginning and its end?

The search of Wing and Gong with the memory of Lowe: of the calls that may be next, because none that is left had ended
before they began, one after the other is tried; what has led nowhere (these calls done, this state) is not tried again.
A call whose fate nobody knows may have taken effect at any moment after its beginning, or never.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Hashable, Iterator, Sequence
from typing import Final, Generic, NamedTuple, Protocol, TypeVar

S = TypeVar("S", bound=Hashable)

# More is not searched for one history: it would take minutes, and one that needs it is too entangled to mean much.
SITUATIONS_MAX: Final = 2_000_000
NEVER: Final = math.inf


class Operation(NamedTuple):
    """One call. `ended_at` is NEVER, and `answer` None, where it is not known whether it took effect."""

    began_at: float
    ended_at: float
    call: object
    answer: object | None


class Model(Protocol[S]):
    """What calls do to one thing when they come one after the other."""

    @property
    def initial(self) -> S:
        """Before the first call."""

    def after(self, state: S, call: object, answer: object | None) -> S | None:
        """The state after a call that was answered so, or in some way when None; None: it cannot be answered so."""


class Verdict(enum.Enum):
    LINEARIZABLE = enum.auto()
    VIOLATED = enum.auto()
    UNDECIDED = enum.auto()


class Finding(NamedTuple):
    """What came of a search, and the most calls that could be brought into an order."""

    verdict: Verdict
    longest: tuple[Operation, ...]


def judge(history: Sequence[Operation], model: Model[S], *, situations_max: int = SITUATIONS_MAX) -> Finding:
    """Search for an order of a history that the model explains."""
    return _Search(history, model).run(situations_max)


class _Search(Generic[S]):
    """One search, depth first: which calls are done is a number with a bit for each."""

    def __init__(self, history: Sequence[Operation], model: Model[S]) -> None:
        self._operations = sorted(history, key=lambda operation: operation.began_at)
        self._model = model
        self._done = 0
        self._state = model.initial
        self._seen = {(self._done, self._state)}

    def run(self, situations_max: int) -> Finding:
        known = sum(1 << number for number, operation in enumerate(self._operations) if operation.ended_at != NEVER)
        # What was done last, the state before it, and what could have been done instead.
        path: list[tuple[int, S, Iterator[int]]] = []
        longest: tuple[Operation, ...] = ()
        choices = self._choices()
        while self._done & known != known:
            state = self._state
            number = self._advance(choices)
            if number is not None:
                path.append((number, state, choices))
                choices = self._choices()
                if len(path) > len(longest):
                    longest = tuple(self._operations[number] for number, _, _ in path)
            elif path:
                number, self._state, choices = path.pop()
                self._done &= ~(1 << number)
            else:
                return Finding(Verdict.VIOLATED, longest)
            if len(self._seen) > situations_max:
                return Finding(Verdict.UNDECIDED, longest)
        return Finding(Verdict.LINEARIZABLE, longest)

    def _choices(self) -> Iterator[int]:
        """Which may be next: those that began before any that is left had ended."""
        left = [number for number in range(len(self._operations)) if not self._done >> number & 1]
        first_end = min((self._operations[number].ended_at for number in left), default=NEVER)
        return iter([number for number in left if self._operations[number].began_at <= first_end])

    def _advance(self, choices: Iterator[int]) -> int | None:
        """Do the first choice that the model explains and that leads to a new situation."""
        for number in choices:
            operation = self._operations[number]
            after = self._model.after(self._state, operation.call, operation.answer)
            if after is None or (after == self._state and operation.ended_at == NEVER):
                # One that need not have happened, and changes nothing here, may as well come later or never. Without
                # this rule a dozen of them are thousands of situations.
                continue
            situation = (self._done | 1 << number, after)
            if situation not in self._seen:
                self._done, self._state = situation
                self._seen.add(situation)
                return number
        return None
