"""The watchdog's pages over plain HTTP: /metrics, /healthz and /verdict.

They are served on threads of their own, so that they answer while the loop hangs. GET only, one answer a connection,
few connections, short waits.
"""

from __future__ import annotations

import socket
import socketserver
import sys
import threading
import traceback
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from http.server import BaseHTTPRequestHandler
from typing import Any, ClassVar, Final, TypeAlias

# Connections at once. When one more comes the oldest is closed for it: nobody who holds some open shuts out a probe.
CONNECTIONS_MAX: Final = 8
# How long a connection may be silent, and what a page may take to be read by its reader.
SILENCE_S_MAX: Final = 2.0
_POLL_S: Final = 0.1

METRICS_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
TEXT_TYPE: Final = "text/plain; charset=utf-8"

# What a page says, and the code that it has.
Page: TypeAlias = Callable[[], tuple[int, str]]

# An event and its fields.
Log: TypeAlias = Callable[..., None]


class _Handler(BaseHTTPRequestHandler):
    """One request."""

    server: _Listener
    timeout: ClassVar[float] = SILENCE_S_MAX
    server_version = "stepward-watchdog"
    sys_version = ""

    def do_GET(self) -> None:
        """Answer with one of the pages."""
        path = self.path.partition("?")[0]
        page = self.server.pages.get(path)
        code, text = page() if page else (404, f"there are {', '.join(sorted(self.server.pages))}\n")
        body = text.encode()
        self.send_response(code)
        self.send_header("Content-Type", METRICS_TYPE if path == "/metrics" else TEXT_TYPE)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:  # type: ignore[explicit-override]  # `override` is of 3.12
        """Nothing: somebody asks every second."""


class _Listener(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = True
    block_on_close = False

    def __init__(self, address: tuple[str, int], pages: dict[str, Page], log: Log) -> None:
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        self.pages = pages
        self._log = log
        self._open: deque[socket.socket] = deque()
        self._lock = threading.Lock()
        super().__init__(address, _Handler)

    def process_request(self, request: Any, client_address: Any) -> None:  # type: ignore[explicit-override]  # `override` is of 3.12
        """Serve it on a thread."""
        with self._lock:
            while len(self._open) >= CONNECTIONS_MAX:
                # It may have ended by itself meanwhile.
                with suppress(OSError):
                    self._open.popleft().shutdown(socket.SHUT_RDWR)
            self._open.append(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:  # type: ignore[explicit-override]  # `override` is of 3.12
        """It is answered, or has failed."""
        with self._lock:
            if request in self._open:
                self._open.remove(request)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:  # type: ignore[explicit-override]  # `override` is of 3.12
        """Called inside the except clause of one request: a reader that went away, or a page that cannot be made."""
        error = sys.exception()
        if not isinstance(error, OSError):
            self._log("page_failed", why=traceback.format_exc())


class Pages:
    """The listener of one watchdog."""

    def __init__(self, host: str, port: int, pages: dict[str, Page], log: Log) -> None:
        """Listen at once, answer from `start` on. Pages are made on other threads.

        Raises:
            OSError: The address cannot be listened on.
        """
        self._listener = _Listener((host, port), pages, log)
        shown = f"[{host}]" if ":" in host else host
        self.address = f"{shown}:{self._listener.server_address[1]}"
        self._thread = threading.Thread(
            target=self._listener.serve_forever, kwargs={"poll_interval": _POLL_S}, name="pages", daemon=True
        )

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Answer no more; waits for the listening thread, not for answers on their way."""
        if self._thread.ident is not None:
            self._listener.shutdown()
            self._thread.join()
        self._listener.server_close()
