"""Three real nodes: a caller or an agent may be at any of them, and sees and does the same."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import grpc.aio
import pytest

from stepward.v1 import (
    agent_service_pb2,
    cluster_service_pb2,
    common_pb2,
    definition_pb2,
    job_service_pb2,
    operator_service_pb2,
)
from tests.server import cluster as clusters
from tests.server import nodes
from tests.server.cluster import LIMITS, Cluster
from tests.server.nodes import CALL_S_MAX, Stubs, submission
from tests.server.plain_agent import agent, silent
from tests.server.unary_agent import UnaryAgent

S = CALL_S_MAX
COMPLETED = common_pb2.JOB_STATE_COMPLETED
# Most by a transfer, which is quick; now and then the leader ends, and what it had in memory with it.
LEADER_CHANGES = 50
LEADER_ENDS_EVERY = 10


@contextlib.asynccontextmanager
async def three(folder: Path, **config: int) -> AsyncIterator[tuple[Cluster, dict[str, Stubs]]]:
    """A cluster with the definition `echo`, and a connection to each of its nodes."""
    async with clusters.running(folder, **config) as cluster, contextlib.AsyncExitStack() as stack:
        stubs = {
            node_id: await stack.enter_async_context(nodes.connected(address))
            for node_id, address in cluster.addresses.items()
        }
        await nodes.define(stubs[cluster.followers()[0]], "echo", definition_pb2.Step(id="echo"))
        yield cluster, stubs


def unless_away(error: grpc.aio.AioRpcError) -> None:
    """Raise what is not just the want of a node or of a leader. A server that ends cancels what has just come."""
    if error.code() not in {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED}:
        raise error


async def submit(stubs: Stubs, key: str = "") -> job_service_pb2.SubmitJobResponse:
    request = job_service_pb2.SubmitJobRequest(job=submission("echo", b'"far"', idempotency_key=key))
    return await stubs.jobs.SubmitJob(request, timeout=S)


async def run(stubs: Stubs, key: str = "") -> job_service_pb2.RunJobResponse:
    request = job_service_pb2.RunJobRequest(job=submission("echo", b'"far"', idempotency_key=key))
    return await stubs.jobs.RunJob(request, timeout=S)


async def listed(stubs: Stubs, state: common_pb2.JobState.ValueType) -> set[str]:
    request = job_service_pb2.ListJobsRequest(states=[state], page_size=1_000)
    return {job.job_id for job in (await stubs.jobs.ListJobs(request, timeout=S)).jobs}


async def get(stubs: Stubs, job_id: str) -> common_pb2.JobState.ValueType:
    return (await stubs.jobs.GetJob(job_service_pb2.GetJobRequest(job_id=job_id), timeout=S)).job.state


async def test_trips_through_followers_alone(tmp_path: Path) -> None:
    """The agent is at one follower, its caller at the other; neither knows who leads."""
    async with three(tmp_path) as (cluster, stubs):
        here, there = (stubs[node_id] for node_id in cluster.followers())
        async with agent(here, "echo") as joined:
            runs = await asyncio.gather(*(run(there) for _ in range(50)))
            await joined.heartbeat(1, held=())
            await joined.until(lambda: joined.heartbeats)
            await joined.until(lambda: len(joined.answers) == 50)

        assert [one.job.state for one in runs] == [COMPLETED] * 50
        assert len(joined.offers) == 50


async def test_agents_are_told_of_all_nodes(tmp_path: Path) -> None:
    """With a stream and without, at any node: the others first, since these are needed when that one is lost."""
    async with three(tmp_path) as (cluster, stubs):
        for node_id, at in stubs.items():
            async with agent(at, "echo") as joined:
                request = agent_service_pb2.LeaseWorkRequest(hello=UnaryAgent(at, "one").hello())
                unary = await at.agents.LeaseWork(request, timeout=S)
                for welcome in (joined.welcome, unary.welcome):
                    assert sorted(welcome.node_addresses) == sorted(cluster.addresses.values())
                    assert welcome.node_addresses[-1] == cluster.addresses[node_id]


async def test_agent_without_streaming_at_a_follower(tmp_path: Path) -> None:
    """Each of its calls is served there, on its own rows."""
    async with three(tmp_path) as (cluster, stubs):
        here, there = (stubs[node_id] for node_id in cluster.followers())
        unary = UnaryAgent(here, "echo")
        running = asyncio.create_task(run(there))
        while not unary.held:
            await unary.lease()
        renewing = agent_service_pb2.RenewSessionRequest(
            session_id=unary.session_id,
            generation=unary.generation,
            heartbeat=agent_service_pb2.Heartbeat(number=1, held=[], held_is_complete=False),
        )
        renewed = await here.agents.RenewSession(renewing, timeout=S)
        (offer,) = unary.held.values()
        succeeded = agent_service_pb2.Succeeded(output=offer.input)
        report = agent_service_pb2.AttemptReport(attempt=offer.attempt, succeeded=succeeded)
        reporting = agent_service_pb2.ReportAttemptsRequest(
            session_id=unary.session_id,
            generation=unary.generation,
            report=agent_service_pb2.Report(attempts=[report]),
        )
        reported = await here.agents.ReportAttempts(reporting, timeout=S)

        assert renewed.heartbeat.number == 1
        assert [one.result for one in reported.answers.answers] == [agent_service_pb2.REPORT_RESULT_RECORDED]
        assert (await running).job.state == COMPLETED


async def test_h098_whoever_was_answered_sees_it_on_every_node(tmp_path: Path) -> None:
    """Submit, cancel, complete: at once, in lists with a filter, on nodes that were not asked before."""
    async with three(tmp_path) as (_, stubs):
        ids = list(stubs)
        for turn in range(15):
            writer = stubs[ids[turn % 3]]
            job_id = (await submit(writer)).job_id
            seen = await asyncio.gather(*(listed(one, common_pb2.JOB_STATE_RUNNING) for one in stubs.values()))
            assert [job_id in jobs for jobs in seen] == [True] * 3
            await writer.jobs.CancelJob(job_service_pb2.CancelJobRequest(job_id=job_id, reason="over"), timeout=S)
            seen = await asyncio.gather(*(listed(one, common_pb2.JOB_STATE_CANCELLED) for one in stubs.values()))
            assert [job_id in jobs for jobs in seen] == [True] * 3
            seen = await asyncio.gather(*(listed(one, common_pb2.JOB_STATE_RUNNING) for one in stubs.values()))
            assert [job_id in jobs for jobs in seen] == [False] * 3
        async with agent(stubs[ids[0]], "echo"):
            for turn in range(15):
                job_id = (await run(stubs[ids[turn % 3]])).job.job_id
                seen = await asyncio.gather(*(listed(one, COMPLETED) for one in stubs.values()))
                assert [job_id in jobs for jobs in seen] == [True] * 3


async def test_h106_every_verb_at_every_node_finds_what_was_acknowledged(tmp_path: Path) -> None:
    """A moment ago, by another node."""
    async with three(tmp_path) as (_, stubs):
        for writer in stubs.values():
            for other in stubs.values():
                job_id = (await submit(writer)).job_id
                assert await get(other, job_id) == common_pb2.JOB_STATE_RUNNING
                pause = operator_service_pb2.PauseJobRequest(job_id=job_id, reason="wait", actor="me")
                assert (await other.operators.PauseJob(pause, timeout=S)).job.state == common_pb2.JOB_STATE_PAUSED
                history = job_service_pb2.GetJobHistoryRequest(job_id=job_id)
                assert (await writer.jobs.GetJobHistory(history, timeout=S)).events
                cancel = job_service_pb2.CancelJobRequest(job_id=job_id, reason="over")
                assert (await other.jobs.CancelJob(cancel, timeout=S)).job.state == common_pb2.JOB_STATE_CANCELLED


async def test_h048_key_of_a_job_that_has_ended_gives_that_job_on_every_node(tmp_path: Path) -> None:
    """Its id and its end; nothing is started."""
    async with three(tmp_path) as (cluster, stubs):
        async with agent(stubs[cluster.followers()[0]], "echo") as joined:
            first = await run(stubs[cluster.followers()[1]], key="k")
            again = [await run(one, key="k") for one in stubs.values()]
            submitted = [await submit(one, key="k") for one in stubs.values()]

            assert len(joined.offers) == 1
        assert not first.duplicate
        assert {(one.job.job_id, one.duplicate, one.job.state) for one in again} == {
            (first.job.job_id, True, COMPLETED)
        }
        assert {(one.job_id, one.duplicate, one.state) for one in submitted} == {(first.job.job_id, True, COMPLETED)}


async def test_h050_one_key_through_all_nodes_while_the_leader_goes(tmp_path: Path) -> None:
    """Fifty callers, one job; everybody who is answered is given the same, and whoever is not may ask again."""
    async with three(tmp_path) as (cluster, stubs):
        leader_id = cluster.leader_id

        async def insist(stubs: Stubs) -> str:
            async with asyncio.timeout(clusters.CHANGE_S_MAX):
                while True:
                    try:
                        return (await submit(stubs, key="k")).job_id
                    except grpc.aio.AioRpcError as error:
                        unless_away(error)
                        await asyncio.sleep(0.02)

        others = [stubs[node_id] for node_id in cluster.followers()]
        calls = [asyncio.create_task(insist(others[number % 2])) for number in range(34)]
        single = [asyncio.create_task(submit(stubs[leader_id], key="k")) for _ in range(16)]
        await asyncio.wait(single, return_when=asyncio.FIRST_COMPLETED)
        await cluster.stop(leader_id)
        job_ids = set(await asyncio.gather(*calls))
        done = await asyncio.gather(*single, return_exceptions=True)
        job_ids |= {one.job_id for one in done if isinstance(one, job_service_pb2.SubmitJobResponse)}
        await cluster.led()

        assert len(job_ids) == 1
        assert await listed(others[0], common_pb2.JOB_STATE_RUNNING) == job_ids


async def test_h015_agent_that_died_while_it_waited_gets_nothing(tmp_path: Path) -> None:
    """Another one at another node has the next step within a second."""
    async with three(tmp_path) as (cluster, stubs):
        here, there = cluster.followers()
        async with nodes.connected(cluster.addresses[here]) as dying, agent(dying, "echo", handler=silent) as dead:
            await dying.channel.close()
            async with agent(stubs[there], "echo", handler=silent) as alive:
                # Its stream is gone as soon as the node that held it has noticed, which is at once.
                status = agent_service_pb2.ListAgentsRequest()

                async def one_is_left() -> bool:
                    agents = (await stubs[there].agents.ListAgents(status, timeout=S)).agents
                    return sum(one.connected for one in agents) == 1

                await nodes.eventually(one_is_left)
                began = time.monotonic()
                await submit(stubs[here])
                await alive.until(lambda: alive.offers)
                took_s = time.monotonic() - began

        assert not dead.offers
        assert took_s < 1.0


async def test_h108_node_without_a_majority_says_so_and_serves_when_it_has_one(tmp_path: Path) -> None:
    """Calls end in time with when to come back, agents and waits are sent away, and old rows are still read."""
    async with three(tmp_path) as (cluster, stubs):
        left = cluster.followers()[0]
        mine = stubs[left]
        job_id = (await submit(mine)).job_id
        waiting = asyncio.create_task(run(mine))
        async with agent(mine, "nothing") as joined:
            gone = [node_id for node_id in cluster.nodes if node_id != left]
            began = time.monotonic()
            for node_id in gone:
                await cluster.stop(node_id)
            error = await asyncio.wait_for(joined.ended, LIMITS.session_ttl_ms / 3_000 + 2)
            assert error is not None
            assert joined.redirected
            assert nodes.refusal(error).reason == "NO_LEADER"
        with pytest.raises(grpc.aio.AioRpcError) as cut:
            await waiting
        assert nodes.refusal(cut.value).reason == "NO_LEADER"
        assert nodes.refusal(cut.value).metadata["job_id"]
        for _ in range(3):
            began = time.monotonic()
            refused = await nodes.refused(submit(mine))
            assert time.monotonic() - began < 2.5
            assert (refused.code, refused.reason) == (grpc.StatusCode.UNAVAILABLE, "NO_LEADER")
            assert refused.retry_after_ms > 0
            assert "leader_id" not in refused.metadata
        assert (
            await nodes.refused(mine.jobs.GetJob(job_service_pb2.GetJobRequest(job_id=job_id)))
        ).reason == "NO_LEADER"
        stale = job_service_pb2.GetJobRequest(job_id=job_id, consistency=common_pb2.CONSISTENCY_STALE)
        old = await mine.jobs.GetJob(stale, timeout=S)
        assert old.job.job_id == job_id
        assert old.staleness.ToMilliseconds() > 2_000
        absent = job_service_pb2.GetJobRequest(job_id="0-" + "0" * 32, consistency=common_pb2.CONSISTENCY_STALE)
        assert (await nodes.refused(mine.jobs.GetJob(absent))).reason == "NO_LEADER"
        await cluster.start(gone[0])
        await cluster.led()
        began = time.monotonic()
        await nodes.eventually(lambda: works(mine))

        assert time.monotonic() - began < 2.0


async def works(stubs: Stubs) -> bool:
    try:
        await submit(stubs)
    except grpc.aio.AioRpcError as error:
        unless_away(error)
        return False
    return True


@pytest.mark.timeout(180)
@pytest.mark.slow
async def test_h091_numbers_are_true_while_leaders_change(tmp_path: Path) -> None:
    """Leases, ages and clocks are asked for all the time: no sentinel, nothing negative, nothing above a TTL."""
    async with three(tmp_path) as (cluster, stubs), agent(stubs[cluster.followers()[0]], "nothing") as joined:
        asked, led_ms, changing = Counter[str](), Counter[str](), True

        async def ask(node_id: str) -> None:
            while changing:
                try:
                    led_ms[node_id] = await true_led_ms(stubs[node_id], led_ms[node_id])
                    asked[node_id] += 1
                except grpc.aio.AioRpcError as error:
                    unless_away(error)
                    await asyncio.sleep(0.005)

        async with asyncio.TaskGroup() as group:
            for node_id in stubs:
                group.create_task(ask(node_id))
            for number in range(LEADER_CHANGES):
                before = asked.copy()
                if number % LEADER_ENDS_EVERY == 0:
                    leader_id = cluster.leader_id
                    await cluster.stop(leader_id)
                    await cluster.led()
                    await cluster.start(leader_id)
                else:
                    await hand_over(cluster, stubs)
                await cluster.led()
                with contextlib.suppress(asyncio.InvalidStateError):
                    await joined.heartbeat(number + 1)
                await cluster.until(partial(more_than, asked, before))
            changing = False


async def hand_over(cluster: Cluster, stubs: dict[str, Stubs]) -> None:
    """Let another node lead."""
    target = cluster.followers()[0]
    request = cluster_service_pb2.TransferLeaderRequest(node_id=target)
    answer = await stubs[target].cluster.TransferLeader(request, timeout=S)
    assert answer.node_id == target


def more_than(asked: Counter[str], before: Counter[str]) -> bool:
    return all(asked[node_id] > before[node_id] + 5 for node_id in ("n1", "n2", "n3"))


async def true_led_ms(stubs: Stubs, led_ms: int) -> int:
    """Ask for everything that is a time, and see that it can be one; the led time, which is at least that of before."""
    (shard,) = (await stubs.cluster.GetStatus(cluster_service_pb2.GetStatusRequest(), timeout=S)).shards
    assert led_ms <= shard.led_time_ms <= 60_000
    assert 0 <= shard.supervisor_beat_at.ToMilliseconds() - time.time() * 1_000 + 60_000 <= 61_000
    for listed_agent in (await stubs.agents.ListAgents(agent_service_pb2.ListAgentsRequest(), timeout=S)).agents:
        assert listed_agent.ttl.ToMilliseconds() == LIMITS.session_ttl_ms
        left_ms = listed_agent.lease_ends_at.ToMilliseconds() - time.time() * 1_000
        assert -60_000 < left_ms <= 2 * LIMITS.session_ttl_ms
    return shard.led_time_ms
