"""How a job looks to a person."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from stepward.client.payloads import Payload
from stepward.client.tree import (
    JOB_STYLES,
    MARKS,
    REMAINDERS_SHOWN_MAX,
    by_time,
    describe,
    plain,
    render_tree,
    rich_text,
    seconds,
)
from stepward.client.values import Agent, Failure, Job, JobState, Remainder, Step, StepState

NOW = datetime(2026, 11, 30, 12, 0, 0, tzinfo=UTC)
SOLD_OUT = Failure(kind="SoldOut", message="no seat\nleft")


def after(delay_s: float) -> datetime:
    return NOW + timedelta(seconds=delay_s)


def step(state: StepState, step_id: str = "a", **fields: Any) -> Step:
    return Step(step_id=step_id, state=state, action="book", queue="trip", attempts_max=5, **fields)


def job(*steps: Step, state: JobState = JobState.RUNNING, **fields: Any) -> Job:
    return Job(
        job_id="0-1",
        definition_name="trip",
        definition_version=2,
        state=state,
        steps=steps,
        submitted_at=after(-3.1),
        **fields,
    )


def test_a_whole_tree() -> None:
    """One line for the job, one for each step in the order of the definition."""
    shown = render_tree(
        job(
            step(StepState.SUCCEEDED, "flight"),
            step(StepState.RUNNING, "hotel-room", attempts=2, updated_at=after(-0.4)),
            step(StepState.PENDING, "car", needs=("flight", "hotel-room")),
        ),
        NOW,
    )

    assert plain(shown) == (
        "job 0-1  trip v2  RUNNING  3.1 s\n"
        "├─ ✔ flight      succeeded\n"
        "├─ ▶ hotel-room  attempt 2/5, 0.4 s\n"
        "└─ ○ car         waits for: hotel-room"
    )


def test_changes_are_told_in_the_order_of_their_batches() -> None:
    """An undo runs against the arrows, so the order of the definition would tell it backwards."""
    steps = (
        # Its undo begins in the batch in which that of the hotel ends, or is already over within the same moment.
        step(StepState.UNDO_OFFERED, "flight", updated_at=after(-1), token=9),
        step(StepState.COMPENSATED, "taxi", updated_at=after(-1), token=8),
        step(StepState.COMPENSATED, "hotel", updated_at=after(-1), token=7),
        step(StepState.FAILED, "car", updated_at=after(-2), token=5),
        step(StepState.PENDING, "receipt"),
    )

    assert [one.step_id for one in by_time(steps)] == ["receipt", "car", "hotel", "taxi", "flight"]


def test_a_job_without_steps() -> None:
    """As lists give it."""
    assert plain(render_tree(job(), NOW)) == "job 0-1  trip v2  RUNNING  3.1 s"


@pytest.mark.parametrize(
    ("state", "deadline_at", "said"),
    [
        (JobState.RUNNING, after(125), "RUNNING  3.1 s  deadline in 2 min 5 s"),
        # What follows from it takes its time.
        (JobState.COMPENSATING, after(0), "COMPENSATING  3.1 s  deadline passed"),
        # It bounds nothing any more.
        (JobState.COMPLETED, after(125), "COMPLETED  3.1 s"),
    ],
)
def test_the_first_line_says_how_long_a_job_may_take(state: JobState, deadline_at: datetime, said: str) -> None:
    assert plain(render_tree(job(state=state, deadline_at=deadline_at), NOW)) == f"job 0-1  trip v2  {said}"


def test_the_end_says_why_and_what_is_left() -> None:
    """The clock stops, the reason stands below."""
    ended = job(
        step(StepState.FAILED, attempts=5),
        state=JobState.FAILED,
        ended_at=after(-1.1),
        failure=Failure(kind="SoldOut", message="no seat", step_id="a"),
        remaining=("hotel", "car"),
        cancel_requested=True,
    )

    assert plain(render_tree(ended, NOW)) == (
        "job 0-1  trip v2  FAILED  2.0 s\n"
        "└─ ✘ a  failed after attempt 5/5\n"
        "why: a: SoldOut: no seat\n"
        "still done, and not undone: hotel, car"
    )


def test_the_end_says_why_each_step_remains() -> None:
    """A line each, as many as a person reads."""
    left = tuple(Remainder(step_id=f"s{n}", reason="has no undo", may_be_done=n == 0) for n in range(22))
    ended = job(state=JobState.FAILED, ended_at=after(-1.1), remainders=left, remaining=("hotel",))

    lines = [line.text for line in render_tree(ended, NOW)[1:]]

    assert lines[:2] == [
        "may still be done, and not undone: s0: has no undo",
        "still done, and not undone: s1: has no undo",
    ]
    assert (len(lines), lines[-1]) == (REMAINDERS_SHOWN_MAX + 1, "… and 2 more")


def test_what_an_ended_job_never_began_waits_for_nothing() -> None:
    """Nobody should wait for it either."""
    ended = job(step(StepState.FAILED, "a"), step(StepState.PENDING, "b", needs=("a",)), state=JobState.COMPENSATED)

    assert plain(render_tree(ended, NOW)).endswith("b  never begun")


def test_a_requested_cancel_is_shown_until_the_end() -> None:
    """Somebody has asked already."""
    assert "cancel requested" in render_tree(job(cancel_requested=True), NOW)[0].text


@pytest.mark.parametrize(
    ("shown", "words"),
    [
        (step(StepState.READY), 'waits for an agent with a free slot that offers "book" on queue "trip"'),
        # A day is nothing to count down.
        (
            step(StepState.READY, due_at=after(86_000), due_for="queue timeout"),
            'waits for an agent with a free slot that offers "book" on queue "trip"',
        ),
        (step(StepState.OFFERED, due_at=after(2.5), due_for="accept deadline"), "offered; accept deadline in 2.5 s"),
        # The failure of an attempt before says nothing about this one.
        (step(StepState.OFFERED, failure=SOLD_OUT), "offered"),
        (step(StepState.OUTCOME_UNKNOWN, failure=SOLD_OUT), "outcome unknown: SoldOut: no seat left"),
        (
            step(StepState.RUNNING, attempts=1, progress_payload=Payload(b'{"percent": 62}')),
            'attempt 1/5, progress {"percent": 62}',
        ),
        (step(StepState.RUNNING, attempts=1, progress_payload=Payload(b"\xff", "x")), "attempt 1/5"),
        (
            step(StepState.RETRY_WAIT, attempts=2, failure=SOLD_OUT, due_at=after(1.2), due_for="retry"),
            "attempt 2/5 failed: SoldOut: no seat left; retry in 1.2 s",
        ),
        (
            step(StepState.UNDO_RETRY_WAIT, attempts=2, failure=SOLD_OUT, due_at=after(1.2), due_for="retry"),
            "undo attempt 2/5 failed: SoldOut: no seat left; retry in 1.2 s",
        ),
        # A timer that is over but not yet handled does not count backwards.
        (
            step(StepState.RETRY_WAIT, attempts=1, due_at=after(-5), due_for="retry"),
            "attempt 1/5 failed; retry in 0.0 s",
        ),
        (
            step(StepState.OUTCOME_UNKNOWN, due_at=after(5.2), due_for="fence"),
            "outcome unknown: waits 5.2 s until nothing of its lost attempt can act any more",
        ),
        (step(StepState.ESCALATED, failure=SOLD_OUT), "escalated, waits for a person: SoldOut: no seat left"),
        (step(StepState.UNDO_FAILED), "undo failed, waits for a person"),
        (step(StepState.UNDO_RUNNING), "undo running"),
        (step(StepState.COMPENSATED), "undone"),
        (step(StepState.CANCELLED, maybe_done=True), "cancelled, but may have happened"),
        (step(StepState.FAILED, failure=SOLD_OUT), "failed: SoldOut: no seat left"),
        (step(StepState.PENDING), "pending"),
        (step(StepState.SKIPPED), "skipped"),
        (
            step(StepState.UNDO_SKIPPED, failure=Failure(kind="PASSED_OVER", message="passed over by ada: why")),
            "not undone: passed over by ada: why",
        ),
        # The job was ended without its undo; why an attempt failed before says nothing about that.
        (step(StepState.UNDO_SKIPPED, failure=SOLD_OUT), "not undone"),
    ],
)
def test_describe(shown: Step, words: str) -> None:
    """What a step does or waits for."""
    assert describe(shown, job(shown), NOW) == words


def test_a_ready_step_says_what_the_agents_say() -> None:
    """When they are known: a busy agent is not one that is missing. An empty queue is the default one."""
    busy = Agent(session_id="s", queue="default", actions=("book",), connected=True, slots=2, slots_taken=2)
    ready = Step(step_id="a", state=StepState.READY, action="book")

    assert describe(ready, job(ready), NOW, {"s": busy}) == (
        'waits for a free slot: all are taken (2 of 2, 1 agent on queue "default")'
    )
    assert describe(ready, job(ready), NOW, {}).endswith('no agent is connected to queue "default"')


def test_a_paused_job_holds_back_what_is_ready() -> None:
    """It does not wait for an agent."""
    held = step(StepState.READY)

    assert describe(held, job(held, state=JobState.PAUSED), NOW) == "held back: the job is paused"


@pytest.mark.parametrize("state", StepState)
def test_every_state_has_a_mark(state: StepState) -> None:
    """A state that is added must not be the end of the picture."""
    assert render_tree(job(step(state)), NOW)[1].text


@pytest.mark.parametrize("state", [StepState.RUNNING, StepState.OFFERED, StepState.UNDO_RUNNING])
@pytest.mark.parametrize(
    ("agents", "words"),
    [
        # It is there.
        ([Agent(session_id="s", connected=True, lease_ends_at=after(9))], None),
        # Its stream is gone: the freshest word on its lease counts.
        (
            [Agent(session_id="s", connected=False, lease_ends_at=after(5.2))],
            "agent lost: waits 5.2 s until its lease has surely ended",
        ),
        ([Agent(session_id="s", connected=False)], "agent lost: waits 7.0 s until its lease has surely ended"),
        # Its session is gone.
        ([], "agent lost: waits 7.0 s until its lease has surely ended"),
    ],
)
def test_a_lost_agent(state: StepState, agents: list[Agent], words: str | None) -> None:
    """How long a step still waits for an agent that is gone."""
    held = step(state, session_id="s", attempts=1, lease_ends_at=after(7))
    said = describe(held, job(held), NOW, {agent.session_id: agent for agent in agents})

    assert said == words if words else "lost" not in said


def test_without_knowledge_of_agents_nobody_is_lost() -> None:
    """A lease that is renewed moves no job, so the job alone cannot tell."""
    held = step(StepState.RUNNING, session_id="s", attempts=1, lease_ends_at=after(-7))

    assert "lost" not in describe(held, job(held), NOW)


def test_too_many_steps_are_counted() -> None:
    """Those at which something happens stay; the others are counted."""
    steps = [step(StepState.SUCCEEDED, f"s{n}") for n in range(50)]
    steps[40] = step(StepState.RUNNING, "s40")

    lines = render_tree(job(*steps), NOW, steps_shown_max=3)

    assert lines[1].text == "50 steps: 49 SUCCEEDED, 1 RUNNING"
    assert [line.text.split()[2] for line in lines[2:5]] == ["s0", "s1", "s40"]
    assert lines[5].text == "└─ … and 47 SUCCEEDED"


@pytest.mark.parametrize(
    ("duration_s", "text"),
    [
        (-1, "0.0 s"),
        (0.44, "0.4 s"),
        (59.9, "59.9 s"),
        (60, "1 min"),
        (125, "2 min 5 s"),
        (3_600, "1 h"),
        (11_520, "3 h 12 min"),
        (86_400, "1 d"),
        (176_400, "2 d 1 h"),
    ],
)
def test_seconds(duration_s: float, text: str) -> None:
    """Two units at most."""
    assert seconds(duration_s) == text


def test_every_state_has_its_looks() -> None:
    """A new state must be drawn."""
    assert MARKS.keys() == set(StepState)
    assert JOB_STYLES.keys() == set(JobState) - {JobState.UNSPECIFIED}


def test_for_a_terminal() -> None:
    """The same text, with styles, and brackets are not taken for markup."""
    lines = render_tree(job(step(StepState.FAILED, failure=Failure(kind="[red]X"))), NOW)

    assert rich_text(lines).plain == plain(lines)
