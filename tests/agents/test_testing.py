"""What users test their handlers with."""

from __future__ import annotations

from typing import Any

import pytest

from stepward.agents import ActionError, Agent, Context, LeaseLost, Permanent
from stepward.agents.stops import StopReason
from stepward.agents.testing import new_context, run_action


def bookings() -> Agent:
    agent = Agent()

    @agent.action
    async def book(ctx: Context, who: str, days: int = 2) -> dict[str, Any]:
        ctx.raise_if_cancelled()
        ctx.progress({"percent": 50})
        return {"who": who, "days": days, "attempt": ctx.attempt}

    @agent.action
    def book_on_thread(who: str) -> bytes:
        return who.encode()

    @agent.action
    def break_down() -> object:
        return object()

    return agent


async def test_handler_runs_as_an_agent_would_run_it() -> None:
    said: list[bytes] = []
    output = await run_action(bookings(), "book", {"who": "Ada"}, context=new_context(attempt=3, progress=said))

    assert output == {"who": "Ada", "days": 2, "attempt": 3}
    assert said == [b'{"percent":50}']


async def test_handler_on_a_thread_runs_too() -> None:
    assert await run_action(bookings(), "book-on-thread", {"who": "Ada"}) == b"Ada"


async def test_wrong_input_and_output_raise_what_would_be_reported() -> None:
    with pytest.raises(Permanent, match=r"\$\.days"):
        await run_action(bookings(), "book", {"who": "Ada", "days": "two"})
    with pytest.raises(Permanent, match="no JSON form"):
        await run_action(bookings(), "break-down")


async def test_cancelled_context_reaches_the_handler() -> None:
    context = new_context()
    context.cancel(StopReason.LEASE_LOST)

    with pytest.raises(LeaseLost):
        await run_action(bookings(), "book", {"who": "Ada"}, context=context)


async def test_unknown_action_is_refused() -> None:
    with pytest.raises(ActionError, match="it has book, book-on-thread, break-down"):
        await run_action(bookings(), "paint")
