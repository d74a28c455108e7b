"""Claims about what was seen, and what holds of every journey. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise

from stepward.client.demo.stories import Journey
from stepward.client.values import HistoryEvent, JobState, StepState


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One claim, and what was seen of it."""

    claim: str
    seen: str
    holds: bool


def completes(journey: Journey) -> list[Finding]:
    """The job completed, with all its steps."""
    states = {step.step_id: step.state for step in journey.job.steps}
    return [
        ended(journey, JobState.COMPLETED),
        Finding(
            claim=f"every step of {journey.story.name} succeeded",
            seen=listed(f"{step} {state}" for step, state in states.items()),
            holds=bool(states) and set(states.values()) == {StepState.SUCCEEDED},
        ),
    ]


def ended(journey: Journey, wanted: JobState) -> Finding:
    """The job ended in this state."""
    state = journey.job.state
    return Finding(claim=f"{journey.story.name} ended {wanted}", seen=str(state), holds=state is wanted)


def undone_in_order(journey: Journey, *groups: set[str]) -> Finding:
    """These steps were undone and no others: each group when the one before it had been, its members side by side."""
    undone = happened_to(journey.history, "UndoSucceeded")
    ends = {step: revision(journey.history, "UndoSucceeded", step) for step in undone}
    begins = {step: revision(journey.history, "UndoOffered", step) for step in undone}
    in_order = sorted(undone) == sorted(step for group in groups for step in group) and all(
        # One batch may end the one and offer the other.
        (end := ends[before]) is not None and (begin := begins[after]) is not None and end <= begin
        for first, second in pairwise(groups)
        for before in first
        for after in second
    )
    order = ", then ".join(" and ".join(sorted(group)) for group in groups)
    return Finding(
        claim=f"{journey.story.name} was undone in reverse order: {order}",
        seen=f"undone: {listed(undone) or 'nothing'}",
        holds=in_order,
    )


def happened_to(history: Iterable[HistoryEvent], type_: str) -> list[str]:
    """The steps to which it happened, in order."""
    return [event.step_id for event in history if event.type == type_]


def revision(history: Iterable[HistoryEvent], type_: str, step_id: str) -> int | None:
    """The batch in which it happened to the step first."""
    return next((event.revision for event in history if (event.type, event.step_id) == (type_, step_id)), None)


def second_of(journey: Journey, event: HistoryEvent) -> float:
    """Seconds since the job was submitted."""
    assert event.at is not None
    assert journey.job.submitted_at is not None
    return (event.at - journey.job.submitted_at).total_seconds()


def listed(words: Iterable[str]) -> str:
    """As one text."""
    return ", ".join(words)
