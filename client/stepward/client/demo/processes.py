"""Processes that were started here and must end here: by their id, in every case.

A child says on its standard output, in one JSON line with `"event": "ready"`, that it can be used. Everything else that
it says goes into its log. Children have a session of their own, so that a Ctrl-C reaches them through us, in our order.
"""

from __future__ import annotations

import json
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Self

# How often to look whether a child that says nothing has begun or ended.
LOOK_EVERY_S = 0.02

# How long a child may take to begin on a busy machine, and to end when it is asked to.
READY_S_MAX = 30.0
STOP_S_MAX = 10.0


class ChildError(Exception):
    """A child did not begin, or was gone when it was needed. The message ends with what it said last."""


class Child:
    """One process that we started."""

    def __init__(self, name: str, popen: subprocess.Popen[bytes], log: Path) -> None:
        self.name = name
        self.log = log
        self.ready: dict[str, Any] = {}
        self._popen = popen

    @classmethod
    def start(cls, name: str, command: Sequence[str], *, folder: Path, ready_s_max: float = READY_S_MAX) -> Self:
        """Start a command and wait until it is ready.

        Args:
            name: For people, and for its two files in the folder: `name.out` and `name.log`.
            command: The program and its arguments.
            folder: Where its output goes. A later child of the same name continues the log.
            ready_s_max: How long it may take.

        Raises:
            ChildError: It ended, or was not ready in time; then it has been ended.
        """
        child = cls.launch(name, command, folder=folder)
        ready = False
        try:
            child.wait_until_ready(ready_s_max)
            ready = True
        finally:
            # Also when a person has lost patience: nothing that was started may stay.
            if not ready:
                child.kill()
        return child

    @classmethod
    def launch(
        cls, name: str, command: Sequence[str], *, folder: Path, inside: Path | None = None, holds_input: bool = False
    ) -> Self:
        """Start a command and do not wait for it: `wait_until_ready` does.

        `inside` is its current folder. With `holds_input` its standard input ends when this process does, which is how
        a child can hear that this process was killed.
        """
        log = folder / f"{name}.log"
        given = subprocess.PIPE if holds_input else subprocess.DEVNULL
        with (folder / f"{name}.out").open("wb") as out, log.open("ab") as err:
            popen = subprocess.Popen(command, stdin=given, stdout=out, stderr=err, cwd=inside, start_new_session=True)
        return cls(name, popen, log)

    @property
    def pid(self) -> int:
        return self._popen.pid

    @property
    def running(self) -> bool:
        return self._popen.poll() is None

    @property
    def exit_code(self) -> int | None:
        """As subprocess tells it: negative for the signal that ended it, None while it runs."""
        return self._popen.poll()

    @property
    def address(self) -> str:
        """Where it listens, from its ready line."""
        return str(self.ready["address"])

    def wait_until_ready(self, seconds_max: float = READY_S_MAX) -> None:
        """Wait for its ready line.

        Raises:
            ChildError: It ended, or was not ready in time.
        """
        ended = self.wait_until(lambda: bool(self._read_ready()), seconds_max=seconds_max)
        if not self.ready:
            how = f"ended with {self.exit_code}" if ended else f"was not ready within {seconds_max:.0f} s"
            raise ChildError(f"{self.name} (pid {self.pid}) {how}; {self.log}:\n{self.tail()}")

    def wait_until(self, holds: Callable[[], bool], *, seconds_max: float) -> bool:
        """Wait until something holds, the child ends, or the time is over. Returns whether the child has ended."""
        until = time.monotonic() + seconds_max
        while not holds():
            if self._popen.poll() is not None:
                # What it said last counts, too.
                holds()
                return True
            if time.monotonic() > until:
                return False
            self.wait(LOOK_EVERY_S)
        return not self.running

    def wait(self, seconds_max: float) -> bool:
        """Wait until it has ended; False when the time is over first."""
        try:
            self._popen.wait(seconds_max)
        except subprocess.TimeoutExpired:
            return False
        self._close_input()
        return True

    def kill(self) -> None:
        """End it with SIGKILL: no handler, no flush, nothing said."""
        self._popen.kill()
        self._popen.wait()
        self._close_input()

    def _close_input(self) -> None:
        if self._popen.stdin is not None:
            self._popen.stdin.close()

    def pause(self) -> None:
        """Let it do nothing for a while (SIGSTOP), as a machine that is suspended or far too busy does."""
        self._popen.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let it go on (SIGCONT). Harmless when it was not paused or has ended."""
        if self.running:
            self._popen.send_signal(signal.SIGCONT)

    def terminate(self) -> None:
        """Ask it to end (SIGTERM), and do not wait."""
        if self.running:
            self._popen.send_signal(signal.SIGTERM)

    def stop(self, seconds_max: float = STOP_S_MAX) -> bool:
        """Ask it to end, and end it when it takes too long. Returns whether it ended by itself."""
        self.terminate()
        by_itself = self.wait(seconds_max)
        if not by_itself:
            self.kill()
        return by_itself

    def tail(self, lines_max: int = 20) -> str:
        """The last lines of its log."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines_max:])

    def _read_ready(self) -> dict[str, Any]:
        for line in self.log.with_suffix(".out").read_text(errors="replace").splitlines(keepends=True):
            if line.endswith("\n") and line.startswith("{"):
                said = json.loads(line)
                if said.get("event") == "ready":
                    self.ready = said
        return self.ready


def stop_all(children: Sequence[Child], seconds_max: float = STOP_S_MAX) -> list[str]:
    """Ask all to end at once, then wait for each. Returns the names of those that had to be killed."""
    for child in children:
        child.terminate()
    return [child.name for child in children if not child.stop(seconds_max)]
