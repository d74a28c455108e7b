"""What a job that did not complete has left behind, in words."""

from __future__ import annotations

import pytest

from stepward.server.core.limits import Limits
from stepward.server.core.remainders import LeftBehind, Remainder, left_behind
from stepward.server.core.rows import Failure, JobState, Progress, Step, StepState
from tests.core.world import step_spec

DOWN = Failure("Down", "503")
BY_ADA = Failure("PASSED_OVER", "passed over by ada: it is cheap")


def progress(state: JobState, *, undoing: bool = False, kind: str = "TERMINATED") -> Progress:
    return Progress(state, 1, 0, 0, undoing=undoing, failure=Failure(kind))


def step(state: StepState, *, maybe_done: bool = False, failure: Failure | None = None) -> Step:
    return Step(state, 0, maybe_done=maybe_done, failure=failure)


ENDED = progress(JobState.FAILED)


@pytest.mark.parametrize(
    ("row", "job", "expected"),
    [
        (step(StepState.SUCCEEDED), ENDED, (False, "the job was terminated")),
        # It is known to be done, whatever an earlier attempt did.
        (step(StepState.SUCCEEDED, maybe_done=True), ENDED, (False, "the job was terminated")),
        (step(StepState.CANCELLED, maybe_done=True), ENDED, (True, "the job was terminated")),
        (
            step(StepState.SUCCEEDED),
            progress(JobState.FAILED, kind="DEADLINE"),
            (False, "the job was ended without undoing it: DEADLINE"),
        ),
        (step(StepState.UNDO_SKIPPED, failure=DOWN), ENDED, (False, "the job was terminated")),
        (step(StepState.UNDO_SKIPPED, failure=BY_ADA), ENDED, (False, "passed over by ada: it is cheap")),
        (
            step(StepState.UNDO_FAILED, failure=DOWN),
            progress(JobState.ESCALATED, undoing=True),
            (False, "its undo failed: Down: 503"),
        ),
        (
            step(StepState.UNDO_OUTCOME_UNKNOWN, maybe_done=True, failure=DOWN),
            progress(JobState.ESCALATED, undoing=True),
            (True, "nobody knows whether its undo happened: Down: 503"),
        ),
        (
            step(StepState.UNDO_RUNNING),
            progress(JobState.ESCALATED, undoing=True),
            (False, "its undo is under way"),
        ),
        (
            step(StepState.SUCCEEDED),
            progress(JobState.ESCALATED, undoing=True),
            (False, "its undo waits for those of other steps"),
        ),
        (
            step(StepState.ESCALATED, maybe_done=True),
            progress(JobState.ESCALATED),
            (True, "the job waits for a person, and is not being undone"),
        ),
    ],
)
def test_reasons(row: Step, job: Progress, expected: tuple[bool, str]) -> None:
    """Whether anybody knows, and why it was not undone."""
    found = left_behind([(step_spec("a"), row)], job, Limits())

    assert found == LeftBehind((), (Remainder("a", *expected),))


@pytest.mark.parametrize(
    "row", [None, step(StepState.FAILED), step(StepState.CANCELLED), step(StepState.SKIPPED)], ids=repr
)
def test_what_surely_did_not_happen_does_not_remain(row: Step | None) -> None:
    """Nor does what never began."""
    assert left_behind([(step_spec("a"), row)], ENDED, Limits()) == LeftBehind()


def test_want_of_an_undo_goes_before_everything_else() -> None:
    """Whatever became of the job, nothing else would have undone it."""
    found = left_behind([(step_spec("a", undo=False), step(StepState.SUCCEEDED))], ENDED, Limits())

    assert found.remainders == (Remainder("a", False, "has no undo"),)


@pytest.mark.parametrize("count", [3, 4])
def test_lists_are_bounded(count: int) -> None:
    """As many as the bound, and one more."""
    undone = [(step_spec(f"u{n}"), step(StepState.COMPENSATED)) for n in range(count)]
    left = [(step_spec(f"r{n}"), step(StepState.SUCCEEDED)) for n in range(count)]

    found = left_behind([*undone, *left], ENDED, Limits(listed_steps_max=3))

    assert found.undone == ("u0", "u1", "u2")
    assert [one.step_id for one in found.remainders] == ["r0", "r1", "r2"]


@pytest.mark.parametrize(("words", "kept"), [("x" * 3, "x" * 3), ("x" * 4, "x" * 3), ("xx\u00e9", "xx")])
def test_long_reasons_are_cut(words: str, kept: str) -> None:
    """At the bound, one byte beyond it, and between characters: a thousand of them stand in one answer."""
    said = "its undo failed: Down: "
    limits = Limits(remainder_reason_bytes_max=len(said) + 3)
    row = step(StepState.UNDO_FAILED, failure=Failure("Down", words))

    found = left_behind([(step_spec("a"), row)], progress(JobState.ESCALATED, undoing=True), limits)

    assert [one.reason for one in found.remainders] == [said + kept]
