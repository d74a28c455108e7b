"""Did everything come as promised? Pure: jobs, histories and the travel service's record go in, findings come out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from stepward.client.demo.findings import Finding, completes, ended, happened_to, listed, revision, second_of
from stepward.client.demo.stories import Journey
from stepward.client.demo.trips import KILLED_STEP
from stepward.client.values import JobState

if TYPE_CHECKING:
    from stepward.agents.examples.ledger import Entry
    from stepward.agents.examples.travel_record import Report


# Leases are counted on a clock that no wall clock moves; what is compared here are wall times.
CLOCK_SKEW_S = 0.25


def judge(journeys: Sequence[Journey], entries: Sequence[Entry], record: Report) -> list[Finding]:
    """All findings, trip by trip, then those of the record."""
    first, second, third = journeys
    return [*completes(first), *_is_undone(second), *_is_taken_over(third, entries), *record_findings(record)]


def _is_undone(journey: Journey) -> list[Finding]:
    number = journey.story.number
    kind = journey.job.failure.kind if journey.job.failure else "none"
    undone = happened_to(journey.history, "UndoSucceeded")
    hotel_undone = revision(journey.history, "UndoSucceeded", "hotel")
    flight_offered = revision(journey.history, "UndoOffered", "flight")
    started = [event.step_id for event in journey.history if event.type in ("StepStarted", "StepOffered")]
    return [
        ended(journey, JobState.COMPENSATED),
        Finding(
            claim=f"trip {number} failed because no car was left",
            seen=f"kind {kind}",
            holds=kind == "CarUnavailable",
        ),
        Finding(
            claim=f"trip {number} was undone in reverse order: the hotel, and only then the flight",
            seen=f"undone: {listed(undone) or 'nothing'}; hotel undone in batch {hotel_undone}, "
            f"flight's undo offered in batch {flight_offered}",
            holds=undone == ["hotel", "flight"]
            and hotel_undone is not None
            and flight_offered is not None
            # One batch may end the one and offer the other.
            and hotel_undone <= flight_offered,
        ),
        Finding(
            claim=f"the receipt of trip {number} was never begun",
            seen=f"begun: {listed(dict.fromkeys(started))}",
            holds="receipt" not in started,
        ),
    ]


def _is_taken_over(journey: Journey, entries: Sequence[Entry]) -> list[Finding]:
    number = journey.story.number
    kill = journey.kill
    offers = [event for event in journey.history if event.type == "StepOffered" and event.step_id == KILLED_STEP]
    lost = [event for event in journey.history if event.type == "StepAttemptLost" and event.step_id == KILLED_STEP]
    holders = [journey.agents.get(event.session_id, event.session_id) for event in offers]
    calls = [entry for entry in entries if (entry.call.job, entry.call.step) == (journey.job.job_id, KILLED_STEP)]
    numbers = {entry.answer.booking for entry in calls if entry.answer.booking}
    return [
        *completes(journey),
        Finding(
            claim=f"the {KILLED_STEP} of trip {number} was begun by one agent and finished by another",
            seen=f"offered to {listed(holders) or 'nobody'}; killed: {kill.agent if kill else 'nobody'}",
            holds=kill is not None and len(set(holders)) > 1 and holders[0] == kill.agent != holders[-1],
        ),
        Finding(
            claim="it was given to another agent only after the lease of the killed one had ended",
            seen=f"lost in {len(lost)} attempts, in batch {lost[0].revision if lost else '-'}; "
            f"offered in batches {listed(str(event.revision) for event in offers)}",
            holds=len(lost) == 1
            and len(offers) > 1
            and offers[0].revision < lost[0].revision <= offers[1].revision
            and kill is not None
            and second_of(journey, lost[0]) > kill.lease_ends_s - CLOCK_SKEW_S,
        ),
        Finding(
            claim="both attempts called the travel service with the same key and got the same booking",
            seen=f"{len(calls)} calls, {sum(entry.answer.effect for entry in calls)} with an effect, "
            f"{len({entry.call.key for entry in calls})} key, bookings {listed(sorted(numbers)) or 'none'}",
            holds=len(calls) > 1
            and len({entry.call.key for entry in calls}) == len(numbers) == 1
            and sum(entry.answer.effect for entry in calls) == 1,
        ),
    ]


def record_findings(record: Report) -> list[Finding]:
    """What the travel service's record shows."""
    doubles = (*record.double_bookings, *record.booked_twice)
    return [
        Finding(claim="nothing was booked twice", seen=listed(doubles) or "nothing", holds=not doubles),
        Finding(
            claim="nothing is charged for a trip that did not take place",
            seen=listed(record.orphaned_charges) or "nothing",
            holds=not record.orphaned_charges,
        ),
        Finding(
            claim="the travel service's record shows nothing else that is wrong",
            seen=listed(record.breaches) or f"{record.calls} calls, {record.repeats} of them repeats",
            holds=not record.breaches,
        ),
    ]
