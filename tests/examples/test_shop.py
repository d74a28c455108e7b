"""The rules of the shop: keys, tokens, silence; and the judge of its record."""

from __future__ import annotations

import pytest

from stepward.agents.examples.orders.shop import NEVER_MS, UNDOES, Answer, Call, Entry, Shop, Verb
from stepward.agents.examples.orders.shop_record import breaches

KEY = "0-1/charge/1"
DONE, UNDONE = {"0-1": "COMPLETED"}, {"0-1": "COMPENSATED"}


def call(verb: Verb, service: str, *, token: int = 1, wish: str = "", key: str = KEY) -> Call:
    """A call of an attempt of the key's step, or of its undo."""
    job, step, _ = key.split("/")
    undoes = verb == UNDOES.get(service)
    own, of = (f"{key}/undo", key) if undoes else (key, "")
    return Call(
        service=service, verb=verb, key=own, of=of, token=token, job=job, step=step, attempt=1, agent_pid=1, wish=wish
    )


def charge(*, token: int = 1, wish: str = "") -> Call:
    return call("charge", "payments", token=token, wish=wish)


def ship(*, token: int = 1, wish: str = "") -> Call:
    return call("ship", "shipments", token=token, wish=wish)


FIND = call("find", "payments", token=0)
REFUND = call("refund", "payments", token=9)
RECALL = call("recall", "shipments", token=9)


@pytest.mark.parametrize(
    ("calls", "statuses", "effects"),
    [
        # A payment service that takes every request for a new one.
        ([charge(), charge(token=2)], [200, 200], [True, True]),
        # All others answer a repeat with what is there.
        ([ship(), ship(token=2)], [200, 200], [True, False]),
        # An undo takes back all that its key has done, and keeps out what comes late.
        ([charge(), charge(), REFUND, charge(token=10)], [200, 200, 200, 410], [True, True, True, False]),
        ([RECALL, ship(token=10)], [200, 410], [False, False]),
        ([ship(), RECALL, RECALL], [200, 200, 200], [True, True, False]),
        # Old tokens of the step are refused, but for those who only ask.
        ([ship(token=7), ship(token=6)], [200, 409], [True, False]),
        ([RECALL, ship(token=6)], [200, 409], [False, False]),
        ([charge(token=7), FIND], [200, 200], [True, False]),
        # Refused for good.
        ([charge(wish="declined")], [409], [False]),
        ([ship(wish="no-courier")], [409], [False]),
        ([call("reserve", "stock", wish="sold-out")], [409], [False]),
        # Nothing that a service could do.
        ([call("ship", "payments")], [404], [False]),
        ([call("refund", "notices")], [404], [False]),
        ([call("send", "pigeons")], [404], [False]),
    ],
)
def test_answers(calls: list[Call], statuses: list[int], effects: list[bool]) -> None:
    """What is there, by key; who may still act, by token."""
    shop = Shop()
    answers = [shop.answer(one) for one in calls]

    assert [answer.status for answer in answers] == statuses
    assert [answer.effect for answer in answers] == effects


@pytest.mark.parametrize(
    ("wish", "effect", "found"),
    [
        # The two look alike to the caller, and are not.
        ("answer-lost", True, "C-1001"),
        ("request-lost", False, ""),
    ],
)
def test_silence_hides_what_happened(wish: str, effect: bool, found: str) -> None:
    """Only the first charge with a key is not answered; who asks learns what it came to."""
    shop = Shop()
    first, asked, second = shop.answer(charge(wish=wish)), shop.answer(FIND), shop.answer(charge(wish=wish, token=2))

    assert (first.delay_ms, first.effect) == (NEVER_MS, effect)
    assert asked.number == found
    assert (second.delay_ms, second.effect) == (0, True)


def test_late_request_is_on_its_way_once() -> None:
    """The second attempt's request is not late."""
    shop = Shop()
    late = ship(wish="late-9000")

    assert [shop.hold_ms(late), shop.hold_ms(late), Shop().hold_ms(ship()), Shop().hold_ms(charge(wish="late-9"))] == [
        9_000,
        0,
        0,
        0,
    ]


def test_recall_continues_where_the_record_ends() -> None:
    """A shop that was restarted knows what it has done, for whom, and what was undone."""
    calls = [charge(wish="answer-lost"), ship(token=7), REFUND]
    further = [FIND, charge(token=10), ship(token=6), ship(token=7)]
    before, after = Shop(), Shop()
    for one in calls:
        after.recall(one, before.answer(one))

    assert [after.answer(one) for one in further] == [before.answer(one) for one in further]


def entries(*calls: Call) -> list[Entry]:
    """As a shop records them."""
    shop = Shop()
    return [Entry(at_ms=0, call=one, answer=shop.answer(one)) for one in calls]


WHOLE = [
    call("reserve", "stock", key="0-1/reserve/1"),
    charge(),
    call("ship", "shipments", key="0-1/ship/1"),
    call("send", "notices", key="0-1/notify/1"),
]


@pytest.mark.parametrize(
    ("calls", "states", "found"),
    [
        ([], {}, []),
        (WHOLE, DONE, []),
        ([charge(), REFUND], UNDONE, []),
        (WHOLE[:3], DONE, ["0-1 ended COMPLETED, and notices has 0 of it; it should have 1"]),
        # A second charge, and one that is left of an order that did not take place.
        (
            [*WHOLE, charge(token=2)],
            DONE,
            ["0-1 ended COMPLETED, and payments has 2 of it; it should have 1", f"{KEY} was done 2 times"],
        ),
        ([charge()], UNDONE, ["0-1 ended COMPENSATED, and payments has 1 of it; it should have 0"]),
        ([charge()], {}, ["0-1 ended None, and payments has 1 of it; it should have 0"]),
        # Refunding both does not undo that it was wrong.
        ([charge(), charge(token=2), REFUND], UNDONE, [f"{KEY} was done 2 times"]),
    ],
)
def test_breaches(calls: list[Call], states: dict[str, str], found: list[str]) -> None:
    """Each wrong thing is told once, with its subject."""
    assert breaches(entries(*calls), states) == found


def test_old_token_that_took_effect_is_a_breach() -> None:
    """The judge does not believe the rules that it judges."""
    effect = Answer(status=200, effect=True, number="C-1")
    careless = [Entry(at_ms=0, call=one, answer=effect) for one in (REFUND, charge())]

    assert "0-1/charge took effect with an older token after a newer one" in breaches(careless, UNDONE)
