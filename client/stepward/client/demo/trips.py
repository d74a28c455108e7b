"""The three trips of the demo: what each is to show, and what it asks for.

Some words in a wish have a meaning for the travel service: `none-left` is refused for good, `slow-700` takes 700 ms.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from stepward.client.demo.acting import kill_holder
from stepward.client.demo.findings import Finding
from stepward.client.demo.plays import Cast, Play, Scene
from stepward.client.demo.stories import Journey, Kill, Story
from stepward.client.values import StepState

if TYPE_CHECKING:
    from stepward.agents.examples.bookings import Answer
    from stepward.agents.examples.ledger import Entry

DEFINITION = "trip"

# The step of the third trip whose agent is killed, and how long it would take if nobody were killed: longer than the
# second agent needs to finish it, and shorter than its own time limit.
KILLED_STEP = "hotel"
KILLED_STEP_MS = 20_000


def trips(*, fast: bool) -> tuple[Story, Story, Story]:
    """What is shown. Slow calls let eyes follow; fast ones are for those who know it."""
    pace = "" if fast else ", slow-700"
    everything = {
        "traveller": "Ada Lovelace",
        "flight": f"LHR-TRN{pace}",
        "hotel": f"quiet{pace}",
        "car": f"small{pace}",
    }
    return (
        Story(
            number=1,
            name="trip 1",
            lesson="Each outcome and the offer that it makes possible stand in the same batch: no time is lost "
            "between two steps, and no crash can come between them.",
            title="Everything works",
            promise="The flight is booked first, then hotel and car side by side, then the receipt is sent.",
            input=everything,
        ),
        Story(
            number=2,
            name="trip 2",
            lesson="`CarUnavailable` stands in the definition among the kinds that are not worth another attempt. "
            "Compensation goes against the arrows: a step is undone when everything that was built on it has "
            "been undone. The receipt, which waited for the car, is never begun.",
            title="No car is left",
            promise="The car fails for good, so the hotel is cancelled, and after it the flight.",
            # The refusal comes late enough for the hotel to be booked, so that there is something to undo.
            input={**everything, "car": "none-left, slow-1000"},
        ),
        Story(
            number=3,
            name="trip 3",
            lesson="Killing an agent proves nothing to the cluster: it may be slow, or cut off, and its handler may "
            "still act. So the step waits, and goes to the other agent when the lease has ended on both sides. "
            "Its new token is higher, its key is the same, and the travel service answers the second call with "
            "the booking of the first.",
            title="An agent is killed",
            promise="The agent that books the hotel is killed in the middle of it. When its lease has surely ended, "
            "another agent books with the same key and gets the same booking.",
            input={**everything, KILLED_STEP: f"quiet, slow-{KILLED_STEP_MS}"},
        ),
    )


def act(scene: Scene) -> Kill | None:
    """Kill the agent that books the hotel of the third trip."""
    if scene.story.number != 3:
        return None
    return kill_holder(scene, KILLED_STEP, when=lambda step: step.state is StepState.RUNNING)


def file() -> Path:
    """The definition."""
    from stepward.agents.examples import trip

    return trip.DEFINITION


def read(path: Path) -> list[Entry]:
    """The travel service's record."""
    from stepward.agents.examples import ledger

    return ledger.read(path)


def number(answer: Answer) -> str:
    """The booking."""
    return answer.booking


def judge(journeys: Sequence[Journey], entries: Sequence[Entry]) -> list[Finding]:
    """From the histories, and from the record."""
    from stepward.agents.examples import travel_record
    from stepward.client.demo import verdict

    record = travel_record.check(entries, {journey.job.job_id: str(journey.job.state) for journey in journeys})
    return verdict.judge(journeys, entries, record)


INTRODUCTION = """\
# Three trips, batch by batch

This page was written by `stepward demo trip --fast --docs docs`: it is what a real run did, not what it should do.
`make docs` writes it anew.

A trip books a flight, then a hotel and a car side by side, then sends the receipt. Flight, hotel and car can be undone.
Two agents do the work; the bookings are made by a travel service, a process of its own, which records every call.
"""

PLAY = Play(
    name="trip",
    definition=DEFINITION,
    file=file,
    cast=Cast(
        service="travel service",
        service_module="stepward.agents.examples.travel_service",
        agent_module="stepward.agents.examples",
        flag="--travel",
    ),
    stories=lambda fast: trips(fast=fast),
    act=act,
    read=read,
    number=number,
    judge=judge,
    introduction=INTRODUCTION,
)
