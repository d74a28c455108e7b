"""What a job that did not complete has left behind: which steps were undone, which remain done, and why."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from stepward.server.core.compensation import needs_undo
from stepward.server.core.limits import cut
from stepward.server.core.rows import JOB_STATES_FINAL, JobState, StepState
from stepward.server.core.step_verbs import PASSED_OVER
from stepward.server.core.termination import TERMINATED

if TYPE_CHECKING:
    from collections.abc import Iterable

    from stepward.server.core.limits import Limits
    from stepward.server.core.rows import Progress, Step, StepSpec

# What a job says of what it left behind is listed once there may be something: a completed one has nothing to tell.
TOLD_IN = JOB_STATES_FINAL - {JobState.COMPLETED} | {JobState.ESCALATED}


class Remainder(Struct, frozen=True):
    """A step that remains done, or may remain done, and why it was not undone, in words that may be cut."""

    step_id: str
    may_be_done: bool
    reason: str


class LeftBehind(Struct, frozen=True):
    """Ids of the steps that were undone, and what remains; at most `listed_steps_max` of each."""

    undone: tuple[str, ...] = ()
    remainders: tuple[Remainder, ...] = ()


def left_behind(steps: Iterable[tuple[StepSpec, Step | None]], progress: Progress, limits: Limits) -> LeftBehind:
    """Both lists, in the order of the definition."""
    listed_max, bytes_max = limits.listed_steps_max, limits.remainder_reason_bytes_max
    undone: list[str] = []
    remainders: list[Remainder] = []
    for spec, step in steps:
        if step is None:
            continue
        if step.state is StepState.COMPENSATED:
            undone.append(spec.id)
        elif needs_undo(step) and len(remainders) < listed_max:
            may_be_done = step.maybe_done and step.state is not StepState.SUCCEEDED
            remainders.append(Remainder(spec.id, may_be_done, cut(_reason(spec, step, progress), bytes_max)))
    return LeftBehind(tuple(undone[:listed_max]), tuple(remainders))


def _reason(spec: StepSpec, step: Step, progress: Progress) -> str:
    if spec.undo is None:
        return "has no undo"
    failure = step.failure
    match step.state:
        case StepState.UNDO_FAILED if failure is not None:
            return f"its undo failed: {failure.told}"
        case StepState.UNDO_OUTCOME_UNKNOWN if failure is not None:
            return f"nobody knows whether its undo happened: {failure.told}"
        case StepState.UNDO_SKIPPED if failure is not None and failure.kind == PASSED_OVER:
            return failure.message
    if progress.state in JOB_STATES_FINAL:
        return _ended_without(progress)
    if not progress.undoing:
        return "the job waits for a person, and is not being undone"
    return "its undo is under way" if step.state in _UNDER_WAY else "its undo waits for those of other steps"


_UNDER_WAY = (StepState.UNDO_READY, StepState.UNDO_OFFERED, StepState.UNDO_RUNNING, StepState.UNDO_RETRY_WAIT)


def _ended_without(progress: Progress) -> str:
    kind = "" if progress.failure is None else progress.failure.kind
    return "the job was terminated" if kind == TERMINATED else f"the job was ended without undoing it: {kind}"
