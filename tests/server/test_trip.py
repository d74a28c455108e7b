"""Jobs from submission to end, over real sockets, with an agent that knows nothing but the contract."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
import pytest_asyncio

from stepward.v1 import agent_service_pb2, common_pb2, definition_pb2, job_pb2, job_service_pb2
from tests.server import nodes, plain_agent
from tests.server.nodes import CALL_S_MAX, Stubs
from tests.server.plain_agent import agent, failed, silent, succeeded

S = CALL_S_MAX


@pytest_asyncio.fixture
async def stubs(tmp_path: Path) -> AsyncIterator[Stubs]:
    """A connection to a node that knows the definition `trip`."""
    async with nodes.running(tmp_path / "data") as node, nodes.connected(node.address) as stubs:
        await nodes.define(
            stubs,
            "trip",
            definition_pb2.Step(id="flight", undo=definition_pb2.Undo(action="cancel-flight")),
            definition_pb2.Step(id="car", needs=["flight"], input='{"of":"${steps.flight.output}"}'),
            definition_pb2.Step(id="hotel", needs=["car"]),
        )
        yield stubs
        assert node.waiters == 0


async def run(stubs: Stubs, job: job_service_pb2.JobSubmission) -> job_service_pb2.RunJobResponse:
    return await stubs.jobs.RunJob(job_service_pb2.RunJobRequest(job=job), timeout=S)


async def submit(stubs: Stubs, job: job_service_pb2.JobSubmission) -> str:
    return (await stubs.jobs.SubmitJob(job_service_pb2.SubmitJobRequest(job=job), timeout=S)).job_id


async def get(stubs: Stubs, job_id: str) -> job_service_pb2.GetJobResponse:
    return await stubs.jobs.GetJob(job_service_pb2.GetJobRequest(job_id=job_id), timeout=S)


async def test_run_job_answers_with_its_end(stubs: Stubs) -> None:
    """Three steps in a row; each input is built from the bytes that came before, none of them changed."""
    async with agent(stubs, "flight", "car", "hotel") as joined:
        answer = await run(stubs, nodes.submission("trip", b'{"price": 1.10, "n": 9007199254740993}'))

        assert answer.job.state == common_pb2.JOB_STATE_COMPLETED
        assert not answer.duplicate
        assert answer.job.output.data == b'{"price": 1.10, "n": 9007199254740993}'
        assert [offer.attempt.step_id for offer in joined.offers] == ["flight", "car", "hotel"]
        assert joined.offers[1].input.data == b'{"of":{"price": 1.10, "n": 9007199254740993}}'
        assert {offer.start for offer in joined.offers} == {agent_service_pb2.OFFER_START_ON_OFFER}
        assert joined.offers[0].idempotency_key == f"{answer.job.job_id}/flight/1"

    job = (await get(stubs, answer.job.job_id)).job
    assert [step.state for step in job.steps] == [common_pb2.STEP_STATE_SUCCEEDED] * 3
    assert [step.attempts for step in job.steps] == [1, 1, 1]
    assert job.HasField("ended_at")


async def test_step_starts_on_accept(stubs: Stubs) -> None:
    """A step that may not be repeated starts only when its accept is recorded."""
    step = definition_pb2.Step(id="pay", effect=definition_pb2.EFFECT_NON_IDEMPOTENT)
    await nodes.define(stubs, "payment", step)
    async with agent(stubs, "pay", handler=silent) as joined:
        running = asyncio.create_task(run(stubs, nodes.submission("payment")))
        await joined.until(lambda: joined.offers)
        (offer,) = joined.offers
        assert offer.start == agent_service_pb2.OFFER_START_ON_ACCEPT
        before = (await get(stubs, offer.attempt.job_id)).job.steps[0]

        accepted = agent_service_pb2.AttemptReport(attempt=offer.attempt, accepted=agent_service_pb2.Accepted())
        await joined.report(accepted)
        await joined.until(lambda: joined.answers)
        between = (await get(stubs, offer.attempt.job_id)).job.steps[0]
        await joined.report(succeeded(offer, nodes.json_payload(b"7")))
        answer = await running

    assert joined.answers[0].result == agent_service_pb2.REPORT_RESULT_RECORDED
    assert (before.state, before.attempts) == (common_pb2.STEP_STATE_OFFERED, 0)
    assert (between.state, between.attempts) == (common_pb2.STEP_STATE_RUNNING, 1)
    assert between.HasField("lease_ends_at")
    assert answer.job.output.data == b"7"


async def test_failure_undoes_what_was_done(stubs: Stubs) -> None:
    """A step that fails for good has the steps before it undone, and the caller told why."""

    def handler(offer: agent_service_pb2.Offer) -> agent_service_pb2.AttemptReport:
        return failed(offer) if offer.action == "car" else plain_agent.succeeds(offer)

    async with agent(stubs, "flight", "car", "hotel", "cancel-flight", handler=handler) as joined:
        answer = await run(stubs, nodes.submission("trip"))

        assert answer.job.state == common_pb2.JOB_STATE_COMPENSATED
        assert answer.job.failure.kind == "CarUnavailable"
        assert [(offer.action, offer.undo) for offer in joined.offers] == [
            ("flight", False),
            ("car", False),
            ("cancel-flight", True),
        ]
        assert joined.offers[2].idempotency_key == f"{answer.job.job_id}/flight/1/undo"


async def test_same_key_is_the_first_job(stubs: Stubs) -> None:
    """A repeated submission answers with the first job, and a repeated run waits for it."""
    job = nodes.submission("trip", b'{"a":1,"b":2.0}', idempotency_key="once")
    async with agent(stubs, "flight", "car", "hotel"):
        first = await run(stubs, job)
        job.input.data = b'{ "b": 2, "a": 1 }'
        again = await run(stubs, job)
        submitted = await stubs.jobs.SubmitJob(job_service_pb2.SubmitJobRequest(job=job), timeout=S)

    assert again.duplicate
    assert again.job.job_id == first.job.job_id == submitted.job_id
    assert again.job.output.data == b'{"a":1,"b":2.0}'
    assert submitted.duplicate
    assert submitted.state == common_pb2.JOB_STATE_COMPLETED


async def test_same_key_and_another_request_is_a_conflict(stubs: Stubs) -> None:
    """The answer names the first job."""
    first = await submit(stubs, nodes.submission("trip", b"1", idempotency_key="once"))

    conflict = await nodes.refused(submit(stubs, nodes.submission("trip", b"2", idempotency_key="once")))

    assert (conflict.code, conflict.reason) == (grpc.StatusCode.ALREADY_EXISTS, "IDEMPOTENCY_CONFLICT")
    assert conflict.metadata["job_id"] == conflict.resource == first


async def test_run_waits_for_the_running_first_job(stubs: Stubs) -> None:
    """Two callers with one key get one end."""
    job = nodes.submission("trip", idempotency_key="once")
    running = [asyncio.create_task(run(stubs, job)) for _ in range(2)]
    async with agent(stubs, "flight", "car", "hotel"):
        first, second = await asyncio.gather(*running)

    assert first.job.job_id == second.job.job_id
    assert sorted((first.duplicate, second.duplicate)) == [False, True]


async def test_wait_ends_before_the_job(stubs: Stubs) -> None:
    """The refusal names the job, which goes on."""
    request = job_service_pb2.RunJobRequest(job=nodes.submission("trip"))
    request.wait_max.FromMilliseconds(50)

    timed_out = await nodes.refused(stubs.jobs.RunJob(request, timeout=S))

    assert (timed_out.code, timed_out.reason) == (grpc.StatusCode.DEADLINE_EXCEEDED, "WAIT_TIMED_OUT")
    job = (await get(stubs, timed_out.metadata["job_id"])).job
    assert job.state == common_pb2.JOB_STATE_RUNNING


async def test_wait_ends_just_before_the_deadline(stubs: Stubs) -> None:
    """So that the caller learns the job's id instead of nothing."""
    timed_out = await nodes.refused(
        stubs.jobs.RunJob(job_service_pb2.RunJobRequest(job=nodes.submission("trip")), timeout=0.8)
    )

    assert timed_out.reason == "WAIT_TIMED_OUT"
    assert timed_out.metadata["job_id"]


async def test_many_submissions_are_answered_one_by_one(stubs: Stubs) -> None:
    """One that is refused takes no other with it, and each knows its place."""
    jobs = [
        nodes.submission("trip"),
        nodes.submission("nothing"),
        nodes.submission("trip", b"{"),
        nodes.submission("trip"),
    ]

    answer = await stubs.jobs.SubmitJobs(job_service_pb2.SubmitJobsRequest(jobs=jobs), timeout=S)

    assert [result.error.reason for result in answer.results] == ["", "DEFINITION_NOT_FOUND", "INVALID_ARGUMENT", ""]
    assert "jobs[2].input.data" in answer.results[2].error.message
    assert answer.results[0].job.job_id < answer.results[3].job.job_id
    assert answer.results[0].job.revision == answer.results[3].job.revision


async def test_cancel_undoes_and_says_so(stubs: Stubs) -> None:
    """A cancel may be repeated; one of a job that completed is refused."""
    job_id = await submit(stubs, nodes.submission("trip"))
    request = job_service_pb2.CancelJobRequest(job_id=job_id, reason="changed my mind")
    first = await stubs.jobs.CancelJob(request, timeout=S)
    again = await stubs.jobs.CancelJob(request, timeout=S)
    async with agent(stubs, "flight", "car", "hotel"):
        completed = await run(stubs, nodes.submission("trip"))
    late = job_service_pb2.CancelJobRequest(job_id=completed.job.job_id)

    ended = await nodes.refused(stubs.jobs.CancelJob(late, timeout=S))

    assert (first.already, again.already) == (False, True)
    assert first.job.cancel_requested
    assert (ended.code, ended.reason) == (grpc.StatusCode.FAILED_PRECONDITION, "JOB_ENDED")


async def watched(stubs: Stubs, job_id: str, from_revision: int = 0) -> list[job_service_pb2.WatchJobResponse]:
    request = job_service_pb2.WatchJobRequest(job_id=job_id, from_revision=from_revision)
    call = stubs.jobs.WatchJob(request, timeout=S)
    return [message async for message in call]


async def test_watch_tells_every_event_once(stubs: Stubs) -> None:
    """From the job as it is, through each change, to its end."""
    job_id = await submit(stubs, nodes.submission("trip"))
    watching = asyncio.create_task(watched(stubs, job_id))
    async with agent(stubs, "flight", "car", "hotel"):
        messages = await watching

    events = [event for message in messages for event in message.events]
    revisions = [message.job.revision for message in messages]
    assert [event.type for event in events if not event.type.startswith("Step")] == ["JobSubmitted", "JobCompleted"]
    assert [event.step_id for event in events if event.type == "StepSucceeded"] == ["flight", "car", "hotel"]
    assert revisions == sorted(set(revisions))
    assert messages[-1].job.state == common_pb2.JOB_STATE_COMPLETED


async def test_watch_resumes_without_gap_or_repeat(stubs: Stubs) -> None:
    """Whatever revision a watcher saw last, it is told the rest and nothing else."""
    async with agent(stubs, "flight", "car", "hotel"):
        job_id = (await run(stubs, nodes.submission("trip"))).job.job_id
    whole = [event for message in await watched(stubs, job_id) for event in message.events]

    for seen in sorted({event.revision for event in whole}):
        rest = [event for message in await watched(stubs, job_id, seen) for event in message.events]
        assert rest == [event for event in whole if event.revision > seen]


async def test_watch_sends_nothing_that_is_not_newer(stubs: Stubs) -> None:
    """The first message of a watcher who has seen all is the next change."""
    job_id = await submit(stubs, nodes.submission("trip"))
    seen = (await get(stubs, job_id)).job.revision
    request = job_service_pb2.WatchJobRequest(job_id=job_id, from_revision=seen)
    watch = stubs.jobs.WatchJob(request, timeout=S)
    first: asyncio.Future[Any] = asyncio.ensure_future(watch.read())
    await stubs.jobs.CancelJob(job_service_pb2.CancelJobRequest(job_id=job_id), timeout=S)

    message = await first

    assert message.job.revision > seen
    assert {event.revision for event in message.events} == {message.job.revision}
    assert await watched(stubs, job_id, message.job.revision) == []


async def test_history_goes_on_from_page_to_page(stubs: Stubs) -> None:
    """Pages of one event give the same as one page of all, in order."""
    async with agent(stubs, "flight", "car", "hotel"):
        job_id = (await run(stubs, nodes.submission("trip"))).job.job_id
    whole = await stubs.jobs.GetJobHistory(job_service_pb2.GetJobHistoryRequest(job_id=job_id), timeout=S)

    events: list[job_pb2.HistoryEvent] = []
    token = ""
    while True:
        request = job_service_pb2.GetJobHistoryRequest(job_id=job_id, page_size=1, page_token=token)
        page = await stubs.jobs.GetJobHistory(request, timeout=S)
        events += page.events
        token = page.next_page_token
        if not token:
            break

    assert whole.next_page_token == ""
    assert len(whole.events) >= 8
    assert events == list(whole.events)


async def test_list_goes_on_from_page_to_page(stubs: Stubs) -> None:
    """The newest first; a token of another list is refused."""
    job_ids = [await submit(stubs, nodes.submission("trip")) for _ in range(5)]
    found = []
    token = ""
    while True:
        request = job_service_pb2.ListJobsRequest(page_size=2, page_token=token)
        page = await stubs.jobs.ListJobs(request, timeout=S)
        found += [job.job_id for job in page.jobs]
        token = page.next_page_token
        if not token:
            break
        request = job_service_pb2.ListJobsRequest(definition_name="other", page_token=token)
        foreign = await nodes.refused(stubs.jobs.ListJobs(request, timeout=S))
        assert foreign.reason == "PAGE_TOKEN_INVALID"

    assert found == job_ids[::-1]


@pytest.mark.parametrize(
    ("states", "count"),
    [
        ([], 2),
        ([common_pb2.JOB_STATE_RUNNING], 1),
        ([common_pb2.JOB_STATE_COMPLETED, common_pb2.JOB_STATE_RUNNING], 2),
        ([common_pb2.JOB_STATE_FAILED], 0),
    ],
)
async def test_list_filters_by_state(stubs: Stubs, states: list[common_pb2.JobState.ValueType], count: int) -> None:
    """Only jobs in these states; none given: all."""
    async with agent(stubs, "flight", "car", "hotel"):
        await run(stubs, nodes.submission("trip"))
    await submit(stubs, nodes.submission("trip"))

    page = await stubs.jobs.ListJobs(job_service_pb2.ListJobsRequest(states=states), timeout=S)

    assert len(page.jobs) == count
