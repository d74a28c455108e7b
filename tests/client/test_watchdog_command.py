"""`stepward watchdog` from the command line, against nodes that say what they are told to, or nothing."""

from __future__ import annotations

import asyncio
import socket
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from stepward.client.cli.watchdog import LISTEN, SECRET_BYTES_MAX
from stepward.client.watchdog.dog import Watchdog
from stepward.client.watchdog.settings import NODES_MAX, Settings
from stepward.client.watchdog.verdicts import Level
from stepward.v1 import cluster_service_pb2
from tests.client.command_line import Ran, run
from tests.client.scripted_server import ScriptedServer, Silence
from tests.cluster.rig import until
from tests.cluster.watch import Hearer


def said(node_id: str, *, leads: bool = True, age_s: float = 0.0, members: int = 1) -> Any:
    """The status of a node of an older version, whose supervisor beat so long ago."""
    shard = cluster_service_pb2.ShardStatus(leader=leads, leader_id="n1", term=4, sequence=9, hash="ab" * 32)
    shard.supervisor_beat_at.FromMilliseconds(round((datetime.now(UTC).timestamp() - age_s) * 1_000))
    listed = [cluster_service_pb2.Member(node_id=f"n{number}") for number in range(1, members + 1)]
    return cluster_service_pb2.GetStatusResponse(
        node_id=node_id,
        cluster_id="c",
        state=cluster_service_pb2.NODE_STATE_SERVING,
        shards=[shard],
        members=listed,
    )


def once(*nodes: str) -> Ran:
    return run("watchdog", "--once", "--no-canary", "--nodes", ",".join(nodes))


def test_once_in_words(server: ScriptedServer) -> None:
    """The first line is all that some monitoring systems show."""
    server.always("GetStatus", said("n1"))
    well = once(server.address)
    server.always("GetStatus", said("n1", age_s=60, members=2))
    critical = once(server.address)

    assert (well.code, well.stdout) == (0, "WELL: supervision is well\n")
    assert critical.code == 2
    assert critical.lines[0].startswith("CRITICAL: shard 0 shows no sign of life of its supervisor for 6")
    assert critical.lines[1] == (
        "  WARNING: only 1 of the 2 nodes of the cluster is watched; --nodes must name n2, too"
    )


def test_address_that_is_named_twice_is_told(server: ScriptedServer) -> None:
    """However it is written; it may be a slip, and another node is not watched for it."""
    server.always("GetStatus", said("n1"))
    _, _, port = server.address.rpartition(":")

    twice = run("watchdog", "--once", "--no-canary", "--nodes", f"{server.address}, ,", "--nodes", server.address)
    once_each = run(
        "watchdog", "--once", "--no-canary", "--nodes", f"{server.address},", "--nodes", f"127.0.0.2:{port}"
    )

    assert (twice.code, twice.stdout) == (0, "WELL: supervision is well\n")
    assert twice.stderr == (
        f"warning: --nodes names {server.address} more than once, where another node may be meant; it is watched once\n"
    )
    assert "more than once" not in once_each.stderr


def test_nodes_are_those_of_the_session_unless_they_are_named(server: ScriptedServer) -> None:
    server.always("GetStatus", said("n1"))

    assert run("watchdog", "--once", "--no-canary", "--server", server.address).code == 0


def test_something_else_listens_there() -> None:
    with Hearer().listening() as hearer:
        ran = once(hearer.address.removeprefix("http://"))

    assert ran.code == 3
    assert ran.lines[0] == "UNKNOWN: no node answers: either the cluster is down, or this watchdog is cut off from it"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--nodes", "http://x"), "is '//x'; it must be between 1 and 65535"),
        (("--nodes", ","), "no address in"),
        (
            ("--nodes", ",".join(f"n{number}" for number in range(NODES_MAX + 1))),
            "65 nodes are named; at most 64 can be",
        ),
        (("--interval", "100ms"), "it must be between 0.2s and 60s"),
        (("--interval", "61s"), "it must be between 0.2s and 60s"),
        (("--canary-interval", "0s"), "it must be between 1s and 3600s"),
        (("--dead-man-interval", "2h"), "it must be between 1s and 3600s"),
        (("--listen", "7656"), "'7656' is not host:port"),
        (("--listen", "localhost:65536"), "is not host:port"),
        (("--listen", "192.0.2.1:1"), "192.0.2.1:1 cannot be listened on"),
        (("--webhook", "example.org"), "is no address of a web server"),
        (("--dead-man", "ftp://example.org"), "is no address of a web server"),
        (("--on-change", "sh -c 'x"), "No closing quotation"),
        (("--webhook-secret-file", "x"), "there is nothing to sign: --webhook is missing"),
        (
            ("--webhook", "http://x", "--webhook-secret-file", "no-such-file"),
            "no-such-file cannot be read: No such file",
        ),
        (("--webhook", "http://x", "--webhook-secret-file", "/dev/null"), "holds 0 bytes"),
        (("--tls-ca", "no-such.pem"), "no-such.pem cannot be read"),
        (("--tls-cert", "no-such.pem"), "--tls-ca says whom you trust, and is missing"),
        (("--no-such-option",), "No such option"),
    ],
)
def test_what_is_wrong_with_the_command_line_is_no_verdict(options: tuple[str, ...], said: str) -> None:
    """2 is critical here; a check that was set up wrongly cannot tell."""
    ran = run("watchdog", *options)

    assert ran.code == 3
    assert said in ran.stderr


def test_secret_is_bounded(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(b"x" * (SECRET_BYTES_MAX + 1))
    ran = run("watchdog", "--webhook", "http://x", "--webhook-secret-file", str(secret))

    assert (ran.code, "holds 4097 bytes; a secret has between 1 and 4096" in ran.stderr) == (3, True)


def test_pages_have_an_address_of_their_own() -> None:
    """A second watchdog on one machine is told to choose another."""
    host, _, port = LISTEN.rpartition(":")
    with socket.create_server((host, 0)) as taken:
        ran = run("watchdog", "--listen", f"{host}:{taken.getsockname()[1]}")

    assert port == "7656"
    assert (ran.code, "cannot be listened on (Address already in use)" in ran.stderr) == (3, True)


async def test_node_that_hangs_delays_no_verdict(server: ScriptedServer, second_server: ScriptedServer) -> None:
    """Verdicts go on at their pace while an answer is waited for, and with what the others say meanwhile."""
    server.always("GetStatus", said("n1", members=2))
    second_server.on("GetStatus", *(Silence() for _ in range(20)))
    settings = Settings(addresses=(server.address, second_server.address), interval_s=0.2, canary_interval_s=0)
    watchdog = Watchdog(settings, log=lambda event, **fields: None, on_change=lambda change: None)
    running = asyncio.create_task(watchdog.run())
    try:
        await until(lambda: watchdog.judgements > 0, seconds_max=20, what="the first verdict")
        silent = watchdog._askers[1]
        asked = silent.asked
        await until(lambda: silent.asked > asked, seconds_max=20, what="the silent node is asked anew")
        before, answered = watchdog.judgements, watchdog._askers[0].asked
        await until(lambda: watchdog.judgements > before + 4, seconds_max=20, what="verdicts go on")
        still_waiting = silent.asked == asked + 1
        asked_meanwhile = watchdog._askers[0].asked - answered
    finally:
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running

    assert still_waiting
    assert asked_meanwhile >= 4
    assert watchdog.level is Level.WARNING
