"""The rules of the travel service: keys, tokens, cancels and wishes."""

import pytest

from stepward.agents.examples.bookings import Answer, Bookings, Call
from tests.examples.travel_calls import book, cancel

KEY = "0-1/car/0"


def answers(*calls: Call, deduplication: bool = True, fencing: bool = True) -> list[Answer]:
    """What a new service answers to the calls, one after the other."""
    bookings = Bookings(deduplication=deduplication, fencing=fencing)
    return [bookings.answer(call) for call in calls]


def test_repeat_answers_the_first_booking() -> None:
    """That is what the key is for: the first attempt may have gone through without anybody knowing."""
    first, repeat = answers(book(KEY, token=1), book(KEY, token=2))

    assert (first.effect, repeat.effect) == (True, False)
    assert first.booking == repeat.booking == "C-1001"


def test_repeat_books_again_without_deduplication() -> None:
    """A careless service charges twice."""
    first, repeat = answers(book(KEY, token=1), book(KEY, token=2), deduplication=False)

    assert (first.effect, repeat.effect) == (True, True)
    assert first.booking != repeat.booking


def test_cancel_without_deduplication_takes_back_all() -> None:
    """Otherwise the second of two bookings would stay for ever."""
    *_, undone = answers(book(KEY, token=1), book(KEY, token=2), cancel(KEY, token=3), deduplication=False)

    assert undone.booking == "C-1001, C-1002"


@pytest.mark.parametrize(
    ("calls", "statuses", "effects"),
    [
        # The undo of a step that may have happened, and had not.
        ([cancel(KEY)], [200], [False]),
        # A cancel may be repeated.
        ([book(KEY), cancel(KEY), cancel(KEY)], [200, 200, 200], [True, True, False]),
        # The booking that was on its way all the time comes after the cancel.
        ([cancel(KEY, token=1), book(KEY, token=1)], [200, 410], [False, False]),
        # It may also have been booked, undone, and come once more.
        ([book(KEY), cancel(KEY), book(KEY, token=3)], [200, 200, 410], [True, True, False]),
        # A new generation of the step is a new key.
        ([book(KEY), cancel(KEY), book("0-1/car/1", token=3)], [200, 200, 200], [True, True, True]),
    ],
)
def test_cancel_keeps_late_bookings_out(calls: list[Call], statuses: list[int], effects: list[bool]) -> None:
    """A cancel is final for its key, whether or not anything was booked."""
    given = answers(*calls)

    assert [answer.status for answer in given] == statuses
    assert [answer.effect for answer in given] == effects


@pytest.mark.parametrize(
    ("calls", "kinds"),
    [
        # The older attempt wakes up after the newer one was here.
        ([book(KEY, token=7), book(KEY, token=6)], ["", "StaleToken"]),
        # The same token may come again.
        ([book(KEY, token=7), book(KEY, token=7)], ["", ""]),
        # An undo's token stands in the same order, so a paused booking cannot follow it.
        ([cancel(KEY, token=7), book("0-1/car/1", token=6)], ["", "StaleToken"]),
        # Tokens of another step or another job say nothing.
        ([book(KEY, token=7), book("0-1/hotel/0", token=6), book("0-2/car/0", token=5)], ["", "", ""]),
    ],
)
def test_old_tokens_are_refused(calls: list[Call], kinds: list[str]) -> None:
    """Only the service can stop a paused process that acts once more."""
    assert [answer.kind for answer in answers(*calls)] == kinds


def test_old_tokens_are_taken_without_fencing() -> None:
    """So that a test sees what the key alone is worth."""
    assert [answer.status for answer in answers(book(KEY, token=7), book(KEY, token=6), fencing=False)] == [200, 200]


@pytest.mark.parametrize(
    ("service", "kind"),
    [
        ("flights", "FlightUnavailable"),
        ("hotels", "HotelUnavailable"),
        ("cars", "CarUnavailable"),
        ("receipts", "ReceiptUnavailable"),
        ("trains", "NoSuchService"),
    ],
)
def test_kind_of_refusal_names_the_service(service: str, kind: str) -> None:
    """Definitions name these kinds as not worth a retry."""
    [refused] = answers(book(KEY, service=service, wish="none-left"))

    assert (refused.kind, refused.effect) == (kind, False)


def test_wish_that_fails_once() -> None:
    """The retry is granted."""
    wish = "compact, fails-once"
    first, second = answers(book(KEY, wish=wish), book(KEY, wish=wish))

    assert (first.status, second.status) == (503, 200)


@pytest.mark.parametrize(
    ("wish", "status", "delay_ms"),
    [
        ("slow-8000", 200, 8000),
        ("quiet, slow-250", 200, 250),
        # A refusal may take its time, too.
        ("slow-250 none-left", 409, 250),
        ("slow", 200, 0),
        # Nobody waits for more than a thousand seconds.
        ("slow-1234567", 200, 0),
    ],
)
def test_wish_that_takes_its_time(wish: str, status: int, delay_ms: int) -> None:
    """The decision is taken at once; only its answer is late."""
    [answer] = answers(book(KEY, wish=wish))

    assert (answer.status, answer.delay_ms) == (status, delay_ms)


def test_repeat_is_answered_at_once() -> None:
    """It is a look into the books."""
    _, repeat = answers(book(KEY, wish="slow-8000"), book(KEY, wish="slow-8000", token=2))

    assert repeat.delay_ms == 0


def test_recall_continues_where_the_record_ends() -> None:
    """A service that was restarted knows its bookings, cancels, tokens and numbers."""
    calls = [
        book(KEY, token=7),
        book("0-2/car/0"),
        cancel("0-2/car/0"),
        book("0-3/car/0", wish="fails-once"),
    ]
    before = Bookings(deduplication=True, fencing=True)
    after = Bookings(deduplication=True, fencing=True)
    for call in calls:
        after.recall(call, before.answer(call))
    further = [
        book(KEY, token=8),
        book(KEY, token=6),
        book("0-2/car/0", token=3),
        book("0-3/car/0", wish="fails-once"),
        book("0-4/car/0"),
    ]

    assert [after.answer(call) for call in further] == [before.answer(call) for call in further]
