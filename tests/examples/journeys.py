"""Three journeys of the demo as they should be, for tests that break one thing at a time."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from stepward.agents.examples.bookings import Answer, Call
from stepward.agents.examples.ledger import Entry
from stepward.client.demo.stories import Journey, Kill
from stepward.client.demo.trips import trips
from stepward.client.values import Failure, HistoryEvent, Job, JobState, Step, StepState

BEGAN = datetime(2026, 1, 1, tzinfo=UTC)
STEPS = ("flight", "hotel", "car", "receipt")
AGENTS = {"s1": "agent-1", "s2": "agent-2"}


def event(revision: int, type_: str, step_id: str = "", session_id: str = "") -> HistoryEvent:
    """One event, in the second of its batch."""
    at = BEGAN + timedelta(seconds=revision)
    return HistoryEvent(revision=revision, type=type_, at=at, step_id=step_id, session_id=session_id, token=revision)


def job(number: int, state: JobState, step_state: StepState, failure: Failure | None = None) -> Job:
    """The job of a trip at its end."""
    steps = tuple(Step(step_id=step_id, state=step_state) for step_id in STEPS)
    ended_at = BEGAN + timedelta(seconds=9)
    return Job(job_id=f"0-{number}", state=state, steps=steps, failure=failure, submitted_at=BEGAN, ended_at=ended_at)


def completed() -> Journey:
    """The first trip."""
    history = (event(1, "JobSubmitted"), event(1, "StepOffered", "flight", "s1"), event(2, "JobCompleted"))
    return Journey(
        story=trips(fast=True)[0],
        job=job(1, JobState.COMPLETED, StepState.SUCCEEDED),
        history=history,
        agents=AGENTS,
    )


UNDONE = (
    event(1, "StepOffered", "flight", "s1"),
    event(2, "StepOffered", "hotel", "s1"),
    event(2, "StepOffered", "car", "s2"),
    event(3, "UndoOffered", "hotel", "s1"),
    event(4, "UndoSucceeded", "hotel"),
    event(4, "UndoOffered", "flight", "s2"),
    event(5, "UndoSucceeded", "flight"),
)


def undone(history: Sequence[HistoryEvent] = UNDONE, *, kind: str = "CarUnavailable") -> Journey:
    """The second trip."""
    failure = Failure(kind=kind, step_id="car")
    return Journey(
        story=trips(fast=True)[1],
        job=job(2, JobState.COMPENSATED, StepState.COMPENSATED, failure),
        history=tuple(history),
        agents=AGENTS,
    )


TAKEN_OVER = (
    event(1, "StepOffered", "flight", "s1"),
    event(2, "StepOffered", "hotel", "s2"),
    event(7, "StepAttemptLost", "hotel", "s2"),
    event(8, "StepOffered", "hotel", "s1"),
)


def taken_over(history: Sequence[HistoryEvent] = TAKEN_OVER, *, killed: bool = True) -> Journey:
    """The third trip."""
    kill = Kill(agent="agent-2", pid=4711, session_id="s2", step_id="hotel", token=2, at_s=2.5, lease_ends_s=6.9)
    return Journey(
        story=trips(fast=True)[2],
        job=job(3, JobState.COMPLETED, StepState.SUCCEEDED),
        history=tuple(history),
        agents=AGENTS,
        kill=kill if killed else None,
    )


def hotel_call(*, token: int, effect: bool, booking: str = "H-1001", key: str = "0-3/hotel/1") -> Entry:
    """A call for the hotel of the third trip."""
    call = Call(service="hotels", verb="book", key=key, token=token, job="0-3", step="hotel", attempt=1, agent_pid=4711)
    return Entry(at_ms=0, call=call, answer=Answer(status=200, effect=effect, booking=booking))


REPEATED = (hotel_call(token=2, effect=True), hotel_call(token=8, effect=False))
