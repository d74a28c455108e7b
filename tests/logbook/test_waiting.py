"""Who goes first of those that wait: what hangs on a lease, then what exists, then new work by turns."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from stepward.server.core.commands import CloseStream
from stepward.server.logbook.outbox import Proposal
from stepward.server.logbook.waiting import Waiting


def proposal(name: str) -> Proposal:
    """`r1`: urgent; `w1`: of work that exists; anything else is new work of the namespace that it begins with."""
    share = "" if name[0] in "rw" else name[0]
    return Proposal(name, CloseStream(name, 1), urgent=name[0] == "r", share=share)


def waiting(*names: str) -> Waiting:
    found = Waiting()
    found.extend([proposal(name) for name in names])
    return found


def named(proposals: Sequence[Proposal]) -> list[str]:
    return [str(one.token) for one in proposals]


@pytest.mark.parametrize(
    ("names", "order"),
    [
        # In order, each kind by itself.
        ("w1 w2 w3", "w1 w2 w3"),
        ("a1 a2 a3", "a1 a2 a3"),
        # A renewal goes in front of whatever came before it.
        ("a1 w1 r1 r2", "r1 r2 w1 a1"),
        # Work that exists goes before new work, but a fourth of the places is new work's.
        ("a1 a2 a3 w1 w2 w3 w4 w5 w6 w7", "w1 w2 w3 a1 w4 w5 w6 a2 w7 a3"),
        # A namespace that floods waits in its own line.
        ("a1 a2 a3 a4 b1 c1 c2", "a1 b1 c1 a2 c2 a3 a4"),
        ("a1 a2 w1 w2 w3 w4 b1 b2", "w1 w2 w3 a1 w4 b1 a2 b2"),
    ],
)
def test_order(names: str, order: str) -> None:
    """What is shown is what is taken, one by one."""
    found = waiting(*names.split())
    shown = found.first(len(found))

    assert named(shown) == order.split()
    assert named([found.pop_first() for _ in range(len(found))]) == order.split()


def test_shown_is_taken_whatever_comes_between() -> None:
    """Whose turn it is outlives a batch: the order begins where the last one ended."""
    rng = random.Random(1)
    found, numbers = Waiting(), iter(range(10**6))
    for _ in range(500):
        found.extend([proposal(f"{rng.choice('rwwwabc')}{next(numbers)}") for _ in range(rng.randrange(6))])
        count = rng.randrange(min(4, len(found) + 1))
        shown = found.first(count)

        assert [found.pop_first() for _ in range(count)] == shown


def test_flood_of_outcomes_does_not_shut_out_new_work() -> None:
    """Of four places one is its own, over batches too."""
    found = waiting("a1", "b1")
    taken: list[str] = []
    for number in range(8):
        found.extend([proposal(f"w{number}")])
        taken += named([found.pop_first()])

    assert taken == ["w0", "w1", "w2", "a1", "w3", "w4", "w5", "b1"]


@pytest.mark.parametrize(
    ("names", "last"),
    [
        # New work goes first when there is no room, the newest of whoever has most of it.
        ("r1 w1 a1 a2 b1", "a2 b1 a1 w1 r1"),
        ("r1 w1 w2", "w2 w1 r1"),
        ("r1", "r1"),
    ],
)
def test_last(names: str, last: str) -> None:
    """Renewals are the last to be refused."""
    found = waiting(*names.split())
    dropped = [found.pop_last() for _ in range(len(found))]

    # Of two lines of the same length it does not matter which.
    assert sorted(named(dropped)) == sorted(last.split())
    assert named(dropped)[0] == last.split(maxsplit=1)[0]
    assert named(dropped)[-1] == last.rsplit(maxsplit=1)[-1]
    assert len(found) == 0


def test_sample_is_of_those_that_are_not_urgent() -> None:
    """Every second of the first five others."""
    assert named(waiting("r1", "w1", "a1", "a2", "a3", "a4").first(6, others_stride=2)) == ["w1", "a2", "a4"]
