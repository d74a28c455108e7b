"""An agent for tests that run it in a worker process."""

from __future__ import annotations

import asyncio
import time

from stepward.agents import Agent, Context

# Far longer than any test waits: what sleeps so long ends with its process.
FOR_EVER_S = 600.0

agent = Agent(queue="sample", slots=4)
not_an_agent = "a string"


@agent.action
def echo(input: dict[str, object]) -> dict[str, object]:
    return input


@agent.action
async def block_loop(seconds: float) -> str:
    """Block the event loop of all handlers, as nobody should."""
    time.sleep(seconds)  # noqa: ASYNC251 - that is what it is for
    return "blocked"


@agent.action
def sleep_deaf() -> None:
    """A thread that looks at nothing."""
    time.sleep(FOR_EVER_S)


@agent.action
def sleep_until_cancelled(ctx: Context) -> str:
    """A thread that looks, and returns as if it had done its work."""
    ctx.wait_cancelled(FOR_EVER_S)
    return "done"


@agent.action
async def wait_for_ever() -> None:
    await asyncio.sleep(FOR_EVER_S)
