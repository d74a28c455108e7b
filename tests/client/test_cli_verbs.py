"""What a person does by hand on the command line, against a real server that answers by a script."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.json_format import MessageToDict

from stepward.client.cli import job_verbs
from stepward.v1 import job_pb2, job_service_pb2, operator_service_pb2
from tests.client.command_line import run
from tests.client.job_messages import job
from tests.client.scripted_server import Refused, ScriptedServer

WATCH = "follow it with: stepward job watch 0-1"


def test_cancel(server: ScriptedServer, at: list[str]) -> None:
    """What to do next is said on stderr; a job that has ended is a conflict."""
    server.on("CancelJob", job_service_pb2.CancelJobResponse(job=job("COMPENSATING")))
    server.on("CancelJob", job_service_pb2.CancelJobResponse(job=job("CANCELLED"), already=True))
    server.always("CancelJob", Refused(grpc.StatusCode.FAILED_PRECONDITION, "JOB_ENDED", "it has ended"))

    cancelled = run("job", "cancel", "0-1", *at, "--reason", "no longer wanted", "--actor", "ada")
    again = run("job", "cancel", "0-1", *at)
    ended = run("job", "cancel", "0-1", *at)

    assert (cancelled.code, cancelled.stdout) == (0, "")
    assert f"job 0-1 is COMPENSATING; {WATCH}" in cancelled.stderr
    assert again.stderr == "job 0-1 is CANCELLED: it was cancelled, and has ended\n"
    asked = server.requests("CancelJob")[0]
    assert (asked.reason, asked.actor) == ("no longer wanted", "ada")
    assert (ended.code, ended.stderr) == (4, "error: it has ended\n")


@pytest.mark.parametrize(
    ("arguments", "rpc", "state", "asked", "says"),
    [
        (
            ["pause", "0-1"],
            "PauseJob",
            "PAUSED",
            {},
            "job 0-1 is PAUSED; let it go on with: stepward job resume 0-1",
        ),
        (["resume", "0-1"], "ResumeJob", "RUNNING", {}, f"job 0-1 is RUNNING; {WATCH}"),
        (
            ["retry", "0-1", "a"],
            "RetryStep",
            "RUNNING",
            {"step_id": "a"},
            f"step a is tried again; job 0-1 is RUNNING; {WATCH}",
        ),
        (
            ["skip", "0-1", "a"],
            "SkipStep",
            "RUNNING",
            {"step_id": "a"},
            f"step a is passed over; job 0-1 is RUNNING; {WATCH}",
        ),
        (
            ["skip", "0-1", "a", "--step-output", '{"price": 1.10}'],
            "SkipStep",
            "COMPLETED",
            {"step_id": "a", "output": {"data": "eyJwcmljZSI6IDEuMTB9", "encoding": "json/utf-8"}},
            "step a is passed over; job 0-1 is COMPLETED",
        ),
        (
            ["skip", "0-1", "a", "--undone"],
            "SkipStep",
            "COMPENSATING",
            {"step_id": "a", "undone": True},
            f"step a is passed over; job 0-1 is COMPENSATING; {WATCH}",
        ),
    ],
)
def test_verbs(
    server: ScriptedServer,
    at: list[str],
    arguments: list[str],
    rpc: str,
    state: str,
    asked: dict[str, Any],
    says: str,
) -> None:
    """What was asked for, who asks and why; then what became of the job, and what to do next."""
    answer: Any = getattr(operator_service_pb2, f"{rpc}Response")
    server.on(rpc, answer(job=job(state)))

    ran = run("job", *arguments, *at, "--reason", "why", "--actor", "ada")

    again = f" --server {server.address}" if " with: " in says else ""
    assert (ran.code, ran.stdout, ran.stderr) == (0, "", f"{says}{again}\n")
    (request,) = server.requests(rpc)
    expected = {"job_id": "0-1", "reason": "why", "actor": "ada", **asked}
    assert MessageToDict(request, preserving_proto_field_name=True) == expected


@pytest.mark.parametrize(
    ("arguments", "rpc", "state", "says"),
    [
        (["terminate", "0-1", "--reason", "why"], "TerminateJob", "FAILED", "it was terminated before"),
        (["pause", "0-1"], "PauseJob", "PAUSED", "is PAUSED (was so before)"),
        (["resume", "0-1"], "ResumeJob", "RUNNING", "is RUNNING (was not paused)"),
        (["retry", "0-1", "a"], "RetryStep", "RUNNING", "step a is being tried already"),
        (["skip", "0-1", "a"], "SkipStep", "RUNNING", "step a was passed over before; job"),
        (
            ["skip", "0-1", "a", "--step-output", "7"],
            "SkipStep",
            "RUNNING",
            "passed over before, and keeps the output of that time; the one that was given now is not taken; job",
        ),
    ],
)
def test_twice_is_said(
    server: ScriptedServer, at: list[str], arguments: list[str], rpc: str, state: str, says: str
) -> None:
    """Nothing was left to do, and that is no error."""
    answer: Any = getattr(operator_service_pb2, f"{rpc}Response")
    server.on(rpc, answer(job=job(state), already=True))

    ran = run("job", *arguments, *at)

    assert ran.code == 0
    assert says in ran.stderr


def test_terminate_lists_what_remains(server: ScriptedServer, at: list[str]) -> None:
    """Each with why, and whether anybody knows."""
    left = [
        job_pb2.Remainder(step_id="a", reason="the job was terminated"),
        job_pb2.Remainder(step_id="b", may_be_done=True, reason="has no undo"),
    ]
    ended = job("FAILED", remainders=left, remaining=["a", "b"])
    server.always("TerminateJob", operator_service_pb2.TerminateJobResponse(job=ended))

    ran = run("job", "terminate", "0-1", *at, "--reason", "why", "--actor", "ada")
    as_json = run("job", "terminate", "0-1", *at, "--reason", "why", "-o", "json")

    assert (ran.code, ran.stdout) == (0, "")
    assert ran.stderr.splitlines() == [
        "job 0-1 is FAILED: it was terminated",
        "still done, and not undone: a: the job was terminated",
        "may still be done, and not undone: b: has no undo",
    ]
    assert [one["step_id"] for one in as_json.json["remainders"]] == ["a", "b"]


def test_terminate_needs_a_reason(server: ScriptedServer, at: list[str]) -> None:
    """It leaves work half undone; nothing is asked of the server without a reason."""
    ran = run("job", "terminate", "0-1", *at)

    assert ran.code == 2
    assert "--reason" in ran.stderr
    assert server.requests("TerminateJob") == []


def test_actor_is_the_user_of_this_machine(
    server: ScriptedServer, at: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By default; a machine that has no name for him says nothing."""
    server.always("PauseJob", operator_service_pb2.PauseJobResponse(job=job("PAUSED")))
    run("job", "pause", "0-1", *at, environment={"LOGNAME": "ada"})

    def nobody() -> str:
        raise OSError

    monkeypatch.setattr("getpass.getuser", nobody)
    run("job", "pause", "0-1", *at)

    assert [request.actor for request in server.requests("PauseJob")] == ["ada", job_verbs.user_name()]
    assert job_verbs.user_name() == ""


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ("{", "--step-output:1:2: broken JSON"),
        ("@no-such-file", "no-such-file: No such file"),
    ],
)
def test_output_that_is_none(server: ScriptedServer, at: list[str], given: str, says: str) -> None:
    """It says where it is broken, and nothing is asked of the server."""
    ran = run("job", "skip", "0-1", "a", *at, "--step-output", given)

    assert ran.code == 2
    assert says in ran.stderr
    assert server.requests("SkipStep") == []


def test_output_from_a_file(server: ScriptedServer, at: list[str], tmp_path: Path) -> None:
    """Byte for byte."""
    file = tmp_path / "output.json"
    file.write_text('{"price":  1.10}\n')
    server.on("SkipStep", operator_service_pb2.SkipStepResponse(job=job("RUNNING")))

    run("job", "skip", "0-1", "a", *at, "--step-output", f"@{file}")

    assert server.requests("SkipStep")[0].output.data == b'{"price":  1.10}'
