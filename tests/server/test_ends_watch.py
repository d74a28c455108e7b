"""WatchJobs on real nodes: the ends of a caller's jobs, once each, also over the end of the node that tells them."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest
import pytest_asyncio

from stepward.server.api import ends_watch
from stepward.server.node import Node
from stepward.v1 import definition_pb2, job_service_pb2, operator_service_pb2
from stepward.v1.common_pb2 import JOB_STATE_CANCELLED, JOB_STATE_COMPLETED, JOB_STATE_ESCALATED, JOB_STATE_FAILED
from tests.server import cluster as clusters
from tests.server import nodes
from tests.server.cluster import Cluster
from tests.server.escalations import define, unknown
from tests.server.nodes import CALL_S_MAX, Stubs, eventually, refusal, submission
from tests.server.plain_agent import agent

S = CALL_S_MAX
WATCHERS_MAX = 3


@pytest_asyncio.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    async with nodes.running(tmp_path / "data", watchers_max=WATCHERS_MAX) as started:
        yield started


@pytest_asyncio.fixture
async def stubs(node: Node) -> AsyncIterator[Stubs]:
    async with nodes.connected(node.address) as connected:
        await nodes.define(connected, "echo", definition_pb2.Step(id="echo"))
        yield connected


class Stream:
    """One who follows the ends of the jobs of a caller."""

    def __init__(self, stubs: Stubs, caller_id: str, place: int | None = None) -> None:
        request = job_service_pb2.WatchJobsRequest(caller_id=caller_id)
        if place is not None:
            getattr(request, "from").add(revision=place)
        self._call = stubs.jobs.WatchJobs(request, timeout=2 * S)
        self.place = -1

    async def read(self) -> list[tuple[str, int]]:
        """The jobs of the next message."""
        message = await self._call.read()
        assert isinstance(message, job_service_pb2.WatchJobsResponse)
        (revision,) = message.revisions
        self.place = revision.revision
        return [(job.job_id, job.state) for job in message.jobs]

    async def until(self, count: int) -> list[tuple[str, int]]:
        """So many ends."""
        found: list[tuple[str, int]] = []
        async with asyncio.timeout(S):
            while len(found) < count:
                found += await self.read()
        return found

    async def refused(self) -> nodes.Refusal:
        """Why it ended."""
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await self._forever()
        return refusal(caught.value)

    async def _forever(self) -> None:
        while True:
            await self.read()

    def cancel(self) -> None:
        self._call.cancel()


async def submit(stubs: Stubs, count: int, caller: str, *, name: str = "echo") -> list[str]:
    """Jobs in one call."""
    jobs = [submission(name, caller_id=caller) for _ in range(count)]
    answer = await stubs.jobs.SubmitJobs(job_service_pb2.SubmitJobsRequest(jobs=jobs), timeout=S)
    return [result.job.job_id for result in answer.results]


async def test_ends_of_one_caller_are_told_and_told_again_to_who_resumes(stubs: Stubs) -> None:
    """From its first message on; others' ends are not told."""
    stream = Stream(stubs, "ann")
    assert await stream.read() == []
    begin = stream.place
    async with agent(stubs, "echo"):
        mine = await submit(stubs, 5, "ann")
        await submit(stubs, 5, "bob")
        told = await stream.until(5)
    cancelled = await submit(stubs, 1, "ann")
    await stubs.jobs.CancelJob(job_service_pb2.CancelJobRequest(job_id=cancelled[0]), timeout=S)
    told += await stream.until(1)
    again = await Stream(stubs, "ann", begin).until(6)
    after = Stream(stubs, "ann", stream.place)

    assert sorted(told) == sorted([(one, JOB_STATE_COMPLETED) for one in mine] + [(cancelled[0], JOB_STATE_CANCELLED)])
    assert again == told
    assert await after.read() == []


async def test_a_job_in_a_message_is_as_run_job_answers(stubs: Stubs) -> None:
    """State, output and failure, without its steps and its input."""
    call = stubs.jobs.WatchJobs(job_service_pb2.WatchJobsRequest(caller_id="ann"), timeout=S)
    await call.read()
    async with agent(stubs, "echo"):
        request = job_service_pb2.RunJobRequest(job=submission("echo", b'"x"', caller_id="ann"))
        ended = (await stubs.jobs.RunJob(request, timeout=S)).job
        message = await call.read()

    assert isinstance(message, job_service_pb2.WatchJobsResponse)
    assert list(message.jobs) == [ended]
    assert ended.output.data == b'"x"'


async def test_a_job_that_waits_for_a_person_is_told(stubs: Stubs) -> None:
    """As `RunJob` answers then; and when it has ended, it is told again."""
    stream = Stream(stubs, "ann")
    await stream.read()
    await define(stubs)
    (job_id,) = await submit(stubs, 1, "ann", name="pay")
    async with agent(stubs, "pay", handler=unknown):
        waits = await stream.until(1)
    terminate = operator_service_pb2.TerminateJobRequest(job_id=job_id, reason="enough")
    await stubs.operators.TerminateJob(terminate, timeout=S)

    assert waits == [(job_id, JOB_STATE_ESCALATED)]
    assert await stream.until(1) == [(job_id, JOB_STATE_FAILED)]


async def test_messages_are_cut(stubs: Stubs, monkeypatch: pytest.MonkeyPatch) -> None:
    """At so many ends, and at so many bytes: one that comes to the bound is the last."""
    stream = Stream(stubs, "ann")
    await stream.read()
    begin = stream.place
    async with agent(stubs, "echo"):
        await submit(stubs, 5, "ann")
        told = await stream.until(5)
    monkeypatch.setattr(ends_watch, "ENDS_MAX", 2)
    by_count = Stream(stubs, "ann", begin)
    counts = [len(await by_count.read()) for _ in range(3)]
    monkeypatch.setattr(ends_watch, "ENDS_MAX", 1_000)
    monkeypatch.setattr(ends_watch, "ENDS_BYTES_MAX", 1)
    by_bytes = Stream(stubs, "ann", begin)
    sizes = [await by_bytes.read() for _ in range(5)]

    assert counts == [2, 2, 1]
    assert [one for part in sizes for one in part] == told
    assert [len(part) for part in sizes] == [1] * 5


async def test_the_place_is_told_when_nothing_ends(stubs: Stubs, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that it does not grow older than what is kept."""
    monkeypatch.setattr(ends_watch, "PLACE_EVERY_S", 0.05)
    stream = Stream(stubs, "ann")
    await stream.read()
    first = stream.place
    async with asyncio.timeout(S):
        while stream.place == first:
            assert await stream.read() == []

    assert stream.place > first


async def test_a_place_that_has_never_been_is_refused(stubs: Stubs) -> None:
    """It would wait, and then leave out what happened meanwhile."""
    refused = await Stream(stubs, "ann", 1 << 40).refused()

    assert (refused.code, refused.reason) == (grpc.StatusCode.OUT_OF_RANGE, "REVISION_COMPACTED")


async def test_too_many_are_refused_and_one_that_goes_makes_room(node: Node, stubs: Stubs) -> None:
    """Those who follow one job, and those who follow a caller, share the places."""
    streams = [Stream(stubs, f"c{n}") for n in range(WATCHERS_MAX)]
    for stream in streams:
        await stream.read()
    refused = await Stream(stubs, "ann").refused()
    streams[0].cancel()

    async def there_is_room() -> bool:
        return node._gateway.watchers.count < WATCHERS_MAX

    await eventually(there_is_room)

    assert refused.reason == "OVERLOADED"
    assert await Stream(stubs, "ann").read() == []


async def test_node_that_stops_sends_him_elsewhere(node: Node, stubs: Stubs) -> None:
    """With the reason for which a wait for one job ends."""
    stream = Stream(stubs, "ann")
    await stream.read()
    _, refused = await asyncio.gather(node.stop(), stream.refused())

    assert refused.reason == "NODE_DRAINING"
    assert "revisions" in refused.message


class Everywhere:
    """One caller of a cluster: submits until it is sure, and follows wherever he is served."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.told: Counter[str] = Counter()
        self.resumed = 0
        self.following = asyncio.Event()

    async def submit(self, key: str) -> str:
        """One job, repeated with its key at one node after another."""
        job = submission("echo", caller_id="ann", idempotency_key=key)
        while True:
            for address in self._addresses():
                async with nodes.connected(address) as stubs:
                    try:
                        request = job_service_pb2.SubmitJobRequest(job=job)
                        return (await stubs.jobs.SubmitJob(request, timeout=S)).job_id
                    except grpc.aio.AioRpcError:
                        await asyncio.sleep(0.02)

    async def follow(self) -> None:
        """From node to node, behind what was told."""
        place: int | None = None
        while True:
            for address in self._addresses():
                async with nodes.connected(address) as stubs:
                    stream = Stream(stubs, "ann", place)
                    try:
                        while True:
                            self.told.update(job_id for job_id, _ in await stream.read())
                            place = stream.place
                            self.following.set()
                    except grpc.aio.AioRpcError:
                        self.resumed += 1
                        await asyncio.sleep(0.02)

    def _addresses(self) -> list[str]:
        return [self._cluster.addresses[node_id] for node_id in list(self._cluster.nodes)]


async def test_every_end_is_told_once_over_the_end_of_a_leader(tmp_path: Path) -> None:
    """He follows at the leader first, and goes on at another node when that has vanished."""
    async with clusters.running(tmp_path) as cluster:
        old = cluster.leader_id
        follower = cluster.followers()[0]
        cluster.nodes = {old: cluster.nodes.pop(old), **cluster.nodes}
        caller = Everywhere(cluster)
        async with nodes.connected(cluster.addresses[follower]) as stubs:
            await nodes.define(stubs, "echo", definition_pb2.Step(id="echo"))
            async with agent(stubs, "echo"), asyncio.timeout(4 * S):
                following = asyncio.create_task(caller.follow())
                await caller.following.wait()
                job_ids = [await caller.submit(f"a{n}") for n in range(10)]
                others = asyncio.gather(*(caller.submit(f"b{n}") for n in range(20)))
                await cluster.vanish(old)
                job_ids += await others
                await cluster.until(lambda: len(caller.told) == 30)
                following.cancel()

    assert caller.told == Counter(job_ids)
    assert caller.resumed > 0
