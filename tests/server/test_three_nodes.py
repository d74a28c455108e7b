"""Three real nodes: they elect, replicate, survive a loss, and end without holding anybody."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

from stepward.server.config import TlsFiles
from stepward.v1 import definition_pb2, job_service_pb2
from tests.certificates import Authority
from tests.server import cluster as clusters
from tests.server import nodes
from tests.server.cluster import Cluster
from tests.server.nodes import CALL_S_MAX, Stubs, submission
from tests.server.plain_agent import agent


async def run_trip(stubs: Stubs) -> bytes:
    request = job_service_pb2.RunJobRequest(job=submission("echo", b'"far"'))
    return (await stubs.jobs.RunJob(request, timeout=CALL_S_MAX)).job.output.data


def heads(cluster: Cluster) -> set[tuple[int, bytes]]:
    return {(node.standing.head.sequence, node.standing.head.hash) for node in cluster.nodes.values()}


async def test_nodes_elect_and_hold_the_same(tmp_path: Path) -> None:
    """One decides, all apply, and heads are equal."""
    async with clusters.running(tmp_path) as cluster, nodes.connected(cluster.addresses[cluster.leader_id]) as stubs:
        await nodes.define(stubs, "echo", definition_pb2.Step(id="echo"))
        async with agent(stubs, "echo"):
            outputs = [await run_trip(stubs) for _ in range(10)]
        # A batch a second comes whatever happens; between two of them heads are equal.
        await cluster.until(lambda: len(heads(cluster)) == 1)

        assert outputs == [b'"far"'] * 10
        assert len({node.standing.term for node in cluster.nodes.values()}) == 1


async def test_leader_that_stops_is_replaced(tmp_path: Path) -> None:
    """And one that comes back follows."""
    async with clusters.running(tmp_path) as cluster:
        old = cluster.leader_id
        term = cluster.nodes[old].standing.term
        await cluster.stop(old)
        began = time.monotonic()
        new = await cluster.led()
        took_s = time.monotonic() - began
        await cluster.start(old)
        await cluster.led()
        await cluster.until(lambda: len(heads(cluster)) == 1)

        assert new != old
        assert cluster.nodes[new].standing.term > term
        assert took_s < 5


async def test_trip_over_tls(tmp_path: Path) -> None:
    """Between nodes and to callers."""
    authority = Authority(tmp_path)
    tls = {}
    for node_id in ("n1", "n2", "n3"):
        files = authority.files(node_id, uri=f"stepward://node/{node_id}")
        tls[node_id] = TlsFiles(ca=files.ca, certificate=files.certificate, key=files.key)
    client = authority.files("somebody", uri="stepward://client/somebody")
    async with clusters.running(tmp_path / "nodes", tls=tls) as cluster:
        channel = nodes.secure_channel(cluster.addresses[cluster.leader_id], client)
        async with nodes.stubs_on(channel) as stubs:
            await nodes.define(stubs, "echo", definition_pb2.Step(id="echo"))
            async with agent(stubs, "echo"):
                output = await run_trip(stubs)
        await cluster.until(lambda: len(heads(cluster)) == 1)

    assert output == b'"far"'


async def test_all_stop_and_start_again(tmp_path: Path) -> None:
    """Nothing is lost, and nobody waits for the grace of the others' streams."""
    async with clusters.running(tmp_path) as cluster:
        async with nodes.connected(cluster.addresses[cluster.leader_id]) as stubs:
            await nodes.define(stubs, "echo", definition_pb2.Step(id="echo"))
        sequence = max(sequence for sequence, _ in heads(cluster))
        began = time.monotonic()
        await asyncio.gather(*(cluster.stop(node_id) for node_id in list(cluster.nodes)))
        stopped_s = time.monotonic() - began
        for node_id in cluster.directories:
            await cluster.start(node_id)
        await cluster.led()
        await cluster.until(lambda: len(heads(cluster)) == 1)

        assert min(heads(cluster))[0] > sequence
        assert stopped_s < 3
