"""The last look before a handler is called, on whichever thread."""

from __future__ import annotations

import asyncio

import pytest

from stepward.agents import Agent, outcomes
from stepward.agents.action import Action
from stepward.agents.attempts import AttemptKey
from stepward.agents.clock import steady_ms
from stepward.agents.context import AttemptFacts, Context
from stepward.agents.directives import StartHandler
from stepward.agents.handlers import Handlers
from stepward.agents.verdict import TRACE_CHARS_MAX, outcome_of_end
from tests.agents import isolated
from tests.agents.played import offer
from tests.agents.stub import until

KEY = AttemptKey("0-job", "a", 7)


async def outcome_of(action: str, *, lease_runs: bool, lease_lost: bool) -> tuple[outcomes.Outcome, list[str]]:
    """Start a handler. What it came to, and whether it was called."""
    called: list[str] = []
    agent = Agent()

    @agent.action
    async def on_loop() -> None:
        called.append("on the loop")

    @agent.action
    def on_thread() -> None:
        called.append("on a thread")

    @agent.action
    async def interrupts() -> None:
        raise KeyboardInterrupt

    agent.action("in-process", process=True)(isolated.give)
    for one in agent.actions.values():
        one.locate()
    ends: list[outcomes.Outcome] = []
    handlers = Handlers(
        agent.actions,
        slots=1,
        loop=asyncio.get_running_loop(),
        steady_ms=steady_ms,
        lease_runs=lambda: lease_runs,
        on_ended=lambda key, outcome: ends.append(outcome),
        on_progress=lambda key, details: None,
    )
    try:
        handlers.start([StartHandler(KEY, offer("a", 7, action=action, input=b'{"size":1}'), steady_ms() + 60_000)])
        handlers.set_lease_lost(KEY, lease_lost)
        await until(lambda: bool(ends))
    finally:
        handlers.close()
    return ends[0], called


@pytest.mark.parametrize("action", ["on-loop", "on-thread", "in-process"])
async def test_handler_whose_lease_has_ended_before_its_call_is_not_called(action: str) -> None:
    """Its start was decided while the lease ran; then something held the interpreter. Nothing has happened."""
    outcome, called = await outcome_of(action, lease_runs=False, lease_lost=False)

    assert isinstance(outcome, outcomes.Failed)
    assert (outcome.kind, outcome.retryable, outcome.may_have_happened) == ("NOT_STARTED", True, False)
    assert "the agent's lease ended before it began" in outcome.message
    assert called == []


async def test_handler_whose_own_lease_is_lost_is_not_called() -> None:
    """The agent may have another session meanwhile, whose lease runs."""
    outcome, called = await outcome_of("on-loop", lease_runs=True, lease_lost=True)

    assert isinstance(outcome, outcomes.Failed)
    assert (outcome.kind, called) == ("NOT_STARTED", [])


@pytest.mark.parametrize("action", ["on-loop", "on-thread", "in-process"])
async def test_handler_is_called_while_its_lease_runs(action: str) -> None:
    outcome, called = await outcome_of(action, lease_runs=True, lease_lost=False)

    assert isinstance(outcome, outcomes.Succeeded)
    assert len(called) == (0 if action == "in-process" else 1)


async def test_handler_that_raises_keyboard_interrupt_ends_alone() -> None:
    """On the loop it would end the agent, with all its other handlers; nobody has pressed Ctrl-C."""
    outcome, _ = await outcome_of("interrupts", lease_runs=True, lease_lost=False)

    assert outcome == outcomes.Failed("RuntimeError", "the handler raised KeyboardInterrupt", may_have_happened=True)


@pytest.mark.parametrize(("more", "is_cut"), [(0, False), (1, True)])
async def test_log_of_an_exception_is_bounded(caplog: pytest.LogCaptureFixture, more: int, is_cut: bool) -> None:
    """The text of an exception may be a whole response. Both ends stay: where it was, and what was said last."""
    facts = AttemptFacts.of(offer("a", 7, action="give"), 60_000)
    loop = asyncio.get_running_loop()
    context = Context(facts, steady_ms=steady_ms, on_progress=lambda details: None, loop=loop)
    error = ValueError("<" + "x" * (TRACE_CHARS_MAX - len("ValueError: <>\n") + more) + ">")
    outcome_of_end(Action("give", isolated.give), KEY, context, error=error, value=None)
    (record,) = caplog.records

    assert (record.exc_info is None) == is_cut
    assert ("1 characters are left out" in record.getMessage()) == is_cut
    assert len(record.getMessage()) < TRACE_CHARS_MAX + 256
    assert "x>" in caplog.text
