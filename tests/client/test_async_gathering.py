"""Many callers of one client for asyncio, against real nodes: they share calls, and each is told what is his."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from stepward.client import AsyncClient, errors, gathering
from stepward.client.values import JobResult, JobState
from stepward.server.api import ends_watch
from stepward.server.api.jobs import JobService
from stepward.server.core.rejections import Reason, refuse
from stepward.server.node import Node
from stepward.v1 import agent_service_pb2, definition_pb2
from tests.server import cluster as clusters
from tests.server import nodes
from tests.server.nodes import CALL_S_MAX, Stubs, eventually
from tests.server.plain_agent import PlainAgent, agent, failed, succeeds

S = CALL_S_MAX
CALLERS = 40


@pytest_asyncio.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    async with nodes.running(tmp_path / "data") as started:
        yield started


@pytest_asyncio.fixture
async def stubs(node: Node) -> AsyncIterator[Stubs]:
    async with nodes.connected(node.address) as connected:
        await nodes.define(connected, "echo", definition_pb2.Step(id="echo"))
        yield connected


@pytest_asyncio.fixture
async def working(stubs: Stubs) -> AsyncIterator[PlainAgent]:
    async with agent(stubs, "echo", handler=sells, slots=100) as joined:
        yield joined


@pytest_asyncio.fixture
async def client(node: Node, stubs: Stubs) -> AsyncIterator[AsyncClient]:
    async with AsyncClient(node.address) as opened:
        yield opened


def sells(offer: agent_service_pb2.Offer) -> agent_service_pb2.AttemptReport:
    """Gives back what it was given, unless that is "no"."""
    return failed(offer) if offer.input.data == b'"no"' else succeeds(offer)


def calls(node: Node) -> Counter[str]:
    """Calls of the service for jobs that have ended well, by method."""
    found: Counter[str] = Counter()
    for name, codes in node.counters.calls_by_code.items():
        found[name.rpartition("/")[2]] += codes.get("OK", 0)
    return found


async def begin(client: AsyncClient) -> None:
    """So many run at once, again and again, that their client follows the ends."""
    async with asyncio.timeout(S):
        while not client._gathering._core.tells:
            await asyncio.gather(*(client.run("echo") for _ in range(gathering.RUNS_MIN)))


async def test_one_caller_alone_makes_calls_of_his_own(node: Node, working: PlainAgent, client: AsyncClient) -> None:
    """One after another, or fewer than would gain by it: each `run` is one RunJob."""
    for _ in range(3):
        await client.run("echo")
    await asyncio.gather(*(client.run("echo") for _ in range(gathering.RUNS_MIN - 1)))
    await client.submit("echo")

    made = calls(node)
    assert (made["RunJob"], made["SubmitJob"]) == (3 + gathering.RUNS_MIN - 1, 1)
    assert made["SubmitJobs"] == made["WatchJobs"] == node._gateway.watchers.count == 0


async def test_many_callers_share_calls(node: Node, working: PlainAgent, client: AsyncClient) -> None:
    """A few calls for hundreds of jobs, and one stream; everybody has the end of his own job."""
    await begin(client)
    before = calls(node)

    async def caller(number: int) -> list[JobResult]:
        return [await client.run("echo", f"{number}-{turn}") for turn in range(5)]

    each = await asyncio.gather(*(caller(number) for number in range(CALLERS)))

    made = calls(node) - before
    assert [[one.output for one in mine] for mine in each] == [[f"{n}-{t}" for t in range(5)] for n in range(CALLERS)]
    assert len({one.job_id for mine in each for one in mine}) == 5 * CALLERS
    # The last ones find nobody to share with.
    assert made["RunJob"] < CALLERS
    assert made["SubmitJobs"] < CALLERS
    assert node._gateway.watchers.count == 1


async def test_submissions_share_calls(node: Node, client: AsyncClient) -> None:
    """Of which none is lost or doubled. Nobody follows them, so they have no caller."""
    submitted = await asyncio.gather(*(client.submit("echo", idempotency_key=f"k{n}") for n in range(CALLERS)))

    made = calls(node)
    assert len({one.job_id for one in submitted}) == CALLERS
    assert [one.idempotency_key for one in submitted] == [f"k{n}" for n in range(CALLERS)]
    assert made["SubmitJob"] + made["SubmitJobs"] <= 1 + gathering.BUNDLES_MAX
    assert node._gateway.watchers.count == 0


async def test_each_is_told_his_own_failure(working: PlainAgent, client: AsyncClient) -> None:
    """With all that it would have if he had called alone; the others are told of their success."""
    await begin(client)
    found = await asyncio.gather(
        *(client.run("echo", n) for n in range(10)),
        client.run("echo", "no"),
        client.run("nothing"),
        client.run("echo", labels={"": "x"}),
        *(client.run("echo", n) for n in range(10)),
        return_exceptions=True,
    )

    bad = [one for one in found if isinstance(one, BaseException)]
    assert [type(one) for one in bad] == [errors.JobCompensated, errors.DefinitionNotFound, errors.InvalidArgument]
    assert isinstance(bad[1], errors.DefinitionNotFound)
    assert bad[1].metadata["definition_name"] == "nothing"
    assert isinstance(bad[2], errors.InvalidArgument)
    assert bad[2].violations
    assert [one.output for one in found if isinstance(one, JobResult)] == [*range(10), *range(10)]


async def test_one_who_is_cancelled_harms_nobody(stubs: Stubs, working: PlainAgent, client: AsyncClient) -> None:
    """Whether his submission is on its way or his job is at work."""
    await begin(client)
    tasks = [asyncio.create_task(client.run("echo", n)) for n in range(CALLERS)]
    await asyncio.sleep(0)
    for task in tasks[::2]:
        task.cancel()
    found = await asyncio.gather(*tasks, return_exceptions=True)

    assert all(isinstance(one, asyncio.CancelledError) for one in found[::2])
    assert [one.output for one in found[1::2] if isinstance(one, JobResult)] == list(range(CALLERS))[1::2]


async def test_a_wait_ends_in_its_time(stubs: Stubs, working: PlainAgent, client: AsyncClient) -> None:
    """Of those who wait for the same stream, only of him; the error names the job, which goes on."""
    await nodes.define(stubs, "later", definition_pb2.Step(id="later", action="later"))
    await begin(client)
    patient = asyncio.create_task(client.run("later", 1))
    others = [asyncio.create_task(client.run("later", 1)) for _ in range(gathering.RUNS_MIN)]
    with pytest.raises(errors.WaitTimedOut) as caught:
        await client.run("later", 2, wait_max_s=0.2)
    async with agent(stubs, "later"):
        result = await patient
        await asyncio.gather(*others)

    assert (await client.get(caught.value.metadata["job_id"])).state in (JobState.RUNNING, JobState.COMPLETED)
    assert result.output == 1


async def test_two_who_use_one_key_have_one_job(node: Node, working: PlainAgent, client: AsyncClient) -> None:
    """Also while they share a call, and if the job is of somebody else."""
    await begin(client)
    async with AsyncClient(node.address) as other:
        first = await other.run("echo", "x", idempotency_key="one")
    found = await asyncio.gather(*(client.run("echo", "x", idempotency_key="one") for _ in range(10)))
    twice = await asyncio.gather(*(client.run("echo", "y", idempotency_key="two") for _ in range(10)))

    assert {one.job_id for one in found} == {first.job_id}
    assert all(one.duplicate for one in found)
    assert len({one.job_id for one in twice}) == 1
    assert sum(not one.duplicate for one in twice) == 1


async def test_old_servers_are_asked_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From then on every caller has calls of his own, for as long as the client lives."""
    asked = 0

    def not_served(*_: object) -> Any:
        nonlocal asked
        asked += 1
        raise refuse(Reason.UNIMPLEMENTED, "WatchJobs is not served yet")

    monkeypatch.setattr(JobService, "watch_jobs", not_served)
    async with nodes.running(tmp_path / "data") as node, nodes.connected(node.address) as stubs:
        await nodes.define(stubs, "echo", definition_pb2.Step(id="echo"))
        async with agent(stubs, "echo", slots=100), AsyncClient(node.address) as client:
            for _ in range(3):
                await asyncio.gather(*(client.run("echo") for _ in range(CALLERS)))
        made = calls(node)

    assert asked == 1
    assert (made["RunJob"], made["SubmitJobs"]) == (3 * CALLERS, 0)


async def test_a_stream_that_nobody_needs_ends(
    node: Node, working: PlainAgent, client: AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the next sign of life; and it begins anew when it is needed."""
    monkeypatch.setattr(ends_watch, "PLACE_EVERY_S", 0.05)
    await begin(client)

    async def nobody() -> bool:
        return not node._gateway.watchers.count

    await eventually(nobody)
    await begin(client)

    assert node._gateway.watchers.count == 1


async def test_whoever_waits_at_the_end_of_a_client_is_not_left_alone(
    node: Node, stubs: Stubs, working: PlainAgent
) -> None:
    """He is cancelled, as those are who have calls of their own."""
    await nodes.define(stubs, "later", definition_pb2.Step(id="later", action="nobody"))
    client = AsyncClient(node.address)
    await begin(client)
    waiting = [asyncio.create_task(client.run("later", n)) for n in range(CALLERS)]

    async def all_wait() -> bool:
        return len(client._gathering._core._waiting) >= CALLERS - gathering.RUNS_MIN

    await eventually(all_wait)
    await client.close()
    found = await asyncio.gather(*waiting, return_exceptions=True)

    assert {type(one) for one in found} == {asyncio.CancelledError}
    assert not client._gathering._tasks
    assert not client._channels


async def test_every_job_is_run_once_over_the_end_of_a_leader(tmp_path: Path) -> None:
    """Whoever was on his way, and whoever waited, learns of the end at another node."""
    async with clusters.running(tmp_path) as cluster:
        old, follower = cluster.leader_id, cluster.followers()[0]
        addresses = [cluster.addresses[node_id] for node_id in (old, *cluster.followers())]
        async with nodes.connected(cluster.addresses[follower]) as stubs, AsyncClient(addresses) as client:
            await nodes.define(stubs, "echo", definition_pb2.Step(id="echo"))
            async with agent(stubs, "echo", slots=50), asyncio.timeout(6 * S):
                await begin(client)

                some_ended = asyncio.Event()

                async def caller(number: int) -> list[JobResult]:
                    found = []
                    for turn in range(10):
                        found.append(await client.run("echo", f"{number}-{turn}"))
                        some_ended.set()
                    return found

                everybody = asyncio.gather(*(caller(number) for number in range(20)))
                await some_ended.wait()
                await cluster.vanish(old)
                each = await everybody

    assert [[one.output for one in mine] for mine in each] == [[f"{n}-{t}" for t in range(10)] for n in range(20)]
    assert len({one.job_id for mine in each for one in mine}) == 200
