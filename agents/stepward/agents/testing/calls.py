"""Calls one handler, as an agent does, within a bound of real time."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from typing import Any

from stepward.agents.action import Action
from stepward.agents.attempts import AttemptKey
from stepward.agents.context import Context
from stepward.agents.outcomes import Outcome
from stepward.agents.testing.errors import HandlerStuck
from stepward.agents.verdict import outcome_of_end


async def call_handler(
    action: Action, key: AttemptKey, context: Context, *, data: bytes, encoding: str, seconds_max: float
) -> Outcome:
    """What a handler comes to. Async ones run on this loop, the others on a thread, those of processes, too.

    Raises:
        HandlerStuck: It has not come back in time. A thread that does not is left behind.
    """

    async def on_loop() -> Any:
        try:
            return await action.function(**action.arguments(data, encoding, context))
        except SystemExit as error:
            # It would end the event loop, and with it the test.
            raise RuntimeError(f"the handler called exit({error.code!r})") from error
        except KeyboardInterrupt as error:
            raise RuntimeError("the handler raised KeyboardInterrupt") from error

    def on_thread() -> Any:
        return action.function(**action.arguments(data, encoding, context))

    running = asyncio.ensure_future(on_loop()) if action.is_async else _in_thread(on_thread)
    done, _ = await asyncio.wait((running,), timeout=seconds_max)
    if not done:
        running.cancel()
        raise HandlerStuck(
            f"the handler of {action.name!r} has not come back after {seconds_max} s of real time (job {key.job_id}, "
            f"step {key.step_id}): give Bench a larger handler_seconds_max, or let `takes` pass virtual time instead"
        )
    error: BaseException | None
    if running.cancelled():
        error = asyncio.CancelledError("the handler was cancelled, but not by its agent")
    else:
        error = running.exception()
    return outcome_of_end(action, key, context, error=error, value=None if error is not None else running.result())


def _in_thread(function: Any) -> asyncio.Future[Any]:
    """Run a function on a thread of its own, which keeps no process alive: a pool would wait for it at the end."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Any] = loop.create_future()
    context = contextvars.copy_context()

    def tell(set_: Any, value: Any) -> None:
        # Nobody waits for one that has come back too late, and its loop may be closed.
        if not loop.is_closed():
            loop.call_soon_threadsafe(lambda: None if future.done() else set_(value))

    def run() -> None:
        try:
            value = context.run(function)
        except StopIteration as error:
            # A future cannot hold it.
            tell(future.set_exception, RuntimeError(f"the handler raised {error!r}"))
        except BaseException as error:  # noqa: BLE001 - whatever a handler raises is its outcome
            tell(future.set_exception, error)
        else:
            tell(future.set_result, value)

    threading.Thread(target=run, name="stepward-bench-handler", daemon=True).start()
    return future
