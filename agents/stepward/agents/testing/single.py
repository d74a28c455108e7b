"""Calls one handler once, as an agent would, without a cluster."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec

from stepward.agents import outcomes
from stepward.agents.agent import Agent
from stepward.agents.clock import steady_ms
from stepward.agents.context import AttemptFacts, Context
from stepward.agents.errors import ActionError, Permanent


def new_context(
    *,
    job_id: str = "0-test",
    step_id: str = "step",
    token: int = 1,
    idempotency_key: str = "0-test/step/1",
    attempt: int = 1,
    definition_name: str = "test",
    undo: bool = False,
    start_to_close_ms: int = 600_000,
    last_progress: Any = None,
    progress: list[bytes] | None = None,
) -> Context:
    """A context for a handler under test. What the handler says of its progress goes into `progress`, as JSON."""
    facts = AttemptFacts(
        job_id=job_id,
        step_id=step_id,
        token=token,
        idempotency_key=idempotency_key,
        attempt=attempt,
        definition_name=definition_name,
        undo=undo,
        deadline_ms=steady_ms() + start_to_close_ms,
        last_progress=last_progress,
    )
    said = [] if progress is None else progress
    return Context(facts, steady_ms=steady_ms, on_progress=said.append)


async def run_action(agent: Agent, action: str, input: Any = None, *, context: Context | None = None) -> Any:
    """Run the handler of an action once. Input and output go through JSON, as between agent and cluster.

    Returns what the next step would see: the decoded output, or bytes as they are.

    Raises:
        ActionError: The agent has no such action.
        Permanent: The input does not fit the handler, or its output has no JSON form.
        Exception: Whatever the handler raises.
    """
    found = agent.actions.get(action)
    if found is None:
        raise ActionError(f"this agent has no action {action!r}; it has {', '.join(sorted(agent.actions))}")
    encoded = b"" if input is None else msgspec.json.encode(input)
    arguments = found.arguments(encoded, outcomes.JSON, context or new_context())
    if found.is_async:
        value = await found.function(**arguments)
    else:
        value = await asyncio.to_thread(found.function, **arguments)
    match found.outcome_of_value(value):
        case outcomes.Succeeded(output=output, encoding=outcomes.JSON):
            return msgspec.json.decode(output)
        case outcomes.Succeeded(output=output):
            return output
        case outcomes.Failed(kind=kind, message=message):
            raise Permanent(message, kind=kind)
        case other:
            raise AssertionError(other)
