"""Histories of calls on one job that must never be seen, and some that may."""

from __future__ import annotations

import pytest

from tests.linear.checker import NEVER, Operation, Verdict, judge
from tests.linear.jobs import Cancel, Cancelled, Get, Jobs, Listed, ListRunning, Seen, Submit, Submitted

FIRST = Submitted("j1", duplicate=False, cancelled=False)
AGAIN = Submitted("j1", duplicate=True, cancelled=False)
SEEN, SEEN_CANCELLED, NOT_FOUND = Seen(found=True), Seen(found=True, cancelled=True), Seen(found=False)
GET, CANCEL, LIST = Get("j1"), Cancel("j1"), ListRunning()
LOST = None


def one_by_one(*steps: tuple[object, object | None]) -> list[Operation]:
    """Calls of one caller after the other; one without an answer never ended."""
    return [
        Operation(2 * number, 2 * number + 1 if answer is not LOST else NEVER, call, answer)
        for number, (call, answer) in enumerate(steps)
    ]


@pytest.mark.parametrize(
    "steps",
    [
        [(Submit(), FIRST), (GET, SEEN), (CANCEL, Cancelled(already=False)), (GET, SEEN_CANCELLED), (LIST, Listed(()))],
        [(LIST, Listed(())), (Submit(), FIRST), (LIST, Listed(("j1",))), (Submit(), AGAIN)],
        # The first answer was lost: the retry gets the job, as a duplicate or not.
        [(Submit(), LOST), (Submit(), AGAIN), (GET, SEEN)],
        [(Submit(), LOST), (LIST, Listed(())), (Submit(), FIRST), (GET, SEEN)],
        [(Submit(), LOST), (LIST, Listed(("j1",))), (Submit(), AGAIN)],
        # A lost cancel comes late, or never.
        [(Submit(), FIRST), (CANCEL, LOST), (GET, SEEN), (GET, SEEN_CANCELLED)],
        [(Submit(), FIRST), (CANCEL, LOST), (GET, SEEN), (GET, SEEN)],
        [(Submit(), FIRST), (CANCEL, LOST), (CANCEL, Cancelled(already=True))],
    ],
)
def test_what_may_be_seen(steps: list[tuple[object, object | None]]) -> None:
    assert judge(one_by_one(*steps), Jobs()).verdict is Verdict.LINEARIZABLE


@pytest.mark.parametrize(
    "steps",
    [
        # An acknowledged job is not found, or not listed.
        [(Submit(), FIRST), (GET, NOT_FOUND)],
        [(Submit(), FIRST), (LIST, Listed(()))],
        # One key, two jobs.
        [(Submit(), FIRST), (Submit(), Submitted("j2", duplicate=False, cancelled=False))],
        [(Submit(), FIRST), (LIST, Listed(("j1", "j2")))],
        [(Submit(), FIRST), (Submit(), FIRST)],
        [(Submit(), LOST), (LIST, Listed(("j1",))), (Submit(), FIRST)],
        # A stale read, after the cancel and after it was seen.
        [(Submit(), FIRST), (CANCEL, Cancelled(already=False)), (GET, SEEN)],
        [(Submit(), FIRST), (CANCEL, Cancelled(already=False)), (LIST, Listed(("j1",)))],
        [(Submit(), FIRST), (CANCEL, LOST), (GET, SEEN_CANCELLED), (GET, SEEN)],
        # A cancel that nobody asked for, and one that was forgotten.
        [(Submit(), FIRST), (GET, SEEN_CANCELLED)],
        [(Submit(), FIRST), (CANCEL, Cancelled(already=False)), (CANCEL, Cancelled(already=False))],
        [(Submit(), FIRST), (CANCEL, Cancelled(already=False)), (Submit(), AGAIN)],
        # A job that is cancelled from its first moment.
        [(Submit(), Submitted("j1", duplicate=False, cancelled=True))],
    ],
)
def test_what_must_never_be_seen(steps: list[tuple[object, object | None]]) -> None:
    assert judge(one_by_one(*steps), Jobs()).verdict is Verdict.VIOLATED
