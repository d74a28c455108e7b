"""Who is offered what: places share a batch's offers evenly, and none starves."""

from __future__ import annotations

from collections import Counter

import pytest
from msgspec.structs import replace

from stepward.server.core import keys, passes, spreads
from stepward.server.core.commands import (
    Failed,
    OpenSession,
    PauseJob,
    RenewSession,
    ResumeJob,
    SessionOpened,
    SubmitJob,
    Succeeded,
    Sweep,
)
from stepward.server.core.limits import Limits
from stepward.server.core.rows import DefinitionBody, PassKind, Payload, Step
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


def wide_and_narrow(width: int, **limits: int) -> World:
    """A world with a definition of so many steps that need nothing, and one of a single step for the same lane."""
    made = World(limits=Limits(session_ttl_ms=3_600_000, **limits))
    one = step_spec("a")
    made.define(DefinitionBody("wide", tuple(replace(one, id=f"a{n}") for n in range(width)), b"", b""))
    made.define(DefinitionBody("narrow", (one,), b"", b""))
    return made


def line(made: World, action: str = "a") -> list[int]:
    """By the place in the lane of an action: how much later than its batch a step stands there (ms)."""
    prefix = keys.lane("default", "q", action)
    found = []
    for key in made.reader.scan(prefix):
        order, job_id, ordinal = keys.parse_ready(key, prefix)
        step = made.reader.get(keys.step(job_id, ordinal))
        assert isinstance(step, Step)
        found.append(order - step.ready_log_ms)
    return found


@pytest.mark.parametrize("activation_slice", [500, 10])
@pytest.mark.parametrize(
    ("later_ms", "slots", "is_offered"),
    [
        # At the same moment only the first of the many stands before another job's step.
        (0, 1, False),
        (0, 2, True),
        # What becomes ready some milliseconds later waits behind as many of them.
        (20, 20, False),
        (20, 22, True),
        # Behind the last of them it is the last.
        (1_000, 50, False),
        (1_000, 51, True),
    ],
)
def test_steps_of_a_wide_job_let_others_go_before(
    later_ms: int, slots: int, activation_slice: int, *, is_offered: bool
) -> None:
    """Fifty steps that a job makes ready in one go, or slice by slice, do not stand before all that comes later."""
    made = wide_and_narrow(50, activation_slice=activation_slice, told_least=1)
    made.submit("0-1", "wide")
    for _ in range(50 // activation_slice):
        made.one(Sweep(500))
    # A place in the line, and nothing else: what bounds and ages count from is the moment of the batch.
    assert line(made) == list(range(50))
    made.now_ms += later_ms
    made.submit("0-2", "narrow")
    made.open("s", ("a",), slots=slots)

    assert ("0-2" in {keys.parse_assignment(key)[2] for key in made.reader.scan(keys.ASSIGNMENT)}) is is_offered


def test_what_a_wide_job_held_back_lets_others_go_before_too() -> None:
    """When it goes on, all of its steps are ready in one go again; what comes after it in the batch is not."""
    made = wide_and_narrow(20)
    made.submit("0-1", "wide")
    made.one(PauseJob("0-1", "", ""))
    made.now_ms += 7
    made.do(ResumeJob("0-1", "", ""), made.submission("0-2", "narrow"))

    assert line(made) == [0, 0, *range(1, 20)]


def test_undos_of_a_wide_job_let_others_go_before_too() -> None:
    """Those that wait for nothing become ready in one go."""
    made = wide_and_narrow(20)
    made.submit("0-1", "wide")
    made.open("s", ("a",), slots=20)
    made.report("s", "0-1", "a0", Failed("NO", "", retryable=False))
    for number in range(1, 20):
        made.report("s", "0-1", f"a{number}", Succeeded(Payload(b"1")))

    assert line(made, "undo-a") == list(range(1, 20))


def test_the_place_ends_with_those_who_go_through_a_job() -> None:
    """What is made ready alone, later in the same batch, stands behind nobody of them."""
    made = wide_and_narrow(20)
    made.submit("0-1", "wide")
    made.one(PauseJob("0-1", "", ""))

    with made.batch() as batch:
        passes.begin(batch, "0-1", PassKind.RESUME)
        assert batch.place == 0
        spreads.begin(batch, "0-1", spreads.SUBMISSION)
        assert batch.place == 0
