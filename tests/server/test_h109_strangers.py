"""H109: who knows the ids and the token of another agent's work cannot speak for it."""

from __future__ import annotations

from pathlib import Path

import pytest

from stepward.v1 import agent_service_pb2 as pb
from stepward.v1 import definition_pb2, job_service_pb2
from tests.server import nodes
from tests.server.nodes import CALL_S_MAX, refused
from tests.server.plain_agent import succeeds
from tests.server.unary_agent import NO_WAIT, UnaryAgent, submit

S = CALL_S_MAX


def said_of(event: str, ref: pb.AttemptRef) -> pb.AttemptReport:
    """A report about an attempt that somebody else holds."""
    report = pb.AttemptReport(attempt=ref)
    getattr(report, event).SetInParent()
    return report


@pytest.mark.parametrize("event", ["accepted", "started", "succeeded", "failed", "unknown", "refused", "stopped"])
async def test_h109_reports_come_from_the_session_that_holds_the_lease(tmp_path: Path, event: str) -> None:
    """Each kind of report, with the right job, step and token: refused, and nothing of it happens."""
    async with nodes.running(tmp_path / "data") as node, nodes.connected(node.address) as stubs:
        await nodes.define(stubs, "one", definition_pb2.Step(id="one"))
        holder, stranger = UnaryAgent(stubs, "one"), UnaryAgent(stubs, "other")
        job_id = await submit(stubs)
        await holder.lease(NO_WAIT)
        await stranger.lease(NO_WAIT)
        (offer,) = holder.held.values()
        request = job_service_pb2.GetJobRequest(job_id=job_id)
        before = (await stubs.jobs.GetJob(request, timeout=S)).job

        (answer,) = await stranger.report(said_of(event, offer.attempt))
        after = (await stubs.jobs.GetJob(request, timeout=S)).job
        (own,) = await holder.report(succeeds(offer))
        ended = (await stubs.jobs.GetJob(request, timeout=S)).job

    assert pb.ReportResult.Name(answer.result) == "REPORT_RESULT_STALE_TOKEN"
    assert after == before
    assert pb.ReportResult.Name(own.result) == "REPORT_RESULT_RECORDED"
    assert ended.state != before.state


async def test_h109_a_session_is_renewed_by_its_generation(tmp_path: Path) -> None:
    """Its id alone, which others are shown, does not do."""
    async with nodes.running(tmp_path / "data") as node, nodes.connected(node.address) as stubs:
        await nodes.define(stubs, "one", definition_pb2.Step(id="one"))
        holder = UnaryAgent(stubs, "one")
        await holder.lease(NO_WAIT)
        stranger = UnaryAgent(stubs, "one", session_id=holder.session_id)

        assert (await refused(stranger.renew())).reason == "SESSION_ENDED"
        assert (await holder.renew()).heartbeat.number == 1
