"""Steps of a job in answers: as many as fit, in pages, and all of them counted."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, NamedTuple

import grpc
import pytest
import pytest_asyncio

from stepward.server.api import history, job_steps, pages, watch
from stepward.v1 import common_pb2, definition_pb2, job_pb2, job_service_pb2
from tests.server import nodes
from tests.server.nodes import CALL_S_MAX, Stubs, refused, submission
from tests.server.plain_agent import agent

S = CALL_S_MAX
# What a client takes unless it is told otherwise.
RECEIVE_BYTES_MAX = 4 << 20
STEPS = 20
SUCCEEDED, PENDING, READY = (
    common_pb2.STEP_STATE_SUCCEEDED,
    common_pb2.STEP_STATE_PENDING,
    common_pb2.STEP_STATE_READY,
)


class Jobs(NamedTuple):
    """Connections to a node, a job of twenty steps with large outputs that has ended, and one that has just begun."""

    stubs: Stubs
    ended: str
    begun: str

    async def get(self, job_id: str) -> job_pb2.Job:
        return (await self.stubs.jobs.GetJob(job_service_pb2.GetJobRequest(job_id=job_id), timeout=S)).job

    async def page(self, job_id: str, **fields: Any) -> job_service_pb2.ListJobStepsResponse:
        request = job_service_pb2.ListJobStepsRequest(job_id=job_id, **fields)
        return await self.stubs.jobs.ListJobSteps(request, timeout=S)

    async def walk(self, job_id: str, **fields: Any) -> list[list[str]]:
        """The ids of the steps of each page."""
        walked, token = [], ""
        while True:
            page = await self.page(job_id, page_token=token, **fields)
            walked.append([step.step_id for step in page.steps])
            token = page.next_page_token
            if not token:
                return walked


@pytest_asyncio.fixture
async def jobs(tmp_path: Path) -> AsyncIterator[Jobs]:
    options = ("grpc.max_receive_message_length", RECEIVE_BYTES_MAX)
    async with nodes.running(tmp_path / "data") as node, nodes.connected(node.address, options) as stubs:
        # Each gives what the job was given; the job itself gives little.
        steps = [definition_pb2.Step(id=f"s{n:02}", action="one") for n in range(STEPS)]
        steps.append(definition_pb2.Step(id="last", action="other", needs=["s00", "s01"], input="1"))
        await nodes.define(stubs, "many", *steps)
        async with agent(stubs, "one", "other"):
            run = job_service_pb2.RunJobRequest(job=submission("many", b'"' + b"x" * 250_000 + b'"'))
            ended = (await stubs.jobs.RunJob(run, timeout=S)).job.job_id
        submit = job_service_pb2.SubmitJobRequest(job=submission("many"))
        begun = (await stubs.jobs.SubmitJob(submit, timeout=S)).job_id
        yield Jobs(stubs, ended, begun)


def counts(job: job_pb2.Job) -> dict[int, int]:
    """As a job tells them."""
    return {one.state: one.count for one in job.step_counts}


async def test_job_has_the_steps_that_fit(jobs: Jobs) -> None:
    """In the order of the definition; all are counted, so that nobody takes some for all."""
    job = await jobs.get(jobs.ended)

    assert [step.step_id for step in job.steps] == [f"s{n:02}" for n in range(8)]
    assert sum(step.ByteSize() for step in job.steps) <= job_steps.STEPS_BYTES_MAX
    assert (job.steps_total, counts(job)) == (STEPS + 1, {SUCCEEDED: STEPS + 1})


@pytest.mark.parametrize(("steps_max", "steps"), [(21, 21), (20, 20)])
async def test_job_has_a_bounded_number_of_steps(
    jobs: Jobs, monkeypatch: pytest.MonkeyPatch, steps_max: int, steps: int
) -> None:
    """At the bound, and one past it."""
    monkeypatch.setattr(job_steps, "STEPS_MAX", steps_max)
    job = await jobs.get(jobs.begun)

    assert (len(job.steps), job.steps_total) == (steps, 21)
    assert counts(job) == {READY: 20, PENDING: 1}


async def test_pages_of_steps(jobs: Jobs) -> None:
    """Each step once, in order; a page ends at its bytes, too, and the last one has no token."""
    by_bytes = await jobs.walk(jobs.ended)
    by_number = await jobs.walk(jobs.begun, page_size=7)

    every = [*(f"s{n:02}" for n in range(STEPS)), "last"]
    assert [step_id for page in by_bytes for step_id in page] == every
    assert [len(page) for page in by_bytes] == [8, 8, 5]
    assert by_number == [every[:7], every[7:14], every[14:]]


async def test_steps_in_some_states(jobs: Jobs) -> None:
    """A step that waits for others has no row yet, and is PENDING all the same."""
    assert await jobs.walk(jobs.begun, states=[PENDING]) == [["last"]]
    assert await jobs.walk(jobs.begun, states=[SUCCEEDED]) == [[]]
    assert [len(page) for page in await jobs.walk(jobs.begun, states=[READY], page_size=10)] == [10, 10]
    assert [len(page) for page in await jobs.walk(jobs.begun, states=[READY, PENDING], page_size=10)] == [10, 10, 1]


async def test_page_of_steps_that_cannot_be(jobs: Jobs) -> None:
    """Each refusal says why."""
    token = (await jobs.page(jobs.begun, page_size=1)).next_page_token
    refusals = [
        await refused(jobs.page(jobs.ended, page_token=token)),
        await refused(jobs.page(jobs.begun, page_token=token, states=[READY])),
        await refused(jobs.page(jobs.begun, page_token=pages.token(("steps", jobs.begun, []), "-1"))),
        await refused(jobs.page(jobs.begun, page_token=pages.token(("steps", jobs.begun, []), "9" * 200))),
        await refused(jobs.page(jobs.begun, states=[99])),
        await refused(jobs.page("0-" + "0" * 32)),
        await refused(jobs.page("nothing")),
    ]

    assert [one.reason for one in refusals] == [
        "PAGE_TOKEN_INVALID",
        "PAGE_TOKEN_INVALID",
        "PAGE_TOKEN_INVALID",
        "PAGE_TOKEN_INVALID",
        "INVALID_ARGUMENT",
        "JOB_NOT_FOUND",
        "JOB_NOT_FOUND",
    ]


async def test_watch_of_a_job_whose_steps_do_not_fit(jobs: Jobs) -> None:
    """The first message has those that fit, later ones those that changed: together all, each message in bounds."""
    request = job_service_pb2.WatchJobRequest(job_id=jobs.ended)
    messages = [message async for message in jobs.stubs.jobs.WatchJob(request, timeout=S)]
    seen = {step.step_id: step.state for message in messages for step in message.job.steps}

    assert len(messages) > 1
    assert [step.step_id for step in messages[0].job.steps][:8] == [f"s{n:02}" for n in range(8)]
    assert seen == dict.fromkeys([*(f"s{n:02}" for n in range(STEPS)), "last"], SUCCEEDED)
    assert [counts(message.job) for message in messages] == [{SUCCEEDED: STEPS + 1}] * len(messages)
    assert max(message.ByteSize() for message in messages) < RECEIVE_BYTES_MAX


async def test_resumed_watch_has_the_steps_that_changed(jobs: Jobs, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody who has seen the job before needs the others again."""
    monkeypatch.setattr(job_steps, "STEPS_MAX", 3)
    revision = (await jobs.get(jobs.begun)).revision
    async with agent(jobs.stubs, "one", "other"):
        request = job_service_pb2.WatchJobRequest(job_id=jobs.begun, from_revision=revision)
        messages = [message async for message in jobs.stubs.jobs.WatchJob(request, timeout=S)]

    for message in messages:
        assert {step.step_id for step in message.job.steps} == {e.step_id for e in message.events if e.step_id}
    assert counts(messages[-1].job) == {SUCCEEDED: STEPS + 1}


async def test_watch_from_a_revision_that_never_was(jobs: Jobs) -> None:
    """It would wait in silence; who asks should begin again."""
    request = job_service_pb2.WatchJobRequest(job_id=jobs.begun, from_revision=10**9)
    refusal = await refused(jobs.stubs.jobs.WatchJob(request, timeout=S).read())

    assert (refusal.code, refusal.reason) == (grpc.StatusCode.OUT_OF_RANGE, "REVISION_COMPACTED")
    assert 0 < int(refusal.metadata["newest_revision"]) < 10**9


async def test_watch_of_a_job_that_ended_while_nobody_followed(jobs: Jobs) -> None:
    """From before the end it brings the end; from the end on it has nothing to bring, and is over."""
    last = (await jobs.get(jobs.ended)).revision
    before = job_service_pb2.WatchJobRequest(job_id=jobs.ended, from_revision=last - 1)
    behind = job_service_pb2.WatchJobRequest(job_id=jobs.ended, from_revision=last)
    (message,) = [message async for message in jobs.stubs.jobs.WatchJob(before, timeout=S)]

    assert message.events[-1].type == "JobCompleted"
    assert [message async for message in jobs.stubs.jobs.WatchJob(behind, timeout=S)] == []


@pytest.mark.parametrize("bytes_max", [1, 1_000])
async def test_history_is_bounded_in_bytes(jobs: Jobs, monkeypatch: pytest.MonkeyPatch, bytes_max: int) -> None:
    """A page ends there, has one event at least, and the next goes on."""
    whole = await _history(jobs)
    monkeypatch.setattr(history, "BYTES_MAX", bytes_max)
    cut = await _history(jobs)

    assert len(whole) == 1
    assert len(cut) > 2
    assert [event for page in cut for event in page] == whole[0]
    assert max(len(page) for page in cut) == (1 if bytes_max == 1 else max(Counter(map(len, cut))))
    assert all(sum(event.ByteSize() for event in page) <= bytes_max for page in cut if len(page) > 1)


async def _history(jobs: Jobs) -> list[list[job_pb2.HistoryEvent]]:
    found, token = [], ""
    while True:
        request = job_service_pb2.GetJobHistoryRequest(job_id=jobs.ended, page_token=token)
        page = await jobs.stubs.jobs.GetJobHistory(request, timeout=S)
        found.append(list(page.events))
        token = page.next_page_token
        if not token:
            return found


async def test_events_of_a_watch_are_bounded_in_bytes(jobs: Jobs, monkeypatch: pytest.MonkeyPatch) -> None:
    """What does not fit comes in further messages, whose revisions say from where to resume."""
    monkeypatch.setattr(watch, "EVENTS_BYTES_MAX", 1_000)
    request = job_service_pb2.WatchJobRequest(job_id=jobs.ended)
    messages = [message async for message in jobs.stubs.jobs.WatchJob(request, timeout=S)]
    events = [event for message in messages for event in message.events]

    assert len(messages) > 3
    assert events == [event for page in await _history(jobs) for event in page]
    sent = 0
    for message in messages:
        sent += len(message.events)
        assert all(event.revision > message.job.revision for event in events[sent:])
