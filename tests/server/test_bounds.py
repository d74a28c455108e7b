"""How long things may take, through a real node: what agents and readers are told of it, and what comes of it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from google.protobuf.duration_pb2 import Duration

from stepward.server.core.limits import Limits
from stepward.v1 import agent_service_pb2 as pb
from stepward.v1 import common_pb2, definition_pb2, job_pb2, job_service_pb2
from tests.server import nodes
from tests.server.nodes import CALL_S_MAX, Stubs
from tests.server.plain_agent import agent, silent, succeeded

S = CALL_S_MAX
HEARTBEAT_MS = 1_000


@pytest_asyncio.fixture
async def stubs(tmp_path: Path) -> AsyncIterator[Stubs]:
    """A connection to a node that knows `scan`, whose step is asked for signs of life."""
    limits = Limits(session_ttl_ms=30_000)
    async with nodes.running(tmp_path / "data", limits=limits) as node, nodes.connected(node.address) as stubs:
        step = definition_pb2.Step(
            id="pages",
            retry=definition_pb2.RetryPolicy(initial=Duration(), cap=Duration()),
            timeouts=definition_pb2.Timeouts(
                heartbeat=Duration(seconds=HEARTBEAT_MS // 1_000),
                schedule_to_close=Duration(seconds=60),
            ),
            undo=definition_pb2.Undo(action="forget-pages"),
        )
        await nodes.define(stubs, "scan", step)
        yield stubs
        assert node.counters.rule_failures == 0


async def submit(stubs: Stubs, deadline: Duration) -> str:
    job = nodes.submission("scan", deadline=deadline)
    return (await stubs.jobs.SubmitJob(job_service_pb2.SubmitJobRequest(job=job), timeout=S)).job_id


async def get(stubs: Stubs, job_id: str) -> job_pb2.Job:
    return (await stubs.jobs.GetJob(job_service_pb2.GetJobRequest(job_id=job_id), timeout=S)).job


async def test_silence_ends_an_attempt_and_the_next_goes_on_from_there(stubs: Stubs) -> None:
    """An attempt that falls silent is told to stop; the next one is given what it had said of its progress."""
    async with agent(stubs, "pages", handler=silent) as joined:
        job_id = await submit(stubs, Duration(seconds=30))
        await joined.until(lambda: joined.offers)
        first = joined.offers[0].attempt
        details = nodes.json_payload(b'{"page":7}')
        await joined.report(
            pb.AttemptReport(attempt=first, started=pb.Started()),
            pb.AttemptReport(attempt=first, progress=pb.Progress(details=details)),
            pb.AttemptReport(attempt=first, progress=pb.Progress()),
        )
        await joined.until(lambda: joined.answers)
        job = await get(stubs, job_id)
        await joined.until(lambda: joined.cancels)
        await joined.report(pb.AttemptReport(attempt=first, stopped=pb.Stopped()))
        await joined.until(lambda: len(joined.offers) == 2)
        await joined.report(succeeded(joined.offers[1], nodes.json_payload(b"7")))

        assert joined.offers[0].heartbeat_timeout.ToMilliseconds() == HEARTBEAT_MS
        assert not joined.offers[0].HasField("last_progress")
        assert joined.cancels[0].reason == pb.CANCEL_REASON_TIMEOUT
        assert joined.offers[1].last_progress == details
        await nodes.eventually(lambda: _is(stubs, job_id, common_pb2.JOB_STATE_COMPLETED))

    (step,) = job.steps
    assert (step.due_for, step.generation, step.progress) == ("heartbeat timeout", 1, details)
    # Instants of log time are shown on the wall clock, which is rounded on its own.
    submitted_ms = job.submitted_at.ToMilliseconds()
    assert job.deadline_at.ToMilliseconds() - submitted_ms == pytest.approx(30_000, abs=100)
    assert step.schedule_ends_at.ToMilliseconds() - submitted_ms == pytest.approx(60_000, abs=100)


async def test_deadline_undoes_a_job(stubs: Stubs) -> None:
    """What may have happened by then is undone, and the caller is told why."""
    async with agent(stubs, "pages", "forget-pages", handler=silent) as joined:
        job_id = await submit(stubs, Duration(nanos=300_000_000))
        await joined.until(lambda: joined.offers and joined.cancels)
        await joined.report(pb.AttemptReport(attempt=joined.offers[0].attempt, stopped=pb.Stopped()))
        await joined.until(lambda: len(joined.offers) == 2)
        await joined.report(succeeded(joined.offers[1], nodes.json_payload(b"null")))
        await nodes.eventually(lambda: _is(stubs, job_id, common_pb2.JOB_STATE_COMPENSATED))

        assert joined.cancels[0].reason == pb.CANCEL_REASON_JOB_ENDING
        assert joined.offers[1].action == "forget-pages"
    assert (await get(stubs, job_id)).failure.kind == "JOB_DEADLINE"


async def _is(stubs: Stubs, job_id: str, state: common_pb2.JobState.ValueType) -> bool:
    return (await get(stubs, job_id)).state == state
