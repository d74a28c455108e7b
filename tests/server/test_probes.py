"""The pages for monitoring: what they answer, and that nobody can hold them up."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator

import pytest

from stepward.server import probes
from stepward.server.clock import ManualClock
from stepward.server.core.commands import AnyCommand
from stepward.server.core.decide import Decision
from stepward.server.core.limits import Limits
from stepward.server.observe import Counters
from stepward.server.probes import CONNECTIONS_MAX, Probes, ProbesAddressTaken
from stepward.server.vitals import STEP_AGE_MS_MAX, Vitals
from tests.server.host import CLOCK, Host
from tests.server.test_metrics import fetch

S = 10.0
CONTACT_AGE_MS_MAX = 3_333


@contextlib.contextmanager
def listening(
    *,
    metrics: Callable[[], bytes] = lambda: b"some 1\n",
    unhealthy: Callable[[], str] = str,
    unready: Callable[[], str] = str,
) -> Iterator[Probes]:
    pages = Probes("127.0.0.1", 0, metrics=metrics, unhealthy=unhealthy, unready=unready)
    pages.start()
    try:
        yield pages
    finally:
        pages.stop()


def connect(pages: Probes) -> socket.socket:
    host, _, port = pages.address.rpartition(":")
    return socket.create_connection((host, int(port)), timeout=S)


def said(connection: socket.socket, request: bytes) -> bytes:
    """All that is answered to a request, until the end of the connection."""
    connection.sendall(request)
    answer = b""
    while part := connection.recv(65_536):
        answer += part
    return answer


def test_pages_say_why_not() -> None:
    """A code for machines and a reason for people."""
    with listening(unready=lambda: "the node knows no leader") as pages:
        assert fetch(pages.address, "/metrics") == (200, "some 1\n")
        assert fetch(pages.address, "/healthz") == (200, "ok\n")
        assert fetch(pages.address, "/readyz?verbose=1") == (503, "the node knows no leader\n")
        assert fetch(pages.address, "/") == (404, "there are /metrics, /healthz and /readyz\n")


@pytest.mark.parametrize("request_line", [b"POST /metrics HTTP/1.0", b"PUT /healthz HTTP/1.0", b"DELETE / HTTP/1.1"])
def test_only_get(request_line: bytes) -> None:
    """Nothing can be changed here."""
    with listening() as pages, connect(pages) as connection:
        assert said(connection, request_line + b"\r\n\r\n").split()[1] == b"501"


@pytest.mark.parametrize("sent", [b"", b"\0\xff\r\n\r\n", b"GET\r\n\r\n", b"GET /" + b"x" * 70_000, b"\r\n" * 200])
def test_nonsense_does_no_harm(sent: bytes) -> None:
    """Whoever sends it is let go; the next one is answered."""
    with listening() as pages:
        with connect(pages) as connection, contextlib.suppress(ConnectionError):
            connection.sendall(sent)
            connection.shutdown(socket.SHUT_WR)
            while connection.recv(65_536):
                pass

        assert fetch(pages.address, "/healthz") == (200, "ok\n")


def test_connections_at_the_bound_and_past_it() -> None:
    """So many may be silent at once; one more costs the oldest its place and is answered."""
    with listening() as pages, contextlib.ExitStack() as opened:
        held = [opened.enter_context(connect(pages)) for _ in range(CONNECTIONS_MAX)]
        for connection in held:
            connection.sendall(b"GET /heal")

        assert fetch(pages.address, "/healthz") == (200, "ok\n")
        assert held[0].recv(1) == b""
        assert said(held[1], b"thz HTTP/1.0\r\n\r\n").endswith(b"ok\n")


def test_silence_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection that says nothing is closed."""
    monkeypatch.setattr(probes._Handler, "timeout", 0.05)
    with listening() as pages, connect(pages) as connection:
        assert connection.recv(1) == b""


def test_threads_end_with_the_listener() -> None:
    """A node that was stopped leaves nothing running."""
    with listening() as pages:
        assert "probes" in [thread.name for thread in threading.enumerate()]
        fetch(pages.address, "/healthz")

    assert [thread.name for thread in threading.enumerate() if thread.name == "probes"] == []


def test_address_that_is_taken() -> None:
    """It is told with what to do."""
    with listening() as pages:
        port = int(pages.address.rpartition(":")[2])
        with pytest.raises(ProbesAddressTaken, match=f"^127.0.0.1:{port} cannot be listened on .*--http-port"):
            Probes("127.0.0.1", port, metrics=bytes, unhealthy=str, unready=str)


def nothing(reader: object, commands: list[AnyCommand], moment: object) -> Decision:
    return Decision({}, [], [])


def vitals_of(host: Host, clock: ManualClock) -> Vitals:
    return Vitals(
        host.shard,
        identity=host.identity,
        version="1",
        clock=clock,
        counters=Counters(),
        free_bytes=lambda: 1,
        data_file=host.config.data,
        gauges={},
        contact_age_ms_max=CONTACT_AGE_MS_MAX,
        limits=Limits(),
        supervises=lambda: True,
    )


async def test_health_at_the_bound_and_past_it() -> None:
    """A loop that has not stepped for too long hangs."""
    host = Host(nothing)  # type: ignore[arg-type]  # it is never asked
    clock = ManualClock(steady_ms=host.shard.stepped_at_ms, wall_ms=0)
    vitals = vitals_of(host, clock)

    clock.advance(STEP_AGE_MS_MAX)
    assert vitals.unhealthy() == ""
    clock.advance(1)
    assert vitals.unhealthy() == "the last step began 5001 ms ago; at most 5000 ms is healthy"
    assert vitals.unready() == vitals.unhealthy()


async def test_health_after_the_replica_has_stopped() -> None:
    """One that stopped by itself is broken; one that was asked to is not."""
    host = Host(nothing)  # type: ignore[arg-type]  # it is never asked
    vitals = vitals_of(host, ManualClock(steady_ms=CLOCK.steady_ms(), wall_ms=0))
    host.shard.stop()

    assert vitals.unhealthy() == "the replica has stopped; the node's log says why"
    vitals.drain()
    assert (vitals.unhealthy(), vitals.unready()) == ("", "the node is shutting down")


async def test_readiness() -> None:
    """Calls are sent elsewhere while this node cannot serve them, with the reason."""
    host = Host(nothing)  # type: ignore[arg-type]  # it is never asked
    clock = ManualClock(steady_ms=host.shard.stepped_at_ms, wall_ms=0)
    vitals, alone = vitals_of(host, clock), host.shard.standing
    heard_at_ms = clock.steady_ms() - CONTACT_AGE_MS_MAX

    assert not alone.leads
    assert vitals.unready() == "the node knows no leader"
    host.shard._standing = alone._replace(leader_id="n2", contact_at_ms=heard_at_ms)
    assert vitals.unready() == ""
    host.shard._standing = alone._replace(leader_id="n2", contact_at_ms=heard_at_ms - 1)
    assert vitals.unready() == "the node last heard of a leader 3334 ms ago; at most 3333 ms will do"
    host.shard._standing = alone._replace(leads=True)
    assert vitals.unready() == ""
    host.shard.rows._fetching_from = "n3"
    assert vitals.unready() == "the node fetches all rows from n3"
    host.shard._standing = alone._replace(leads=True, quarantined=True)
    assert vitals.unready() == "the node came with an empty directory and does not hold yet what the others hold"
    host.shard.stop()
