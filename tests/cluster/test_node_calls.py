"""What callers of three nodes are told while nobody leads, and while leadership changes."""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack
from pathlib import Path

import grpc
import grpc.aio
import pytest

from stepward.client.answers import error_from
from stepward.client.errors import CommitUnknown, NoLeader, NotLeader
from stepward.v1 import job_service_pb2, job_service_pb2_grpc
from tests.cluster.callers import DEFINITION, lasting
from tests.cluster.nodes import NODE_IDS, Nodes
from tests.cluster.rig import until

pytestmark = pytest.mark.slow

THREE = tuple((name,) for name in NODE_IDS)
CALLERS = 51
SUBMISSION = job_service_pb2.SubmitJobRequest(job=job_service_pb2.JobSubmission(definition_name=DEFINITION))
WAITING = 20
# A leader that hears nobody gives up after a second; here others want the processors, too.
TOLD_S_MAX = 4.0
PATIENCE_S = 10.0
SUCCESS_S_MAX = 2.0


async def test_h050_one_key_through_all_nodes_makes_one_job(tmp_path: Path) -> None:
    """Many callers with one key, and the leader dies in between: one job, and everybody is told its id."""
    with Nodes(tmp_path) as nodes:
        nodes.start_nodes()
        async with AsyncExitStack() as opened:
            client, *callers = [await opened.enter_async_context(nodes.client(*names)) for names in ((), *THREE)]
            await client.apply_definition(lasting())
            leader = await nodes.leader()
            calls = [
                asyncio.create_task(caller.submit(DEFINITION, idempotency_key="the-one"))
                for caller in callers * (CALLERS // len(callers))
            ]
            await until(lambda: any(call.done() for call in calls), seconds_max=PATIENCE_S, what="a first answer")
            nodes.nodes[leader].kill()
            await nodes.leader(*nodes.others(leader))
            await asyncio.to_thread(nodes.start_nodes, leader)
            answers = await asyncio.gather(*calls)
            jobs = [job.job_id async for job in client.list()]

    assert len(jobs) == 1
    assert {answer.job_id for answer in answers} == set(jobs)


async def told_after_s(stub: job_service_pb2_grpc.JobServiceAsyncStub) -> float:
    """How long it took until a submission was refused that cannot be granted, although its caller would have waited."""
    began_at = time.monotonic()
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await stub.SubmitJob(SUBMISSION, timeout=2 * PATIENCE_S)
    assert isinstance(error_from(refused.value, ""), CommitUnknown | NoLeader | NotLeader)
    return time.monotonic() - began_at


async def test_h107_h108_nobody_hangs_while_nobody_leads(tmp_path: Path) -> None:
    """A leader that loses both others tells all who wait; later calls are told so, too, and work when one leads."""
    with Nodes(tmp_path) as nodes:
        nodes.start_nodes()
        leader = await nodes.leader()
        others = nodes.others(leader)
        async with nodes.client() as client:
            await client.apply_definition(lasting())
        async with grpc.aio.insecure_channel(nodes.addresses[leader]) as channel:
            stub = job_service_pb2_grpc.JobServiceStub(channel)
            await stub.SubmitJob(SUBMISSION, timeout=PATIENCE_S)
            for name in others:
                nodes.nodes[name].pause()
            waiting_s = await asyncio.gather(*(told_after_s(stub) for _ in range(WAITING)))
            later_s = await told_after_s(stub)
            for name in others:
                nodes.nodes[name].resume()
            await nodes.leader()
            led_at = time.monotonic()
            await granted(stub)
            worked_after_s = time.monotonic() - led_at
    print(f"told after {max(waiting_s):.1f} and {later_s:.1f} s, worked {worked_after_s:.2f} s after somebody led")

    assert max(*waiting_s, later_s) <= TOLD_S_MAX
    assert worked_after_s < SUCCESS_S_MAX


async def granted(stub: job_service_pb2_grpc.JobServiceAsyncStub) -> None:
    """Submit until it is granted, at once each time."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            try:
                await stub.SubmitJob(SUBMISSION, timeout=PATIENCE_S)
            except grpc.aio.AioRpcError:
                continue
            return
