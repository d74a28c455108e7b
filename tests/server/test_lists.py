"""What a page of jobs holds and what it costs."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import NamedTuple

import pytest_asyncio
from typing_extensions import override

from stepward.server.core import keys, views
from stepward.server.core.limits import Limits
from stepward.server.core.rows import Row
from stepward.server.node import Node
from stepward.server.shard import Reading
from stepward.v1 import common_pb2, definition_pb2, job_service_pb2
from tests.server import nodes
from tests.server.nodes import CALL_S_MAX, Stubs, submission
from tests.server.plain_agent import agent

S = CALL_S_MAX
LARGE = b'"' + b"x" * (Limits().payload_bytes_max - 2) + b'"'


class Running(NamedTuple):
    """A node that knows the definitions `one` and `other`, and a connection to it."""

    node: Node
    stubs: Stubs

    async def page(self, **fields: object) -> job_service_pb2.ListJobsResponse:
        request = job_service_pb2.ListJobsRequest(**fields)  # type: ignore[arg-type]  # whatever the test asks
        return await self.stubs.jobs.ListJobs(request, timeout=S)

    async def submit(self, name: str, data: bytes = b"{}") -> str:
        request = job_service_pb2.SubmitJobRequest(job=submission(name, data))
        return (await self.stubs.jobs.SubmitJob(request, timeout=S)).job_id


@pytest_asyncio.fixture
async def running(tmp_path: Path) -> AsyncIterator[Running]:
    async with nodes.running(tmp_path / "data") as node, nodes.connected(node.address) as stubs:
        for name in ("one", "other"):
            await nodes.define(stubs, name, definition_pb2.Step(id="one", action="one"))
        yield Running(node, stubs)


async def test_list_leaves_out_steps_and_outputs(running: Running) -> None:
    """Who wants them asks for the job."""
    async with agent(running.stubs, "one"):
        run = job_service_pb2.RunJobRequest(job=submission("one", b"[1]"))
        ended = (await running.stubs.jobs.RunJob(run, timeout=S)).job
    listed = (await running.page()).jobs[0]
    read = (await running.stubs.jobs.GetJob(job_service_pb2.GetJobRequest(job_id=ended.job_id), timeout=S)).job

    assert (listed.job_id, listed.state) == (ended.job_id, common_pb2.JOB_STATE_COMPLETED)
    assert (listed.HasField("output"), len(listed.steps)) == (False, 0)
    assert ended.output.data == read.output.data == b"[1]"
    assert len(read.steps) == 1


async def test_page_is_bounded_in_bytes(running: Running) -> None:
    """At the bound it ends, with a token; nothing is left out or told twice."""
    jobs = [await running.submit("one", LARGE) for _ in range(views.PAGE_BYTES_MAX // len(LARGE) + 1)]
    first = await running.page()
    second = await running.page(page_token=first.next_page_token)

    assert [len(page.jobs) for page in (first, second)] == [len(jobs) - 1, 1]
    assert [job.job_id for page in (first, second) for job in page.jobs] == jobs[::-1]
    assert second.next_page_token == ""


async def test_filter_looks_at_the_job_only(running: Running) -> None:
    """Of jobs that it leaves out, nothing else is read; of those that it shows, no step."""
    shown = await running.submit("one")
    for _ in range(3):
        await running.submit("other")
    read: list[bytes] = []

    class Noting(Reading):
        @override
        def get(self, key: bytes) -> Row | None:
            read.append(key[:1])
            return super().get(key)

    with running.node._shard._replica.committed() as committed:
        jobs, _ = views.list_jobs(
            Noting(committed, {}),
            namespace="default",
            states=[],
            definition_name="one",
            before_job_id="",
            count_max=10,
            limits=Limits(),
        )

    assert [view.job_id for view in jobs] == [shown]
    assert read.count(keys.job("")[:1]) == 4
    assert read.count(keys.progress("")[:1]) == 1
    assert keys.step("", 0)[:1] not in read
