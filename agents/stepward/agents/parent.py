"""A parent process that starts the worker again when it ends by itself.

Used by `stepward agent run`. SIGTERM and SIGINT are passed on to the worker; after its drain the parent ends with the
worker's exit code. A parent that is killed takes the worker with it: the worker drains when its standard input ends.
"""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from types import FrameType
from typing import TYPE_CHECKING, Final

from stepward.agents.worker import EXIT_USAGE

if TYPE_CHECKING:
    from stepward.client.tls import TlsFiles

RESTART_INITIAL_S: Final = 0.5
RESTART_S_MAX: Final = 30.0

# A worker that lived so long did not fail at its start; the next restart is the first of a new row.
STEADY_S: Final = 60.0

# Beyond this the wait is at its cap.
_DOUBLINGS_MAX: Final = 10

_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkerOptions:
    """What `stepward agent run` may change about an agent. None: as the agent says."""

    slots: int | None = None
    queue: str | None = None
    drain_timeout_seconds: float | None = None
    once: bool = False
    """Do not start the worker again when it ends by itself."""
    tls: TlsFiles | None = None
    """None: plain text."""


def run(target: str, addresses: Sequence[str], options: WorkerOptions) -> int:
    """Run the agent `target` (MODULE or MODULE:ATTR) in worker processes until told to end. Returns the exit code.

    Must be called on the main thread, where signals arrive.
    """
    return _Parent(_command(target, addresses, options), once=options.once, rng=random.Random()).run()


def restart_wait_s(failures: int, rng: random.Random) -> float:
    """How long to wait before the next start after so many failures in a row, from 1 on.

    Exponential up to a cap, and between half of that and all of it, so that many parents do not start together.
    """
    bound_s = min(RESTART_S_MAX, RESTART_INITIAL_S * (1 << min(failures - 1, _DOUBLINGS_MAX)))
    return bound_s * (0.5 + rng.random() / 2)


def _command(target: str, addresses: Sequence[str], options: WorkerOptions) -> list[str]:
    tls = options.tls
    command = [sys.executable, "-m", "stepward.agents.worker", target, "--server", *addresses, "--drain-with-input"]
    for flag, value in (
        ("--slots", options.slots),
        ("--queue", options.queue),
        ("--drain-timeout", options.drain_timeout_seconds),
        ("--tls-ca", tls.ca if tls else None),
        ("--tls-cert", tls.certificate if tls else None),
        ("--tls-key", tls.key if tls else None),
    ):
        if value is not None:
            command += [flag, str(value)]
    return command


class _Parent:
    """The worker of the moment, and what was asked of the parent."""

    def __init__(self, command: list[str], *, once: bool, rng: random.Random) -> None:
        self._command = command
        self._once = once
        self._rng = rng
        self._worker: subprocess.Popen[bytes] | None = None
        self._signals: list[int] = []
        self._told_to_end = threading.Event()

    def run(self) -> int:
        before = {signum: signal.signal(signum, self._handle) for signum in _SIGNALS}
        try:
            return self._run()
        finally:
            for signum, handler in before.items():
                signal.signal(signum, handler)

    def _handle(self, signum: int, frame: FrameType | None) -> None:
        self._told_to_end.set()
        if self._worker is None:
            self._signals.append(signum)
        else:
            self._worker.send_signal(signum)

    def _run(self) -> int:
        failures = 0
        while not self._told_to_end.is_set():
            started_s = time.monotonic()
            code = self._run_worker()
            if self._told_to_end.is_set() or self._once or code in (0, EXIT_USAGE):
                return code
            failures = 1 if time.monotonic() - started_s >= STEADY_S else failures + 1
            wait_s = restart_wait_s(failures, self._rng)
            sys.stderr.write(
                f"stepward agent: the worker ended with code {code}; starting it again in {wait_s:.1f} s\n"
            )
            self._told_to_end.wait(wait_s)
        return 0

    def _run_worker(self) -> int:
        """Start a worker and wait for its end. A worker killed by a signal gives 128 and the signal, as in a shell."""
        # A session of its own, so that Ctrl-C at a terminal reaches the worker once, through the parent.
        worker = subprocess.Popen(self._command, stdin=subprocess.PIPE, start_new_session=True)
        self._worker = worker
        while self._signals:
            worker.send_signal(self._signals.pop())
        try:
            code = worker.wait()
        finally:
            self._worker = None
            assert worker.stdin is not None
            worker.stdin.close()
        if self._told_to_end.is_set() and -code in _SIGNALS:
            # It had not yet begun to listen to signals, so it held nothing.
            return 0
        return code if code >= 0 else 128 - code
