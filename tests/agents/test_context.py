"""What a handler sees of its attempt."""

from __future__ import annotations

import asyncio
import logging
from concurrent.futures import ThreadPoolExecutor, wait

import pytest

from stepward.agents import Cancelled, Context, LeaseLost
from stepward.agents.context import PROGRESS_BYTES_MAX, AttemptFacts
from stepward.agents.stops import StopReason


def context(
    *, now_ms: int = 0, said: list[bytes] | None = None, loop: asyncio.AbstractEventLoop | None = None
) -> Context:
    facts = AttemptFacts(
        job_id="0-job",
        step_id="flight",
        token=7,
        idempotency_key="0-job/flight/1",
        attempt=2,
        definition_name="trip",
        undo=True,
        deadline_ms=1_500,
        last_progress={"percent": 10},
    )
    heard = [] if said is None else said
    return Context(facts, steady_ms=lambda: now_ms, on_progress=heard.append, loop=loop)


def test_facts_are_those_of_the_offer() -> None:
    ctx = context()

    assert (ctx.job_id, ctx.step_id, ctx.token, ctx.idempotency_key) == ("0-job", "flight", 7, "0-job/flight/1")
    assert (ctx.attempt, ctx.definition_name, ctx.undo, ctx.last_progress) == (2, "trip", True, {"percent": 10})


@pytest.mark.parametrize(("now_ms", "expected"), [(0, 1.5), (1_499, 0.001), (1_500, 0), (9_000, 0)])
def test_remaining_time_is_never_negative(now_ms: int, expected: float) -> None:
    """It goes into timeouts of requests."""
    assert context(now_ms=now_ms).remaining_seconds == expected


@pytest.mark.parametrize(
    ("reason", "error"),
    [(StopReason.LEASE_LOST, LeaseLost), (StopReason.JOB_ENDING, Cancelled), (StopReason.DRAINING, Cancelled)],
)
def test_cancel_is_seen_and_raised(reason: StopReason, error: type[BaseException]) -> None:
    ctx = context()
    ctx.raise_if_cancelled()
    before = ctx.cancelled
    ctx.cancel(reason)

    assert (before, ctx.cancelled, ctx.cancel_reason) == (False, True, reason)
    with pytest.raises(error):
        ctx.raise_if_cancelled()


def test_cancel_is_not_swallowed_by_handlers_of_errors() -> None:
    """`except Exception` is everywhere."""
    assert not issubclass(Cancelled, Exception)


def test_first_reason_stays() -> None:
    ctx = context()
    ctx.cancel(StopReason.JOB_ENDING)
    ctx.cancel(StopReason.LEASE_LOST)

    assert ctx.cancel_reason is StopReason.JOB_ENDING


def test_who_has_not_looked_has_not_seen() -> None:
    """H071: only what a handler returns after it has seen its cancel is no success."""
    ctx = context()
    looked_before = ctx.cancelled
    ctx.cancel(StopReason.DRAINING)
    seen_before = ctx.cancel_seen

    assert (looked_before, seen_before) == (False, False)
    assert ctx.wait_cancelled(0)
    assert ctx.cancel_seen


@pytest.mark.parametrize("size", [PROGRESS_BYTES_MAX, PROGRESS_BYTES_MAX + 1])
def test_progress_is_bounded(size: int) -> None:
    said: list[bytes] = []
    ctx = context(said=said)
    details = "x" * (size - len('""'))
    if size > PROGRESS_BYTES_MAX:
        with pytest.raises(ValueError, match="4097 bytes as JSON; at most 4096"):
            ctx.progress(details)
    else:
        ctx.progress(details)

    assert [len(one) for one in said] == ([size] if size <= PROGRESS_BYTES_MAX else [])


def test_heartbeat_without_details_is_a_mere_sign_of_life() -> None:
    said: list[bytes] = []
    ctx = context(said=said)
    ctx.heartbeat()
    ctx.heartbeat({"percent": 20})

    assert said == [b"", b'{"percent":20}']


def test_cancel_wakes_all_who_wait_for_it() -> None:
    """A handler may wait on threads of its own, too."""
    ctx = context()
    with ThreadPoolExecutor(4) as threads:
        waiting = [threads.submit(ctx.wait_cancelled, 60) for _ in range(4)]
        assert not wait(waiting, timeout=0.05).done
        ctx.cancel(StopReason.JOB_ENDING)

        assert all(one.result(5) for one in waiting)


async def test_lost_lease_can_be_awaited() -> None:
    ctx = context(loop=asyncio.get_running_loop())
    waiting = asyncio.create_task(ctx.until_lease_lost())
    await asyncio.sleep(0)
    assert not waiting.done()
    ctx.set_lease_lost(True)
    await asyncio.wait_for(waiting, 5)

    assert ctx.lease_lost
    # Who asks late learns it at once.
    await asyncio.wait_for(ctx.until_lease_lost(), 5)


def test_lease_can_come_back() -> None:
    ctx = context()
    ctx.set_lease_lost(True)
    ctx.set_lease_lost(False)

    assert not ctx.lease_lost


def test_log_names_the_attempt(caplog: pytest.LogCaptureFixture) -> None:
    """In the text, for people, and as fields, for programs."""
    with caplog.at_level(logging.INFO, "stepward.agents.handler"):
        context().log.info("booked %s", "LHR", extra={"seat": "1A"})
    (record,) = caplog.records

    assert record.getMessage() == "booked LHR (job_id=0-job step_id=flight token=7)"
    assert (record.__dict__["job_id"], record.__dict__["seat"]) == ("0-job", "1A")
