"""A watchdog as a real process beside a cluster, and the server that it tells: what it said, and when."""

from __future__ import annotations

import json
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar, Final
from urllib.error import HTTPError
from urllib.request import urlopen

from typing_extensions import override

from stepward.client.demo.processes import Child

ENTRY: Final = "import sys; from stepward.client.cli import main; sys.exit(main())"
LOOK_EVERY_S: Final = 0.02
PAGE_S_MAX: Final = 5.0

PING, HOOK = "/ping", "/hook"
REDIRECTS: Final = frozenset({301, 302, 303, 307, 308})
CANARIES_BACK: Final = re.compile(r'^stepward_watchdog_canaries_total{result="back"} (\d+)$', re.MULTILINE)


@dataclass(frozen=True)
class Request:
    """One request that the watchdog made."""

    at_s: float
    """Of this process's steady clock, as is everything here."""
    path: str
    headers: dict[str, str]
    body: bytes


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    timeout: ClassVar[float] = 5.0

    def do_GET(self) -> None:
        self._take(b"")

    def do_POST(self) -> None:
        self._take(self.rfile.read(int(self.headers["Content-Length"])))

    def _take(self, body: bytes) -> None:
        self.server.requests.append(Request(time.monotonic(), self.path, dict(self.headers), body))
        code = self.server.answers.pop(0) if self.server.answers else 204
        self.send_response(code)
        if code in REDIRECTS:
            self.send_header("Location", PING)
        self.send_header("Content-Length", "0")
        self.end_headers()

    @override
    def log_message(self, format: str, *args: Any) -> None:
        """Nothing."""


class _Server(ThreadingHTTPServer):
    def __init__(self) -> None:
        self.requests: list[Request] = []
        self.answers: list[int] = []
        super().__init__(("127.0.0.1", 0), _Handler)


class Hearer:
    """A web server that hears webhooks and pings."""

    def __init__(self) -> None:
        self._server = _Server()
        self.address = f"http://127.0.0.1:{self._server.server_address[1]}"

    @property
    def answers(self) -> list[int]:
        """The codes of its next answers; without, 204. A redirect leads to the dead-man address."""
        return self._server.answers

    def requests(self, path: str) -> list[Request]:
        return [request for request in list(self._server.requests) if request.path == path]

    @property
    def pings(self) -> list[float]:
        """When the dead-man address was called."""
        return [request.at_s for request in self.requests(PING)]

    @property
    def told(self) -> list[tuple[float, dict[str, Any]]]:
        """Every change that came through the webhook, with its time."""
        return [(request.at_s, json.loads(request.body)) for request in self.requests(HOOK)]

    @contextmanager
    def listening(self) -> Iterator[Hearer]:
        """Answer until the end of the block."""
        thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": LOOK_EVERY_S})
        thread.start()
        try:
            yield self
        finally:
            self._server.shutdown()
            thread.join()
            self._server.server_close()


class Watch:
    """One watchdog process, and what it was heard to say."""

    def __init__(self, child: Child, hearer: Hearer) -> None:
        self.child = child
        self.hearer = hearer

    @property
    def changes(self) -> list[tuple[float, str]]:
        """Each level that was told, with its time."""
        return [(at_s, str(body["level"])) for at_s, body in self.hearer.told]

    @property
    def level(self) -> str:
        """What was told last; UNKNOWN before the first."""
        changes = self.changes
        return changes[-1][1] if changes else "UNKNOWN"

    def page(self, path: str) -> tuple[int, str]:
        return page(self.child.address, path)

    def canaries_back(self) -> int:
        """How many canary jobs have come back so far."""
        _, metrics = self.page("/metrics")
        found = CANARIES_BACK.search(metrics)
        assert found is not None, metrics
        return int(found[1])

    def until(self, holds: Callable[[], bool], *, seconds_max: float, what: str) -> float:
        """Wait for a condition; returns when it held.

        Raises:
            AssertionError: It did not come to hold in time, or the watchdog has ended.
        """
        ends_at = time.monotonic() + seconds_max
        while not holds():
            late = time.monotonic() >= ends_at
            assert not late, f"after {seconds_max:.0f} s still not: {what}; told {self.told_shortly()}"
            time.sleep(LOOK_EVERY_S)
        return time.monotonic()

    def until_level(self, level: str, *, seconds_max: float, since_s: float = 0.0) -> float:
        """Wait until a level is told, after a moment; returns when.

        Raises:
            AssertionError: It was not, in time.
        """

        def first() -> float | None:
            return next((at_s for at_s, told in self.changes if told == level and at_s >= since_s), None)

        self.until(lambda: first() is not None, seconds_max=seconds_max, what=f"{level} is told")
        at_s = first()
        assert at_s is not None, "it was waited for"
        return at_s

    def told_shortly(self) -> str:
        return "; ".join(f"{body['level']}: {body['text']}" for _, body in self.hearer.told) or "nothing"


def page(address: str, path: str) -> tuple[int, str]:
    """One of the pages of a watchdog."""
    try:
        with urlopen(f"http://{address}{path}", timeout=PAGE_S_MAX) as answer:
            return answer.status, answer.read().decode()
    except HTTPError as error:
        with error:
            return error.code, error.read().decode()


@contextmanager
def watching(folder: Path, nodes: str, *options: str, name: str = "watchdog") -> Iterator[Watch]:
    """A watchdog that looks five times a second, pings every second and tells a server of ours."""
    hearer = Hearer()
    with hearer.listening():
        told = ("--webhook", hearer.address + HOOK, "--dead-man", hearer.address + PING, "--dead-man-interval", "1s")
        command = (*watchdog_command(nodes), "--interval", "200ms", "--listen", "127.0.0.1:0", *told, *options)
        child = Child.start(name, command, folder=folder)
        try:
            yield Watch(child, hearer)
        finally:
            # One that a test has left paused would not hear that it is to end.
            child.resume()
            child.stop()


def watchdog_command(nodes: str) -> Sequence[str]:
    return (sys.executable, "-c", ENTRY, "watchdog", "-o", "jsonl", "--nodes", nodes)
