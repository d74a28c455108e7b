"""What may be large, at its limit and all of it together, through every call; and text that is hard to keep."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import grpc.aio
import pytest
import pytest_asyncio
from hypothesis import given
from hypothesis import strategies as st

from stepward.server.core.limits import Limits, cut
from stepward.v1 import agent_service_pb2, common_pb2, definition_pb2, job_service_pb2
from tests.server import nodes
from tests.server.nodes import CALL_S_MAX, Stubs, define, refused
from tests.server.plain_agent import Handler, agent, succeeded

S = CALL_S_MAX
LIMITS = Limits(session_ttl_ms=3_000)
# What gRPC lets a client receive that was told nothing.
CLIENT_BYTES_MAX = 4 * 1024 * 1024
EVERY_BYTE = bytes(range(256))


@pytest_asyncio.fixture
async def stubs(tmp_path: Path) -> AsyncIterator[Stubs]:
    """A connection as a client has it that was told nothing, to a node as it is when it was told nothing."""
    received = ("grpc.max_receive_message_length", CLIENT_BYTES_MAX)
    async with (
        nodes.running(tmp_path / "data", limits=LIMITS) as node,
        nodes.connected(node.address, received) as stubs,
    ):
        yield stubs
        assert node.counters.call_failures == node.counters.rule_failures == node.counters.delivery_failures == 0


def json_of(size_bytes: int) -> common_pb2.Payload:
    return nodes.json_payload(b'"' + b"x" * (size_bytes - 2) + b'"')


def largest_submission(size_bytes: int) -> job_service_pb2.JobSubmission:
    """Every field at its limit, of the widest characters where characters are counted."""
    labels = {
        f"{n:02}".ljust(LIMITS.label_key_chars_max, "k"): "\U0001f600" * LIMITS.label_value_chars_max
        for n in range(LIMITS.labels_max)
    }
    return job_service_pb2.JobSubmission(
        definition_name="n" * LIMITS.name_chars_max,
        input=json_of(size_bytes),
        idempotency_key="\U0001f600" * LIMITS.idempotency_key_chars_max,
        caller_id="c" * LIMITS.name_chars_max,
        labels=labels,
    )


def once_failed(size_bytes: int) -> Handler:
    """A handler that fails the first attempt of each step in the longest words, and then gives the largest output."""

    def handle(offer: agent_service_pb2.Offer) -> agent_service_pb2.AttemptReport:
        if offer.attempt_number > 1:
            return succeeded(offer, json_of(size_bytes))
        failed = agent_service_pb2.Failed(
            kind="k" * LIMITS.failure_kind_chars_max,
            message="m" * LIMITS.failure_message_bytes_max,
            retryable=True,
        )
        failed.retry_after.FromMilliseconds(1)
        return agent_service_pb2.AttemptReport(attempt=offer.attempt, failed=failed)

    return handle


@pytest.mark.parametrize("past", [-1, 0])
async def test_h058_everything_at_its_limit_together(stubs: Stubs, past: int) -> None:
    """H058: submitted, offered, reported, read, listed, watched and followed, by a client that was told nothing."""
    size = LIMITS.payload_bytes_max + past
    name = "n" * LIMITS.name_chars_max
    first = definition_pb2.Step(id="a" * LIMITS.name_chars_max, action="a")
    second = definition_pb2.Step(id="b", needs=[first.id], input=f'"${{steps.{first.id}.output}}"')
    await define(stubs, name, first, second)
    async with agent(stubs, "a", "b", handler=once_failed(size)) as joined:
        run = job_service_pb2.RunJobRequest(job=largest_submission(size))
        ran = await stubs.jobs.RunJob(run, timeout=S)
    job_id = ran.job.job_id
    read = (await stubs.jobs.GetJob(job_service_pb2.GetJobRequest(job_id=job_id), timeout=S)).job
    listed = await stubs.jobs.ListJobs(job_service_pb2.ListJobsRequest(), timeout=S)
    history = await stubs.jobs.GetJobHistory(job_service_pb2.GetJobHistoryRequest(job_id=job_id), timeout=S)
    watched = [one async for one in stubs.jobs.WatchJob(job_service_pb2.WatchJobRequest(job_id=job_id), timeout=S)]

    assert ran.job.state == common_pb2.JOB_STATE_COMPLETED
    assert ran.job.output == json_of(size)
    assert {len(offer.input.data) for offer in joined.offers} == {size}
    assert len(joined.offers) == 4
    assert [step.output for step in read.steps] == [json_of(size)] * 2
    assert dict(read.labels) == dict(run.job.labels)
    assert [job.job_id for job in listed.jobs] == [job_id]
    assert any("m" * 100 in event.detail for event in history.events)
    assert watched[-1].job.state == common_pb2.JOB_STATE_COMPLETED


async def test_h058_bulk_of_the_largest_submissions(stubs: Stubs) -> None:
    """H058: as many as a message holds, and no one of them is refused for the size of the whole."""
    await define(stubs, "one", definition_pb2.Step(id="a"))
    job = job_service_pb2.JobSubmission(definition_name="one", input=json_of(LIMITS.payload_bytes_max))
    count = CLIENT_BYTES_MAX // (job.ByteSize() + 8)
    answer = await stubs.jobs.SubmitJobs(job_service_pb2.SubmitJobsRequest(jobs=[job] * count), timeout=S)

    assert count == 15
    assert [result.error.reason for result in answer.results] == [""] * count


async def test_h058_one_past_the_limit(stubs: Stubs) -> None:
    """H058: refused at the door, and nothing is stored."""
    await define(stubs, "one", definition_pb2.Step(id="a"))
    job = job_service_pb2.JobSubmission(definition_name="one", input=json_of(LIMITS.payload_bytes_max + 1))
    answer = await refused(stubs.jobs.SubmitJob(job_service_pb2.SubmitJobRequest(job=job), timeout=S))

    assert answer.reason == "PAYLOAD_TOO_LARGE"
    assert list((await stubs.jobs.ListJobs(job_service_pb2.ListJobsRequest(), timeout=S)).jobs) == []


async def fails_with(stubs: Stubs, kind: str, message: str) -> job_service_pb2.RunJobResponse:
    """A job whose only step fails so."""

    def handle(offer: agent_service_pb2.Offer) -> agent_service_pb2.AttemptReport:
        return agent_service_pb2.AttemptReport(
            attempt=offer.attempt, failed=agent_service_pb2.Failed(kind=kind, message=message)
        )

    await define(stubs, "one", definition_pb2.Step(id="a"))
    async with agent(stubs, "a", handler=handle):
        job = job_service_pb2.JobSubmission(definition_name="one", input=nodes.json_payload(b"{}"))
        return await stubs.jobs.RunJob(job_service_pb2.RunJobRequest(job=job), timeout=S)


FACE = "\U0001f600"
KIND, MESSAGE = LIMITS.failure_kind_chars_max, LIMITS.failure_message_bytes_max


@pytest.mark.parametrize(
    ("kind", "message", "kept_kind", "kept_message"),
    [
        ("NUL\0", "a\0b", "NUL\0", "a\0b"),
        # A character of four bytes at the edge is kept whole or not at all.
        (FACE * KIND, "m" * (MESSAGE - 4) + FACE, FACE * KIND, "m" * (MESSAGE - 4) + FACE),
        (FACE * (KIND + 1), "m" * (MESSAGE - 3) + FACE, FACE * KIND, "m" * (MESSAGE - 3)),
        ("K", "m" * (MESSAGE - 1) + FACE * 9, "K", "m" * (MESSAGE - 1)),
        ("\u202e\ufffe", "\u0301" * MESSAGE, "\u202e\ufffe", "\u0301" * (MESSAGE // 2)),
    ],
)
async def test_h059_failure_in_odd_words(
    stubs: Stubs, kind: str, message: str, kept_kind: str, kept_message: str
) -> None:
    """H059: stored, shown, cut on a border of characters, and the job has moved on."""
    ran = await fails_with(stubs, kind, message)
    read = await stubs.jobs.GetJob(job_service_pb2.GetJobRequest(job_id=ran.job.job_id), timeout=S)
    history = job_service_pb2.GetJobHistoryRequest(job_id=ran.job.job_id)
    events = (await stubs.jobs.GetJobHistory(history, timeout=S)).events

    assert ran.job.state == common_pb2.JOB_STATE_COMPENSATED
    assert (read.job.failure.kind, read.job.failure.message) == (kept_kind, kept_message)
    assert events


@given(st.text(st.characters(exclude_categories=["Cs"])), st.integers(0, 40))
def test_h059_text_is_cut_between_characters(text: str, bytes_max: int) -> None:
    """H059: what is left is a beginning of it, as long as it can be, and valid."""
    kept = cut(text, bytes_max)

    assert text.startswith(kept)
    assert len(kept.encode()) <= bytes_max
    assert kept == text or len(text[: len(kept) + 1].encode()) > bytes_max


@pytest.mark.parametrize("data", [EVERY_BYTE, EVERY_BYTE[::-1] * 1_024, b"\xff\xfe\x00"], ids=["all", "most", "few"])
async def test_h059_bytes_come_back_as_they_were(stubs: Stubs, data: bytes) -> None:
    """H059: from an agent's output to the next step's input and to every read."""
    payload = common_pb2.Payload(data=data, encoding="application/octet-stream")
    await define(stubs, "two", definition_pb2.Step(id="a"))
    async with agent(stubs, "a", handler=lambda offer: succeeded(offer, payload)) as joined:
        job = job_service_pb2.JobSubmission(definition_name="two", input=payload)
        ran = await stubs.jobs.RunJob(job_service_pb2.RunJobRequest(job=job), timeout=S)
    read = await stubs.jobs.GetJob(job_service_pb2.GetJobRequest(job_id=ran.job.job_id), timeout=S)

    assert joined.offers[0].input == payload
    assert ran.job.output == read.job.steps[0].output == read.job.input == payload


@pytest.mark.parametrize(
    ("labels", "field"), [({"a\0": "v"}, 'job.labels["a\\u0000"] (key)'), ({"a": "\0"}, 'job.labels["a"]')]
)
async def test_h059_labels_hold_no_nul(stubs: Stubs, labels: dict[str, str], field: str) -> None:
    """H059: they may become part of keys, so this is told at the door."""
    await define(stubs, "one", definition_pb2.Step(id="a"))
    job = job_service_pb2.JobSubmission(definition_name="one", labels=labels)
    answer = await refused(stubs.jobs.SubmitJob(job_service_pb2.SubmitJobRequest(job=job), timeout=S))

    assert [violated for violated, _ in answer.violations] == [field]


@pytest.mark.parametrize(
    ("other", "same"),
    [
        (b'{ "b":[1, 2.0e0] ,"a":1.50}', True),
        (b'{"a":15e-1,"b":[1,2]}', True),
        (b'{"a":1.5,"b":[2,1]}', False),
        (b'{"a":1.5,"b":[1,2],"c":null}', False),
        (b'{"a":1.50001,"b":[1,2]}', False),
    ],
)
async def test_h049_same_key_with_another_body(stubs: Stubs, other: bytes, same: bool) -> None:
    """H049: equal in canonical form is the first job; anything else is a conflict that names it, and stores nothing."""
    await define(stubs, "one", definition_pb2.Step(id="a"))

    def asked(data: bytes) -> job_service_pb2.SubmitJobRequest:
        job = job_service_pb2.JobSubmission(
            definition_name="one", input=nodes.json_payload(data), idempotency_key="K", labels={"x": "1", "y": "2"}
        )
        return job_service_pb2.SubmitJobRequest(job=job)

    first = await stubs.jobs.SubmitJob(asked(b'{"a":1.5,"b":[1,2]}'), timeout=S)
    if same:
        again = await stubs.jobs.SubmitJob(asked(other), timeout=S)
        assert (again.job_id, again.duplicate) == (first.job_id, True)
    else:
        answer = await refused(stubs.jobs.SubmitJob(asked(other), timeout=S))
        assert (answer.code, answer.reason) == (grpc.StatusCode.ALREADY_EXISTS, "IDEMPOTENCY_CONFLICT")
        assert answer.metadata["job_id"] == first.job_id

    assert len((await stubs.jobs.ListJobs(job_service_pb2.ListJobsRequest(), timeout=S)).jobs) == 1
