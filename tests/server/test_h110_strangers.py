"""H110: who has no certificate gets nothing of a node but a short wait, and takes nothing from those who have one."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from typing import Any

from stepward.server.config import TlsFiles
from stepward.v1 import cluster_service_pb2, definition_pb2
from tests.certificates import Authority
from tests.server import nodes
from tests.server.nodes import CALL_S_MAX
from tests.server.plain_agent import succeeds
from tests.server.unary_agent import NO_WAIT, UnaryAgent, submit

S = CALL_S_MAX
CONNECTIONS_MAX = 20
HANDSHAKE_MS = 300
# A client that says hello in TLS 1.2's record, of so many bytes, and stops in the middle.
HALF_A_HELLO = b"\x16\x03\x01\x02\x00\x01\x00"

Stranger = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def come(address: str, count: int) -> list[Stranger]:
    """Strangers: every second one begins a handshake, the others say nothing."""
    host, _, port = address.rpartition(":")
    strangers = [await asyncio.open_connection(host, int(port)) for _ in range(count)]
    for _, writer in strangers[::2]:
        writer.write(HALF_A_HELLO)
    return strangers


async def sent_away(strangers: list[Stranger]) -> None:
    """Wait until the node has closed the connection of each."""
    async with asyncio.timeout(S):
        for reader, writer in strangers:
            # An alert, the end, or a reset: how it closes is its own affair.
            with contextlib.suppress(ConnectionError):
                await reader.read()
            writer.close()


async def test_h110_strangers_use_nothing_up(tmp_path: Path) -> None:
    """Twice as many as there is room for: an agent keeps its lease, and others get in when they are sent away."""
    authority = Authority(tmp_path)
    own = authority.files("n1", uri="stepward://node/n1")
    tls = TlsFiles(ca=own.ca, certificate=own.certificate, key=own.key)
    client = authority.files("ann", uri="stepward://client/ann")
    bounds: dict[str, Any] = {"connections_max": CONNECTIONS_MAX, "handshake_timeout_ms": HANDSHAKE_MS}
    async with (
        nodes.running(tmp_path / "data", tls=tls, **bounds) as node,
        nodes.stubs_on(nodes.secure_channel(node.address, client)) as stubs,
    ):
        await nodes.define(stubs, "one", definition_pb2.Step(id="one"))
        worker = UnaryAgent(stubs, "one")
        await submit(stubs)
        await worker.lease(NO_WAIT)
        strangers = await come(node.address, 2 * CONNECTIONS_MAX)
        # While they are there.
        renewed = await worker.renew()
        await sent_away(strangers)
        async with nodes.stubs_on(nodes.secure_channel(node.address, client)) as later:
            request = cluster_service_pb2.GetStatusRequest()
            status = await later.cluster.GetStatus(request, timeout=S, wait_for_ready=True)
        (offer,) = worker.held.values()
        (answer,) = await worker.report(succeeds(offer))

    assert (renewed.heartbeat.number, list(renewed.cancels)) == (1, [])
    assert status.node_id == "n1"
    assert answer.result == 1
