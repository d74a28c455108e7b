"""A submission with a key is one job, however often it is made."""

from __future__ import annotations

from stepward.server.core import keys, rows
from stepward.server.core.commands import JobSubmitted, SubmitJob
from stepward.server.core.rejections import Reason, Rejection
from stepward.server.core.rows import Payload
from tests.scenarios.trips import DONE, pass_time, single, world_with

AGENT = "agent-one"


def test_h048_the_same_submission_after_the_end_starts_nothing() -> None:
    """H048: key and body are those of a job that has ended: its id and its state are the answer."""
    world = world_with(single())
    world.submit("j1", "single", key="order-7")
    world.report(AGENT, "j1", "pay", DONE)
    pass_time(world, 60_000, alive=(AGENT,))

    answer = world.submit("j2", "single", key="order-7")

    assert isinstance(answer, JobSubmitted)
    assert (answer.job_id, answer.duplicate, answer.state.name) == ("j1", True, "COMPLETED")
    assert world.reader.get(keys.job("j2")) is None


def test_the_same_key_with_another_request_is_a_conflict() -> None:
    """It names the first job, and stores nothing."""
    world = world_with(single())
    world.submit("j1", "single", key="order-7")

    answer = world.submit("j2", "single", key="order-7", body=b'{"other":true}')

    assert isinstance(answer, Rejection)
    assert (answer.reason, answer.metadata["job_id"]) == (Reason.IDEMPOTENCY_CONFLICT, "j1")
    assert not world.changes
    assert world.submit("j3", "single", key="order-7", body=b"{}") == JobSubmitted(
        "j1", True, rows.JobState.RUNNING, world.progress("j1").revision
    )


def test_fifty_submissions_of_one_key_in_one_batch_make_one_job() -> None:
    """The key is looked up where the batch is decided, so a race cannot make two."""
    world = world_with(single(), slots=100)

    answers = world.do(
        *(SubmitJob(f"j{n}", "default", "single", 0, Payload(b"{}"), "key", {}, "", b"{}") for n in range(50))
    )

    assert {answer.job_id for answer in answers if isinstance(answer, JobSubmitted)} == {"j0"}
    assert world.reader.count(keys.JOB) == 1
