"""Runs handlers: async ones as tasks of the user's event loop, the others on threads or in processes.

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

from stepward.agents import handler_frames as frames
from stepward.agents import outcomes
from stepward.agents.action import Action
from stepward.agents.attempts import AttemptKey
from stepward.agents.context import AttemptFacts, Context
from stepward.agents.directives import StartHandler
from stepward.agents.errors import StepFailed
from stepward.agents.handler_process import LATE, ProcessPool, ProcessRun
from stepward.agents.isolation import Place
from stepward.agents.outcomes import Outcome
from stepward.agents.stops import StopReason
from stepward.agents.verdict import outcome_of_end

_log = logging.getLogger("stepward.agents.handlers")


class _Run:
    """One handler at work."""

    def __init__(
        self, start: StartHandler, action: Action, context: Context, *, lease_runs: Callable[[], bool]
    ) -> None:
        self.key = start.key
        self.input = start.offer.input
        self.action = action
        self.context = context
        self._lease_runs = lease_runs
        self.task: asyncio.Task[Any] | None = None
        """Set and read on the user's loop only."""
        self.process: ProcessRun | None = None
        """The same handler, when it runs in a process."""

    def may_begin(self) -> bool:
        """Whether the lease runs at this moment.

        It ran when the start was decided. But a handler that holds the interpreter holds everybody, the I/O thread too,
        and who is the first to run when it lets go is chance; so the clock is looked at here.
        """
        return self._lease_runs() and not self.context.lease_lost

    def raise_if_late(self) -> None:
        """Raise if it may not begin."""
        if not self.may_begin():
            late = outcomes.not_started(LATE)
            raise StepFailed(late.message, kind=late.kind)

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
        lease_runs: Callable[[], bool],
        on_ended: Callable[[AttemptKey, Outcome], None],
        on_progress: Callable[[AttemptKey, bytes], None],
    ) -> None:
        """`lease_runs` is asked on the threads of handlers, just before one is called."""
        self._actions = actions
        self._loop = loop
        self._steady_ms = steady_ms
        self._lease_runs = lease_runs
        self._on_ended = on_ended
        self._on_progress = on_progress
        self._threads = ThreadPoolExecutor(slots, thread_name_prefix="stepward-handler")
        self._processes = ProcessPool(slots)
        self._runs: dict[AttemptKey, _Run] = {}

    def start(self, starts: list[StartHandler]) -> None:
        """Start handlers; the loop is woken once for all of them."""
        for_loop: list[_Run] = []
        for start in starts:
            action = self._actions[start.offer.action]
            run = _Run(start, action, self._context(start), lease_runs=self._lease_runs)
            self._runs[start.key] = run
            if run.action.is_async:
                for_loop.append(run)
            elif run.action.place is not None:
                self._start_process(start, run, run.action.place)
            else:
                future = self._threads.submit(_call_on_thread, run)
                future.add_done_callback(partial(self._thread_ended, run))
        if for_loop:
            self._loop.call_soon_threadsafe(self._start_tasks, for_loop)

    def _start_process(self, start: StartHandler, run: _Run, place: Place) -> None:
        offer = start.offer.SerializeToString()
        call = frames.Call(run.action.name, place.module, place.qualname, offer, start.deadline_ms)
        run.process = ProcessRun(run.key, call, may_begin=run.may_begin)
        future = self._processes.submit(run.process, partial(self._on_progress, run.key))
        future.add_done_callback(partial(self._process_ended, run))

    def _context(self, start: StartHandler) -> Context:
        return Context(
            AttemptFacts.of(start.offer, start.deadline_ms),
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
        if run.process is not None:
            self._processes.stop(run.process, reason)
        elif run.action.is_async:
            self._loop.call_soon_threadsafe(_cancel_task, run)

    def set_lease_lost(self, key: AttemptKey, lost: bool) -> None:
        """Tell a handler whether its lease is over."""
        run = self._runs.get(key)
        if run is not None:
            run.context.set_lease_lost(lost)
            if run.process is not None:
                self._processes.set_lease_lost(run.process, lost)

    def in_this_process(self) -> list[str]:
        """Actions whose handlers run on its threads; called on the I/O thread."""
        return sorted({run.action.name for run in self._runs.values() if run.process is None})

    def kill(self, key: AttemptKey) -> None:
        """End the process of a handler; called on the I/O thread."""
        run = self._runs.get(key)
        if run is not None and run.process is not None:
            self._processes.kill(run.process)

    def forget(self, key: AttemptKey) -> None:
        """The end of a handler has been taken note of; called on the I/O thread."""
        del self._runs[key]

    def close(self) -> None:
        """No handler is started any more, and none runs."""
        self._threads.shutdown(wait=False)
        self._processes.close()

    def _start_tasks(self, runs: list[_Run]) -> None:
        for run in runs:
            run.task = self._loop.create_task(_call(run), name=f"{run.key.job_id}/{run.key.step_id}/{run.key.token}")
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

    def _process_ended(self, run: _Run, future: Future[Outcome]) -> None:
        if future.cancelled():
            return
        error = future.exception()
        if error is not None:
            self._ended(run, error, None)
        else:
            self._on_ended(run.key, future.result())

    def _ended(self, run: _Run, error: BaseException | None, value: Any) -> None:
        outcome = outcome_of_end(run.action, run.key, run.context, error=error, value=value)
        # Big outputs are encoded here, on the handler's thread, so that heartbeats do not wait for it.
        self._on_ended(run.key, outcome)


async def _call(run: _Run) -> Any:
    run.raise_if_late()
    arguments = run.arguments()
    try:
        return await run.action.function(**arguments)
    except SystemExit as error:
        # It would end the event loop, and with it every other handler.
        raise RuntimeError(f"the handler called exit({error.code!r})") from error
    except KeyboardInterrupt as error:
        # It would, too. A Ctrl-C does not arrive as this: the agent drains on it.
        raise RuntimeError("the handler raised KeyboardInterrupt") from error


def _call_on_thread(run: _Run) -> Any:
    run.context.raise_if_cancelled()
    run.raise_if_late()
    return run.action.function(**run.arguments())


def _cancel_task(run: _Run) -> None:
    # A task that was cancelled before its end has the exception thrown into it, so it knows.
    if run.task is not None and run.task.cancel():
        run.context.interrupted()
