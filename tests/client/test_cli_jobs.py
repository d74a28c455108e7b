"""`stepward job` against a real server that answers by a script."""

from __future__ import annotations

from pathlib import Path

import grpc
import pytest

from stepward.client.channels import SEND_BYTES_MAX
from stepward.v1 import (
    agent_service_pb2,
    common_pb2,
    definition_pb2,
    definition_service_pb2,
    job_pb2,
    job_service_pb2,
)
from tests.client.command_line import run
from tests.client.job_messages import SUBMITTED, job, step, watched
from tests.client.scripted_server import COMMIT_UNKNOWN, Refused, ScriptedServer, Silence

NO_JOB = Refused(grpc.StatusCode.NOT_FOUND, "JOB_NOT_FOUND", "there is no job x")


@pytest.mark.parametrize(
    ("arguments", "stdin", "data"),
    [
        ([], None, None),
        (["-i", '{"a":  1.10}'], None, b'{"a":  1.10}'),
        (["-i", "[1]"], None, b"[1]"),
        (["-i", "who=ann", "-i", "n=3", "-i", "t=a=b", "-i", "e="], None, b'{"who":"ann","n":3,"t":"a=b","e":""}'),
        (["-i", "@-"], '{"b": 2}\n', b'{"b": 2}'),
        # Beside a document, key=value goes before its members; what it leaves alone keeps its digits.
        (["-i", "@-", "-i", "b=none", "-i", "n=3"], '{"a": 1.10, "b": 2}', b'{"a":1.10,"b":"none","n":3}'),
        (["-i", "b=3", "-i", '{"b": 2}'], None, b'{"b":3}'),
        (["-i", "@FILE"], None, b'{"c": 3}'),
    ],
)
def test_inputs(
    server: ScriptedServer, at: list[str], tmp_path: Path, arguments: list[str], stdin: str | None, data: bytes | None
) -> None:
    """JSON is passed on byte for byte."""
    file = tmp_path / "input.json"
    file.write_text('{"c": 3}')
    server.on("SubmitJob", SUBMITTED)

    ran = run("job", "submit", "trip", *at, *(one.replace("FILE", str(file)) for one in arguments), stdin=stdin)

    assert (ran.code, ran.stdout) == (0, "0-1\n")
    sent = server.requests("SubmitJob")[0].job
    assert sent.HasField("input") == (data is not None)
    assert sent.input.data == (data or b"")


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["-i", "a=1", "-i", "a=2"], "'a' is given twice"),
        (["-i", "{}", "-i", "[1]"], "'[1]' is not key=value; give one JSON document at most"),
        (["-i", "[1]", "-i", "a=2"], "key=value beside a document needs one that is a JSON object"),
        # What Python makes of UTF-8 in a locale that knows only ASCII.
        (["-i", "who=Zo\udcc3\udcab"], r"'who=Zo\udcc3\udcab' is not text in the locale of this terminal"),
        # Python takes them for numbers, and the encoder would write null.
        (["-i", "who=NaN"], "NaN is no number that JSON can hold; for the text write key='\"NaN\"'"),
        (["-i", "who=[1, -Infinity]"], "-Infinity is no number that JSON can hold"),
        (["-i", "who=1e999"], "1e999 is no number that JSON can hold"),
        (["--deadline", "soon"], "'soon' is not a duration"),
        (["--label", "who=\udcc3"], r"'who=\udcc3' is not text in the locale of this terminal"),
    ],
)
def test_inputs_that_make_no_sense(arguments: list[str], complaint: str) -> None:
    ran = run("job", "submit", "trip", *arguments)

    assert ran.code == 2
    assert complaint in ran.stderr


def test_submit_sends_everything(server: ScriptedServer, at: list[str]) -> None:
    """Key, labels, version and deadline."""
    server.on("SubmitJob", SUBMITTED)

    given = ("--key", "k", "--label", "a=b", "--label", "c=", "--version", "3", "--deadline", "1h30m")
    ran = run(*at, "job", "submit", "trip", *given, "-o", "json")

    sent = server.requests("SubmitJob")[0].job
    assert sent.deadline.ToSeconds() == 5_400
    assert (sent.idempotency_key, dict(sent.labels), sent.definition_version) == ("k", {"a": "b", "c": ""}, 3)
    assert ran.json == {
        "job_id": "0-1",
        "state": "JOB_STATE_RUNNING",
        "duplicate": False,
        "revision": "7",
        "idempotency_key": "k",
    }


def test_submit_says_how_to_repeat(server: ScriptedServer, at: list[str]) -> None:
    """Nobody knows whether it was stored; with the key it does not matter."""
    server.always("SubmitJob", COMMIT_UNKNOWN)

    ran = run("job", "submit", "trip", *at, "--timeout", "100ms")

    key = server.requests("SubmitJob")[0].job.idempotency_key
    assert (ran.code, ran.stdout) == (5, "")
    assert f"repeat the command with --key {key}" in ran.stderr


def test_run_gives_the_output_as_it_is(server: ScriptedServer, at: list[str]) -> None:
    """The output on stdout, byte for byte; everything else on stderr."""
    server.on("SubmitJob", SUBMITTED)
    output = common_pb2.Payload(data=b'{"ref":  1.10}')
    server.on(
        "WatchJob",
        watched(
            job(steps=[step("a", "READY"), step("b", "PENDING", needs=["a"])]),
            job(revision=2, steps=[step("a", "RUNNING", attempts=1, attempts_max=5)]),
            job("COMPLETED", revision=3, steps=[step("a", "SUCCEEDED", attempts=1)], output=output),
        ),
    )

    ran = run("job", "run", "trip", *at)

    assert (ran.code, ran.stdout) == (0, '{"ref":  1.10}\n')
    assert ran.stderr.splitlines() == [
        "job 0-1  trip v2  RUNNING",
        'a  READY  waits for an agent with a free slot that offers "book" on queue "trip"',
        "a  RUNNING  attempt 1/5",
        "a  SUCCEEDED  succeeded",
        "job 0-1  trip v2  COMPLETED",
    ]
    assert "\x1b" not in ran.stderr


@pytest.mark.parametrize(("state", "code"), [("FAILED", 10), ("COMPENSATED", 10), ("CANCELLED", 11), ("ESCALATED", 12)])
def test_run_tells_the_end_by_its_code(server: ScriptedServer, at: list[str], state: str, code: int) -> None:
    """No output, and the reason on stderr."""
    failure = common_pb2.Failure(kind="SoldOut", message="no seat", step_id="a")
    server.on("SubmitJob", SUBMITTED)
    server.on("WatchJob", watched(job(state, failure=failure, remaining=["hotel"])))

    ran = run("job", "run", "trip", *at)

    assert (ran.code, ran.stdout) == (code, "")
    assert "why: a: SoldOut: no seat" in ran.stderr
    assert "still done, and not undone: hotel" in ran.stderr
    assert ("undo it with: stepward job cancel 0-1 --server" in ran.stderr) == (state == "ESCALATED")


@pytest.mark.parametrize(
    ("job_state", "state", "says"),
    [
        (
            "ESCALATED",
            "ESCALATED",
            [
                "try step a again with: stepward job retry 0-1 a",
                "or pass over it with: stepward job skip 0-1 a",
                "or undo it with: stepward job cancel 0-1",
            ],
        ),
        (
            "ESCALATED",
            "UNDO_FAILED",
            [
                "try the undo of step a again with: stepward job retry 0-1 a",
                "or pass over it with: stepward job skip 0-1 a",
                "or leave what is not undone with: stepward job terminate 0-1 --reason WHY",
            ],
        ),
        ("PAUSED", "READY", ["let it go on with: stepward job resume 0-1"]),
        ("RUNNING", "READY", []),
    ],
)
def test_get_says_what_a_person_can_do(
    server: ScriptedServer, at: list[str], job_state: str, state: str, says: list[str]
) -> None:
    """The job waits for exactly that."""
    server.on("GetJob", job_service_pb2.GetJobResponse(job=job(job_state, steps=[step("a", state)])))
    server.on("ListAgents", agent_service_pb2.ListAgentsResponse())

    ran = run("job", "get", "0-1", *at)

    assert ran.stderr.splitlines() == [f"{line} --server {server.address}" for line in says]


def test_submit_that_found_no_server_cannot_have_been_stored() -> None:
    """A connection was refused each time: there is nothing to repeat with a key."""
    ran = run("job", "submit", "trip", "--server", "127.0.0.1:1", "--timeout", "200ms")

    assert ran.code == 5
    assert "no stepward server answers at 127.0.0.1:1" in ran.stderr
    assert "--key" not in ran.stderr


def test_single_complaint_is_said_once(server: ScriptedServer, at: list[str]) -> None:
    """The server's message is its first violation."""
    rule = "has 9 bytes; it must have at most 8"
    refused = Refused(
        grpc.StatusCode.INVALID_ARGUMENT,
        "PAYLOAD_TOO_LARGE",
        f"job.input.data {rule}",
        violations=(("job.input.data", rule),),
    )
    server.on("SubmitJob", refused)

    ran = run("job", "submit", "trip", *at)

    assert ran.stderr == f"error: job.input.data {rule}\n"


def test_input_that_no_message_can_carry(server: ScriptedServer, at: list[str], tmp_path: Path) -> None:
    """It is refused by gRPC itself, which gives no reason that a person could use."""
    file = tmp_path / "input.json"
    file.write_text('"' + "x" * SEND_BYTES_MAX + '"')

    ran = run("job", "submit", "trip", "-i", f"@{file}", *at)

    assert ran.code == 1
    assert "bytes, which is more than one message can have: store what is large elsewhere" in ran.stderr
    assert "RESOURCE_EXHAUSTED" not in ran.stderr


def test_run_as_json(server: ScriptedServer, at: list[str]) -> None:
    """The whole job, with proto field names and decoded payloads."""
    server.on("SubmitJob", SUBMITTED)
    ended = job(
        "COMPLETED",
        input=common_pb2.Payload(data=b'{"a":1}', encoding="json/utf-8"),
        output=common_pb2.Payload(data=b"\xff", encoding="x"),
        steps=[step("a", "SUCCEEDED", token=5, output=common_pb2.Payload(data=b"[1]"))],
    )
    server.on("WatchJob", watched(ended))

    ran = run("job", "run", "trip", *at, "-o", "json")

    assert ran.json["definition_name"] == "trip"
    assert ran.json["input"] == {"a": 1}
    assert ran.json["output"] == {"encoding": "x", "data": "/w=="}
    assert ran.json["steps"][0]["output"] == [1]
    assert ran.json["steps"][0]["token"] == "5"
    assert ran.json["cancel_requested"] is False


def test_run_of_a_file_stores_it_first(server: ScriptedServer, at: list[str], tmp_path: Path) -> None:
    """One command from a file to a result."""
    file = tmp_path / "trip.yaml"
    file.write_text("name: trip\nsteps: [{id: a}]\n")
    version = definition_pb2.DefinitionVersion(definition=definition_pb2.Definition(name="trip"), version=4)
    server.on("ApplyDefinition", definition_service_pb2.ApplyDefinitionResponse(version=version, created=True))
    server.on("SubmitJob", SUBMITTED)
    server.on("WatchJob", watched(job("COMPLETED")))

    ran = run("job", "run", str(file), *at)

    assert ran.code == 0
    assert server.requests("SubmitJob")[0].job.definition_name == "trip"
    assert "definition trip version 4 stored" in ran.stderr


def test_wait_max(server: ScriptedServer, at: list[str]) -> None:
    """The job goes on, and it is said how to find it again."""
    server.on("SubmitJob", SUBMITTED)
    server.on("WatchJob", [*watched(job()), Silence()])

    ran = run("job", "run", "trip", *at, "--wait-max", "100ms")

    assert (ran.code, ran.stdout) == (124, "")
    assert f"job 0-1 goes on; watch it with: stepward job watch 0-1 --server {server.address}" in ran.stderr
    assert f"stepward job cancel 0-1 --server {server.address}" in ran.stderr


@pytest.mark.parametrize(
    "arguments",
    [["job", "get", "0-2"], ["job", "history", "0-2"], ["job", "cancel", "0-2"], ["job", "watch", "0-2"]],
    ids=lambda arguments: arguments[1],
)
def test_unknown_jobs(server: ScriptedServer, at: list[str], arguments: list[str]) -> None:
    """Code 3, and those that may have been meant."""
    for method in ("GetJob", "GetJobHistory", "CancelJob", "WatchJob"):
        server.always(method, NO_JOB)
    server.always("ListJobs", job_service_pb2.ListJobsResponse(jobs=[job(job_id="0-2aaa"), job(job_id="0-1")]))

    ran = run(*arguments, *at)

    assert (ran.code, ran.stdout) == (3, "")
    assert "did you mean 0-2aaa?" in ran.stderr
    assert "there is no job x" in ran.stderr


def test_get_shows_the_tree(server: ScriptedServer, at: list[str]) -> None:
    """Also why a step waits, and whether its agent is still there."""
    held = step("a", "RUNNING", attempts=1, attempts_max=5, session_id="s")
    server.on("GetJob", job_service_pb2.GetJobResponse(job=job(steps=[held])))
    server.on("ListAgents", agent_service_pb2.ListAgentsResponse(agents=[agent_service_pb2.Agent(session_id="s")]))

    ran = run("job", "get", "0-1", *at)

    assert ran.lines == ["job 0-1  trip v2  RUNNING", "└─ ▶ a  agent lost"]


def many(count: int) -> job_service_pb2.ListJobsResponse:
    return job_service_pb2.ListJobsResponse(jobs=[job(job_id=f"0-{n}") for n in range(count)])


MORE = "there are more than 3; --limit or --all shows them, and stepward job count counts them\n"


def test_list(server: ScriptedServer, at: list[str]) -> None:
    """A table without colour or cuts; a hint when there is more; all of it as JSON."""
    failure = common_pb2.Failure(kind="SoldOut", message="no seat " * 40)
    server.on("ListJobs", job_service_pb2.ListJobsResponse(jobs=[job("FAILED", failure=failure), job(job_id="0-2")]))
    server.always("ListJobs", many(4))

    table = run("job", "list", *at, "--state", "failed,RUNNING", "--definition", "trip")
    limited = run("job", "list", *at, "--limit", "3")
    as_json = run("job", "list", *at, "-o", "json")
    as_lines = run("job", "list", *at, "-o", "jsonl", "--all")

    assert table.lines[0].split() == ["JOB", "DEFINITION", "STATE", "SUBMITTED", "TOOK", "WHY"]
    assert table.lines[1].rstrip().endswith("no seat")
    assert len(table.lines[1]) > 300
    assert "\x1b" not in table.stdout
    assert server.requests("ListJobs")[0].filter.states == [common_pb2.JOB_STATE_FAILED, common_pb2.JOB_STATE_RUNNING]
    assert (len(limited.lines), limited.stderr) == (4, MORE)
    assert [one["job_id"] for one in as_json.json] == ["0-0", "0-1", "0-2", "0-3"]
    assert len(as_lines.lines) == 4
    assert as_lines.stderr == ""


def test_watch_as_lines(server: ScriptedServer, at: list[str]) -> None:
    """One JSON document for each change, and the end in the exit code."""
    event = job_pb2.HistoryEvent(revision=2, type="StepStarted", token=5)
    changes = watched(job(), job("CANCELLED", revision=2))
    changes[1].events.append(event)
    server.on("WatchJob", changes)

    ran = run("job", "watch", "0-1", *at, "-o", "jsonl")

    assert ran.code == 11
    assert [line[:20] for line in ran.lines] == ['{"job":{"job_id":"0-', '{"job":{"job_id":"0-']
    assert '"type":"StepStarted"' in ran.lines[1]


def test_history(server: ScriptedServer, at: list[str]) -> None:
    """A row an event."""
    event = job_pb2.HistoryEvent(revision=2, type="StepStarted", step_id="a", attempt=1, token=5, detail="why")
    event.at.FromJsonString("2026-11-30T10:00:00.123Z")
    server.always("GetJobHistory", job_service_pb2.GetJobHistoryResponse(events=[event]))

    assert run("job", "history", "0-1", *at).lines[1].split() == [
        "2026-11-30",
        "10:00:00.123",
        "StepStarted",
        "a",
        "1",
        "5",
        "why",
    ]
    assert run("job", "history", "0-1", *at, "-o", "json").json[0]["token"] == "5"
