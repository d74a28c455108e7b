"""TLS between nodes and towards callers: a certificate says who somebody is, and nobody gets in without one."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from structlog.testing import capture_logs

from stepward.internal.v1 import peer_service_pb2 as pb
from stepward.server.config import TlsFiles
from stepward.server.peers import link
from stepward.v1 import cluster_service_pb2, definition_pb2, job_service_pb2
from tests.certificates import Authority
from tests.server import nodes
from tests.server.nodes import CALL_S_MAX, refusal, submission
from tests.server.peer_host import PeerHost, S, free_address, introduction, pair, standing
from tests.server.plain_agent import agent

SOON: dict[str, Any] = {"peer_backoff_ms_max": 100}


def node_files(authority: Authority, node_id: str, **fields: Any) -> TlsFiles:
    files = authority.files(node_id, uri=f"stepward://node/{node_id}", **fields)
    return TlsFiles(ca=files.ca, certificate=files.certificate, key=files.key)


async def test_nodes_talk_when_their_certificates_fit(tmp_path: Path) -> None:
    """Both ways, each side with its one certificate."""
    authority = Authority(tmp_path)
    files = {node_id: node_files(authority, node_id) for node_id in ("n1", "n2")}
    async with pair(tls_of=files) as (first, second):
        first.send("n2", b"there")
        second.send("n1", b"back")
        await second.until(lambda: second.came)
        await first.until(lambda: first.came)

        assert second.contents("n1") == [b"there"]
        assert first.contents("n2") == [b"back"]


async def lost_for(ours: TlsFiles | None, theirs: TlsFiles) -> str:
    """Why a node with some files has no stream to another one."""
    there = free_address()
    with capture_logs() as logs:
        async with standing(PeerHost(introduction("n2"), there, {}, tls=theirs)) as receiver:
            sender = PeerHost(introduction("n1"), free_address(), {"n2": there}, tls=ours, **SOON)
            async with standing(sender):
                await wait_for_loss(sender)
                assert sender.ends == []
            assert receiver.came == []
    return str(next(line["reason"] for line in logs if line.get("peer_id") == "n2"))


async def wait_for_loss(host: PeerHost) -> None:
    """Wait until each of the two others was tried twice."""
    async with asyncio.timeout(S):
        while host.counters.links_lost < 4:  # noqa: ASYNC110 - nothing tells a test of a try that failed
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("uri", ["stepward://node/n3", "stepward://client/n1", "stepward://agent/n1"])
async def test_certificate_of_somebody_else_is_refused(tmp_path: Path, uri: str) -> None:
    """The hello says n1, and the certificate does not."""
    authority = Authority(tmp_path)
    files = authority.files("n1", uri=uri)
    reason = await lost_for(
        TlsFiles(ca=files.ca, certificate=files.certificate, key=files.key), node_files(authority, "n2")
    )

    assert reason.startswith("this call is for nodes: its certificate must name stepward://node/n1, and names")


async def test_certificate_of_another_authority_gets_nowhere(tmp_path: Path) -> None:
    """Whatever it says."""
    ours, theirs = Authority(tmp_path, "ours"), Authority(tmp_path, "theirs")
    mixed = node_files(theirs, "n1")
    trusting = TlsFiles(ca=ours.ca, certificate=mixed.certificate, key=mixed.key)

    assert await lost_for(trusting, node_files(ours, "n2"))


async def test_certificate_of_another_address_is_not_taken(tmp_path: Path) -> None:
    """Somebody else answers there."""
    authority = Authority(tmp_path)
    reason = await lost_for(node_files(authority, "n1"), node_files(authority, "n2", hosts=("other.example",)))

    assert "verif" in reason.lower() or "peer name" in reason.lower()


async def test_node_without_tls_gets_nowhere(tmp_path: Path) -> None:
    """A cluster is all TLS or none."""
    assert await lost_for(None, node_files(Authority(tmp_path), "n2"))


async def test_public_calls_need_a_certificate_and_any_will_do(tmp_path: Path) -> None:
    """A whole trip through a node with TLS, by a client and an agent; what only nodes may call is refused to them."""
    authority = Authority(tmp_path)
    client = authority.files("somebody", uri="stepward://client/somebody")
    async with nodes.running(tmp_path / "data", tls=node_files(authority, "n1")) as node:
        async with nodes.connected(node.address) as open_stubs:
            with pytest.raises(grpc.aio.AioRpcError) as without:
                await open_stubs.cluster.GetStatus(cluster_service_pb2.GetStatusRequest(), timeout=CALL_S_MAX)
        async with nodes.stubs_on(nodes.secure_channel(node.address, client)) as stubs:
            await nodes.define(stubs, "echo", definition_pb2.Step(id="echo"))
            async with agent(stubs, "echo"):
                request = job_service_pb2.RunJobRequest(job=submission("echo", b'"far"'))
                answer = await stubs.jobs.RunJob(request, timeout=CALL_S_MAX)
            stream: Any = stubs.channel.stream_stream(link.METHOD)()
            await stream.write(pb.ReplicateRequest(hello=introduction("n1").hello("n1", 1)).SerializeToString())
            with pytest.raises(grpc.aio.AioRpcError) as as_node:
                await stream.read()

    assert without.value.code() is grpc.StatusCode.UNAVAILABLE
    assert answer.job.output.data == b'"far"'
    assert refusal(as_node.value).reason == "NOT_ALLOWED"
