"""Three real nodes: they elect, replicate, survive a loss, and end without holding anybody."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from stepward.server.config import TlsFiles
from stepward.server.logbook.outbox import Frame
from stepward.server.logbook.raft import APPEND_PERIOD_MS
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


async def test_leader_that_stops_hands_over_first(tmp_path: Path) -> None:
    """So nobody waits for an election; and one that comes back follows."""
    async with clusters.running(tmp_path) as cluster:
        old = cluster.leader_id
        term = cluster.nodes[old].standing.term
        with capture_logs() as logs:
            await cluster.stop(old)
        (handed_over,) = (line["answer"] for line in logs if line["event"] == "leadership_handed_over")
        new = await cluster.led()
        await cluster.start(old)
        await cluster.led()
        await cluster.until(lambda: len(heads(cluster)) == 1)

        assert new != old
        assert cluster.nodes[new].standing.term == term + 1
        assert handed_over == f"Transferred(leader_id='{new}', term={term + 1})"


async def test_leader_that_vanishes_is_replaced(tmp_path: Path) -> None:
    """Its streams end without a word to the logbook, as those of a process that was killed."""
    async with clusters.running(tmp_path) as cluster:
        old = cluster.leader_id
        term = cluster.nodes[old].standing.term
        await cluster.vanish(old)
        new = await cluster.led()

        assert new != old
        assert cluster.nodes[new].standing.term > term


async def test_frame_that_nobody_can_read_ends_its_stream(tmp_path: Path) -> None:
    """It is counted, nothing of it is taken, and the cluster goes on, on a new stream."""
    async with clusters.running(tmp_path) as cluster:
        leader, follower = cluster.nodes[cluster.leader_id], cluster.nodes[cluster.followers()[0]]
        term = leader.standing.term
        follower.peering.links.send([Frame(leader.identity.node_id, b"\x80\x04garbage.")])
        await cluster.until(lambda: leader.counters.frames_refused == 1)
        await cluster.until(lambda: leader.peering.links.stands(follower.identity.node_id))
        sequence = leader.standing.head.sequence
        await cluster.until(lambda: follower.standing.head.sequence > sequence)

        assert leader.standing.leads
        assert leader.standing.term == term


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


async def test_what_a_trip_costs_three_nodes(tmp_path: Path) -> None:
    """A batch is one append and one answer to each follower, perhaps one more when nothing follows; time adds beats."""
    async with clusters.running(tmp_path) as cluster, nodes.connected(cluster.addresses[cluster.leader_id]) as stubs:
        await nodes.define(stubs, "echo", definition_pb2.Step(id="echo"))
        async with agent(stubs, "echo"):
            await run_trip(stubs)
            before, began = costs(cluster), time.monotonic()
            await asyncio.gather(*(run_trip(stubs) for _ in range(64)))
            leader, *followers = (spent - paid for spent, paid in zip(costs(cluster), before, strict=True))
        periods = (time.monotonic() - began) * 1_000 / APPEND_PERIOD_MS + 1

    batches = leader["batches"]
    # Two followers; each answer and each period is a step, and so is whatever no batch is in the way of.
    assert leader["frames_sent"] <= 2 * (2 * batches + periods)
    assert leader["steps"] <= 3 * batches + 3 * periods
    assert leader["flushes"] <= 2 * batches + periods
    for follower in followers:
        assert follower["frames_sent"] <= 2 * batches + periods
        assert follower["flushes"] <= 2 * batches + periods
        assert follower["steps"] <= 2 * batches + 2 * periods


def costs(cluster: Cluster) -> list[Counter[str]]:
    """What each node has counted, the leader first."""
    followers = [cluster.nodes[node_id] for node_id in cluster.followers()]
    return [Counter(node.counters.numbers()) for node in (cluster.nodes[cluster.leader_id], *followers)]


async def test_node_that_can_link_no_more_ends_and_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rule of ours that fails there would leave a node that only seems to take part."""
    async with clusters.running(tmp_path) as cluster:
        node = cluster.nodes[cluster.followers()[0]]
        link = node.peering.links._links[cluster.leader_id]
        monkeypatch.setattr(link, "_tell", broken)
        link._close("a test wants it")
        async with asyncio.timeout(CALL_S_MAX):
            why = await node.fatal()

        assert why == f"link-{link.peer_id} ended before the node did: ZeroDivisionError()"


def broken(*_: object) -> None:
    raise ZeroDivisionError
