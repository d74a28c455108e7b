"""Processes for handlers that hold the interpreter: the agent's side.

Each thread of the pool owns at most one process and uses it again for the next attempt. Whatever the I/O thread wants
of a process it only notes and wakes the thread: it never waits for one. A process ends with its agent, whatever ends
that: the kernel kills it with its thread on Linux, and everywhere it ends when the socket does.
"""

from __future__ import annotations

import logging
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Final

from stepward.agents import handler_frames as frames
from stepward.agents import outcomes
from stepward.agents.attempts import AttemptKey
from stepward.agents.stops import StopReason

# How long a process whose socket has ended may take to end itself.
END_S_MAX: Final = 5.0

# Why a handler was not called although its start was decided.
LATE: Final = "the agent's lease ended before it began"

_log = logging.getLogger("stepward.agents.processes")


class ProcessRun:
    """One handler at work in a process, as the I/O thread and the owner of the process share it."""

    def __init__(self, key: AttemptKey, call: frames.Call, *, may_begin: Callable[[], bool]) -> None:
        self.key = key
        self.call = call
        self.may_begin = may_begin
        self.stop_reason: StopReason | None = None
        self.lease_lost = False
        self.began = False
        """Whether the handler may have done something."""
        self.process: HandlerProcess | None = None

    def was_stopped(self) -> bool:
        """Whether it was told to stop; true at any moment from then on."""
        return self.stop_reason is not None


class HandlerProcess:
    """One process and the socket to it. Used by the thread that made it; `wake` and `kill` by any."""

    def __init__(self) -> None:
        """Start it.

        Raises:
            OSError: The machine has no room for it.
        """
        self._socket, theirs = socket.socketpair()
        self._bell, self._ringer = socket.socketpair()
        for end in (self._bell, self._ringer):
            end.setblocking(False)
        self._frames: frames.Frames[frames.FromHandler] = frames.Frames(frames.FromHandler)
        command = [sys.executable, "-m", "stepward.agents.handler_child", str(theirs.fileno()), str(os.getpid())]
        try:
            # A session of its own: Ctrl-C is the agent's, and what the handler starts is killed with it.
            self._child = subprocess.Popen(
                command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, start_new_session=True
            )
        except OSError:
            self._close_sockets()
            raise
        finally:
            theirs.close()
        # The socket alone does not tell of its end: a process that the handler has forked may hold it open.
        self._pidfd = _pidfd(self._child.pid)
        self._poll = select.poll()
        for fd in (self._socket.fileno(), self._bell.fileno(), *([self._pidfd] if self._pidfd >= 0 else [])):
            self._poll.register(fd, select.POLLIN)
        self.used = False
        self.at_work = False
        """Whether its thread is waiting for a handler in it."""
        with suppress(BrokenPipeError, ConnectionResetError):
            frames.send(self._socket, frames.Begin(sys.path, logging.getLogger().getEffectiveLevel()))

    @property
    def pid(self) -> int:
        return self._child.pid

    def call(self, run: ProcessRun, on_progress: Callable[[bytes], None]) -> outcomes.Outcome | None:
        """Run a handler to its end. None: the process has died."""
        self.used = True
        told_reason: StopReason | None = None
        told_lost = False
        with suppress(BrokenPipeError, ConnectionResetError):
            frames.send(self._socket, run.call)
        while True:
            ready = dict(self._poll.poll())
            self._quiet_bell()
            with suppress(BrokenPipeError, ConnectionResetError):
                if run.lease_lost is not told_lost:
                    told_lost = run.lease_lost
                    frames.send(self._socket, frames.LeaseLost(told_lost))
                if run.stop_reason is not told_reason and run.stop_reason is not None:
                    told_reason = run.stop_reason
                    frames.send(self._socket, frames.Cancel(told_reason.value))
            if self._socket.fileno() in ready:
                data = frames.receive(self._socket)
                for frame in self._frames.take(data):
                    match frame:
                        case frames.Began():
                            run.began = True
                        case frames.Said(details=details):
                            on_progress(details)
                        case frames.Ended(outcome=outcome):
                            return outcome
                if not data:
                    return None
            elif self._pidfd in ready:
                # Dead, and nothing more lies in the socket, whoever else holds the other end of it.
                return None

    def _quiet_bell(self) -> None:
        with suppress(BlockingIOError):
            while self._bell.recv(64):
                pass

    def wake(self) -> None:
        """Have its thread look at what is wanted. On any thread."""
        with suppress(BlockingIOError, OSError):
            self._ringer.send(b"!")

    def kill(self) -> None:
        """End it and all that it has started, at once. On any thread; may be repeated."""
        if self._child.returncode is None:
            with suppress(ProcessLookupError):
                os.killpg(self._child.pid, signal.SIGKILL)

    def bury(self) -> str:
        """See to it that it is gone, with all that it has started, and say how it ended. Once."""
        self._await_end()
        self.kill()
        # Without a bound: what is killed and does not end may still act, so its attempt is not over.
        code = self._child.wait()
        self._close_sockets()
        if self._pidfd >= 0:
            os.close(self._pidfd)
        if code >= 0:
            return f"it has exited with code {code}"
        return f"signal {-code} ({_signal_name(-code)}) has ended it"

    def _await_end(self) -> None:
        """Let it end by itself, since how it does is worth knowing."""
        if self._pidfd < 0:
            with suppress(subprocess.TimeoutExpired):
                self._child.wait(END_S_MAX)
            return
        # It is not reaped here: until then no other process can have its number.
        ended = select.poll()
        ended.register(self._pidfd, select.POLLIN)
        ended.poll(END_S_MAX * 1_000)

    def _close_sockets(self) -> None:
        for end in (self._socket, self._bell, self._ringer):
            end.close()


def _pidfd(pid: int) -> int:
    """What becomes readable when a process ends. -1: this system has no such thing."""
    if sys.platform == "linux":
        with suppress(OSError):
            return os.pidfd_open(pid)
    return -1


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return "of no name"


class ProcessPool:
    """As many processes as handlers run at the same time, made when they are needed."""

    def __init__(self, slots: int) -> None:
        self._threads = ThreadPoolExecutor(slots, thread_name_prefix="stepward-process")
        self._own = threading.local()
        self._lock = threading.Lock()
        self._alive: set[HandlerProcess] = set()
        self._closed = False

    def submit(self, run: ProcessRun, on_progress: Callable[[bytes], None]) -> Future[outcomes.Outcome]:
        """Run a handler in a process."""
        return self._threads.submit(self._run, run, on_progress)

    def stop(self, run: ProcessRun, reason: StopReason) -> None:
        """Interrupt a handler; it may end in its own way. On any thread, and never blocks."""
        run.stop_reason = run.stop_reason or reason
        self._wake(run)

    def set_lease_lost(self, run: ProcessRun, lost: bool) -> None:
        """Tell a handler whether its lease is over. On any thread, and never blocks."""
        run.lease_lost = lost
        self._wake(run)

    def _wake(self, run: ProcessRun) -> None:
        with self._lock:
            if run.process is not None:
                run.process.wake()

    def kill(self, run: ProcessRun) -> None:
        """End a handler with its process. On any thread, and never blocks."""
        with self._lock:
            if run.process is not None:
                run.process.kill()

    def close(self) -> None:
        """End all processes. No handler is started any more."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        with self._lock:
            self._closed = True
            idle = [process for process in self._alive if not process.at_work]
            for process in self._alive:
                process.kill()
        for process in idle:
            process.bury()

    # On the threads of the pool.

    def _run(self, run: ProcessRun, on_progress: Callable[[bytes], None]) -> outcomes.Outcome:
        why = ""
        # A process that has rested may be gone, for whatever reason; the next one is new.
        for _ in range(2):
            try:
                process = self._take(run)
            except OSError as error:
                _log.error("process_not_started action=%s error=%s", run.call.action, error)
                return outcomes.not_started(f"no process could be started: {error}")
            if process is None:
                return outcomes.not_started("it was stopped before it began")
            was_new = not process.used
            outcome, why = self._call(process, run, on_progress)
            if outcome is not None:
                return outcome
            if run.began or was_new:
                break
        return _died(run, why)

    def _take(self, run: ProcessRun) -> HandlerProcess | None:
        """The thread's process, at work for this run. None: it is no longer wanted."""
        process: HandlerProcess | None = getattr(self._own, "process", None)
        if process is None:
            process = HandlerProcess()
            self._own.process = process
        with self._lock:
            self._alive.add(process)
            process.at_work = not self._closed
            if process.at_work:
                # From here on the process can be killed for this run; what was wanted before is seen by `call`.
                run.process = process
        if not process.at_work:
            process.kill()
            self._bury(process)
            return None
        return process

    def _call(
        self, process: HandlerProcess, run: ProcessRun, on_progress: Callable[[bytes], None]
    ) -> tuple[outcomes.Outcome | None, str]:
        """The outcome; or None, and how the process has ended."""
        if run.was_stopped():
            self._release(process, run)
            return outcomes.not_started("it was stopped before it began"), ""
        if not run.may_begin():
            self._release(process, run)
            return outcomes.not_started(LATE), ""
        outcome: outcomes.Outcome | None = None
        try:
            outcome = process.call(run, on_progress)
        except frames.FrameError as error:
            _log.error("process_garbled action=%s pid=%s error=%s", run.call.action, process.pid, error)
            process.kill()
        self._release(process, run)
        if outcome is not None and not run.was_stopped():
            return outcome, ""
        if outcome is not None:
            # Never used again once it was interrupted: nobody knows what the handler has left in it.
            process.kill()
        return outcome, self._bury(process)

    def _release(self, process: HandlerProcess, run: ProcessRun) -> None:
        """From here on nothing that is wanted of the run reaches the process."""
        with self._lock:
            run.process = None
            process.at_work = False

    def _bury(self, process: HandlerProcess) -> str:
        self._own.process = None
        with self._lock:
            self._alive.discard(process)
        return process.bury()


def _died(run: ProcessRun, why: str) -> outcomes.Outcome:
    """What the end of a process comes to, of which its handler said nothing."""
    if not run.began:
        return outcomes.not_started(f"its process ended before the handler began: {why}")
    if run.stop_reason is not None:
        return outcomes.Stopped()
    _log.error("process_died action=%s job=%s step=%s token=%s: %s", run.call.action, *run.key, why)
    return outcomes.Unknown(outcomes.PROCESS_DIED, f"the process of the handler is gone: {why}")
