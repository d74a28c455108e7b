"""The judge of the travel service's record, as a table."""

import pytest

from stepward.agents.examples.ledger import Entry
from stepward.agents.examples.travel_record import check
from tests.examples.travel_calls import book, cancel, changed_nothing, took_effect

KEY = "0-1/car/0"
NO_CAR = "0-1/car has no booking although the trip completed"
ORPHAN = "0-1/car has a booking although the trip did not complete"
DONE = {"0-1": "COMPLETED"}
UNDONE = {"0-1": "COMPENSATED"}


@pytest.mark.parametrize(
    ("entries", "states", "breaches"),
    [
        # Nothing happened, and nothing should have.
        ([], {}, []),
        # A trip that took place.
        ([took_effect(book(KEY))], DONE, []),
        # A trip that did not, and was undone.
        ([took_effect(book(KEY)), took_effect(cancel(KEY))], UNDONE, []),
        # A repeat that was answered with the first booking is what keys are for.
        ([took_effect(book(KEY)), changed_nothing(book(KEY, token=2))], DONE, []),
        # A completed trip without its car.
        ([], DONE, [NO_CAR]),
        (
            [took_effect(book(KEY)), took_effect(cancel(KEY))],
            DONE,
            [NO_CAR],
        ),
        # A car that nobody gives back.
        ([took_effect(book(KEY))], UNDONE, [ORPHAN]),
        # So is a car of a job that nobody knows.
        ([took_effect(book(KEY))], {}, [ORPHAN]),
        # A cancel of another key gives nothing back.
        (
            [took_effect(book(KEY)), took_effect(cancel("0-1/car/1"))],
            UNDONE,
            [ORPHAN],
        ),
        # A booking that came after its cancel.
        (
            [took_effect(cancel(KEY)), took_effect(book(KEY, token=3))],
            UNDONE,
            [ORPHAN],
        ),
        # The same key took effect twice, and both stand.
        (
            [took_effect(book(KEY)), took_effect(book(KEY, token=2))],
            DONE,
            [f"{KEY} took effect more than once", "0-1/car has more than one booking that stands"],
        ),
        # Undoing both does not undo that it was wrong.
        (
            [took_effect(book(KEY)), took_effect(book(KEY, token=2)), took_effect(cancel(KEY, token=3))],
            UNDONE,
            [f"{KEY} took effect more than once"],
        ),
        # Two keys of one step both stand: the generation grew before the undo was done.
        (
            [took_effect(book(KEY)), took_effect(book("0-1/car/1", token=2))],
            DONE,
            ["0-1/car has more than one booking that stands"],
        ),
        # An old token took effect after a newer one.
        (
            [took_effect(cancel(KEY, token=2)), took_effect(book("0-1/car/1", token=1))],
            DONE,
            ["0-1/car took effect with an older token after a newer one"],
        ),
    ],
)
def test_breaches(entries: list[Entry], states: dict[str, str], breaches: list[str]) -> None:
    """Each wrong thing is told once, with its subject."""
    assert check(entries, states, steps=("car",)).breaches == breaches


def test_counts() -> None:
    """What is not wrong but worth knowing."""
    report = check(
        [
            took_effect(book(KEY, token=2)),
            changed_nothing(book(KEY, token=3)),
            changed_nothing(book(KEY, token=1), status=409, kind="StaleToken"),
        ],
        DONE,
        steps=("car",),
    )

    assert (report.calls, report.repeats, report.stale_refused, report.live) == (3, 1, 1, {KEY: 1})


def test_completed_trip_has_all_four() -> None:
    """Unless told otherwise, a trip is flight, hotel, car and receipt."""
    report = check([took_effect(book(KEY))], DONE)

    assert report.missing == ("0-1/flight", "0-1/hotel", "0-1/receipt")
