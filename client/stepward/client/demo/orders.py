"""Five orders: what becomes of a payment that does not answer, of a parcel that nobody takes, and of a late request.

Some words in a wish have a meaning for the shop: `answer-lost` charges and says nothing, `request-lost` says nothing
and does not charge, `no-courier` is refused for good, `late-9000` is on its way for 9000 ms.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from stepward.client.demo.acting import DemoError, kill_holder
from stepward.client.demo.findings import Finding, completes, ended, happened_to, listed, undone_in_order
from stepward.client.demo.plays import Cast, Play, Scene
from stepward.client.demo.stories import Journey, Kill, Story
from stepward.client.values import JobState, StepState

if TYPE_CHECKING:
    from stepward.agents.examples.orders.shop import Answer, Call, Entry

DEFINITION = "order"

# How long the late request of the fifth order is on its way: longer than the lease of the agent that sent it, and than
# the second attempt takes.
LATE_MS = 12_000
LATE_S_MAX = 25.0
LOOK_EVERY_S = 0.05


def stories(fast: bool) -> tuple[Story, ...]:
    """What is shown. Nothing here is slow enough to be slowed down for eyes."""
    everything = {
        "customer": "Ada Lovelace",
        "goods": "1 analytical engine",
        "card": "4000-1234",
        "cents": 129_900,
        "address": "12 St James's Square, London",
    }
    return (
        Story(
            number=1,
            name="order 1",
            title="Everything works",
            promise="The goods are reserved, the card is charged, the parcel is shipped, and the customer is told.",
            input=everything,
            lesson="Every call carries the key of its step and the token of its attempt.",
        ),
        Story(
            number=2,
            name="order 2",
            title="The card is charged, and the answer is lost",
            promise="Nobody can tell whether the charge happened. The payment service is asked, and it did: the order "
            "goes on with that charge, and there is no second one.",
            input={**everything, "card": "4000-1234, answer-lost"},
            lesson="The handler raises `Unknown`, which is the truth. The definition says that a charge may not be "
            "repeated (`effect: non_idempotent`) and how to ask (`verify`). The answer has the number of the "
            "charge, which becomes the output of the step as if it had succeeded.",
        ),
        Story(
            number=3,
            name="order 3",
            title="The request to charge is lost",
            promise="To the agent it looks the same: no answer. But the payment service knows of no charge, so the "
            "card is charged by a second attempt, once.",
            input={**everything, "card": "4000-1234, request-lost"},
            lesson="`happened: false` makes a repeat safe, also of a step that may not be repeated blindly. Without a "
            "`verify` the job would have waited for a person here.",
        ),
        Story(
            number=4,
            name="order 4",
            title="Nobody takes the parcel",
            promise="Shipping fails for good, so the charge is refunded, and then the goods are released.",
            input={**everything, "address": "the moon, no-courier"},
            lesson="The customer is told last, because a message cannot be undone: the steps before it can.",
        ),
        Story(
            number=5,
            name="order 5",
            title="A request arrives when it is too late",
            promise="The agent that ships is killed while its request is on its way. Another agent ships. Then the old "
            "request arrives, with the older token, and is refused.",
            input={**everything, "address": f"12 St James's Square, London, late-{LATE_MS}"},
            lesson="Nobody can call back a request that has left. Only the service can refuse it: it remembers the "
            "highest token of each step (`ctx.token`), and whatever comes with a lower one is too late.",
        ),
    )


def act(scene: Scene) -> Kill | None:
    """Kill the agent that ships the fifth order, and see its request arrive after all."""
    if scene.story.number != 5:
        return None
    kill = kill_holder(scene, "ship", when=lambda step: step.state is StepState.RUNNING)
    scene.screen.say("  its request has left, and is on its way", "dim")
    return kill


def settle(scene: Scene) -> None:
    """Wait until the late request has arrived.

    Raises:
        DemoError: It did not.
    """
    if scene.story.number != 5:
        return
    ends_at = time.monotonic() + LATE_S_MAX
    while not any(entry.answer.kind == "StaleToken" for entry in read(scene.stage.ledger)):
        if time.monotonic() > ends_at:
            raise DemoError(f"the late request did not arrive within {LATE_S_MAX:.0f} s")
        time.sleep(LOOK_EVERY_S)
    scene.screen.say("  the old request has arrived, with the older token", "dim")


def file() -> Path:
    """The definition."""
    from stepward.agents.examples.orders import agent

    return agent.DEFINITION


def read(path: Path) -> list[Entry]:
    """The shop's record."""
    from stepward.agents.examples import ledger
    from stepward.agents.examples.orders import shop

    return ledger.read_as(path, shop.Entry)


def number(answer: Answer) -> str:
    """The number of what was done or undone."""
    return answer.number


def judge(journeys: Sequence[Journey], entries: Sequence[Entry]) -> list[Finding]:
    """From the histories, and from the record."""
    first, second, third, fourth, fifth = journeys
    return [
        *completes(first),
        *completes(second),
        _asked(second, entries, charges=1, found=True),
        *completes(third),
        _asked(third, entries, charges=2, found=False),
        ended(fourth, JobState.COMPENSATED),
        undone_in_order(fourth, {"charge"}, {"reserve"}),
        _never_told(fourth),
        *completes(fifth),
        _refused_late(fifth, entries),
        *_record(journeys, entries),
    ]


def _calls(journey: Journey, entries: Sequence[Entry], step: str) -> list[Entry]:
    return [entry for entry in entries if (entry.call.job, entry.call.step) == (journey.job.job_id, step)]


def _asked(journey: Journey, entries: Sequence[Entry], *, charges: int, found: bool) -> Finding:
    """Between an attempt that was not answered and what followed, the payment service was asked."""
    calls = _calls(journey, entries, "charge")
    verbs = [entry.call.verb for entry in calls]
    answers = [bool(entry.answer.number) for entry in calls if entry.call.verb == "find"]
    wanted = ["charge", "find", "charge"][: charges + 1]
    effects = sum(entry.answer.effect for entry in calls)
    said = "found the charge" if found else "found none, so it was safe to charge"
    return Finding(
        claim=f"{journey.story.name}: the payment service was asked and {said}; the card was charged once",
        seen=f"calls: {listed(verbs)}; {effects} with an effect",
        holds=verbs == wanted and answers == [found] and effects == 1,
    )


def _never_told(journey: Journey) -> Finding:
    offered = happened_to(journey.history, "StepOffered")
    return Finding(
        claim=f"the customer of {journey.story.name} was told nothing",
        seen=f"begun: {listed(dict.fromkeys(offered))}",
        holds="ship" in offered and "notify" not in offered,
    )


def _refused_late(journey: Journey, entries: Sequence[Entry]) -> Finding:
    calls: list[Call] = [entry.call for entry in _calls(journey, entries, "ship")]
    kinds = [entry.answer.kind or entry.answer.number for entry in _calls(journey, entries, "ship")]
    return Finding(
        claim=f"{journey.story.name}: the newer token was there first, and the older one was refused",
        seen=listed(f"token {call.token}: {kind}" for call, kind in zip(calls, kinds, strict=True)),
        holds=len(calls) == 2 and calls[0].token > calls[1].token and kinds[1] == "StaleToken",
    )


def _record(journeys: Sequence[Journey], entries: Sequence[Entry]) -> list[Finding]:
    from stepward.agents.examples.orders import shop_record

    wrong = shop_record.breaches(entries, {journey.job.job_id: str(journey.job.state) for journey in journeys})
    numbers = sorted(one for ones in shop_record.standing(entries).values() for one in ones)
    return [
        Finding(
            claim="the shop did everything once for orders that completed, and kept nothing of the others",
            seen=listed(wrong) or f"{len(entries)} calls; there are {listed(numbers)}",
            holds=not wrong,
        )
    ]


INTRODUCTION = """\
# Five orders, batch by batch

This page was written by `stepward demo orders --fast --docs docs`: it is what a real run did, not what it should do.
`make docs` writes it anew.

An order reserves the goods, charges the card, ships the parcel and tells the customer. The payment service is an
awkward one: it takes every request for a new one, and does not always answer; but it can be asked which charges it has.
Two agents do the work; the shop's services, a process of its own, record every call. By hand:

```
stepward dev
stepward agent run stepward.agents.examples.orders.agent
stepward job run order -i @agents/stepward/agents/examples/orders/order.json
stepward job run order -i @agents/stepward/agents/examples/orders/order.json -i card=answer-lost
stepward job run order -i @agents/stepward/agents/examples/orders/order.json -i address=no-courier
```
"""

PLAY = Play(
    name="orders",
    definition=DEFINITION,
    file=file,
    cast=Cast(
        service="shop",
        service_module="stepward.agents.examples.orders.shop_service",
        agent_module="stepward.agents.examples.orders",
        flag="--shop",
    ),
    stories=stories,
    act=act,
    settle=settle,
    read=read,
    number=number,
    judge=judge,
    introduction=INTRODUCTION,
)
