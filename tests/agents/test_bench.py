"""The bench: whole jobs against handlers, under the rules of the cluster, on a clock that skips all waits."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from stepward.agents import Agent, Context, DefinitionRefused, Permanent, RetryAfter, Unknown
from stepward.agents.examples.trip import DEFINITION
from stepward.agents.testing import Bench, BenchError, HandlerStuck, JobStuck
from stepward.v1 import definition_pb2

TRIP = """
name: trip
steps:
  - id: flight
    undo: {action: cancel-flight}
  - id: hotel
    needs: [flight]
    undo: {action: cancel-hotel}
    input: {of: "${steps.flight.output.number}"}
    retry: {attempts_max: 3, initial: 1h, factor: 1, cap: 1h}
    timeouts: {start_to_close: 10m}
  - id: receipt
    needs: [hotel]
output: {hotel: "${steps.hotel.output}"}
"""
ONCE = """
name: once
steps:
  - {id: charge, effect: non_idempotent, start: on_accept}
"""


class Hotel:
    """Handlers of the trip that remember what they did."""

    def __init__(self) -> None:
        self.done: list[str] = []
        self.agent = Agent()
        self.agent.action("flight")(self.flight)
        self.agent.action("hotel")(self.hotel)
        self.agent.action("receipt")(self.receipt)
        self.agent.action("cancel-flight")(self.cancel)
        self.agent.action("cancel-hotel")(self.cancel)

    def flight(self) -> dict[str, int]:
        self.done.append("flight")
        return {"number": 7}

    async def hotel(self, ctx: Context, of: int) -> str:
        ctx.progress({"of": of, "attempt": ctx.attempt})
        self.done.append("hotel")
        return f"room for {of}"

    def receipt(self) -> None:
        self.done.append("receipt")

    def cancel(self, ctx: Context) -> None:
        self.done.append(f"undo of {ctx.step_id}")


@pytest.fixture
def hotel() -> Hotel:
    return Hotel()


def test_job_runs_to_its_end(hotel: Hotel) -> None:
    """Sync and async handlers; inputs are mapped as the cluster maps them, and nothing takes time."""
    with Bench(TRIP, hotel.agent) as bench:
        job = bench.run({"who": "Ada"})

        assert (job.state, job.output) == ("COMPLETED", {"hotel": "room for 7"})
        assert {step.state for step in job.steps.values()} == {"SUCCEEDED"}
        assert hotel.done == ["flight", "hotel", "receipt"]
        assert bench.elapsed == 0
        (call,) = bench.calls("hotel")
        assert (call.input, call.attempt, call.undo, call.called) == ({"of": 7}, 1, False, True)
        assert call.idempotency_key == f"{job.job_id}/hotel/1"
        assert [event.type for event in bench.history(job)][-1] == "JobCompleted"


def test_waits_take_no_time(hotel: Hotel) -> None:
    """Hours of a retry policy pass at once, with the attempts' own instants, tokens that grow and one key."""
    began = time.monotonic()
    with Bench(TRIP, hotel.agent) as bench:
        bench.fail("hotel", times=2, kind="Busy")
        job = bench.run()
        first, second, third = bench.calls("hotel")

    assert job.state == "COMPLETED"
    assert 0 < second.at_seconds <= 3_600
    assert second.at_seconds < third.at_seconds <= 7_200
    assert bench.elapsed == third.at_seconds
    assert first.token < second.token < third.token
    assert first.idempotency_key == third.idempotency_key
    assert [call.called for call in (first, second, third)] == [False, False, True]
    assert time.monotonic() - began < 5


def test_failure_for_good_undoes_in_reverse(hotel: Hotel) -> None:
    """The policy's attempts are used up first, and each attempt is told what the one before said last."""
    with Bench(TRIP, hotel.agent) as bench:
        bench.fail("receipt", kind="NoPaper", retryable=False)
        job = bench.run()

    assert (job.state, job.failure and job.failure.kind) == ("COMPENSATED", "NoPaper")
    assert hotel.done == ["flight", "hotel", "undo of hotel", "undo of flight"]
    assert [call.idempotency_key.endswith("/undo") for call in bench.calls("cancel-hotel")] == [True]
    assert job.remaining == ()


@pytest.mark.parametrize(
    ("raised", "expected"),
    [
        (Permanent("no", kind="Full"), ("COMPENSATED", 1)),
        (RetryAfter(7_000, "later"), ("COMPLETED", 2)),
        (Unknown("no answer"), ("COMPLETED", 2)),
        (ValueError("a bug"), ("COMPLETED", 2)),
        (SystemExit(3), ("COMPLETED", 2)),
        (KeyboardInterrupt(), ("COMPLETED", 2)),
    ],
)
@pytest.mark.parametrize("is_async", [True, False])
def test_what_a_handler_raises_decides(
    hotel: Hotel, raised: BaseException, expected: tuple[str, int], is_async: bool
) -> None:
    """As with an agent: on its thread or on the loop."""
    raise_once = [raised]

    def book() -> str:
        if raise_once:
            raise raise_once.pop()
        return "room"

    async def book_async() -> str:
        return book()

    handlers = {action.name: action.function for action in hotel.agent.actions.values()}
    with Bench(TRIP, handlers | {"hotel": book_async if is_async else book}) as bench:
        job = bench.run()
        calls = bench.calls("hotel")

    assert (job.state, len(calls)) == expected
    if isinstance(raised, RetryAfter):
        assert calls[1].at_seconds == 7_000


def test_progress_reaches_the_next_attempt(hotel: Hotel) -> None:
    """What the handler said last, if its answer is lost."""
    with Bench(TRIP, hotel.agent) as bench:
        bench.lose_after("hotel")
        job = bench.run()
        first, second = bench.calls("hotel")

    assert job.state == "COMPLETED"
    assert hotel.done == ["flight", "hotel", "hotel", "receipt"]
    assert (first.last_progress, second.last_progress) == (None, {"of": 7, "attempt": 1})


def test_hanging_attempt_ends_by_its_timeout(hotel: Hotel) -> None:
    """It is cancelled, and tried again."""
    with Bench(TRIP, hotel.agent) as bench:
        bench.hang("hotel")
        job = bench.run()
        first, second = bench.calls("hotel")

    assert job.state == "COMPLETED"
    assert second.at_seconds - first.at_seconds >= 600
    types = [event.type for event in bench.history(job)]
    assert types.index("StepAttemptTimedOut") < types.index("StepAttemptConfirmedStopped")


def test_late_outcome_is_an_observation(hotel: Hotel) -> None:
    """A handler that takes longer than its step allows has done its work for nothing, and the history says so."""
    with Bench(TRIP, hotel.agent) as bench:
        bench.takes("hotel", times=1, minutes=11)
        job = bench.run()

    assert job.state == "COMPLETED"
    assert hotel.done.count("hotel") == 2
    assert "StaleReportObserved" in [event.type for event in bench.history(job)]


def test_unknown_outcome_that_may_not_be_repeated_waits_for_a_person() -> None:
    """The run ends there; a person tries again or passes over it."""
    with Bench(ONCE, {"charge": lambda: None}) as bench:
        bench.unknown("charge")
        tried = bench.run()
        assert (tried.state, tried.steps["charge"].state) == ("ESCALATED", "ESCALATED")
        bench.retry_step(tried.job_id, "charge")
        tried = bench.finish(tried.job_id)
        bench.unknown("charge")
        skipped = bench.run()
        bench.skip_step(skipped.job_id, "charge", {"charged": True})
        skipped = bench.finish(skipped.job_id)

    assert (tried.state, skipped.state) == ("COMPLETED", "COMPLETED")
    assert skipped.steps["charge"].state == "SKIPPED"


@pytest.mark.parametrize("happened", [True, False])
def test_verify_is_asked_after_a_lost_answer(happened: bool) -> None:
    """What it says decides whether the step runs again."""
    definition = ONCE.replace("on_accept}", "on_accept, verify: {action: look}}")

    def look(ctx: Context, idempotency_key: str) -> dict[str, Any]:
        assert idempotency_key == ctx.idempotency_key
        return {"happened": happened, "output": "found"}

    with Bench(definition, {"charge": lambda: "made", "look": look}) as bench:
        bench.lose_after("charge")
        job = bench.run()

    assert (job.state, job.steps["charge"].output) == ("COMPLETED", "found" if happened else "made")
    assert [call.verify for call in bench.calls()] == [False, True, *([] if happened else [False])]


def test_signs_of_life_keep_a_long_attempt_alive() -> None:
    """A handler that takes long gives them; one that hangs does not, and is given up."""
    definition = """
name: slow
steps:
  - {id: charge, timeouts: {start_to_close: 1h, heartbeat: 30s}, retry: {initial: 1s}}
"""
    with Bench(definition, {"charge": lambda: None}) as bench:
        bench.takes("charge", minutes=40)
        alive = bench.run()
        assert bench.elapsed == 40 * 60
        bench.hang("charge")
        silent = bench.run()

    assert [job.steps["charge"].attempts for job in (alive, silent)] == [1, 2]
    assert bench.elapsed < 81 * 60 + 5


def test_cancel_at_an_instant(hotel: Hotel) -> None:
    """What was done until then is undone."""
    with Bench(TRIP, hotel.agent) as bench:
        bench.fail("hotel", times=None, retry_after_seconds=3_600)
        bench.cancel_at("enough", minutes=30)
        job = bench.run()

    assert job.state == "CANCELLED"
    assert bench.elapsed == 1_800
    assert hotel.done == ["flight", "undo of flight"]


def test_cancel_before_anything_has_begun(hotel: Hotel) -> None:
    """An offer that is taken back before it was told is handed back."""
    with Bench(TRIP, hotel.agent) as bench:
        job_id = bench.start()
        bench.cancel(job_id)
        job = bench.finish(job_id)

    assert (job.state, bench.calls(), hotel.done) == ("CANCELLED", [], [])


def test_longest_wait_takes_no_time(hotel: Hotel) -> None:
    """Nor does it take a moment for every lease that is renewed meanwhile."""
    with Bench(TRIP, hotel.agent) as bench:
        bench.fail("hotel", retry_after_seconds=300 * 86_400)
        job = bench.run()

    assert (job.state, bench.elapsed) == ("COMPLETED", 300 * 86_400)


def test_cancel_from_a_handler(hotel: Hotel) -> None:
    """While it is at work itself: its outcome counts, and is undone."""
    bench: Bench

    def flight(ctx: Context) -> dict[str, int]:
        bench.cancel(ctx.job_id)
        return hotel.flight()

    handlers = {action.name: action.function for action in hotel.agent.actions.values()}
    with Bench(TRIP, handlers | {"flight": flight}) as bench:
        job = bench.run()

    assert (job.state, hotel.done) == ("CANCELLED", ["flight", "undo of flight"])


def test_advance_stops_in_the_middle(hotel: Hotel) -> None:
    """A test may look at a job while it waits."""
    with Bench(TRIP, hotel.agent) as bench:
        bench.fail("hotel", retry_after_seconds=3_600)
        job_id = bench.start()
        bench.advance(minutes=59)
        waiting = bench.job(job_id)
        bench.advance(minutes=1)
        ended = bench.job(job_id)

    assert waiting.steps["hotel"].state == "RETRY_WAIT"
    assert (ended.state, bench.elapsed) == ("COMPLETED", 3_600)


def test_same_seed_same_run(hotel: Hotel) -> None:
    """Instants, tokens and order; another seed draws other waits."""

    def once(seed: int) -> tuple[Any, ...]:
        with Bench(DEFINITION, trip_handlers(), seed=seed) as bench:
            bench.fail("book-hotel", times=2)
            bench.crash("book-car", after=True)
            job = bench.run({"flight": "f", "hotel": "h", "car": "c", "traveller": "Ada"})
            return (job, bench.calls(), bench.history(job))

    assert once(1) == once(1)
    assert once(1)[1] != once(2)[1]
    # Hotel and car go side by side.
    assert {once(seed)[1][1].action for seed in range(10)} == {"book-hotel", "book-car"}


def trip_handlers() -> dict[str, Any]:
    """Handlers of the example's definition, which has two steps side by side."""
    names = ("book-flight", "book-hotel", "book-car", "send-receipt", "cancel-flight", "cancel-hotel", "cancel-car")
    return {name: lambda: {"booking": "B-1"} for name in names}


async def test_inside_an_event_loop() -> None:
    """Handlers share the loop of the test, and whatever lives on it; the lifespan of the agent is entered there."""
    lives: list[asyncio.AbstractEventLoop] = []

    @contextlib.asynccontextmanager
    async def lifespan() -> AsyncIterator[None]:
        lives.append(asyncio.get_running_loop())
        yield
        lives.clear()

    agent = Agent(lifespan=lifespan)

    @agent.on_start
    def hook() -> None:
        lives.append(asyncio.get_running_loop())

    @agent.action
    async def charge() -> bool:
        return lives == [asyncio.get_running_loop()] * 2

    async with Bench(ONCE, agent) as bench:
        job = await bench.run_async()
        bench.fail("charge", retry_after_seconds=60)
        other = bench.start()
        await bench.advance_async(minutes=1)
        with pytest.raises(BenchError, match="await the method"):
            bench.run()

        assert job.steps["charge"].output is True
        assert bench.job(other).state == "COMPLETED"
    assert lives == []
    with pytest.raises(BenchError, match="async with"), Bench(ONCE, agent):
        raise AssertionError("not reached")


def test_definition_in_every_form(hotel: Hotel, tmp_path: Path) -> None:
    """A path, a message, a dict, and what was built in Python."""
    path = tmp_path / "once.yaml"
    path.write_text(ONCE)
    message = definition_pb2.Definition(name="once", steps=[definition_pb2.Step(id="charge")])

    class Built:
        def to_proto(self) -> definition_pb2.Definition:
            return message

    for form in (path, str(path), message, {"name": "once", "steps": [{"id": "charge"}]}, Built()):
        with Bench(form, {"charge": lambda: 1}) as bench:  # type: ignore[arg-type]  # anything that builds a message
            assert bench.run().state == "COMPLETED"


def test_step_that_nobody_serves_is_told_at_once(hotel: Hotel) -> None:
    """On its queue; unless the test says so: then it waits as it would."""
    elsewhere = TRIP.replace("  - id: receipt\n", "  - id: receipt\n    queue: paper\n")
    with pytest.raises(BenchError, match=r"no handler for action 'receipt' on queue 'paper', which has no agent"):
        Bench(elsewhere, hotel.agent)
    with pytest.raises(BenchError, match=r"action 'charge' on queue 'default', which has cancel-flight, cancel-hotel"):
        Bench(ONCE, hotel.agent)
    with Bench(elsewhere, hotel.agent, unserved=["receipt"]) as bench:
        job = bench.run()

    assert (job.state, job.failure and job.failure.kind) == ("COMPENSATED", "QUEUE_TIMEOUT")
    assert bench.elapsed == 86_400


def test_definition_that_breaks_rules_is_refused() -> None:
    """With everything that is wrong, as the cluster tells it."""
    with pytest.raises(DefinitionRefused, match="needs"):
        Bench({"name": "once", "steps": [{"id": "charge", "needs": ["nobody"]}]}, {"charge": lambda: 1})


def test_handler_that_does_not_come_back(hotel: Hotel) -> None:
    """The test is told which one, instead of waiting with it."""
    ended = threading.Event()

    def on_thread() -> None:
        ended.wait()

    async def on_loop() -> None:
        await asyncio.Event().wait()

    handlers = {action.name: action.function for action in hotel.agent.actions.values()}
    for handler in (on_thread, on_loop):
        message = r"the handler of 'flight' has not come back after 0.05 s"
        with (
            Bench(TRIP, handlers | {"flight": handler}, handler_seconds_max=0.05) as bench,
            pytest.raises(HandlerStuck, match=message),
        ):
            bench.run()
    ended.set()


def test_job_that_moves_no_more(hotel: Hotel) -> None:
    """The message says what it waits for."""
    patient = TRIP.replace("attempts_max: 3", "attempts_max: 10000").replace("1h", "365d")
    with Bench(patient, hotel.agent) as bench:
        bench.fail("hotel", times=None)
        with pytest.raises(JobStuck, match=r"job 0-0+1 .*: step hotel is RETRY_WAIT, retry at"):
            bench.run()


def test_fault_that_does_not_happen_is_an_error(hotel: Hotel) -> None:
    """A test that asked for it shows less than it says; one for an action that there is not is a slip."""

    def too_many() -> None:
        with Bench(TRIP, hotel.agent) as bench:
            bench.fail("hotel", times=4)
            bench.run()

    with pytest.raises(BenchError, match=r"1 of 'hotel'"):
        too_many()
    with Bench(TRIP, hotel.agent) as bench:
        with pytest.raises(BenchError, match="there are cancel-flight"):
            bench.fail("hotle")
        with pytest.raises(BenchError, match="at least 1"):
            bench.fail("hotel", times=0)
        with pytest.raises(BenchError, match="no job 'nobody'"):
            bench.finish("nobody")
        with pytest.raises(BenchError, match="refused: "):
            bench.retry_step(bench.run().job_id, "flight")
    with pytest.raises(BenchError, match="not open"):
        bench.start()


def test_error_of_the_test_itself_is_not_hidden(hotel: Hotel) -> None:
    """By faults that did not happen because of it."""

    def wrong() -> None:
        with Bench(TRIP, hotel.agent) as bench:
            bench.fail("hotel")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        wrong()


async def test_what_was_entered_is_left_when_another_lifespan_fails() -> None:
    """What an agent shares, such as a pool of connections, would be held for the rest of the tests."""
    happened: list[str] = []

    @contextlib.asynccontextmanager
    async def lasting() -> AsyncIterator[None]:
        happened.append("entered")
        try:
            yield
        finally:
            happened.append("left")

    @contextlib.asynccontextmanager
    async def broken() -> AsyncIterator[None]:
        if happened:
            raise ConnectionRefusedError
        yield

    agents = [Agent(lifespan=lasting), Agent(lifespan=broken)]
    for agent in agents:
        agent.action("charge")(lambda: None)

    with pytest.raises(ConnectionRefusedError):
        async with Bench(ONCE, agents):
            raise AssertionError("not reached")
    assert happened == ["entered", "left"]
