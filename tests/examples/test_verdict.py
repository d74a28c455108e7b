"""The demo's claims: each is found false when the one thing that it is about is wrong."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from stepward.agents.examples.ledger import Entry
from stepward.agents.examples.travel_record import check
from stepward.client.demo.page import render
from stepward.client.demo.stories import Journey
from stepward.client.demo.trips import PLAY
from stepward.client.demo.verdict import judge
from stepward.client.values import JobState
from tests.examples.journeys import REPEATED, completed, event, hotel_call, taken_over, undone

REVERSE = "trip 2 was undone in reverse order: the hotel, and only then the flight"


def broken(journeys: Sequence[Journey], entries: Sequence[Entry] = REPEATED) -> list[str]:
    """The claims that do not hold. The record of these trips has hotels only."""
    record = check(entries, {journey.job.job_id: str(journey.job.state) for journey in journeys}, steps=())
    return [finding.claim for finding in judge(journeys, entries, record) if not finding.holds]


def test_all_as_promised() -> None:
    """Nothing is found wrong where nothing is."""
    assert broken([completed(), undone(), taken_over()]) == []


@pytest.mark.parametrize(
    ("second", "claim"),
    [
        # The flight was undone first.
        (
            undone(
                [
                    event(1, "UndoOffered", "flight"),
                    event(2, "UndoSucceeded", "flight"),
                    event(3, "UndoSucceeded", "hotel"),
                ]
            ),
            REVERSE,
        ),
        # The flight's undo was begun while the hotel's still ran.
        (
            undone(
                [
                    event(1, "UndoOffered", "flight"),
                    event(2, "UndoSucceeded", "hotel"),
                    event(3, "UndoSucceeded", "flight"),
                ]
            ),
            REVERSE,
        ),
        # Nothing was undone.
        (undone([]), REVERSE),
        (undone(kind="TryLater"), "trip 2 failed because no car was left"),
        (undone([*undone().history, event(6, "StepOffered", "receipt")]), "the receipt of trip 2 was never begun"),
    ],
)
def test_undo_that_is_wrong(second: Journey, claim: str) -> None:
    """Order, reason, and what must not have begun."""
    assert broken([completed(), second, taken_over()]) == [claim]


@pytest.mark.parametrize(
    ("third", "entries", "claims"),
    [
        # The killed agent finished it after all, or nobody was killed.
        (
            taken_over(killed=False),
            REPEATED,
            [
                "the hotel of trip 3 was begun by one agent and finished by another",
                "it was given to another agent only after the lease of the killed one had ended",
            ],
        ),
        (
            taken_over([event(2, "StepOffered", "hotel", "s2")]),
            REPEATED,
            [
                "the hotel of trip 3 was begun by one agent and finished by another",
                "it was given to another agent only after the lease of the killed one had ended",
            ],
        ),
        # The second agent got it before the first was given up.
        (
            taken_over(
                [
                    event(2, "StepOffered", "hotel", "s2"),
                    event(3, "StepOffered", "hotel", "s1"),
                    event(7, "StepAttemptLost", "hotel", "s2"),
                ]
            ),
            REPEATED,
            ["it was given to another agent only after the lease of the killed one had ended"],
        ),
        # The first was given up too early.
        (
            taken_over(
                [
                    event(2, "StepOffered", "hotel", "s2"),
                    event(6, "StepAttemptLost", "hotel", "s2"),
                    event(7, "StepOffered", "hotel", "s1"),
                ]
            ),
            REPEATED,
            ["it was given to another agent only after the lease of the killed one had ended"],
        ),
        # The killed agent had not called yet, so the demo has shown nothing.
        (
            taken_over(),
            [hotel_call(token=8, effect=True)],
            ["both attempts called the travel service with the same key and got the same booking"],
        ),
        # Both attempts booked.
        (
            taken_over(),
            [hotel_call(token=2, effect=True), hotel_call(token=8, effect=True, booking="H-1002")],
            [
                "both attempts called the travel service with the same key and got the same booking",
                "nothing was booked twice",
                "the travel service's record shows nothing else that is wrong",
            ],
        ),
    ],
)
def test_takeover_that_is_wrong(third: Journey, entries: Sequence[Entry], claims: list[str]) -> None:
    """Who, when, and what the travel service saw of it."""
    assert broken([completed(), undone(), third], entries) == claims


@pytest.mark.parametrize(
    ("place", "claim"),
    [
        (0, "trip 1 ended COMPLETED"),
        (1, "trip 2 ended COMPENSATED"),
        (2, "trip 3 ended COMPLETED"),
    ],
)
def test_wrong_end(place: int, claim: str) -> None:
    """Each trip must end in its state."""
    journeys = [completed(), undone(), taken_over()]
    journeys[place] = replace(journeys[place], job=replace(journeys[place].job, state=JobState.FAILED))

    assert claim in broken(journeys)


def test_page_has_every_event_and_finding() -> None:
    """What the page leaves out, a reader cannot learn."""
    journeys = [completed(), undone(), taken_over()]
    record = check(REPEATED, {}, steps=())
    findings = judge(journeys, REPEATED, record)
    page = render(PLAY, journeys, REPEATED, findings)

    assert all(event.type in page for journey in journeys for event in journey.history)
    assert all(finding.claim in page for finding in findings)
    assert "| 7 | 7.000 | StepAttemptLost | hotel |" in page
    assert "was killed with `kill -9`" in page
    assert 's1["hotel<br/><i>undo: cancel-hotel</i>"]' in page
    assert "s0 --> s1" in page
