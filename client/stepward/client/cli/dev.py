"""`stepward dev`: a server of one node on this machine, as a child process.

The client never imports the server. The child prints one JSON line when it can be used; everything else that it says
goes to its stderr, of which the last lines are kept for the day on which it does not start.
"""

from __future__ import annotations

import importlib.util
import json
import signal
import socket
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO, TYPE_CHECKING, Any

import click

from stepward.client.cli.exits import ExitCode
from stepward.client.cli.inputs import read_duration
from stepward.client.cli.session import note, reported
from stepward.client.durations import parse_duration
from stepward.client.errors import StepwardError
from stepward.client.failover import DEFAULT_PORT

if TYPE_CHECKING:
    from types import FrameType

HOST = "127.0.0.1"
PIP_LINE = "python -m pip install 'stepward[server]'"
# The exit code with which the server says that it cannot be configured as asked; sysexits.h calls it EX_CONFIG.
EX_CONFIG = 78
# A package that only the server extra brings.
SERVER_PACKAGE = "lmdb"
STOP_S_MAX = 15.0
LAST_LINES = 30
LAST_WORDS_S_MAX = 2.0
ASK_TIMEOUT_S = 1.0
# The server's bounds, kept here so that the option is blamed and not the server.
TTL_BOUNDS = ("1s", "1h")
RETENTION_BOUNDS = ("1s", "3650d")
# What a log line says for machines, and tracebacks, which JSON has made unreadable.
UNSAID = frozenset({"event", "level", "logger", "timestamp", "exception", "stack", "code"})


class DevServerError(StepwardError):
    """The server of `stepward dev` cannot be started, or has ended by itself."""


def _between(least: str, most: str) -> Callable[[click.Context, click.Parameter, str | None], timedelta | None]:
    """A click callback: a duration that the server takes."""

    def read(ctx: click.Context, param: click.Parameter, text: str | None) -> timedelta | None:
        duration = read_duration(ctx, param, text)
        if duration is not None and not parse_duration(least) <= duration <= parse_duration(most):
            raise click.BadParameter(f"{text} is out of bounds; it must be between {least} and {most}")
        return duration

    return read


@click.command()
@click.option("--data", type=click.Path(file_okay=False, path_type=Path), help="Keep the data in this folder.")
@click.option(
    "--port", type=click.IntRange(0, 65_535), default=DEFAULT_PORT, show_default=True, help="0: any free one."
)
@click.option(
    "--ttl",
    callback=_between(*TTL_BOUNDS),
    default="3s",
    show_default=True,
    help="How long a lost agent holds its lease.",
)
@click.option(
    "--retention",
    callback=_between(*RETENTION_BOUNDS),
    default="7d",
    show_default=True,
    help="How long ended jobs are kept.",
)
@click.option("-v", "--verbose", is_flag=True, help="Show what the server logs.")
@click.pass_context
def dev(ctx: click.Context, data: Path | None, port: int, ttl: timedelta, retention: timedelta, verbose: bool) -> None:
    """Start a server on this machine: one node, for trying things out.

    Without --data it forgets everything when it ends.
    """
    with reported(ctx), ExitStack() as stack:
        _check_installed()
        _check_port(port)
        folder = data or Path(
            stack.enter_context(TemporaryDirectory(prefix="stepward-dev-", ignore_cleanup_errors=True))
        )
        options = ["--data", str(folder), "--port", str(port), "--host", HOST]
        options += ["--session-ttl-ms", str(_ms(ttl)), "--retention", f"{_ms(retention)}ms"]
        ctx.exit(_serve(options, folder, temporary=data is None, verbose=verbose))


def _ms(duration: timedelta) -> int:
    return duration // timedelta(milliseconds=1)


def _serve(options: list[str], folder: Path, *, temporary: bool, verbose: bool) -> ExitCode:
    """Run the server until somebody ends it."""
    command = [sys.executable, "-m", "stepward.server", "dev", *options, "--exit-with-parent"]
    # A session of its own: Ctrl-C reaches it through us, once, and not from the terminal as well. Nothing is ever
    # written to its stdin; that it ends is how the server hears that we were killed.
    child = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
    )
    signal.signal(signal.SIGTERM, _interrupt)
    assert child.stdin is not None
    assert child.stderr is not None
    last_words = _LastWords(child.stderr, verbose=verbose)
    ready = None
    try:
        ready = _wait_until_ready(child, last_words)
        _print_banner(ready, folder, temporary=temporary)
        code = child.wait()
    except KeyboardInterrupt:
        if ready is None:
            # It serves nobody yet, and says nothing of use about an end that it did not expect.
            child.terminate()
            child.wait(STOP_S_MAX)
            raise
        return _stop(child)
    finally:
        if child.poll() is None:
            child.kill()
            child.wait()
        child.stdin.close()
        last_words.wait()
    raise DevServerError(f"the server ended by itself (exit code {code}){last_words.text()}")


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    """SIGTERM ends us as Ctrl-C does: with the child."""
    raise KeyboardInterrupt


def _wait_until_ready(child: subprocess.Popen[bytes], last_words: _LastWords) -> dict[str, Any]:
    """What the server says when it can be used."""
    assert child.stdout is not None
    for line in child.stdout:
        said = _parse(line)
        if said.get("event") == "ready":
            _drain(child.stdout)
            return said
    code = child.wait()
    if code == EX_CONFIG and importlib.util.find_spec(SERVER_PACKAGE) is None:
        raise _not_installed()
    raise DevServerError(f"the server did not start (exit code {code}){last_words.text()}")


def _parse(line: bytes) -> dict[str, Any]:
    try:
        said = json.loads(line)
    except ValueError:
        return {}
    return said if isinstance(said, dict) else {}


def _drain(stream: IO[bytes]) -> None:
    """Read what nobody wants to know, so that the server never waits for us."""
    threading.Thread(target=lambda: deque(stream, maxlen=0), name="dev-stdout", daemon=True).start()


class _LastWords:
    """Reads what the server says on stderr, and keeps the end of it."""

    def __init__(self, stream: IO[bytes], *, verbose: bool) -> None:
        self._lines: deque[str] = deque(maxlen=LAST_LINES)
        self._stream = stream
        self._verbose = verbose
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
            if self._verbose:
                note(self._lines[-1])


def _plain(line: str) -> str:
    """A line of the log for a person. What is no line of the log stays as it is."""
    said = _parse(line.encode())
    if "event" not in said:
        return line
    return " ".join([str(said["event"]), *(f"{key}={value}" for key, value in said.items() if key not in UNSAID)])


def _print_banner(ready: dict[str, Any], folder: Path, *, temporary: bool) -> None:
    from stepward.client.cli.version import installed

    address = str(ready.get("address", ""))
    kept = f"{folder} (removed at the end; keep it with --data DIR)" if temporary else str(folder)
    server = "" if address.endswith(f":{DEFAULT_PORT}") else f" --server {address}"
    click.echo(
        f"stepward {installed('stepward')}: a server of one node, for trying things out (pid {ready.get('pid')})"
    )
    click.echo(f"  address  {address}")
    click.echo(f"  data     {kept}")
    click.echo("What next, in another terminal:")
    click.echo(f"  stepward definition apply FILE{server}    # say what a job is made of")
    click.echo(f"  stepward agent run MODULE{server}         # start a process that does the work")
    click.echo(f"  stepward job run NAME -i key=value{server}")
    click.echo("Ctrl-C ends it.")


def _stop(child: subprocess.Popen[bytes]) -> ExitCode:
    """End the server, and say how that went."""
    note("ending the server; a second Ctrl-C kills it")
    child.terminate()
    try:
        code = child.wait(STOP_S_MAX)
    except subprocess.TimeoutExpired:
        note(f"the server did not end within {STOP_S_MAX:.0f} s of SIGTERM and was killed")
        return ExitCode.ERROR
    note("the server has ended" if code == 0 else f"the server has ended with exit code {code}")
    return ExitCode.OK if code == 0 else ExitCode.ERROR


def _check_installed() -> None:
    if importlib.util.find_spec(SERVER_PACKAGE) is None:
        raise _not_installed()


def _not_installed() -> DevServerError:
    return DevServerError(f"the server is not installed; install it with:\n  {PIP_LINE}")


def _check_port(port: int) -> None:
    """Say in our words that a port is taken, before anything is started."""
    if port == 0:
        return
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError as error:
            raise DevServerError(
                f"cannot listen on {HOST}:{port}: {error.strerror}{_who(port)}; choose another with --port, 0 for any"
            ) from None


def _who(port: int) -> str:
    """Who has the port, if it is one of us."""
    from stepward.client.blocking_client import Client

    with Client(f"{HOST}:{port}", timeout_s=ASK_TIMEOUT_S) as client:
        try:
            status = client.status()
        except StepwardError:
            return ""
    return f" (a stepward server, pid {status.pid}, is running there already)"
