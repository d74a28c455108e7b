"""OperatorService over real sockets, with an agent that knows nothing but the contract; and the command line on top."""

from __future__ import annotations

import asyncio
import getpass
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest
import pytest_asyncio

from stepward.server.core.limits import Limits
from stepward.v1 import agent_service_pb2, common_pb2, definition_pb2, job_pb2, job_service_pb2, operator_service_pb2
from tests.client.command_line import Ran, run
from tests.server import nodes
from tests.server.nodes import CALL_S_MAX, Stubs
from tests.server.plain_agent import agent, failed, silent, succeeded

S = CALL_S_MAX
L = Limits()


@pytest_asyncio.fixture
async def stubs(tmp_path: Path) -> AsyncIterator[Stubs]:
    """A connection to a node that knows the definition `trip`: a flight, then a payment that is not repeated."""
    async with nodes.running(tmp_path / "data") as node, nodes.connected(node.address) as stubs:
        await nodes.define(
            stubs,
            "trip",
            definition_pb2.Step(id="flight", undo=definition_pb2.Undo(action="cancel-flight")),
            definition_pb2.Step(id="pay", needs=["flight"], effect=definition_pb2.EFFECT_NON_IDEMPOTENT),
        )
        yield stubs


async def submit(stubs: Stubs) -> str:
    request = job_service_pb2.SubmitJobRequest(job=nodes.submission("trip"))
    return (await stubs.jobs.SubmitJob(request, timeout=S)).job_id


async def get(stubs: Stubs, job_id: str) -> job_pb2.Job:
    return (await stubs.jobs.GetJob(job_service_pb2.GetJobRequest(job_id=job_id), timeout=S)).job


def step_states(job: job_pb2.Job) -> dict[str, str]:
    return {step.step_id: common_pb2.StepState.Name(step.state).removeprefix("STEP_STATE_") for step in job.steps}


def named(job_id: str) -> dict[str, Any]:
    return {"job_id": job_id, "reason": "why", "actor": "ada"}


async def test_pause_holds_and_resume_lets_go(stubs: Stubs) -> None:
    """An agent with a free slot is given nothing of a paused job, and at once when it goes on."""
    job_id = await submit(stubs)
    paused = await stubs.operators.PauseJob(operator_service_pb2.PauseJobRequest(**named(job_id)), timeout=S)
    again = await stubs.operators.PauseJob(operator_service_pb2.PauseJobRequest(**named(job_id)), timeout=S)
    async with agent(stubs, "flight", "pay", handler=silent) as joined:
        await joined.heartbeat(1)
        await joined.until(lambda: joined.heartbeats)
        assert joined.offers == []
        resumed = await stubs.operators.ResumeJob(operator_service_pb2.ResumeJobRequest(**named(job_id)), timeout=S)
        await joined.until(lambda: joined.offers)

    assert (paused.job.state, paused.already, again.already) == (common_pb2.JOB_STATE_PAUSED, False, True)
    assert (resumed.job.state, resumed.already) == (common_pb2.JOB_STATE_RUNNING, False)


async def test_retry_does_not_wait(stubs: Stubs) -> None:
    """A step that waits for its next attempt is offered at once."""
    job_id = await submit(stubs)
    async with agent(stubs, "flight", handler=silent) as joined:
        await joined.until(lambda: joined.offers)
        broken = failed(joined.offers[0], retryable=True)
        broken.failed.retry_after.FromSeconds(3_600)
        await joined.report(broken)
        await joined.until(lambda: joined.answers)
        request = operator_service_pb2.RetryStepRequest(**named(job_id), step_id="flight")
        answer = await stubs.operators.RetryStep(request, timeout=S)
        await joined.until(lambda: len(joined.offers) == 2)

    assert not answer.already
    assert joined.offers[1].attempt_number == 2


async def test_skip_gives_an_output(stubs: Stubs) -> None:
    """What is given stands in place of the output, byte for byte; without anything it is null."""
    first, second = await submit(stubs), await submit(stubs)
    given = nodes.json_payload(b'{"price": 1.10}')
    for job_id, output in ((first, given), (second, None)):
        request = operator_service_pb2.SkipStepRequest(**named(job_id), step_id="flight", output=output)
        await stubs.operators.SkipStep(request, timeout=S)

    jobs = [await get(stubs, job_id) for job_id in (first, second)]
    assert [job.steps[0].output.data for job in jobs] == [b'{"price": 1.10}', b"null"]
    assert step_states(jobs[0]) == {"flight": "SKIPPED", "pay": "READY"}


async def test_terminate_tells_agents_to_stop_and_says_what_remains(stubs: Stubs) -> None:
    """The caller who waits for the job's end has his answer at once."""
    run_request = job_service_pb2.RunJobRequest(job=nodes.submission("trip"))
    async with agent(stubs, "flight", "pay", handler=silent) as joined:
        running = stubs.jobs.RunJob(run_request, timeout=S)
        await joined.until(lambda: joined.offers)
        job_id = joined.offers[0].attempt.job_id
        await joined.report(succeeded(joined.offers[0], nodes.json_payload(b"1")))
        await joined.until(lambda: len(joined.offers) == 2)
        accepted = agent_service_pb2.Accepted()
        await joined.report(agent_service_pb2.AttemptReport(attempt=joined.offers[1].attempt, accepted=accepted))
        await joined.until(lambda: len(joined.answers) == 2)
        request = operator_service_pb2.TerminateJobRequest(**named(job_id))
        answer = await stubs.operators.TerminateJob(request, timeout=S)
        await joined.until(lambda: joined.cancels)
        ended = (await running).job

    assert (answer.job.state, answer.job.failure.kind) == (common_pb2.JOB_STATE_FAILED, "TERMINATED")
    assert [(one.step_id, one.may_be_done, one.reason) for one in answer.job.remainders] == [
        ("flight", False, "the job was terminated"),
        ("pay", True, "has no undo"),
    ]
    assert ended.remainders == answer.job.remainders
    assert ended.remaining == ["flight", "pay"]
    assert joined.cancels[0].reason == agent_service_pb2.CANCEL_REASON_JOB_ENDING


async def test_history_names_the_actor(stubs: Stubs) -> None:
    """Also of a cancel."""
    job_id = await submit(stubs)
    await stubs.operators.PauseJob(operator_service_pb2.PauseJobRequest(**named(job_id)), timeout=S)
    await stubs.jobs.CancelJob(job_service_pb2.CancelJobRequest(**named(job_id)), timeout=S)

    request = job_service_pb2.GetJobHistoryRequest(job_id=job_id)
    events = (await stubs.jobs.GetJobHistory(request, timeout=S)).events
    acts = [(event.type, event.actor, event.detail) for event in events if event.actor]
    assert acts == [("JobPaused", "ada", "why"), ("JobCancelRequested", "ada", "why")]


async def test_undone_steps_are_listed(stubs: Stubs) -> None:
    """A job that was undone says which steps were."""
    run_request = job_service_pb2.RunJobRequest(job=nodes.submission("trip"))

    def handler(offer: agent_service_pb2.Offer) -> agent_service_pb2.AttemptReport:
        return failed(offer) if offer.action == "pay" else succeeded(offer, offer.input)

    async with agent(stubs, "flight", "pay", "cancel-flight", handler=handler):
        ended = (await stubs.jobs.RunJob(run_request, timeout=S)).job

    assert list(ended.undone) == ["flight"]
    assert list(ended.remaining) == []


@pytest.mark.parametrize(
    ("field", "value", "rule"),
    [
        ("reason", "x" * (L.reason_chars_max + 1), f"has {L.reason_chars_max + 1} characters"),
        ("actor", "x" * (L.actor_chars_max + 1), f"has {L.actor_chars_max + 1} characters"),
        ("actor", "a\0", "must not hold a NUL"),
        ("reason", "", "is empty"),
    ],
)
async def test_text_is_bounded(stubs: Stubs, field: str, value: str, rule: str) -> None:
    """At the bound it is taken; one past it is refused with the field and the bound."""
    job_id = await submit(stubs)
    request = operator_service_pb2.TerminateJobRequest(**named(job_id) | {field: value})
    refusal = await nodes.refused(stubs.operators.TerminateJob(request, timeout=S))
    at_bound = operator_service_pb2.TerminateJobRequest(
        job_id=job_id, reason="x" * L.reason_chars_max, actor="y" * L.actor_chars_max
    )
    taken = await stubs.operators.TerminateJob(at_bound, timeout=S)

    assert (refusal.reason, refusal.violations[0][0]) == ("INVALID_ARGUMENT", field)
    assert rule in refusal.violations[0][1]
    assert taken.job.state == common_pb2.JOB_STATE_FAILED


async def test_output_is_checked(stubs: Stubs) -> None:
    """Before anything is written: it must be what it says it is, and fit."""
    job_id = await submit(stubs)
    wrong = operator_service_pb2.SkipStepRequest(**named(job_id), step_id="flight", output=nodes.json_payload(b"{"))
    large = common_pb2.Payload(data=b"x" * (L.payload_bytes_max + 1), encoding="bytes")
    too_large = operator_service_pb2.SkipStepRequest(**named(job_id), step_id="flight", output=large)
    refusals = [await nodes.refused(stubs.operators.SkipStep(one, timeout=S)) for one in (wrong, too_large)]

    assert [refusal.reason for refusal in refusals] == ["INVALID_ARGUMENT", "PAYLOAD_TOO_LARGE"]
    assert step_states(await get(stubs, job_id))["flight"] == "READY"


async def test_refusals_name_the_state(stubs: Stubs) -> None:
    """And what does not exist."""
    job_id = await submit(stubs)
    retry = operator_service_pb2.RetryStepRequest
    asked = [
        retry(**named(job_id), step_id="pay"),
        retry(**named(job_id), step_id="hotel"),
        retry(**named("0-1"), step_id="pay"),
    ]
    refusals = [await nodes.refused(stubs.operators.RetryStep(one, timeout=S)) for one in asked]

    assert [(refusal.reason, refusal.code) for refusal in refusals] == [
        ("STEP_STATE", grpc.StatusCode.FAILED_PRECONDITION),
        ("STEP_NOT_FOUND", grpc.StatusCode.NOT_FOUND),
        ("JOB_NOT_FOUND", grpc.StatusCode.NOT_FOUND),
    ]
    assert refusals[0].metadata["state"] == "PENDING"


async def typed(stubs_address: str, *arguments: str) -> Ran:
    """A command line of its own, which blocks."""
    return await asyncio.to_thread(run, "job", *arguments, "--server", stubs_address)


async def test_the_command_line_from_an_escalation_to_the_end(tmp_path: Path) -> None:
    """A person is told what to do, does it, and the history says who."""
    async with nodes.running(tmp_path / "data") as node, nodes.connected(node.address) as stubs:
        pay = definition_pb2.Step(id="pay", effect=definition_pb2.EFFECT_NON_IDEMPOTENT)
        await nodes.define(stubs, "trip", pay, definition_pb2.Step(id="tell", needs=["pay"]))
        async with agent(stubs, "pay", handler=silent) as joined:
            job_id = await submit(stubs)
            await joined.until(lambda: joined.offers)
            ref = joined.offers[0].attempt
            report = agent_service_pb2.AttemptReport
            unknown = agent_service_pb2.Unknown(kind="NoAnswer")
            await joined.report(report(attempt=ref, accepted=agent_service_pb2.Accepted()))
            await joined.report(report(attempt=ref, unknown=unknown))
            await joined.until(lambda: len(joined.answers) == 2)

        shown = await typed(node.address, "get", job_id)
        skipped = await typed(node.address, "skip", job_id, "pay", "--step-output", "7", "--reason", "by hand")
        paused = await typed(node.address, "pause", job_id)
        held = await typed(node.address, "get", job_id)
        resumed = await typed(node.address, "resume", job_id)
        retried = await typed(node.address, "retry", job_id, "pay")
        ended = await typed(node.address, "terminate", job_id, "--reason", "nobody tells")
        history = await typed(node.address, "history", job_id)

    assert f"try step pay again with: stepward job retry {job_id} pay" in shown.stderr
    assert f"step pay is passed over; job {job_id} is RUNNING" in skipped.stderr
    assert f"job {job_id} is PAUSED" in paused.stderr
    assert "tell  held back: the job is paused" in held.stdout
    assert f"job {job_id} is RUNNING" in resumed.stderr
    assert (retried.code, "is SKIPPED" in retried.stderr) == (4, True)
    assert "may still be done, and not undone: pay: has no undo" in ended.stderr
    assert sum(getpass.getuser() in line.split() for line in history.lines) == 4
