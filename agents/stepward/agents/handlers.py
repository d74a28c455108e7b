"""Runs handlers: async ones as tasks of the user's event loop, the others on threads, as many as there are slots.

Three threads meet here. `start`, `cancel` and `set_lease_lost` are called on the I/O thread; handlers run on theirs;
what they give is posted back through callbacks that may be called on any thread and never block.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any

import msgspec

from stepward.agents import outcomes
from stepward.agents.action import Action, outcome_of_error
from stepward.agents.attempts import AttemptKey
from stepward.agents.context import AttemptFacts, Context
from stepward.agents.directives import StartHandler
from stepward.agents.errors import Cancelled, StepFailed, Unknown
from stepward.agents.outcomes import Outcome
from stepward.agents.stops import StopReason

_log = logging.getLogger("stepward.agents.handlers")


class _Run:
    """One handler at work."""

    def __init__(self, start: StartHandler, action: Action, context: Context) -> None:
        self.key = start.key
        self.input = start.offer.input
        self.action = action
        self.context = context
        self.task: asyncio.Task[Any] | None = None
        """Set and read on the user's loop only."""

    def arguments(self) -> dict[str, Any]:
        return self.action.arguments(self.input.data, self.input.encoding, self.context)


class Handlers:
    """The handlers at work."""

    def __init__(
        self,
        actions: Mapping[str, Action],
        *,
        slots: int,
        loop: asyncio.AbstractEventLoop,
        steady_ms: Callable[[], int],
        on_ended: Callable[[AttemptKey, Outcome], None],
        on_progress: Callable[[AttemptKey, bytes], None],
    ) -> None:
        self._actions = actions
        self._loop = loop
        self._steady_ms = steady_ms
        self._on_ended = on_ended
        self._on_progress = on_progress
        self._threads = ThreadPoolExecutor(slots, thread_name_prefix="stepward-handler")
        self._runs: dict[AttemptKey, _Run] = {}

    def start(self, starts: list[StartHandler]) -> None:
        """Start handlers; the loop is woken once for all of them."""
        for_loop: list[_Run] = []
        for start in starts:
            run = _Run(start, self._actions[start.offer.action], self._context(start))
            self._runs[start.key] = run
            if run.action.is_async:
                for_loop.append(run)
            else:
                future = self._threads.submit(_call_on_thread, run)
                future.add_done_callback(partial(self._thread_ended, run))
        if for_loop:
            self._loop.call_soon_threadsafe(self._start_tasks, for_loop)

    def _context(self, start: StartHandler) -> Context:
        offer = start.offer
        facts = AttemptFacts(
            job_id=start.key.job_id,
            step_id=start.key.step_id,
            token=start.key.token,
            idempotency_key=offer.idempotency_key,
            attempt=offer.attempt_number,
            definition_name=offer.definition_name,
            undo=offer.undo,
            deadline_ms=start.deadline_ms,
            last_progress=_last_progress(offer.last_progress.data),
        )
        return Context(
            facts,
            steady_ms=self._steady_ms,
            on_progress=partial(self._on_progress, start.key),
            loop=self._loop,
        )

    def cancel(self, key: AttemptKey, reason: StopReason) -> None:
        """Tell a handler to stop. One that has just ended does not mind."""
        run = self._runs.get(key)
        if run is None:
            return
        run.context.cancel(reason)
        if run.action.is_async:
            self._loop.call_soon_threadsafe(_cancel_task, run)

    def set_lease_lost(self, key: AttemptKey, lost: bool) -> None:
        """Tell a handler whether its lease is over."""
        run = self._runs.get(key)
        if run is not None:
            run.context.set_lease_lost(lost)

    def forget(self, key: AttemptKey) -> None:
        """The end of a handler has been taken note of; called on the I/O thread."""
        del self._runs[key]

    def close(self) -> None:
        """No handler is started any more, and none runs."""
        self._threads.shutdown(wait=False)

    def _start_tasks(self, runs: list[_Run]) -> None:
        for run in runs:
            run.task = self._loop.create_task(_call(run), name="/".join(map(str, run.key)))
            run.task.add_done_callback(partial(self._task_ended, run))

    def _task_ended(self, run: _Run, task: asyncio.Task[Any]) -> None:
        if task.cancelled():
            error: BaseException | None = asyncio.CancelledError("the handler was cancelled, but not by its agent")
        else:
            error = task.exception()
        self._ended(run, error, None if error is not None else task.result())

    def _thread_ended(self, run: _Run, future: Future[Any]) -> None:
        error = future.exception()
        self._ended(run, error, None if error is not None else future.result())

    def _ended(self, run: _Run, error: BaseException | None, value: Any) -> None:
        outcome = _outcome(run, error, value)
        # Big outputs are encoded here, on the handler's thread, so that heartbeats do not wait for it.
        self._on_ended(run.key, outcome)


def _last_progress(data: bytes) -> Any:
    """What the attempt before said. It came from an agent, but maybe not from one of ours."""
    try:
        return msgspec.json.decode(data) if data else None
    except msgspec.DecodeError:
        return data


async def _call(run: _Run) -> Any:
    arguments = run.arguments()
    try:
        return await run.action.function(**arguments)
    except SystemExit as error:
        # It would end the event loop, and with it every other handler.
        raise RuntimeError(f"the handler called exit({error.code!r})") from error


def _call_on_thread(run: _Run) -> Any:
    run.context.raise_if_cancelled()
    return run.action.function(**run.arguments())


def _cancel_task(run: _Run) -> None:
    # A task that was cancelled before its end has the exception thrown into it, so it knows.
    if run.task is not None and run.task.cancel():
        run.context.interrupted()


def _outcome(run: _Run, error: BaseException | None, value: Any) -> Outcome:
    """What a handler's end comes to.

    After it has learned that it is cancelled, neither what it returns nor what breaks is what it was to do: that counts
    as stopped, never as a success. Only what it says in so many words is believed.
    """
    deliberate = isinstance(error, StepFailed | Unknown)
    if error is not None:
        _log_error(run, error, deliberate=deliberate)
    if run.context.cancel_seen and not deliberate:
        return outcomes.Stopped()
    return run.action.outcome_of_value(value) if error is None else outcome_of_error(error)


def _log_error(run: _Run, error: BaseException, *, deliberate: bool) -> None:
    fields = (run.action.name, *run.key)
    if deliberate:
        _log.warning("attempt_failed action=%s job=%s step=%s token=%s: %r", *fields, error)
    elif isinstance(error, Cancelled) or (isinstance(error, asyncio.CancelledError) and run.context.cancel_seen):
        _log.info("handler_stopped action=%s job=%s step=%s token=%s", *fields)
    else:
        _log.error("handler_raised action=%s job=%s step=%s token=%s", *fields, exc_info=error)
