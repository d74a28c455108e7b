"""The judge of the fault matrix sees what it is there for: a sighting that is right, and one thing of it made wrong."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from stepward.client import JobState, StepState
from tests.cluster.fault_cells import KILL_GRACE_MS, TTL_MS, Bound, Cell, Fault, Kind
from tests.cluster.fault_service import Answer, Call, Deeds, Entry
from tests.cluster.fault_sightings import Began, Event, Sighting, breaches

LOST_LED_MS = 5_200
FENCE_LED_MS = LOST_LED_MS + TTL_MS + KILL_GRACE_MS
OLD, NEW = 7, 9


def event(type_: str, led_ms: int, token: int = OLD) -> Event:
    return Event(type=type_, step_id="deed", at_ms=led_ms, led_ms=led_ms, log_ms=led_ms, token=token, detail="")


def entry(verb: Any, token: int, *, effect: bool, kind: str = "") -> Entry:
    key = "j/deed/1/undo" if verb == "undo" else "j/deed/1"
    call = Call(
        service="keyed", verb=verb, key=key, about="j/deed/1", token=token, job="j", step="deed", attempt=1, agent_pid=1
    )
    return Entry(at_ms=0, call=call, answer=Answer(status=409 if kind else 200, effect=effect, kind=kind))


def paused(*, undo_again_led_ms: int = FENCE_LED_MS) -> Sighting:
    """An agent was paused while it undid the deed."""
    return Sighting(
        cell=Cell(Fault.AGENT_PAUSED, Kind.UNDOING),
        job_id="j",
        history=(
            event("UndoAttemptLost", LOST_LED_MS),
            event("UndoRetryScheduled", LOST_LED_MS),
            event("UndoOffered", undo_again_led_ms, NEW),
            event("UndoSucceeded", undo_again_led_ms + 10, NEW),
            event("JobCompensated", undo_again_led_ms + 10, 0),
            event("StaleReportObserved", undo_again_led_ms + 500),
        ),
        step=StepState.COMPENSATED,
        job=JobState.COMPENSATED,
        entries=(
            entry("do", 5, effect=True),
            entry("undo", OLD, effect=True),
            entry("undo", NEW, effect=False),
            entry("undo", OLD, effect=False, kind="StaleToken"),
        ),
        shown=(),
        began=Began(at_ms=0),
        ended_at_ms=FENCE_LED_MS,
    )


def away(*, at_ms: int) -> Sighting:
    """The server was away, and something happened at an instant."""
    return Sighting(
        cell=Cell(Fault.SERVER_KILLED, Kind.REPEATABLE),
        job_id="j",
        history=(event("StepSucceeded", at_ms), event("JobCompleted", at_ms)),
        step=StepState.SUCCEEDED,
        job=JobState.COMPLETED,
        entries=(entry("do", OLD, effect=True),),
        shown=(),
        began=Began(at_ms=100),
        ended_at_ms=at_ms,
        away_ms=(100, 100 + Bound.LEASE.ms(TTL_MS)),
    )


def test_what_is_right_is_right() -> None:
    assert breaches(paused()) == []
    assert breaches(away(at_ms=Bound.LEASE.ms(TTL_MS) + 100)) == []


def without(sighting: Sighting, type_: str) -> Sighting:
    return replace(sighting, history=tuple(event for event in sighting.history if event.type != type_))


PAUSED, AWAY = paused(), away(at_ms=Bound.LEASE.ms(TTL_MS) + 100)
LATER = 50_000


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (without(PAUSED, "UndoAttemptLost"), "UndoAttemptLost is not in the history"),
        (replace(PAUSED, began=Began(at_ms=0, led_ms=-Bound.LEASE.ms(TTL_MS))), "not within"),
        (replace(PAUSED, began=Began(at_ms=0, led_ms=TTL_MS)), "not within"),
        (without(PAUSED, "UndoRetryScheduled"), "UndoRetryScheduled does not follow"),
        (replace(PAUSED, step=StepState.UNDO_FAILED), "the step is UNDO_FAILED, not COMPENSATED"),
        (replace(PAUSED, job=JobState.ESCALATED), "the job is ESCALATED, not COMPENSATED"),
        (replace(PAUSED, entries=PAUSED.entries[:1]), "the deed stands 1 times, not 0"),
        (replace(PAUSED, entries=(*PAUSED.entries, PAUSED.entries[1])), "took effect 2 times"),
        (replace(PAUSED, entries=(PAUSED.entries[1], PAUSED.entries[0])), "took effect with token 5 after 7"),
        (paused(undo_again_led_ms=FENCE_LED_MS - 1), "UndoOffered came 1 ms before the lost attempt"),
        (without(PAUSED, "StaleReportObserved"), "the late report is not in the history"),
        (
            replace(PAUSED, history=(*PAUSED.history, event("StaleReportObserved", LATER))),
            "once and with its old token",
        ),
        (replace(PAUSED, entries=PAUSED.entries[:3]), "the service refused no old token"),
        (replace(PAUSED, cell=Cell(Fault.AGENT_BLOCKED, Kind.UNDOING)), "the worker did not end with 70"),
        (replace(PAUSED, cell=Cell(Fault.AGENT_BLOCKED_BEFORE, Kind.UNDOING), blocked_pid=1), "the agent began what"),
        (replace(AWAY, history=(event("StepAttemptLost", LATER), *AWAY.history)), "nothing was to be noticed"),
        (replace(AWAY, away_ms=(100, 100 + TTL_MS)), "leases would not have ended"),
        (away(at_ms=101), "happened while there was no server"),
    ],
)
def test_what_is_wrong_is_told(wrong: Sighting, said: str) -> None:
    assert any(said in breach for breach in breaches(wrong)), breaches(wrong)


def test_question_may_come_earlier_when_the_agent_was_heard_of() -> None:
    """Its word is as good as the end of its time, and of a timeout it is all that there is."""
    early = paused(undo_again_led_ms=LOST_LED_MS + 100)
    heard = event("StepAttemptConfirmedStopped", LOST_LED_MS + 50)
    spoke = replace(early, history=(*early.history[:2], heard, *early.history[2:]))

    assert any("before the lost attempt" in breach for breach in breaches(early))
    assert not any("before the lost attempt" in breach for breach in breaches(spoke))


def call(service: Any, verb: Any, token: int, wish: str = "") -> Call:
    return replace(entry(verb, token, effect=False).call, service=service, wish=wish)


def test_careful_service_does_once_and_refuses_what_is_old() -> None:
    deeds = Deeds()
    answers = [deeds.answer(call("keyed", "do", token)) for token in (OLD, NEW, OLD)]
    undone = [deeds.answer(call("keyed", verb, NEW + 1)) for verb in ("ask", "undo", "ask", "do")]

    assert [(answer.status, answer.effect) for answer in answers] == [(200, True), (200, False), (409, False)]
    assert [(answer.effect, answer.happened) for answer in undone] == [
        (False, True),
        (True, False),
        (False, False),
        (False, False),
    ]


def test_careless_service_does_whatever_it_is_told() -> None:
    deeds = Deeds()

    assert [deeds.answer(call("plain", "do", token)).effect for token in (NEW, OLD)] == [True, True]


@pytest.mark.parametrize(
    ("wish", "answers"),
    [
        ("fails-once", [(503, False, 0), (200, True, 0)]),
        ("none-left", [(409, False, 0), (409, False, 0)]),
        # What is answered late is done, and a repeat is answered at once.
        ("slow-once-1500", [(200, True, 1_500), (200, False, 0)]),
    ],
)
def test_service_goes_wrong_as_it_is_wished(wish: str, answers: list[tuple[int, bool, int]]) -> None:
    deeds = Deeds()
    given = [deeds.answer(call("keyed", "do", token, wish)) for token in (OLD, NEW)]

    assert [(answer.status, answer.effect, answer.delay_ms) for answer in given] == answers
