"""Three pages over plain HTTP: /metrics, /healthz, /readyz.

They run on threads of their own, so that they answer while the loop hangs: that is when somebody needs them. GET only,
one answer a connection, few connections, short waits.
"""

from __future__ import annotations

import contextlib
import socket
import socketserver
import threading
from collections import deque
from http.server import BaseHTTPRequestHandler
from typing import TYPE_CHECKING, Any, ClassVar, Final

from stepward.server import observe
from stepward.server.addresses import bracketed

if TYPE_CHECKING:
    from collections.abc import Callable

# Connections at once. A Prometheus and two probes need three; when one more comes, the oldest is closed for it, so
# that nobody who holds connections open can shut out a probe.
CONNECTIONS_MAX: Final = 8
# How long a connection may be silent.
SILENCE_S_MAX: Final = 2.0
# How often the listening thread looks whether it is to end.
_POLL_S: Final = 0.1

CONTENT_TYPE_METRICS: Final = "text/plain; version=0.0.4; charset=utf-8"
CONTENT_TYPE_TEXT: Final = "text/plain; charset=utf-8"

_log = observe.logger("probes")


class ProbesAddressTaken(Exception):  # noqa: N818 - a state of the machine, named as such
    """The address of the pages cannot be listened on."""

    def __init__(self, host: str, port: int, error: OSError) -> None:
        super().__init__(
            f"{host}:{port} cannot be listened on for /metrics and /healthz ({error.strerror}); choose another with "
            "--http-port, or none with --no-http"
        )


class _Handler(BaseHTTPRequestHandler):
    """One request."""

    server: _Listener
    timeout: ClassVar[float] = SILENCE_S_MAX
    server_version = "stepward"
    sys_version = ""

    def do_GET(self) -> None:
        """Answer with one of the pages."""
        path = self.path.partition("?")[0]
        if path == "/metrics":
            self._answer(200, self.server.metrics(), CONTENT_TYPE_METRICS)
        elif path in self.server.verdicts:
            why = self.server.verdicts[path]()
            self._answer(503 if why else 200, f"{why or 'ok'}\n".encode(), CONTENT_TYPE_TEXT)
        else:
            self._answer(404, b"there are /metrics, /healthz and /readyz\n", CONTENT_TYPE_TEXT)

    def _answer(self, code: int, page: bytes, content_type: str) -> None:
        self.send_response(code)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(page)))
        self.end_headers()
        self.wfile.write(page)

    def log_message(self, format: str, *args: Any) -> None:  # type: ignore[explicit-override]  # `override` is of 3.12
        """Nothing: a probe asks every second."""


class _Listener(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = True
    block_on_close = False

    metrics: Callable[[], bytes]
    verdicts: dict[str, Callable[[], str]]

    def __init__(self, address: tuple[str, int]) -> None:
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        self._open: deque[socket.socket] = deque()
        self._lock = threading.Lock()
        super().__init__(address, _Handler)

    def process_request(self, request: Any, client_address: Any) -> None:  # type: ignore[explicit-override]  # `override` is of 3.12
        """Serve it on a thread; the oldest connection goes when there are too many."""
        with self._lock:
            while len(self._open) >= CONNECTIONS_MAX:
                _end(self._open.popleft())
            self._open.append(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:  # type: ignore[explicit-override]  # `override` is of 3.12
        """It is answered, or has failed."""
        with self._lock:
            if request in self._open:
                self._open.remove(request)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:  # type: ignore[explicit-override]  # `override` is of 3.12
        """Called inside the except clause of one request; a peer that went away is nothing to tell."""
        _log.warning("probe_failed", exc_info=True)


def _end(connection: socket.socket) -> None:
    """Wake the thread that waits for it."""
    # It may have ended by itself meanwhile.
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)


class Probes:
    """The listener of one node."""

    def __init__(
        self,
        host: str,
        port: int,
        *,
        metrics: Callable[[], bytes],
        unhealthy: Callable[[], str],
        unready: Callable[[], str],
    ) -> None:
        """Listen at once; answer from `start` on. Whatever is given is called on other threads.

        Raises:
            ProbesAddressTaken: The address cannot be listened on.
        """
        try:
            self._listener = _Listener((host.strip("[]"), port))
        except OSError as error:
            raise ProbesAddressTaken(host, port, error) from error
        self.show(metrics=metrics, unhealthy=unhealthy, unready=unready)
        self.address = f"{bracketed(host)}:{self._listener.server_address[1]}"
        self._thread = threading.Thread(
            target=self._listener.serve_forever, kwargs={"poll_interval": _POLL_S}, name="probes", daemon=True
        )

    def show(self, *, metrics: Callable[[], bytes], unhealthy: Callable[[], str], unready: Callable[[], str]) -> None:
        """Answer with these from now on: the process has become another kind of node."""
        self._listener.metrics = metrics
        self._listener.verdicts = {"/healthz": unhealthy, "/readyz": unready}

    def start(self) -> None:
        """Begin to answer."""
        self._thread.start()

    def stop(self) -> None:
        """Answer no more; waits for the listening thread, not for answers on their way."""
        if self._thread.ident is not None:
            self._listener.shutdown()
            self._thread.join()
        self._listener.server_close()
