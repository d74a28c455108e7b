"""Jobs that wait for a person: payments of which nobody knows whether they were made, and may not be repeated."""

from __future__ import annotations

from stepward.v1 import agent_service_pb2, common_pb2, definition_pb2, job_service_pb2
from tests.server import nodes
from tests.server.nodes import CALL_S_MAX, Stubs
from tests.server.plain_agent import agent

S = CALL_S_MAX


async def define(stubs: Stubs) -> None:
    """`pay`, of one step that is not repeated, and `wide`, of fifty such."""
    once = definition_pb2.EFFECT_NON_IDEMPOTENT
    await nodes.define(stubs, "pay", definition_pb2.Step(id="pay", effect=once))
    wide = [definition_pb2.Step(id=f"s{n}", action="pay", effect=once) for n in range(50)]
    await nodes.define(stubs, "wide", *wide)


def unknown(offer: agent_service_pb2.Offer) -> agent_service_pb2.AttemptReport:
    return agent_service_pb2.AttemptReport(
        attempt=offer.attempt, unknown=agent_service_pb2.Unknown(kind="NoAnswer", message="the bank hung up")
    )


async def submit(stubs: Stubs, definition: str = "pay", **labels: str) -> str:
    request = nodes.submission(definition)
    request.labels.update(labels)
    return (await stubs.jobs.SubmitJob(job_service_pb2.SubmitJobRequest(job=request), timeout=S)).job_id


async def escalate(stubs: Stubs, count: int, definition: str = "pay", **labels: str) -> list[str]:
    """So many jobs, the oldest first, whose payments nobody knows the outcome of."""
    job_ids = [await submit(stubs, definition, **labels) for _ in range(count)]
    async with agent(stubs, "pay", handler=unknown, slots=200):
        for job_id in job_ids:
            await until_escalated(stubs, job_id)
    return job_ids


async def until_escalated(stubs: Stubs, job_id: str) -> None:
    watch = stubs.jobs.WatchJob(job_service_pb2.WatchJobRequest(job_id=job_id), timeout=S)
    async for response in watch:
        if response.job.state == common_pb2.JOB_STATE_ESCALATED:
            watch.cancel()
            return
