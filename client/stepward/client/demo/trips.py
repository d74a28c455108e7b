"""The three trips of the demo: what each is to show, and what it asks for.

Some words in a wish have a meaning for the travel service: `none-left` is refused for good, `slow-700` takes 700 ms.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from stepward.client.values import HistoryEvent, Job

DEFINITION = "trip"

# The step of the third trip whose agent is killed, and how long it would take if nobody were killed: longer than the
# second agent needs to finish it, and shorter than its own time limit.
KILLED_STEP = "hotel"
KILLED_STEP_MS = 20_000


@dataclass(frozen=True, kw_only=True)
class Trip:
    """One trip before it is made."""

    number: int
    title: str
    promise: str
    """What is to be seen, in a sentence."""
    input: Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class Kill:
    """An agent that was killed in the middle of a step."""

    agent: str
    """Its name."""
    pid: int
    session_id: str
    step_id: str
    token: int
    at_s: float
    """Seconds since the job was submitted."""
    lease_ends_s: float
    """When the cluster will hold its lease to have ended, in the same seconds."""


@dataclass(frozen=True, kw_only=True)
class Journey:
    """One trip after it was made."""

    trip: Trip
    job: Job
    """At its end, with its steps."""
    history: tuple[HistoryEvent, ...]
    agents: Mapping[str, str]
    """Names of the agents by session, also of those that are gone."""
    kill: Kill | None = None


def trips(*, fast: bool) -> tuple[Trip, Trip, Trip]:
    """What is shown. Slow calls let eyes follow; fast ones are for those who know it."""
    pace = "" if fast else ", slow-700"
    everything = {
        "traveller": "Ada Lovelace",
        "flight": f"LHR-TRN{pace}",
        "hotel": f"quiet{pace}",
        "car": f"small{pace}",
    }
    return (
        Trip(
            number=1,
            title="Everything works",
            promise="The flight is booked first, then hotel and car side by side, then the receipt is sent.",
            input=everything,
        ),
        Trip(
            number=2,
            title="No car is left",
            promise="The car fails for good, so the hotel is cancelled, and after it the flight.",
            # The refusal comes late enough for the hotel to be booked, so that there is something to undo.
            input={**everything, "car": "none-left, slow-1000"},
        ),
        Trip(
            number=3,
            title="An agent is killed",
            promise="The agent that books the hotel is killed in the middle of it. When its lease has surely ended, "
            "another agent books with the same key and gets the same booking.",
            input={**everything, KILLED_STEP: f"quiet, slow-{KILLED_STEP_MS}"},
        ),
    )
