"""Did everything come as promised? Pure: jobs, histories and the travel service's record go in, findings come out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from stepward.client.demo.trips import KILLED_STEP, Journey
from stepward.client.values import HistoryEvent, JobState, StepState

if TYPE_CHECKING:
    from stepward.agents.examples.ledger import Entry
    from stepward.agents.examples.travel_record import Report


# Leases are counted on a clock that no wall clock moves; what is compared here are wall times.
CLOCK_SKEW_S = 0.25


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One claim, and what was seen of it."""

    claim: str
    seen: str
    holds: bool


def judge(journeys: Sequence[Journey], entries: Sequence[Entry], record: Report) -> list[Finding]:
    """All findings, trip by trip, then those of the record."""
    first, second, third = journeys
    return [*_completes(first), *_is_undone(second), *_is_taken_over(third, entries), *_record(record)]


def _completes(journey: Journey) -> list[Finding]:
    states = {step.step_id: step.state for step in journey.job.steps}
    return [
        _state(journey, JobState.COMPLETED),
        Finding(
            claim=f"every step of trip {journey.trip.number} succeeded",
            seen=_listed(f"{step} {state}" for step, state in states.items()),
            holds=bool(states) and set(states.values()) == {StepState.SUCCEEDED},
        ),
    ]


def _is_undone(journey: Journey) -> list[Finding]:
    number = journey.trip.number
    kind = journey.job.failure.kind if journey.job.failure else "none"
    undone = _steps(journey.history, "UndoSucceeded")
    hotel_undone = _revision(journey.history, "UndoSucceeded", "hotel")
    flight_offered = _revision(journey.history, "UndoOffered", "flight")
    started = [event.step_id for event in journey.history if event.type in ("StepStarted", "StepOffered")]
    return [
        _state(journey, JobState.COMPENSATED),
        Finding(
            claim=f"trip {number} failed because no car was left",
            seen=f"kind {kind}",
            holds=kind == "CarUnavailable",
        ),
        Finding(
            claim=f"trip {number} was undone in reverse order: the hotel, and only then the flight",
            seen=f"undone: {_listed(undone) or 'nothing'}; hotel undone in batch {hotel_undone}, "
            f"flight's undo offered in batch {flight_offered}",
            holds=undone == ["hotel", "flight"]
            and hotel_undone is not None
            and flight_offered is not None
            # One batch may end the one and offer the other.
            and hotel_undone <= flight_offered,
        ),
        Finding(
            claim=f"the receipt of trip {number} was never begun",
            seen=f"begun: {_listed(dict.fromkeys(started))}",
            holds="receipt" not in started,
        ),
    ]


def _is_taken_over(journey: Journey, entries: Sequence[Entry]) -> list[Finding]:
    number = journey.trip.number
    kill = journey.kill
    offers = [event for event in journey.history if event.type == "StepOffered" and event.step_id == KILLED_STEP]
    lost = [event for event in journey.history if event.type == "StepAttemptLost" and event.step_id == KILLED_STEP]
    holders = [journey.agents.get(event.session_id, event.session_id) for event in offers]
    calls = [entry for entry in entries if (entry.call.job, entry.call.step) == (journey.job.job_id, KILLED_STEP)]
    numbers = {entry.answer.booking for entry in calls if entry.answer.booking}
    return [
        *_completes(journey),
        Finding(
            claim=f"the {KILLED_STEP} of trip {number} was begun by one agent and finished by another",
            seen=f"offered to {_listed(holders) or 'nobody'}; killed: {kill.agent if kill else 'nobody'}",
            holds=kill is not None and len(set(holders)) > 1 and holders[0] == kill.agent != holders[-1],
        ),
        Finding(
            claim="it was given to another agent only after the lease of the killed one had ended",
            seen=f"lost in {len(lost)} attempts, in batch {lost[0].revision if lost else '-'}; "
            f"offered in batches {_listed(str(event.revision) for event in offers)}",
            holds=len(lost) == 1
            and len(offers) > 1
            and offers[0].revision < lost[0].revision <= offers[1].revision
            and kill is not None
            and _second(journey, lost[0]) > kill.lease_ends_s - CLOCK_SKEW_S,
        ),
        Finding(
            claim="both attempts called the travel service with the same key and got the same booking",
            seen=f"{len(calls)} calls, {sum(entry.answer.effect for entry in calls)} with an effect, "
            f"{len({entry.call.key for entry in calls})} key, bookings {_listed(sorted(numbers)) or 'none'}",
            holds=len(calls) > 1
            and len({entry.call.key for entry in calls}) == len(numbers) == 1
            and sum(entry.answer.effect for entry in calls) == 1,
        ),
    ]


def _record(record: Report) -> list[Finding]:
    doubles = (*record.double_bookings, *record.booked_twice)
    return [
        Finding(claim="nothing was booked twice", seen=_listed(doubles) or "nothing", holds=not doubles),
        Finding(
            claim="nothing is charged for a trip that did not take place",
            seen=_listed(record.orphaned_charges) or "nothing",
            holds=not record.orphaned_charges,
        ),
        Finding(
            claim="the travel service's record shows nothing else that is wrong",
            seen=_listed(record.breaches) or f"{record.calls} calls, {record.repeats} of them repeats",
            holds=not record.breaches,
        ),
    ]


def _second(journey: Journey, event: HistoryEvent) -> float:
    assert event.at is not None
    assert journey.job.submitted_at is not None
    return (event.at - journey.job.submitted_at).total_seconds()


def _state(journey: Journey, wanted: JobState) -> Finding:
    state = journey.job.state
    return Finding(claim=f"trip {journey.trip.number} ended {wanted}", seen=str(state), holds=state is wanted)


def _steps(history: Iterable[HistoryEvent], type_: str) -> list[str]:
    return [event.step_id for event in history if event.type == type_]


def _revision(history: Iterable[HistoryEvent], type_: str, step_id: str) -> int | None:
    return next((event.revision for event in history if (event.type, event.step_id) == (type_, step_id)), None)


def _listed(words: Iterable[str]) -> str:
    return ", ".join(words)
