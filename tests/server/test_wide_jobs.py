"""H061, H099: wide jobs and many jobs through a real node, with its own disk."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import time
from typing import TYPE_CHECKING

import pytest

from stepward.server.core.limits import Limits
from stepward.server.logbook import replica
from stepward.server.logbook.outbox import ReplicaLimits
from stepward.server.store import lmdb_store
from stepward.v1 import cluster_service_pb2, common_pb2, definition_pb2, definition_service_pb2, job_service_pb2
from tests.server import nodes
from tests.server.nodes import submission
from tests.server.plain_agent import PlainAgent, agent
from tests.server.test_process import ready

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from tests.server.nodes import Stubs

S = 60.0
WIDTH = 5_000
READY_S_MAX = 5.0
# So long that the stand of a test machine ends no session; the agent comes back under the same one.
TTL_MS = 60_000


def fan(width: int) -> list[definition_pb2.Step]:
    """A step, many that need it, and one that needs all of them."""
    branches = [definition_pb2.Step(id=f"b{n}", action="branch", needs=["first"]) for n in range(width)]
    last = definition_pb2.Step(id="last", needs=[branch.id for branch in branches], input='{"n": "${input.n}"}')
    return [definition_pb2.Step(id="first"), *branches, last]


@contextlib.asynccontextmanager
async def working(stubs: Stubs, session_id: str, generation: int = 0) -> AsyncIterator[PlainAgent]:
    """An agent that does everything at once, and goes on saying that it lives."""
    actions = ("first", "branch", "last", "small")
    async with agent(stubs, *actions, slots=100, session_id=session_id, generation=generation) as joined:

        async def live() -> None:
            for number in range(1, 10_000):
                await joined.heartbeat(number)
                await asyncio.sleep(1)

        living = asyncio.create_task(live())
        try:
            yield joined
        finally:
            living.cancel()
            await asyncio.gather(living, return_exceptions=True)


async def small_jobs(stubs: Stubs, count: int) -> list[float]:
    """How long small jobs take, one after the other (s)."""
    took = []
    for _ in range(count):
        began = time.monotonic()
        answer = await stubs.jobs.RunJob(job_service_pb2.RunJobRequest(job=submission("small")), timeout=S)
        assert answer.job.state == common_pb2.JOB_STATE_COMPLETED
        took.append(time.monotonic() - began)
    return took


async def has_completed(stubs: Stubs, job_id: str) -> bool:
    answer = await stubs.jobs.GetJob(job_service_pb2.GetJobRequest(job_id=job_id), timeout=S)
    return bool(answer.job.state == common_pb2.JOB_STATE_COMPLETED)


async def half_is_done(joined: PlainAgent) -> bool:
    return len(joined.answers) >= WIDTH // 2


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_h061_a_wide_job_beside_small_ones_survives_a_kill(tmp_path: Path) -> None:
    """5,000 parallel steps and a fan-in; killed in the middle, the node is ready again soon and goes on."""
    options = ("--data", str(tmp_path / "d"), "--port", "0", "--session-ttl-ms", str(TTL_MS))
    session_id = "session-of-a-wide-job"
    async with ready("dev", *options) as first, nodes.connected(first.address) as stubs:
        await nodes.define(stubs, "wide", *fan(WIDTH))
        await nodes.define(stubs, "small", definition_pb2.Step(id="small"))
        async with working(stubs, session_id) as joined:
            alone = await small_jobs(stubs, 30)
            submitted = await stubs.jobs.SubmitJob(
                job_service_pb2.SubmitJobRequest(job=submission("wide", b'{"n":1}')), timeout=S
            )
            beside = await small_jobs(stubs, 30)
            await nodes.eventually(lambda: half_is_done(joined), within_s=S)
            await first.end(signal.SIGKILL)
            generation, before = joined.welcome.generation, list(joined.offers)
    began = time.monotonic()
    async with ready("run", *options) as second, nodes.connected(second.address) as stubs:
        ready_s = time.monotonic() - began
        async with working(stubs, session_id, generation) as joined:
            await nodes.eventually(lambda: has_completed(stubs, submitted.job_id), within_s=S)
            again = await small_jobs(stubs, 5)
            after = list(joined.offers)

    assert ready_s < READY_S_MAX
    fan_in = {offer.attempt.token for offer in (*before, *after) if offer.attempt.step_id == "last"}
    assert len(fan_in) == 1
    assert {offer.attempt.step_id for offer in (*before, *after) if offer.attempt.job_id == submitted.job_id} == {
        "first",
        "last",
        *(f"b{n}" for n in range(WIDTH)),
    }
    # An agent with a hundred slots works on both; a small job waits for the offers before its own, never for a walk.
    assert max(beside) < max(1.0, 20 * max(alone)), (alone, beside)
    assert len(again) == 5


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_h099_the_pages_of_removed_jobs_are_used_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Six thousand jobs that are gone again make the file grow by less than one thousand that stay.

    It does grow a little, ever more slowly: how many pages are in use at once is a matter of chance, the file keeps
    the most that there ever were, and a large entry of the journal needs pages that lie together.
    """
    # The journal lies in the same file, and would grow to its own bound for longer than this test lasts.
    monkeypatch.setattr(replica, "ReplicaLimits", lambda: ReplicaLimits(journal_entries_max=64))
    # So does what the log puts off: the file would grow in steps that say nothing about a round.
    monkeypatch.setattr(lmdb_store, "CHANGES_AHEAD_MAX", 64)
    staying = await sizes_after_rounds(tmp_path / "staying", 3, Limits(session_ttl_ms=TTL_MS))
    going = await sizes_after_rounds(tmp_path / "going", 8, Limits(session_ttl_ms=TTL_MS, retention_ms=1_000))

    assert going[-1] - going[1] < staying[2] - staying[1], (going, staying)


async def sizes_after_rounds(directory: Path, rounds: int, limits: Limits) -> list[int]:
    """Bytes of the data file after each round of 1,000 jobs; with a short retention once all of them are gone."""
    sizes = []
    async with nodes.running(directory, limits=limits) as node, nodes.connected(node.address) as stubs:
        await nodes.define(stubs, "small", definition_pb2.Step(id="small"))
        async with working(stubs, "session-of-many-jobs"):
            for _ in range(rounds):
                await asyncio.gather(*(small_jobs(stubs, 20) for _ in range(50)))
                if limits.retention_ms == 1_000:
                    await nodes.eventually(lambda: is_empty(stubs), within_s=S)
                status = await stubs.cluster.GetStatus(cluster_service_pb2.GetStatusRequest(), timeout=S)
                sizes.append(status.shards[0].store_bytes)
    return sizes


async def is_empty(stubs: Stubs) -> bool:
    status = await stubs.cluster.GetStatus(cluster_service_pb2.GetStatusRequest(), timeout=S)
    return sum(one.count for one in status.shards[0].jobs) == 0


async def test_the_widest_definition_comes_in_through_one_call(tmp_path: Path) -> None:
    """10,000 steps are stored and read back; one more is refused, with what to do."""
    async with nodes.running(tmp_path / "d") as node, nodes.connected(node.address) as stubs:
        version = await nodes.define(stubs, "wide", *fan(9_998))
        refusal = await nodes.refused(nodes.define(stubs, "wider", *fan(9_999)))
        request = definition_service_pb2.GetDefinitionRequest(name="wide")
        read = (await stubs.definitions.GetDefinition(request, timeout=S)).version

    assert len(read.definition.steps) == 10_000
    assert read.hash == version.hash
    assert refusal.reason == "INVALID_DEFINITION"
    assert refusal.violations == [("steps", "there are 10001 steps; there must be 1 to 10000")]
