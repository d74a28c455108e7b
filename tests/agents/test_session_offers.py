"""Offers: what starts, when, and what is dropped or handed back."""

from __future__ import annotations

import pytest

from stepward.agents.memory import Memory
from stepward.v1 import agent_service_pb2 as wire
from tests.agents.played import ON_ACCEPT, Played, offer


def test_on_offer_starts_at_delivery() -> None:
    played = Played()
    played.open()

    assert played.offer("flight", 7) == ["start flight#7"]


def test_handler_that_ends_soon_reports_its_outcome_only() -> None:
    """Start and outcome together are one batch of the cluster."""
    played = Played()
    played.open()
    played.offer("flight", 7)

    assert played.passes(450) == []
    assert played.ended("flight", 7) == ["report succeeded flight#7"]


def test_handler_that_still_runs_reports_its_start_once() -> None:
    played = Played()
    played.open()
    played.offer("flight", 7)

    assert played.passes(450) == []
    assert played.passes(50) == ["report started flight#7"]
    assert played.answer("flight", 7) == []
    assert played.passes(5_000) == []
    assert played.ended("flight", 7) == ["report succeeded flight#7"]


def test_on_accept_starts_only_when_the_accept_is_recorded() -> None:
    """A step that was never accepted has surely not happened."""
    played = Played()
    played.open()

    assert played.offer("charge", 7, start=ON_ACCEPT) == ["report accepted charge#7"]
    assert played.passes(5_000) == []
    assert played.answer("charge", 7) == ["start charge#7"]
    # The accept has said that it starts.
    assert played.passes(5_000) == []


@pytest.mark.parametrize("result", ["CANCELLED", "STALE_TOKEN", "NOT_FOUND", "INTERNAL"])
def test_accept_that_is_not_recorded_never_starts(result: str) -> None:
    """H027: whatever the cluster says instead of RECORDED, the slot is free and the attempt is remembered."""
    played = Played(slots=1)
    played.open()
    played.offer("charge", 7, start=ON_ACCEPT)

    assert played.answer("charge", 7, result) == []
    assert played.session.busy_slots == 0
    assert played.session.held == []
    assert played.cancel("charge", 7) == ["report refused charge#7"]


def test_way_of_starting_that_is_not_known_asks_first() -> None:
    """Asking is always allowed; starting is not."""
    played = Played()
    played.open()

    assert played.offer("charge", 7, start=wire.OFFER_START_UNSPECIFIED) == ["report accepted charge#7"]


def test_duplicate_of_a_running_attempt_is_dropped() -> None:
    """The cluster sends every open offer again on a new stream."""
    played = Played()
    played.open()
    played.offer("flight", 7)

    assert played.offer("flight", 7) == []


def test_duplicate_of_an_attempt_that_asks_is_dropped() -> None:
    played = Played()
    played.open()
    played.offer("charge", 7, start=ON_ACCEPT)

    assert played.offer("charge", 7, start=ON_ACCEPT) == []


def test_duplicate_of_an_ended_attempt_is_dropped() -> None:
    """Before and after its outcome is answered."""
    played = Played()
    played.open()
    played.offer("flight", 7)
    played.ended("flight", 7)

    assert played.offer("flight", 7) == []

    played.answer("flight", 7)

    assert played.offer("flight", 7) == []


def test_same_token_of_another_step_is_no_duplicate() -> None:
    """Assignments of one batch share the token."""
    played = Played()
    played.open()

    assert played.offers(offer("flight", 7), offer("hotel", 7), offer("flight", 7, job="0-other")) == [
        "start flight#7",
        "start hotel#7",
        "start flight#7",
    ]


def test_newer_token_of_the_same_step_is_no_duplicate() -> None:
    played = Played()
    played.open()
    played.offer("flight", 7)
    played.ended("flight", 7)
    played.answer("flight", 7)

    assert played.offer("flight", 8) == ["start flight#8"]


def test_what_exceeds_the_slots_is_handed_back() -> None:
    """It uses no attempt, and others may have it at once."""
    played = Played(slots=2)
    played.open()

    assert played.offers(offer("a", 7), offer("b", 7), offer("c", 7)) == [
        "report refused c#7 handed_back",
        "start a#7",
        "start b#7",
    ]


def test_slot_is_free_when_the_handler_has_ended() -> None:
    """Not only when its outcome is answered: the next offer comes in the same batch as that answer."""
    played = Played(slots=1)
    played.open()
    played.offer("a", 7)
    played.ended("a", 7)

    assert played.offer("b", 8) == ["start b#8"]


def test_attempt_that_asks_takes_a_slot() -> None:
    played = Played(slots=1)
    played.open()
    played.offer("a", 7, start=ON_ACCEPT)

    assert played.offer("b", 7) == ["report refused b#7 handed_back"]


def test_handed_back_attempt_never_starts() -> None:
    """The answer *never started* is a proof, so it must stay true for the session."""
    played = Played(slots=1)
    played.open()
    played.offers(offer("a", 7), offer("b", 7))
    played.ended("a", 7)
    played.answer("b", 7)

    assert played.offer("b", 7) == ["report refused b#7"]


def test_action_that_the_agent_does_not_have_fails() -> None:
    """It cannot be handed back: the cluster would offer it again for ever. Attempts are bounded."""
    played = Played()
    played.open()

    assert played.offer("a", 7, action="paint") == ["report failed a#7 ACTION_NOT_FOUND retryable=True"]
    assert played.session.held != []
    played.answer("a", 7)
    assert played.session.held == []


def test_forgotten_attempt_is_not_started_again() -> None:
    """What fell out of the memory leaves its token behind, and below that nothing starts."""
    played = Played(memory=Memory(remembered_max=1))
    played.open()
    for token in (7, 8):
        played.offer("flight", token)
        played.ended("flight", token)
        played.answer("flight", token)

    assert played.offer("flight", 7) == []
    assert played.offer("hotel", 8) == ["start hotel#8"]
