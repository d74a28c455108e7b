"""The checker tells histories that some order explains from those that none does."""

from __future__ import annotations

import random
from typing import NamedTuple

import pytest

from tests.linear.checker import NEVER, Operation, Verdict, judge


class Write(NamedTuple):
    number: int


class Read(NamedTuple):
    pass


class Register:
    """One number that is written and read: what histories are usually shown with."""

    initial = 0

    def after(self, state: int, call: object, answer: object | None) -> int | None:
        match call:
            case Write(number):
                return number
            case Read():
                return state if answer in (None, state) else None
        raise AssertionError(call)


def read(began_at: float, ended_at: float, answer: int) -> Operation:
    return Operation(began_at, ended_at, Read(), answer)


def write(began_at: float, ended_at: float, number: int) -> Operation:
    return Operation(began_at, ended_at, Write(number), "done" if ended_at != NEVER else None)


@pytest.mark.parametrize(
    ("history", "verdict"),
    [
        ([], Verdict.LINEARIZABLE),
        ([write(0, 1, 1), read(2, 3, 1)], Verdict.LINEARIZABLE),
        # Old after new was acknowledged: a stale read.
        ([write(0, 1, 1), read(2, 3, 0)], Verdict.VIOLATED),
        # While a write goes on both may be seen, but not the old one after the new one.
        ([write(0, 9, 1), read(1, 2, 0), read(3, 4, 1)], Verdict.LINEARIZABLE),
        ([write(0, 9, 1), read(1, 2, 1), read(3, 4, 0)], Verdict.VIOLATED),
        # A write without an answer may come late, or never; once seen it is there.
        ([write(0, NEVER, 1), read(2, 3, 0), read(4, 5, 1)], Verdict.LINEARIZABLE),
        ([write(0, NEVER, 1), read(2, 3, 0), read(4, 5, 0)], Verdict.LINEARIZABLE),
        ([write(0, NEVER, 1), read(2, 3, 1), read(4, 5, 0)], Verdict.VIOLATED),
        # It cannot have come before it began.
        ([read(0, 1, 1), write(2, NEVER, 1)], Verdict.VIOLATED),
        # Two at once in either order, but in one order for everybody.
        ([write(0, 5, 1), write(0, 5, 2), read(6, 7, 1)], Verdict.LINEARIZABLE),
        ([write(0, 5, 1), write(0, 5, 2), read(6, 7, 1), read(8, 9, 2)], Verdict.VIOLATED),
        # Calls that touch at one instant overlap: nobody can tell which was first.
        ([write(0, 2, 1), read(2, 3, 0)], Verdict.LINEARIZABLE),
    ],
)
def test_known_histories(history: list[Operation], verdict: Verdict) -> None:
    assert judge(history, Register()).verdict is verdict


def drawn(chance: random.Random, count: int) -> list[Operation]:
    """A history whose calls took effect one after the other, each between its beginning and its end."""
    now, state, history = 0.0, 0, []
    for _ in range(count):
        now += chance.random()
        began_at, ended_at = now - 2 * chance.random(), now + 2 * chance.random()
        if chance.random() < 0.5:
            state = chance.randrange(100)
            history.append(write(began_at, NEVER if chance.random() < 0.1 else ended_at, state))
        else:
            history.append(read(began_at, ended_at, state))
    return history


@pytest.mark.parametrize("seed", range(20))
def test_drawn_histories(seed: int) -> None:
    """What an order made is explained; one read of what nobody wrote is not."""
    history = drawn(random.Random(seed), 60)
    last_read = max(number for number, one in enumerate(history) if one.call == Read())
    spoiled = [*history]
    spoiled[last_read] = spoiled[last_read]._replace(answer=1_000)

    assert judge(history, Register()).verdict is Verdict.LINEARIZABLE
    assert judge(spoiled, Register()).verdict is Verdict.VIOLATED


def test_calls_without_an_answer_do_not_blow_up_the_search() -> None:
    """Hundreds of callers who never heard whether they wrote what was there already, and then a lie."""
    history = [write(0, 1, 1), *(write(2, NEVER, 1) for _ in range(300)), read(3, 4, 1), read(5, 6, 2)]

    assert judge(history, Register(), situations_max=1_000).verdict is Verdict.VIOLATED


def test_search_is_bounded() -> None:
    """At the bound there is a verdict; one situation less, and nobody knows."""
    history = [write(0, 1, 1), read(2, 3, 1)]

    assert judge(history, Register(), situations_max=3).verdict is Verdict.LINEARIZABLE
    assert judge(history, Register(), situations_max=2).verdict is Verdict.UNDECIDED


def test_finding_shows_how_far_an_order_came() -> None:
    first, lie = write(0, 1, 1), read(2, 3, 7)

    assert judge([first, lie], Register()).longest == (first,)
