"""The claims of the machines and of the orders: each is found false when the one thing that it is about is wrong."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from stepward.agents.examples.machines import cloud
from stepward.agents.examples.orders import shop
from stepward.client.demo import machines, orders
from stepward.client.demo.stories import Journey
from stepward.client.values import HistoryEvent, Job, JobState, Step, StepState
from tests.examples.journeys import AGENTS, BEGAN, event

MACHINE = ("address", "volume", "machine", "keys", "name")
KINDS = ("addresses", "volumes", "machines", "keys", "names")
ORDER = ("reserve", "charge", "ship", "notify")
DOES = dict(zip(ORDER, shop.DOES.items(), strict=True))
UNDOES = {step: (service, shop.UNDOES[service]) for step, (service, _) in DOES.items() if service in shop.UNDOES}


def job(number: int, steps: Sequence[str], state: JobState) -> Job:
    """A job at its end, with its steps."""
    step_state = StepState.SUCCEEDED if state is JobState.COMPLETED else StepState.COMPENSATED
    steps_at_end = tuple(Step(step_id=step, state=step_state) for step in steps)
    return Job(job_id=f"0-{number}", state=state, steps=steps_at_end, submitted_at=BEGAN)


def offers(*steps: str) -> tuple[HistoryEvent, ...]:
    return tuple(event(at, "StepOffered", step, "s1") for at, step in enumerate(steps, 1))


def undos(*steps: str) -> tuple[HistoryEvent, ...]:
    """One after the other."""
    return tuple(
        event(10 + at, what, step) for at, step in enumerate(steps) for what in ("UndoOffered", "UndoSucceeded")
    )


def helped(last: str, *, reason: str = machines.REASON) -> tuple[HistoryEvent, ...]:
    """The undo of a root failed, a person tried it again, and it ended last."""
    first = "address" if last == "volume" else "volume"
    retried = replace(event(30, "UndoRetryRequested", "volume"), detail=reason)
    return (*undos("keys", "machine", first), retried, *(replace(one, revision=40) for one in undos(last)))


def machine_journeys() -> list[Journey]:
    taken_over = (event(1, "StepOffered", "machine", "s1"), event(8, "StepOffered", "machine", "s2"))
    states = (JobState.COMPLETED, JobState.COMPLETED, JobState.COMPENSATED, JobState.COMPENSATED)
    histories = (offers(*MACHINE), taken_over, undos("keys", "machine", "volume", "address"), helped("volume"))
    return [
        Journey(story=story, job=job(story.number, MACHINE, state), history=history, agents=AGENTS)
        for story, state, history in zip(machines.stories(True), states, histories, strict=True)
    ]


def cloud_call(number: int, kind: str, verb: cloud.Verb, *, token: int = 1, part: int = 0) -> cloud.Call:
    key = f"0-{number}/{kind}/1"
    own, of = (f"{key}/undo", key) if verb == "delete" else (key, "")
    return cloud.Call(service=kind, verb=verb, key=own, of=of, part=part, token=token, job=f"0-{number}", step=kind)


def cloud_record(*, second_from: int = 3) -> list[cloud.Entry]:
    """What the cloud sees when all goes well; the second attempt of the second machine begins with this part."""
    calls = [cloud_call(number, kind, "create") for number in (1, 2, 3, 4) for kind in KINDS]
    calls += [cloud_call(2, "machines", "install", part=part) for part in (1, 2, 3)]
    calls += [
        cloud_call(2, "machines", "install", token=2, part=part) for part in range(second_from, machines.PARTS + 1)
    ]
    calls += [cloud_call(number, kind, "delete", token=2) for number in (3, 4) for kind in KINDS]
    world = cloud.Cloud()
    return [cloud.Entry(at_ms=0, call=call, answer=world.answer(call)) for call in calls]


def order_journeys() -> list[Journey]:
    completed, undone = JobState.COMPLETED, JobState.COMPENSATED
    states = (completed, completed, completed, undone, completed)
    undone_history = (*offers("reserve", "charge", "ship"), *undos("charge", "reserve"))
    return [
        Journey(
            story=story,
            job=job(story.number, ORDER, state),
            history=undone_history if state is undone else offers(*ORDER),
            agents=AGENTS,
        )
        for story, state in zip(orders.stories(True), states, strict=True)
    ]


def shop_call(number: int, step: str, verb: shop.Verb = "find", *, token: int = 1, wish: str = "") -> shop.Call:
    key = f"0-{number}/{step}/1"
    service, _ = DOES[step]
    undo = verb == shop.UNDOES.get(service)
    return shop.Call(
        service=service,
        verb=verb,
        key=f"{key}/undo" if undo else key,
        of=key if undo else "",
        token=token,
        job=f"0-{number}",
        step=step,
        attempt=1,
        agent_pid=1,
        wish=wish,
    )


def does(number: int, step: str, *, token: int = 1, wish: str = "") -> shop.Call:
    return shop_call(number, step, DOES[step][1], token=token, wish=wish)


def shop_calls() -> list[shop.Call]:
    """What the shop sees when all goes well."""
    calls = [does(1, step) for step in ORDER]
    calls += [does(2, "reserve"), does(2, "charge", wish="answer-lost"), shop_call(2, "charge"), does(2, "ship")]
    calls += [does(2, "notify"), does(3, "reserve"), does(3, "charge", wish="request-lost"), shop_call(3, "charge")]
    calls += [does(3, "charge", token=2), does(3, "ship"), does(3, "notify"), does(4, "reserve"), does(4, "charge")]
    calls += [shop_call(4, step, UNDOES[step][1], token=2) for step in ("charge", "reserve")]
    calls += [does(5, "reserve"), does(5, "charge"), does(5, "ship", token=2), does(5, "ship"), does(5, "notify")]
    return calls


def shop_record(calls: Sequence[shop.Call]) -> list[shop.Entry]:
    world = shop.Shop()
    return [shop.Entry(at_ms=0, call=call, answer=world.answer(call)) for call in calls]


def broken_machines(journeys: Sequence[Journey], entries: Sequence[cloud.Entry]) -> list[str]:
    return [finding.claim for finding in machines.judge(journeys, entries) if not finding.holds]


def broken_orders(journeys: Sequence[Journey], calls: Sequence[shop.Call]) -> list[str]:
    return [finding.claim for finding in orders.judge(journeys, shop_record(calls)) if not finding.holds]


def test_all_as_promised() -> None:
    """Nothing is found wrong where nothing is."""
    assert broken_machines(machine_journeys(), cloud_record()) == []
    assert broken_orders(order_journeys(), shop_calls()) == []


@pytest.mark.parametrize("place", range(4))
def test_machine_that_ends_otherwise(place: int) -> None:
    journeys = machine_journeys()
    journeys[place] = replace(journeys[place], job=replace(journeys[place].job, state=JobState.FAILED))

    assert any(claim.startswith(f"machine {place + 1} ended") for claim in broken_machines(journeys, cloud_record()))


@pytest.mark.parametrize("place", range(5))
def test_order_that_ends_otherwise(place: int) -> None:
    journeys = order_journeys()
    journeys[place] = replace(journeys[place], job=replace(journeys[place].job, state=JobState.FAILED))

    assert any(claim.startswith(f"order {place + 1} ended") for claim in broken_orders(journeys, shop_calls()))


REVERSE = "machine 3 was undone in reverse order: keys, then machine, then address and volume"


@pytest.mark.parametrize(
    ("place", "history", "claim"),
    [
        # Somebody finished what he had begun.
        (1, offers("machine"), "machine 2 was begun by one agent and finished by another"),
        # The order of undos: the machine last, one too few, one too many; side by side is right either way.
        (2, undos("keys", "address", "volume", "machine"), REVERSE),
        (2, undos("keys", "machine", "address"), REVERSE),
        (2, undos("name", "keys", "machine", "address", "volume"), REVERSE),
        (2, undos("keys", "machine", "address", "volume"), None),
        # Nobody helped; the address waited for the volume.
        (
            3,
            helped("volume", reason=""),
            "machine 4 waited for a person, and the retry and its reason stand in the history",
        ),
        (3, helped("address"), "the address did not wait for the volume, which a person had to unlock"),
    ],
)
def test_machine_whose_history_is_wrong(place: int, history: tuple[HistoryEvent, ...], claim: str | None) -> None:
    journeys = machine_journeys()
    journeys[place] = replace(journeys[place], history=history)

    assert broken_machines(journeys, cloud_record()) == ([claim] if claim else [])


@pytest.mark.parametrize(("second_from", "holds"), [(1, False), (2, False), (3, True), (4, True)])
def test_second_attempt_goes_on(second_from: int, holds: bool) -> None:
    """What was reported is not done again; the part after it may be asked for once more."""
    broken = broken_machines(machine_journeys(), cloud_record(second_from=second_from))

    assert (broken == []) is holds


@pytest.mark.parametrize(
    ("change", "claims"),
    [
        # Nobody asked; it was charged again and again; it was asked twice.
        (lambda calls: [call for call in calls if call.verb != "find"], ["order 2", "order 3"]),
        (lambda calls: [*calls, does(2, "charge", token=2)], ["order 2", "the shop did everything once"]),
        (lambda calls: [*calls, shop_call(2, "charge")], ["order 2"]),
        # The late request took effect first, or never came.
        (lambda calls: [*calls[:-3], does(5, "ship"), does(5, "ship", token=2), calls[-1]], ["order 5"]),
        (
            lambda calls: [call for call in calls if (call.job, call.step, call.token) != ("0-5", "ship", 1)],
            ["order 5"],
        ),
        # Something is left of an order that did not take place.
        (lambda calls: [call for call in calls if call.verb != "refund"], ["the shop did everything once"]),
    ],
)
def test_shop_that_saw_something_else(change: Callable[[list[shop.Call]], list[shop.Call]], claims: list[str]) -> None:
    broken = broken_orders(order_journeys(), change(shop_calls()))

    assert [claim.partition(":")[0].partition(" for orders")[0] for claim in broken] == claims


def test_customer_that_was_told_of_an_order_that_did_not_take_place() -> None:
    journeys = order_journeys()
    told = (*offers(*ORDER), *undos("charge", "reserve"))
    journeys[3] = replace(journeys[3], history=told)

    assert broken_orders(journeys, shop_calls()) == ["the customer of order 4 was told nothing"]
