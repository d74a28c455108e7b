"""Servers that `stepward dev` starts as child processes.

The client never imports the server. A child prints one JSON line when it can be used; everything else that it says goes
to its stderr, of which the last lines are kept for the day on which it does not start.
"""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable
from typing import IO, Any

from stepward.client.cli.session import note
from stepward.client.errors import StepwardError

PIP_LINE = "python -m pip install 'stepward[server]'"
# The exit code with which the server says that it cannot be configured as asked; sysexits.h calls it EX_CONFIG.
EX_CONFIG = 78
# A package that only the server extra brings.
SERVER_PACKAGE = "lmdb"
STOP_S_MAX = 15.0
LAST_LINES = 30
LAST_WORDS_S_MAX = 2.0
# What a log line says for machines, and tracebacks, which JSON has made unreadable.
UNSAID = frozenset({"event", "level", "logger", "timestamp", "exception", "stack", "code"})
# The words of those that can be used, or will be as soon as others are there.
BEGUN = frozenset({"ready", "waiting"})
# The only variable of ours that a child is given: what else there is was meant for another node.
KEPT_VARIABLES = frozenset({"STEPWARD_LOG_LEVEL"})


class DevServerError(StepwardError):
    """A server of `stepward dev` cannot be started, or has ended by itself."""


def not_installed() -> DevServerError:
    """There is no server here, and how to get one."""
    return DevServerError(f"the server is not installed; install it with:\n  {PIP_LINE}")


def check_installed() -> None:
    """See that there is a server.

    Raises:
        DevServerError: There is none.
    """
    if importlib.util.find_spec(SERVER_PACKAGE) is None:
        raise not_installed()


def command(*arguments: str) -> list[str]:
    """What runs the server's program."""
    return [sys.executable, "-m", "stepward.server", *arguments]


def environment() -> dict[str, str]:
    """What a child is told by ours."""
    ours = {name for name in os.environ if name.startswith("STEPWARD_")} - KEPT_VARIABLES
    return {name: value for name, value in os.environ.items() if name not in ours}


class DevServer:
    """One server that was started."""

    def __init__(self, arguments: Iterable[str], *, name: str, verbose: bool) -> None:
        """Start it. `name` is what a person calls it."""
        self.name = name
        # A session of its own: Ctrl-C reaches it through us, once, and not from the terminal as well. Nothing is ever
        # written to its stdin; that it ends is how the server hears that we were killed.
        self._popen = subprocess.Popen(
            command(*arguments, "--exit-with-parent"),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            env=environment(),
        )
        assert self._popen.stderr is not None
        self.last_words = LastWords(self._popen.stderr, prefix=f"{name}: " if verbose and name else "", shown=verbose)

    @property
    def pid(self) -> int:
        return self._popen.pid

    @property
    def running(self) -> bool:
        return self._popen.poll() is None

    def wait_until_ready(self) -> dict[str, Any]:
        """What the server says when it can be used.

        Raises:
            DevServerError: It ended before.
        """
        assert self._popen.stdout is not None
        for line in self._popen.stdout:
            said = _parse(line)
            if said.get("event") in BEGUN:
                _drain(self._popen.stdout)
                return said
        code = self._popen.wait()
        if code == EX_CONFIG and importlib.util.find_spec(SERVER_PACKAGE) is None:
            raise not_installed()
        raise DevServerError(f"{self._subject} did not start (exit code {code}){self.last_words.text()}")

    def wait(self) -> int:
        """Its exit code, when it has ended; negative for the signal that ended it."""
        return self._popen.wait()

    def ended(self, code: int) -> str:
        """What to say of an end that nobody has asked for."""
        if code < 0:
            return f"{self._subject} was killed ({signal.Signals(-code).name})"
        return f"{self._subject} ended by itself (exit code {code}){self.last_words.text()}"

    @property
    def _subject(self) -> str:
        return self.name or "the server"

    def terminate(self) -> None:
        """Ask it to end. Safe when it has ended."""
        self._popen.terminate()

    def stop(self) -> str:
        """Wait for an end that was asked for; what was wrong with it, empty when nothing."""
        try:
            code = self._popen.wait(STOP_S_MAX)
        except subprocess.TimeoutExpired:
            return f"{self._subject} did not end within {STOP_S_MAX:.0f} s of SIGTERM and was killed"
        return f"{self._subject} has ended with exit code {code}" if code else ""

    def close(self) -> None:
        """Leave nothing of it, whatever happened before."""
        if self._popen.poll() is None:
            self._popen.kill()
            self._popen.wait()
        assert self._popen.stdin is not None
        self._popen.stdin.close()
        self.last_words.wait()


def _parse(line: bytes) -> dict[str, Any]:
    try:
        said = json.loads(line)
    except ValueError:
        return {}
    return said if isinstance(said, dict) else {}


def _drain(stream: IO[bytes]) -> None:
    """Read what nobody wants to know, so that the server never waits for us."""
    threading.Thread(target=lambda: deque(stream, maxlen=0), name="dev-stdout", daemon=True).start()


class LastWords:
    """Reads what a server says on stderr, and keeps the end of it."""

    def __init__(self, stream: IO[bytes], *, prefix: str, shown: bool) -> None:
        self._lines: deque[str] = deque(maxlen=LAST_LINES)
        self._stream = stream
        self._show: Callable[[str], None] | None = (lambda line: note(prefix + line)) if shown else None
        self._thread = threading.Thread(target=self._read, name="dev-stderr", daemon=True)
        self._thread.start()

    def wait(self) -> None:
        """Hear the server out after its end. Something that it started may hold the pipe for longer."""
        self._thread.join(LAST_WORDS_S_MAX)

    def text(self) -> str:
        """The rest of an error message: the one sentence that the server ended with, or all that is left of it."""
        self.wait()
        said = _parse(self._lines[-1].encode()) if self._lines else {}
        sentence = said.get("reason") or said.get("error")
        if isinstance(sentence, str):
            return f": {sentence}"
        return "; it said last:\n" + ("\n".join(f"  {_plain(line)}" for line in self._lines) or "  nothing")

    def _read(self) -> None:
        for line in self._stream:
            self._lines.append(line.decode(errors="replace").rstrip())
            if self._show is not None:
                self._show(self._lines[-1])


def _plain(line: str) -> str:
    """A line of the log for a person. What is no line of the log stays as it is."""
    said = _parse(line.encode())
    if "event" not in said:
        return line
    return " ".join([str(said["event"]), *(f"{key}={value}" for key, value in said.items() if key not in UNSAID)])
