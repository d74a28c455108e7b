"""What a page of jobs holds and what it costs."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, NamedTuple

import grpc
import pytest
import pytest_asyncio
from google.protobuf.timestamp_pb2 import Timestamp

from stepward.server.api import job_lists, pages, slices
from stepward.server.core import lists
from stepward.server.core.limits import Limits
from stepward.server.core.lists import JobFilter
from stepward.server.node import Node
from stepward.v1 import agent_service_pb2, cluster_service_pb2, common_pb2, definition_pb2, job_pb2, job_service_pb2
from tests.server import nodes
from tests.server.nodes import CALL_S_MAX, Stubs, refused, submission
from tests.server.plain_agent import agent

S = CALL_S_MAX
RUNNING = job_service_pb2.JobFilter(states=[common_pb2.JOB_STATE_RUNNING])
LARGE = b'"' + b"x" * (Limits().payload_bytes_max - 2) + b'"'


def states_of(*numbers: Any) -> list[Any]:
    """Numbers, whether or not the contract has such states."""
    return list(numbers)


class Running(NamedTuple):
    """A node that knows the definitions `one` and `other`, and a connection to it."""

    node: Node
    stubs: Stubs

    async def page(self, **fields: object) -> job_service_pb2.ListJobsResponse:
        request = job_service_pb2.ListJobsRequest(**fields)  # type: ignore[arg-type]  # whatever the test asks
        return await self.stubs.jobs.ListJobs(request, timeout=S)

    async def walk(self, **fields: object) -> AsyncIterator[job_service_pb2.ListJobsResponse]:
        """All pages."""
        token = ""
        while True:
            page = await self.page(page_token=token, **fields)
            yield page
            token = page.next_page_token
            if not token:
                return

    async def listed(self, **fields: object) -> list[str]:
        return [job.job_id async for page in self.walk(**fields) for job in page.jobs]

    async def counted(self, **fields: object) -> dict[int, int]:
        answer = await self.stubs.jobs.CountJobs(
            job_service_pb2.CountJobsRequest(filter=job_service_pb2.JobFilter(**fields)),  # type: ignore[arg-type]  # as above
            timeout=S,
        )
        assert not answer.truncated
        return {count.state: count.count for count in answer.counts}

    async def submit_many(self, name: str, count: int, **fields: object) -> list[str]:
        job = submission(name, b"{}", **fields)
        request = job_service_pb2.SubmitJobsRequest(jobs=[job] * count)
        return [one.job.job_id for one in (await self.stubs.jobs.SubmitJobs(request, timeout=S)).results]

    async def cancel(self, job_id: str) -> None:
        await self.stubs.jobs.CancelJob(job_service_pb2.CancelJobRequest(job_id=job_id), timeout=S)

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
    jobs = [await running.submit("one", LARGE) for _ in range(pages.PAGE_BYTES_MAX // len(LARGE) + 1)]
    first = await running.page()
    second = await running.page(page_token=first.next_page_token)

    assert [len(page.jobs) for page in (first, second)] == [len(jobs) - 1, 1]
    assert [job.job_id for page in (first, second) for job in page.jobs] == jobs[::-1]
    assert second.next_page_token == ""


async def test_h092_walk_while_jobs_come_and_end(running: Running) -> None:
    """Each job that was there all the while is met exactly once, and the walk ends."""
    before = [job_id for count in (1_000, 1_000, 503) for job_id in await running.submit_many("one", count)]
    met: list[str] = []
    pages = 0
    async for page in running.walk(page_size=100):
        met += [job.job_id for job in page.jobs]
        if pages < 10:
            await running.submit_many("other", 50)
            # Some that the walk has passed, some that are still to come.
            await asyncio.gather(*(running.cancel(job_id) for job_id in before[pages * 250 : pages * 250 + 10]))
        pages += 1

    assert sorted(met) == sorted({*met})
    assert {*met} >= {*before}
    assert pages == 26
    # Of the others none is older than the first page.
    assert len(met) == 2_503


async def test_h092_walk_over_one_state_while_jobs_leave_it(running: Running) -> None:
    """Those that stay in it are met exactly once; those that leave it are met once, or not at all."""
    jobs = await running.submit_many("one", 60)
    met: list[str] = []
    left: list[str] = []
    async for page in running.walk(page_size=7, filter=RUNNING):
        met += [job.job_id for job in page.jobs]
        for job_id in (jobs[len(left)], jobs[-1 - len(left)]):
            await running.cancel(job_id)
            left.append(job_id)

    assert sorted(met) == sorted({*met})
    assert {*met} >= {*jobs} - {*left}


@pytest.mark.parametrize(("jobs", "page_size", "pages"), [(0, 5, 1), (10, 5, 2), (11, 5, 3), (5, 1_000, 1), (3, 0, 1)])
async def test_h094_last_page_has_no_token(running: Running, jobs: int, page_size: int, pages: int) -> None:
    """Also when the jobs fill their pages exactly, or there are none."""
    if jobs:
        await running.submit_many("one", jobs)
    walked = [page async for page in running.walk(page_size=page_size)]

    assert [len(page.jobs) for page in walked] == [
        min(page_size or 50, jobs - n * page_size) for n in range(len(walked))
    ]
    assert len(walked) == pages


async def test_h094_page_size_past_its_bound(running: Running) -> None:
    """Refused rather than clamped: who asks for more than there can be should know."""
    refusal = await refused(running.page(page_size=1_001))

    assert (refusal.reason, refusal.violations[0][0]) == ("INVALID_ARGUMENT", "page_size")


FILTER = job_service_pb2.JobFilter(definition_name="one", labels={"a": "b"}, queue="default")


@pytest.mark.parametrize(
    "other",
    [
        {},
        {"filter": job_service_pb2.JobFilter(definition_name="one", labels={"a": "c"}, queue="default")},
        {"filter": job_service_pb2.JobFilter(definition_name="one", labels={"a": "b"})},
        {"filter": FILTER, "states": [common_pb2.JOB_STATE_RUNNING]},
        {"filter": FILTER, "namespace": "other"},
    ],
)
async def test_h094_token_of_other_filters(running: Running, other: dict[str, Any]) -> None:
    """It would skip, or repeat."""
    await running.submit_many("one", 2, labels={"a": "b"})
    token = (await running.page(page_size=1, filter=FILTER)).next_page_token
    again = await running.page(page_size=1, page_token=token, filter=FILTER)
    refusal = await refused(running.page(page_token=token, **other))

    assert len(again.jobs) == 1
    assert refusal.reason == "PAGE_TOKEN_INVALID"


@pytest.mark.parametrize("place", ["x", "\U0001f600" * 60, "0-", "0-" + "f" * 33, "\0"])
async def test_h094_token_that_was_made_up(running: Running, place: str) -> None:
    """Its digest is no secret, so what it holds may be anything."""
    await running.submit_many("one", 2)
    refusal = await refused(running.page(page_token=pages.token(JobFilter("default"), place)))

    assert (refusal.code, refusal.reason) == (grpc.StatusCode.INVALID_ARGUMENT, "PAGE_TOKEN_INVALID")


@pytest.mark.parametrize(
    ("field", "said"),
    [
        ("filter.states[1]", {"filter": job_service_pb2.JobFilter(states=states_of(1, 9))}),
        ("states[0]", {"states": [0]}),
        ("filter.states", {"states": [1], "filter": job_service_pb2.JobFilter(states=states_of(1, 2))}),
        ("filter.definition_name", {"definition_name": "a", "filter": job_service_pb2.JobFilter(definition_name="b")}),
        ("filter.definition_name", {"filter": job_service_pb2.JobFilter(definition_name="a b")}),
        ("filter.queue", {"filter": job_service_pb2.JobFilter(queue="q" * 129)}),
        ("filter.labels", {"filter": job_service_pb2.JobFilter(labels={str(n): "" for n in range(33)})}),
        ("filter.submitted_from", {"filter": job_service_pb2.JobFilter(submitted_from=Timestamp(nanos=-1))}),
        ("filter.submitted_before", {"filter": job_service_pb2.JobFilter(submitted_before=Timestamp(seconds=1 << 60))}),
    ],
)
async def test_filter_that_breaks_a_rule(running: Running, field: str, said: dict[str, Any]) -> None:
    """The refusal names the field; in a count it is the same."""
    refusals = [await refused(running.page(**said))]
    if set(said) == {"filter"}:
        request = job_service_pb2.CountJobsRequest(filter=said["filter"])
        refusals.append(await refused(running.stubs.jobs.CountJobs(request, timeout=S)))

    assert {(one.reason, one.violations[0][0]) for one in refusals} == {("INVALID_ARGUMENT", field)}


async def test_what_is_said_in_both_places(running: Running) -> None:
    """The same twice is the same once."""
    (job_id,) = await running.submit_many("one", 1)
    await running.submit_many("other", 1)
    both = await running.listed(
        states=[1],
        definition_name="one",
        filter=job_service_pb2.JobFilter(states=states_of(1, 1), definition_name="one"),
    )

    assert both == [job_id]


async def test_h097_pages_and_counts_of_random_filters(running: Running) -> None:
    """A list has what a plain filter over all jobs has, however it is cut, and a count has as many by state."""
    rng = random.Random(97)
    for n in range(12):
        jobs = await running.submit_many(rng.choice(("one", "other")), 4, labels={"n": str(n % 3), "all": "yes"})
        await running.cancel(rng.choice(jobs))
    every = [job async for page in running.walk() for job in page.jobs]
    moments = [job.submitted_at for job in every]
    for _ in range(60):
        said: dict[str, Any] = {}
        if rng.random() < 0.5:
            said["states"] = rng.sample([1, 3, 7], rng.randint(1, 2))
        if rng.random() < 0.3:
            said["definition_name"] = rng.choice(["one", "other", "absent"])
        if rng.random() < 0.5:
            said["labels"] = rng.choice([{"n": "1"}, {"n": "1", "all": "yes"}, {"n": "9"}, {"all": "yes"}])
        if rng.random() < 0.5:
            said["submitted_from"] = rng.choice(moments)
        if rng.random() < 0.5:
            said["submitted_before"] = rng.choice(moments)
        if rng.random() < 0.3:
            said["queue"] = rng.choice(["default", "absent"])
        expected = [job for job in every if _matches(job, said)]
        listed = await running.listed(filter=job_service_pb2.JobFilter(**said), page_size=rng.choice([1, 3, 7, 50]))
        counted = await running.counted(**said)

        assert listed == [job.job_id for job in expected], said
        assert counted == Counter(job.state for job in expected), said


def _matches(job: job_pb2.Job, said: dict[str, Any]) -> bool:
    """The oracle."""
    at = job.submitted_at.ToNanoseconds()
    return (
        job.state in said.get("states", [job.state])
        and job.definition_name == said.get("definition_name", job.definition_name)
        and set(said.get("labels", {}).items()) <= set(job.labels.items())
        and ("submitted_from" not in said or at >= said["submitted_from"].ToNanoseconds())
        and ("submitted_before" not in said or at < said["submitted_before"].ToNanoseconds())
        and said.get("queue", "default") == "default"
    )


async def test_count_by_states_looks_at_no_job(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    """Counters tell; in a status, too, over all namespaces."""
    jobs = await running.submit_many("one", 5)
    await running.cancel(jobs[0])

    def looks(*_: object, **__: object) -> None:
        raise AssertionError("a job was looked at")

    monkeypatch.setattr(lists, "walk", looks)
    status = await running.stubs.cluster.GetStatus(cluster_service_pb2.GetStatusRequest(), timeout=S)

    assert await running.counted() == {common_pb2.JOB_STATE_RUNNING: 4, common_pb2.JOB_STATE_CANCELLED: 1}
    assert await running.counted(states=[common_pb2.JOB_STATE_CANCELLED]) == {common_pb2.JOB_STATE_CANCELLED: 1}
    assert {one.state: one.count for one in status.shards[0].jobs} == {1: 4, 7: 1}


@pytest.mark.parametrize(("counted_max", "truncated"), [(5, False), (4, True)])
async def test_count_looks_at_a_bounded_number_of_jobs(
    running: Running, monkeypatch: pytest.MonkeyPatch, counted_max: int, truncated: bool
) -> None:
    """And says whether there may be more: at the bound, and one past it."""
    monkeypatch.setattr(job_lists, "COUNTED_MAX", counted_max)
    await running.submit_many("one", 5)
    request = job_service_pb2.CountJobsRequest(filter=job_service_pb2.JobFilter(definition_name="one"))
    answer = await running.stubs.jobs.CountJobs(request, timeout=S)

    assert ([one.count for one in answer.counts], answer.truncated) == ([counted_max], truncated)


@pytest.mark.parametrize(("scanned_max", "pages"), [(5, 1), (4, 2)])
async def test_page_looks_at_a_bounded_number_of_jobs(
    running: Running, monkeypatch: pytest.MonkeyPatch, scanned_max: int, pages: int
) -> None:
    """Then it ends, perhaps empty, and the next one goes on: at the bound, and one past it."""
    monkeypatch.setattr(job_lists, "SCANNED_MAX", scanned_max)
    (wanted,) = await running.submit_many("one", 1)
    await running.submit_many("other", 4)
    walked = [page async for page in running.walk(definition_name="one")]

    assert [job.job_id for page in walked for job in page.jobs] == [wanted]
    assert [len(page.jobs) for page in walked] == [0] * (pages - 1) + [1]


async def test_long_walk_leaves_the_loop_to_others(running: Running) -> None:
    """A page that looks at ten thousand jobs, and a count of them, hold nobody up for more than a few slices.

    In time of the processor, so that other processes do not count.
    """
    for _ in range(10):
        await running.submit_many("one", 1_000)
    longest_s = 0.0

    async def beat() -> None:
        nonlocal longest_s
        while True:
            began = time.thread_time()
            await asyncio.sleep(0)
            longest_s = max(longest_s, time.thread_time() - began)

    beating = asyncio.create_task(beat())
    nothing = await running.page(filter=job_service_pb2.JobFilter(labels={"absent": ""}))
    counted = await running.counted(definition_name="one")
    beating.cancel()

    assert (len(nothing.jobs), nothing.next_page_token) == (0, "")
    assert counted == {common_pb2.JOB_STATE_RUNNING: 10_000}
    assert longest_s < 0.05


async def test_slice_that_is_over_at_once_still_gets_on(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a machine that is too slow for slices a walk takes longer, and ends."""
    monkeypatch.setattr(slices, "SLICE_MS_MAX", 0.0)
    jobs = await running.submit_many("one", 20)

    assert await running.listed(page_size=7) == jobs[::-1]
    assert await running.counted(definition_name="one") == {common_pb2.JOB_STATE_RUNNING: 20}


@pytest.mark.parametrize(("bytes_max", "shown"), [(1 << 20, [3]), (1, [1, 1, 1])])
async def test_page_of_agents_is_bounded_in_bytes(
    running: Running, monkeypatch: pytest.MonkeyPatch, bytes_max: int, shown: list[int]
) -> None:
    """A session may name a thousand actions. A page has one at least, and the last one has no token."""
    monkeypatch.setattr(pages, "PAGE_BYTES_MAX", bytes_max)
    found: list[int] = []
    token = ""
    async with agent(running.stubs, "a"), agent(running.stubs, "b"), agent(running.stubs, "c"):
        while not found or token:
            request = agent_service_pb2.ListAgentsRequest(page_token=token)
            page = await running.stubs.agents.ListAgents(request, timeout=S)
            found.append(len(page.agents))
            token = page.next_page_token

    assert found == shown
