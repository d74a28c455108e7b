"""A real HTTP server that is told of incidents, as somebody else would write it."""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

SECRET = b"a secret of the tests"
# What a request may be old, and ahead of this clock.
SKEW_S_MAX = 300


class Receiver:
    """Requests that came. `answer` says what becomes of one, from its body; None: nothing, until it is let go."""

    def __init__(self) -> None:
        self.bodies: list[dict[str, Any]] = []
        self.taken: list[dict[str, Any]] = []
        self.signatures: list[str] = []
        self.faults: list[str] = []
        self.secret = SECRET
        self.answer: Callable[[dict[str, Any]], int | None] = lambda body: 204
        self.let_go = threading.Event()
        self.url = ""

    @property
    def notices(self) -> list[dict[str, Any]]:
        """Everything that was taken, in order, with doubles."""
        return [notice for body in self.taken for notice in body["notices"]]

    @property
    def said(self) -> list[tuple[str, str]]:
        """The same, as what happened to which incident, each once."""
        seen: dict[str, tuple[str, str]] = {}
        for notice in self.notices:
            seen.setdefault(notice["id"], (notice["type"].removeprefix("incident."), notice["incident"]["incident_id"]))
        return list(seen.values())

    def receive(self, signature: str, raw: bytes) -> int | None:
        """Check one request as its reader should, and say what becomes of it."""
        parts = dict(part.split("=", 1) for part in signature.split(","))
        expected = hmac.new(self.secret, parts["t"].encode() + b"." + raw, hashlib.sha256).hexdigest()
        if not hmac.compare_digest(expected, parts["v1"]) or abs(time.time() - int(parts["t"])) > SKEW_S_MAX:
            self.faults.append(signature)
            return 401
        body = json.loads(raw)
        self.bodies.append(body)
        self.signatures.append(signature)
        status = self.answer(body)
        if status is not None and status < 300:
            self.taken.append(body)
        return status


def _handler(receiver: Receiver) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            raw = self.rfile.read(int(self.headers["Content-Length"]))
            assert self.path == "/hook?of=tests"
            assert self.headers["Content-Type"] == "application/json"
            status = receiver.receive(self.headers["Stepward-Signature"], raw)
            if status is None:
                receiver.let_go.wait()
            with contextlib.suppress(OSError):
                # Whoever has gone away meanwhile hears nothing.
                self.send_response(status or 204)
                self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:  # type: ignore[explicit-override]  # of 3.12
            """Nothing: the tests look at what came."""

    return Handler


@contextlib.contextmanager
def receiving(receiver: Receiver, *, port: int = 0) -> Iterator[Receiver]:
    """Let it listen."""
    with ThreadingHTTPServer(("127.0.0.1", port), _handler(receiver)) as server:
        server.daemon_threads = True
        receiver.url = f"http://127.0.0.1:{server.server_port}/hook?of=tests"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        try:
            yield receiver
        finally:
            receiver.let_go.set()
            server.shutdown()
            thread.join()
