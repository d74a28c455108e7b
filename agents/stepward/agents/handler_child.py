"""Processes for handlers that hold the interpreter: `python -m stepward.agents.handler_child FD PARENT`.

The handler runs on the main thread, so that a signal can interrupt it where it stands; another thread reads what the
agent says. The signal comes from that thread: a SIGTERM from elsewhere, such as of a service manager that ends a whole
group, is the agent's to judge, which may want the handler to finish.
"""

from __future__ import annotations

import asyncio
import ctypes
import logging
import os
import queue
import signal
import socket
import sys
import threading
from dataclasses import dataclass
from functools import partial
from types import FrameType
from typing import Any, Final

from stepward.agents import handler_frames as frames
from stepward.agents import isolation, outcomes
from stepward.agents.action import Action
from stepward.agents.attempts import AttemptKey
from stepward.agents.clock import steady_ms
from stepward.agents.context import AttemptFacts, Context
from stepward.agents.stops import StopReason
from stepward.agents.verdict import outcome_of_end
from stepward.v1 import agent_service_pb2 as wire

EXIT_ORPHANED: Final = 70

# Of prctl(2).
_PR_SET_PDEATHSIG: Final = 1

_log = logging.getLogger("stepward.agents.handlers")


@dataclass(frozen=True, slots=True)
class _Task:
    """One handler to run."""

    call: frames.Call
    offer: wire.Offer
    context: Context


class Child:
    """The process of one handler at a time."""

    def __init__(self, agent: socket.socket) -> None:
        self._agent = agent
        self._frames: frames.Frames[frames.ToHandler] = frames.Frames(frames.ToHandler)
        self._tasks: queue.SimpleQueue[_Task] = queue.SimpleQueue()
        self._current: _Task | None = None
        self._interruptible = False
        self._main = threading.main_thread()
        self._sending = threading.Lock()

    def run(self) -> None:
        """Run handlers until the agent has no use for this process any more."""
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, self._interrupt)
        threading.Thread(target=self._listen, name="stepward-agent", daemon=True).start()
        while True:
            task = self._tasks.get()
            outcome = self._handle(task)
            sys.stdout.flush()
            with self._sending:
                # What it has left running may still speak, but not in the name of the next one.
                self._current = None
                frames.send(self._agent, frames.Ended(outcome))

    # On a thread of its own.

    def _listen(self) -> None:
        try:
            while data := frames.receive(self._agent):
                for frame in self._frames.take(data):
                    self._take(frame)
        except frames.FrameError as error:
            _log.critical("process_garbled error=%s", error)
        # The agent is gone, or done with this process; a handler that still runs has no lease.
        os._exit(EXIT_ORPHANED)

    def _take(self, frame: frames.ToHandler) -> None:
        task = self._current
        match frame:
            case frames.Begin(path=path, log_level=level):
                sys.path[:] = path
                logging.getLogger().setLevel(level)
            case frames.Call():
                self._current = self._task(frame)
                self._tasks.put(self._current)
            case frames.Cancel(reason=reason) if task is not None:
                task.context.cancel(StopReason(reason))
                assert self._main.ident is not None
                signal.pthread_kill(self._main.ident, signal.SIGTERM)
            case frames.LeaseLost(lost=lost) if task is not None:
                task.context.set_lease_lost(lost)

    def _task(self, call: frames.Call) -> _Task:
        offer = wire.Offer.FromString(call.offer)
        facts = AttemptFacts.of(offer, call.deadline_ms)
        said = partial(self._said, AttemptKey.of(offer.attempt))
        return _Task(call, offer, Context(facts, steady_ms=steady_ms, on_progress=said))

    # On the main thread.

    def _said(self, key: AttemptKey, details: bytes) -> None:
        if threading.current_thread() is not self._main:
            self._say(key, details)
            return
        # A frame that is interrupted may leave half of itself in the socket: Linux writes small ones whole, but the
        # contract of stream sockets does not promise it.
        interruptible, self._interruptible = self._interruptible, False
        self._say(key, details)
        self._interruptible = interruptible
        self._interrupt_if_due()

    def _say(self, key: AttemptKey, details: bytes) -> None:
        with self._sending:
            task = self._current
            if task is not None and key == AttemptKey.of(task.offer.attempt):
                frames.send(self._agent, frames.Said(details))

    def _interrupt(self, signum: int, frame: FrameType | None) -> None:
        self._interrupt_if_due()

    def _interrupt_if_due(self) -> None:
        task = self._current
        if self._interruptible and task is not None and task.context.cancelled:
            # Once: what the handler does on its way out is not interrupted again.
            self._interruptible = False
            task.context.raise_if_cancelled()

    def _handle(self, task: _Task) -> outcomes.Outcome:
        try:
            function = isolation.load(isolation.Place(task.call.module, task.call.qualname))
            action = Action(task.call.action, function)
        except Exception as error:  # noqa: BLE001 - a module of the user may raise anything when it is imported
            _log.error("process_cannot_import action=%s", task.call.action, exc_info=error)
            text = f"its process cannot import it: {type(error).__name__}: {outcomes.text_of(error)}"
            return outcomes.not_started(text)
        if task.context.cancelled:
            return outcomes.not_started("it was stopped before it began")
        outcome = self._outcome(task, action)
        return outcomes.bounded(outcome, payload_bytes_max=frames.OUTPUT_BYTES_MAX)

    def _outcome(self, task: _Task, action: Action) -> outcomes.Outcome:
        """What the handler's end comes to. An exit ends this process, and the agent says that nobody knows."""
        error: BaseException | None = None
        value: Any = None
        try:
            value = self._call(task, action)
        except (Exception, asyncio.CancelledError) as raised:  # noqa: BLE001 - whatever a handler raises is an outcome
            error = raised
        self._interruptible = False
        key = AttemptKey.of(task.offer.attempt)
        return outcome_of_end(action, key, task.context, error=error, value=value)

    def _call(self, task: _Task, action: Action) -> Any:
        arguments = action.arguments(task.offer.input.data, task.offer.input.encoding, task.context)
        with self._sending:
            frames.send(self._agent, frames.Began())
        self._interruptible = True
        # A cancel may have come before there was something to interrupt.
        self._interrupt_if_due()
        return action.function(**arguments)


def die_with(parent: int) -> None:
    """Be killed when the agent is, also while a handler holds the interpreter. Only Linux knows how."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(EXIT_ORPHANED)


def main() -> None:
    """Run until the agent ends."""
    fd, parent = int(sys.argv[1]), int(sys.argv[2])
    die_with(parent)
    isolation.enter()
    # What the handler starts must not hold the socket open.
    os.set_inheritable(fd, False)
    log_format = "%(asctime)s %(levelname)-7s %(name)s %(message)s"
    logging.basicConfig(format=log_format, stream=sys.stderr)
    Child(socket.socket(fileno=fd)).run()


if __name__ == "__main__":
    main()
