"""What a person does by hand, with both clients, against a real server that answers by a script."""

from __future__ import annotations

from typing import Any

import grpc
import pytest
from google.protobuf.json_format import MessageToDict

from stepward.client import errors
from stepward.client.values import Remainder
from stepward.v1 import common_pb2, job_pb2, job_service_pb2, operator_service_pb2
from tests.client.both_clients import BOTH, Driver
from tests.client.scripted_server import COMMIT_UNKNOWN, Refused, ScriptedServer

ANSWERS: dict[str, Any] = {
    "CancelJob": job_service_pb2.CancelJobResponse,
    "TerminateJob": operator_service_pb2.TerminateJobResponse,
    "PauseJob": operator_service_pb2.PauseJobResponse,
    "ResumeJob": operator_service_pb2.ResumeJobResponse,
    "RetryStep": operator_service_pb2.RetryStepResponse,
    "SkipStep": operator_service_pb2.SkipStepResponse,
}

both = pytest.mark.parametrize("drive", BOTH)


@both
@pytest.mark.parametrize(
    ("method", "arguments", "rpc", "asked"),
    [
        ("cancel", {}, "CancelJob", {}),
        ("terminate", {}, "TerminateJob", {}),
        ("pause", {}, "PauseJob", {}),
        ("resume", {}, "ResumeJob", {}),
        ("retry_step", {"step_id": "a"}, "RetryStep", {"step_id": "a"}),
        ("skip_step", {"step_id": "a"}, "SkipStep", {"step_id": "a"}),
        (
            "skip_step",
            {"step_id": "a", "output": {"n": 1}, "undone": True},
            "SkipStep",
            {"step_id": "a", "output": {"data": "eyJuIjoxfQ==", "encoding": "json/utf-8"}, "undone": True},
        ),
    ],
)
def test_what_is_done_by_hand_is_repeated(
    server: ScriptedServer, drive: Driver, method: str, arguments: dict[str, Any], rpc: str, asked: dict[str, Any]
) -> None:
    """Twice is once; reason and actor go along, and the answer says whether anything was left to do."""
    job = job_pb2.Job(job_id="0-1", state=common_pb2.JOB_STATE_PAUSED)
    server.on(rpc, COMMIT_UNKNOWN, ANSWERS[rpc](job=job, already=True))

    answer = drive(server.address, method, "0-1", reason="why", actor="ada", **arguments)

    expected = {"job_id": "0-1", "reason": "why", "actor": "ada", **asked}
    requests = [MessageToDict(one, preserving_proto_field_name=True) for one in server.requests(rpc)]
    assert requests == [expected, expected]
    if method != "cancel":
        assert (answer.job.state, answer.already) == ("PAUSED", True)


@both
def test_what_remains_is_read(server: ScriptedServer, drive: Driver) -> None:
    """Which steps were undone, which were not, and why."""
    left = job_pb2.Remainder(step_id="a", may_be_done=True, reason="has no undo")
    job = job_pb2.Job(job_id="0-1", state=common_pb2.JOB_STATE_FAILED, remainders=[left], undone=["b"])
    server.on("GetJob", job_service_pb2.GetJobResponse(job=job))

    read = drive(server.address, "get", "0-1")

    assert read.remainders == (Remainder(step_id="a", may_be_done=True, reason="has no undo"),)
    assert read.undone == ("b",)


@both
@pytest.mark.parametrize(
    ("reason", "error"),
    [
        ("JOB_STATE", errors.JobStateRefused),
        ("STEP_STATE", errors.StepStateRefused),
        ("JOB_ENDED", errors.JobEnded),
    ],
)
def test_refusals_are_conflicts(
    server: ScriptedServer, drive: Driver, reason: str, error: type[errors.Conflict]
) -> None:
    """Another state than the verb needs; the metadata names it."""
    refused = Refused(grpc.StatusCode.FAILED_PRECONDITION, reason, "not now", metadata={"state": "COMPENSATING"})
    server.on("PauseJob", refused)

    with pytest.raises(error) as caught:
        drive(server.address, "pause", "0-1")
    assert caught.value.metadata["state"] == "COMPENSATING"
