"""One namespace that floods does not starve another: neither its submissions nor its steps."""

from __future__ import annotations

import asyncio
from pathlib import Path

from stepward.server.core.commands import SubmitJob
from stepward.server.core.limits import Limits
from stepward.server.core.rows import Payload
from stepward.server.node import Node
from stepward.v1 import definition_pb2, definition_service_pb2, job_service_pb2
from tests.server import nodes
from tests.server.nodes import CALL_S_MAX, Stubs
from tests.server.plain_agent import agent, silent

S = CALL_S_MAX
FLOOD = 10_000
BATCHES_MAX = 3


async def define_in(stubs: Stubs, namespace: str) -> None:
    """A job of a single step."""
    definition = definition_pb2.Definition(name="one", steps=[definition_pb2.Step(id="a")])
    request = definition_service_pb2.ApplyDefinitionRequest(namespace=namespace, definition=definition)
    await stubs.definitions.ApplyDefinition(request, timeout=S)


def submit(node: Node, namespace: str) -> SubmitJob:
    job_id = node._gateway.draw_job_id()
    return SubmitJob(job_id, namespace, "one", 0, Payload(b"{}"), "", {}, "", b"")


async def test_flood_of_one_namespace_does_not_starve_another(tmp_path: Path) -> None:
    """With ten thousand waiting, and every slot of theirs taken, a newcomer's job is decided and offered at once."""
    limits = Limits(session_ttl_ms=10_000)
    async with nodes.running(tmp_path / "data", limits=limits) as node, nodes.connected(node.address) as stubs:
        for namespace in ("flood", "calm"):
            await define_in(stubs, namespace)
        async with (
            agent(stubs, "a", namespace="flood", slots=1, handler=silent),
            agent(stubs, "a", namespace="calm") as calm,
        ):
            floods = [asyncio.ensure_future(node._gateway.submit(submit(node, "flood"))) for _ in range(FLOOD)]
            await asyncio.sleep(0)
            before = node._shard.standing.head.sequence
            submitted = await node._gateway.submit(submit(node, "calm"))
            flood = await asyncio.gather(*floods)
            await calm.until(lambda: calm.answers)
            request = job_service_pb2.GetJobHistoryRequest(job_id=submitted.job_id)
            events = (await stubs.jobs.GetJobHistory(request, timeout=S)).events

    offered = [event.revision for event in events if event.type == "StepOffered"]
    assert submitted.revision - before <= BATCHES_MAX
    assert offered == [submitted.revision]
    assert sum(one.revision > submitted.revision for one in flood) > FLOOD // 2
