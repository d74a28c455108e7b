"""Three nodes in one loop whose supervisors are broken: leadership moves, and in the end stays; rows tell all of it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from stepward.server.core import keys, rows
from stepward.server.core.epoch_rows import Epoch
from stepward.server.core.epochs import LOST_MAX
from stepward.server.node import Node
from stepward.server.oversight import GIVE_UP_MS
from stepward.server.supervisor import Supervisor
from stepward.v1 import cluster_service_pb2 as pb
from stepward.v1 import definition_pb2, job_service_pb2
from tests.server import cluster as clusters
from tests.server import nodes
from tests.server.cluster import Cluster
from tests.server.nodes import CALL_S_MAX, Stubs, submission
from tests.server.plain_agent import agent

pytestmark = pytest.mark.timeout(90)

# From the last beat to the first one of another leader; the tests of others share the processors.
NEXT_BEAT_S_MAX = 6.0


class Broken(Exception):  # noqa: N818 - what a supervisor may meet with
    """A supervisor meets with something that it cannot go on with."""


async def raises() -> None:
    raise Broken


async def hangs() -> None:
    await asyncio.get_running_loop().create_future()


async def is_cancelled() -> None:
    """What a sweep waits for is cancelled, and the supervisor was not."""
    future = asyncio.get_running_loop().create_future()
    future.cancel()
    await future


Fault = Callable[[], Awaitable[None]]


class Faults:
    """Breaks the supervisors of some nodes, while they sweep or when they start."""

    def __init__(self, cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
        self._cluster = cluster
        self._broken: frozenset[str] = frozenset()
        self._on_sweep: Fault | None = None
        self._on_start: Fault | None = None
        run, sweep = Supervisor.run, Supervisor._sweep

        async def run_broken(supervisor: Supervisor, **options: Any) -> None:
            await self._meet(supervisor, self._on_start)
            await run(supervisor, **options)

        async def sweep_broken(supervisor: Supervisor) -> int:
            await self._meet(supervisor, self._on_sweep)
            return await sweep(supervisor)

        monkeypatch.setattr(Supervisor, "run", run_broken)
        monkeypatch.setattr(Supervisor, "_sweep", sweep_broken)

    def set(self, *node_ids: str, on_sweep: Fault | None = None, on_start: Fault | None = None) -> None:
        """Break the supervisors of these nodes from now on, and of no others."""
        self._broken, self._on_sweep, self._on_start = frozenset(node_ids), on_sweep, on_start

    async def _meet(self, supervisor: Supervisor, fault: Fault | None) -> None:
        here = next((name for name, one in self._cluster.nodes.items() if one._shard is supervisor._shard), "")
        if fault is not None and here in self._broken:
            await fault()


def read(node: Node, key: bytes) -> Any:
    with node._shard.committed() as reader:
        return reader.get(key)


def beats(node: Node) -> int:
    beat = read(node, keys.BEAT)
    return beat.beats if isinstance(beat, rows.Beat) else 0


async def supervision(stubs: Stubs) -> pb.ShardStatus:
    return (await stubs.cluster.GetStatus(pb.GetStatusRequest(), timeout=CALL_S_MAX)).shards[0]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("on_sweep", "on_start"),
    [(raises, raises), (hangs, hangs), (is_cancelled, None)],
    ids=["raises", "hangs", "is cancelled"],
)
async def test_h086_leader_without_a_supervisor_hands_over(
    on_sweep: Fault, on_start: Fault | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """H086: in four seconds, without an election; the next one beats, and knows what became of this one."""
    async with clusters.running(tmp_path) as cluster:
        faults = Faults(cluster, monkeypatch)
        old = cluster.leader_id
        await cluster.until(lambda: all(beats(node) for node in cluster.nodes.values()))
        faults.set(old, on_sweep=on_sweep, on_start=on_start)
        node, before = cluster.nodes[old], beats(cluster.nodes[old])
        began_s, elections = time.monotonic(), _elections(cluster)
        await cluster.until(lambda: cluster.leader_id not in ("", old))
        moved_s = time.monotonic() - began_s
        # One that was on its way when the supervisor broke may have come still.
        await cluster.until(lambda: beats(node) >= before + 2)
        beaten_s = time.monotonic() - began_s
        async with nodes.connected(cluster.addresses[cluster.leader_id]) as stubs:
            told = (await supervision(stubs)).supervision
        epoch = read(node, keys.EPOCH)

        assert moved_s >= GIVE_UP_MS / 1_000 - 1.0
        assert beaten_s <= NEXT_BEAT_S_MAX
        # The node that was asked stood, once.
        assert _elections(cluster) == elections + 1
        assert node.counters.supervisors_lost == 1
        assert isinstance(epoch, Epoch)
        assert len(epoch.lost_log_ms) == 1
        assert (told.epochs_lost, told.stays, told.health) == (1, False, pb.SUPERVISION_HEALTH_WARNING)
        assert "lost their supervisor" in told.reason


def _elections(cluster: Cluster) -> int:
    return sum(node._shard.condition().elections for node in cluster.nodes.values())


@pytest.mark.slow
async def test_h087_leadership_stays_when_no_supervisor_starts_anywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """H087: each leader gives up in time, the fourth stays; nobody says that he leads, all say critical, jobs go on.

    As soon as supervisors can start again, one does, in place.
    """
    # To show each traceback to nobody took longer than all else.
    with capture_logs():
        await _stay_without_supervisors(tmp_path, monkeypatch)


async def _stay_without_supervisors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with clusters.running(tmp_path) as cluster:
        faults = Faults(cluster, monkeypatch)
        everybody = list(cluster.nodes)
        faults.set(*everybody, on_sweep=hangs, on_start=raises)
        began_s = time.monotonic()
        await cluster.until(lambda: all(_stays(node) for node in cluster.nodes.values()), within_s=30)
        stayed_s = time.monotonic() - began_s
        leader = await cluster.led()
        async with nodes.connected(cluster.addresses[leader]) as stubs:
            await nodes.define(stubs, "echo", definition_pb2.Step(id="echo"))
            # Twice as long as any leader before it had.
            await asyncio.sleep(2 * GIVE_UP_MS / 1_000)
            async with agent(stubs, "echo"):
                request = job_service_pb2.RunJobRequest(job=submission("echo", b"1"))
                job = (await stubs.jobs.RunJob(request, timeout=CALL_S_MAX)).job
            hopeless = await supervision(stubs)
            before = beats(cluster.nodes[leader])
            faults.set()
            await cluster.until(lambda: beats(cluster.nodes[leader]) > before + 1)
            again = await supervision(stubs)

        assert stayed_s >= (LOST_MAX - 1) * GIVE_UP_MS / 1_000
        assert job.output.data == b"1"
        assert cluster.leader_id == leader
        assert (hopeless.leader, hopeless.leader_id) == (False, leader)
        assert hopeless.supervision.supervisor_state == "FAILING"
        assert (again.leader, again.supervision.supervisor_state) == (True, "RUNNING")
        # It has to show a good minute first.
        for shard in (hopeless, again):
            assert (shard.supervision.stays, shard.supervision.health) == (True, pb.SUPERVISION_HEALTH_CRITICAL)
            assert "nothing is remedied" in shard.supervision.reason


def _stays(node: Node) -> bool:
    epoch = read(node, keys.EPOCH)
    return isinstance(epoch, Epoch) and epoch.stays
