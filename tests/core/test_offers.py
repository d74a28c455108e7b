"""Who is offered what: places share a batch's offers evenly, and none starves."""

from __future__ import annotations

from collections import Counter

import pytest
from msgspec.structs import replace

from stepward.server.core import keys
from stepward.server.core.commands import OpenSession, RenewSession, SessionOpened, SubmitJob
from stepward.server.core.limits import Limits
from stepward.server.core.rows import DefinitionBody, Payload
from tests.core.world import World, step_spec

QUEUES = [f"q{number:02}" for number in range(20)]


def world(*, offers_max: int) -> World:
    """One with a definition of one step for each queue."""
    made = World(limits=Limits(session_ttl_ms=3_000, offers_max=offers_max))
    for queue in QUEUES:
        step = replace(step_spec("a", undo=False), queue=queue)
        made.define(DefinitionBody(name=f"one-{queue}", steps=(step,), output=b"", source=b""))
    return made


def submit(made: World, queue: str, count: int) -> None:
    """Jobs whose only step waits on a queue. Before a session is there, so that nothing is offered yet."""
    for number in range(count):
        made.one(SubmitJob(f"0-{queue}-{number}", "default", f"one-{queue}", 0, Payload(b"{}"), "", {}, "", b""))


def open_all(made: World, *queues: str, slots: int = 100) -> None:
    """A session for each queue, all in one batch."""
    opened = made.do(*(OpenSession(queue, "default", queue, ("a",), slots, queue, "t", "n1") for queue in queues))
    assert all(isinstance(answer, SessionOpened) for answer in opened)


def offered(made: World) -> Counter[str]:
    """How many assignments each queue's session has."""
    return Counter(keys.parse_assignment(key)[0] for key in made.reader.scan(keys.ASSIGNMENT))


@pytest.mark.parametrize(
    ("ready", "expected"),
    [
        # One place alone has all of them.
        ({"q00": 50}, {"q00": 12}),
        # Two that want much share evenly.
        ({"q00": 50, "q01": 50}, {"q00": 6, "q01": 6}),
        # What one leaves goes to the others, wherever it stands.
        ({"q00": 50, "q01": 1, "q02": 50}, {"q00": 6, "q01": 1, "q02": 5}),
        ({"q00": 1, "q01": 1, "q02": 50}, {"q00": 1, "q01": 1, "q02": 10}),
        ({"q00": 50, "q01": 1, "q02": 1}, {"q00": 10, "q01": 1, "q02": 1}),
        # Below the bound everybody has what he asks for.
        ({"q00": 5, "q01": 2}, {"q00": 5, "q01": 2}),
    ],
)
def test_places_share_the_offers_of_a_batch(ready: dict[str, int], expected: dict[str, int]) -> None:
    """At most `offers_max` together."""
    made = world(offers_max=12)
    for queue, count in ready.items():
        submit(made, queue, count)
    open_all(made, *ready)

    found = offered(made)

    assert sum(found.values()) == sum(expected.values())
    # Which of two that want more has the odd one depends on whose turn it is.
    assert all(abs(found[queue] - count) <= 1 for queue, count in expected.items()), found


def test_more_places_than_offers() -> None:
    """Whose turn it is moves on, so that every place is served within as many batches as there are places."""
    made = world(offers_max=3)
    for queue in QUEUES:
        submit(made, queue, 20)
    open_all(made, *QUEUES)
    for _ in QUEUES[1:]:
        made.now_ms += 600
        made.do(*(RenewSession(queue, 1, 0) for queue in QUEUES))

    assert set(offered(made)) == set(QUEUES)


def test_place_whose_lane_is_full_does_not_hold_up_another() -> None:
    """A has ten thousand steps ready and no free slot; the one step of B is offered at once."""
    made = world(offers_max=500)
    submit(made, "q00", 10_000)
    open_all(made, "q00", "q01", slots=4)
    submit(made, "q01", 1)

    assert offered(made) == {"q00": 4, "q01": 1}
