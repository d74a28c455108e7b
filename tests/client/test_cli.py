"""The command line against a real server that answers by a script."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import grpc
import pytest

from stepward.client import errors
from stepward.client.cli.exits import ExitCode, code_of, code_of_state
from stepward.client.values import JobState
from stepward.v1 import (
    agent_service_pb2,
    cluster_service_pb2,
    common_pb2,
    definition_pb2,
    definition_service_pb2,
    job_pb2,
    job_service_pb2,
)
from tests.client.command_line import run
from tests.client.scripted_server import COMMIT_UNKNOWN, Refused, ScriptedServer, Silence

SUBMITTED = job_service_pb2.SubmitJobResponse(job_id="0-1", state=common_pb2.JOB_STATE_RUNNING, revision=7)
NO_JOB = Refused(grpc.StatusCode.NOT_FOUND, "JOB_NOT_FOUND", "there is no job x")
NO_DEFINITION = Refused(grpc.StatusCode.NOT_FOUND, "DEFINITION_NOT_FOUND", "there is no definition tripp")
TRIP = "name: trip\nsteps:\n  - id: a\n  - id: b\n    needs: [aa]\n"


def job(state: str = "RUNNING", **fields: Any) -> job_pb2.Job:
    number = common_pb2.JobState.Value(f"JOB_STATE_{state}")
    defaults: dict[str, Any] = {"job_id": "0-1", "definition_name": "trip", "definition_version": 2, "revision": 1}
    return job_pb2.Job(state=number, **defaults | fields)


def step(step_id: str, state: str, **fields: Any) -> job_pb2.JobStep:
    number = common_pb2.StepState.Value(f"STEP_STATE_{state}")
    return job_pb2.JobStep(step_id=step_id, state=number, action="book", queue="trip", **fields)


def watched(*jobs: job_pb2.Job) -> list[job_service_pb2.WatchJobResponse]:
    return [job_service_pb2.WatchJobResponse(job=one) for one in jobs]


@pytest.fixture
def at(server: ScriptedServer) -> list[str]:
    """The options that lead a command to the scripted server."""
    server.always("ListAgents", agent_service_pb2.ListAgentsResponse())
    return ["--server", server.address]


EXITS = {
    errors.JobNotFound: 3,
    errors.DefinitionNotFound: 3,
    errors.IdempotencyConflict: 4,
    errors.JobEnded: 4,
    errors.Unreachable: 5,
    errors.NoLeader: 5,
    errors.CommitUnknown: 5,
    errors.Overloaded: 5,
    errors.WaitTimedOut: 124,
    errors.InvalidArgument: 1,
    errors.InternalFault: 1,
    errors.UnknownAnswer: 1,
}


@pytest.mark.parametrize(("kind", "code"), EXITS.items(), ids=lambda value: getattr(value, "__name__", None))
def test_exit_code_of_an_error(kind: type[errors.StepwardError], code: int) -> None:
    """Part of the interface: scripts compare them."""
    assert code_of(kind("x")) == code


@pytest.mark.parametrize("state", JobState)
def test_exit_code_of_a_state(state: JobState) -> None:
    """Each end of a job is told apart."""
    expected = {"FAILED": 10, "COMPENSATED": 10, "CANCELLED": 11, "ESCALATED": 12}

    assert code_of_state(state) == expected.get(state, 0)


def test_help_names_the_exit_codes() -> None:
    """All of them."""
    text = run("--help").stdout

    assert all(str(code.value) in text for code in ExitCode)


def test_help_is_fast() -> None:
    """Nothing heavy is imported before a command needs it."""
    script = (
        "import sys; from stepward.client.cli import main; main(['--help'], standalone_mode=False); "
        "sys.exit(str([name for name in ('grpc', 'rich', 'google.protobuf', 'ruamel.yaml', 'msgspec', 'asyncio') "
        "if name in sys.modules]))"
    )
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)

    assert result.stderr.strip() == "[]"


@pytest.mark.parametrize(
    "arguments",
    [
        ["nonsense"],
        ["job", "run"],
        ["job", "list", "--state", "RUNING"],
        ["job", "list", "--limit", "0"],
        ["--server", "http://x", "job", "get", "0-1"],
        ["job", "run", "trip", "-i", '{"a": }'],
        ["job", "run", "trip", "-i", "a=1", "-i", '{"b": 1}'],
        ["job", "run", "trip", "-i", "@/no/such/file"],
        ["job", "run", "trip", "--label", "x"],
        ["job", "run", "trip", "--wait-max", "30"],
        ["-o", "xml", "job", "list"],
    ],
)
def test_usage_errors(arguments: list[str]) -> None:
    """Code 2, the reason on stderr, and nothing on stdout."""
    ran = run(*arguments)

    assert (ran.code, ran.stdout) == (2, "")
    assert ran.stderr


def test_no_server() -> None:
    """The address that was tried, and what to type."""
    ran = run("job", "list", "--server", "127.0.0.1:1")

    assert (ran.code, ran.stdout) == (5, "")
    assert "no stepward server answers at 127.0.0.1:1" in ran.stderr
    assert "start one with: stepward dev" in ran.stderr
    assert "Traceback" not in ran.stderr


@pytest.mark.parametrize(
    ("arguments", "environment"),
    [
        (["--server", "HERE", "job", "get", "0-1"], {}),
        (["job", "get", "0-1", "--server", "HERE"], {}),
        (["job", "get", "0-1"], {"STEPWARD_SERVER": "HERE"}),
        # The nearer one wins.
        (["--server", "127.0.0.1:1", "job", "get", "0-1", "--server", "HERE"], {}),
        (["--server", "HERE", "job", "get", "0-1"], {"STEPWARD_SERVER": "127.0.0.1:1"}),
        # Several addresses.
        (["job", "get", "0-1", "--server", "127.0.0.1:1", "--server", "HERE"], {}),
        (["job", "get", "0-1"], {"STEPWARD_SERVER": "127.0.0.1:1,HERE"}),
    ],
)
def test_which_server(server: ScriptedServer, at: list[str], arguments: list[str], environment: dict[str, str]) -> None:
    """Behind the command, before it, in the environment."""
    server.on("GetJob", job_service_pb2.GetJobResponse(job=job()))
    here = {key: value.replace("HERE", server.address) for key, value in environment.items()}

    assert run(*(one.replace("HERE", server.address) for one in arguments), environment=here).code == 0


def test_namespace(server: ScriptedServer, at: list[str]) -> None:
    """By option, or from the environment."""
    server.always("ListJobs", job_service_pb2.ListJobsResponse())
    run("job", "list", *at, "--namespace", "n")
    run("job", "list", *at, environment={"STEPWARD_NAMESPACE": "e"})
    run("job", "list", *at)

    assert [request.namespace for request in server.requests("ListJobs")] == ["n", "e", "default"]


@pytest.mark.parametrize(
    ("arguments", "stdin", "data"),
    [
        ([], None, None),
        (["-i", '{"a":  1.10}'], None, b'{"a":  1.10}'),
        (["-i", "[1]"], None, b"[1]"),
        (["-i", "who=ann", "-i", "n=3", "-i", "t=a=b", "-i", "e="], None, b'{"who":"ann","n":3,"t":"a=b","e":""}'),
        (["-i", "@-"], '{"b": 2}\n', b'{"b": 2}'),
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


def test_submit_sends_everything(server: ScriptedServer, at: list[str]) -> None:
    """Key, labels and version."""
    server.on("SubmitJob", SUBMITTED)

    ran = run(
        *at, "job", "submit", "trip", "--key", "k", "--label", "a=b", "--label", "c=", "--version", "3", "-o", "json"
    )

    sent = server.requests("SubmitJob")[0].job
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
        'a  READY  waits for an agent that offers "book" on queue "trip"',
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
    if state != "ESCALATED":
        assert "why: a: SoldOut: no seat" in ran.stderr
        assert "still done, and not undone: hotel" in ran.stderr


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
    file.write_text(TRIP)
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


@pytest.mark.parametrize(
    ("stored", "hint"),
    [
        (["trip", "other"], 'did you mean "trip"?'),
        ([], "no definition is stored yet; store one with: stepward definition apply FILE"),
    ],
)
def test_unknown_definitions(server: ScriptedServer, at: list[str], stored: list[str], hint: str) -> None:
    """The same for definitions, wherever they are named."""
    versions = [
        definition_pb2.DefinitionVersion(definition=definition_pb2.Definition(name=name), version=1) for name in stored
    ]
    server.always("SubmitJob", NO_DEFINITION)
    server.always("GetDefinition", NO_DEFINITION)
    server.always("ListDefinitions", definition_service_pb2.ListDefinitionsResponse(versions=versions))

    for arguments in (["job", "submit", "tripp"], ["job", "run", "tripp"], ["definition", "get", "tripp"]):
        ran = run(*arguments, *at)
        assert (ran.code, ran.stdout) == (3, "")
        assert hint in ran.stderr


def test_get_shows_the_tree(server: ScriptedServer, at: list[str]) -> None:
    """Also why a step waits, and whether its agent is still there."""
    held = step("a", "RUNNING", attempts=1, attempts_max=5, session_id="s")
    server.on("GetJob", job_service_pb2.GetJobResponse(job=job(steps=[held])))
    server.on("ListAgents", agent_service_pb2.ListAgentsResponse(agents=[agent_service_pb2.Agent(session_id="s")]))

    ran = run("job", "get", "0-1", *at)

    assert ran.lines == ["job 0-1  trip v2  RUNNING", "└─ ▶ a  agent lost"]


def many(count: int) -> job_service_pb2.ListJobsResponse:
    return job_service_pb2.ListJobsResponse(jobs=[job(job_id=f"0-{n}") for n in range(count)])


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
    assert server.requests("ListJobs")[0].states == [common_pb2.JOB_STATE_FAILED, common_pb2.JOB_STATE_RUNNING]
    assert (len(limited.lines), limited.stderr) == (4, "there are more than 3; --limit or --all shows them\n")
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


def test_cancel(server: ScriptedServer, at: list[str]) -> None:
    """What to do next is said on stderr; a job that has ended is a conflict."""
    server.on("CancelJob", job_service_pb2.CancelJobResponse(job=job("COMPENSATING")))
    server.always("CancelJob", Refused(grpc.StatusCode.FAILED_PRECONDITION, "JOB_ENDED", "it has ended"))

    cancelled = run("job", "cancel", "0-1", *at, "--reason", "no longer wanted")
    ended = run("job", "cancel", "0-1", *at)

    assert (cancelled.code, cancelled.stdout) == (0, "")
    assert "job 0-1 is COMPENSATING" in cancelled.stderr
    assert server.requests("CancelJob")[0].reason == "no longer wanted"
    assert (ended.code, ended.stderr) == (4, "error: it has ended\n")


INVALID = Refused(
    grpc.StatusCode.INVALID_ARGUMENT,
    "INVALID_DEFINITION",
    "1 rule is broken",
    violations=(("definition.steps[1].needs[0]", "no such step"),),
)


def test_definition_apply(server: ScriptedServer, at: list[str], tmp_path: Path) -> None:
    """What the server refuses is led back to its line."""
    file = tmp_path / "trip.yaml"
    file.write_text(TRIP)
    version = definition_pb2.DefinitionVersion(definition=definition_pb2.Definition(name="trip"), version=1)
    server.on(
        "ApplyDefinition", definition_service_pb2.ApplyDefinitionResponse(version=version, created=False), INVALID
    )

    unchanged = run("definition", "apply", str(file), *at)
    refused = run("definition", "apply", str(file), *at)
    file.write_text("name: [")
    broken = run("definition", "apply", str(file), *at)

    assert (unchanged.code, unchanged.stdout) == (0, "definition trip version 1 unchanged\n")
    assert (refused.code, refused.stdout) == (1, "")
    assert refused.stderr.splitlines()[0] == f"{file}:5:13: definition.steps[1].needs[0]: no such step"
    assert (broken.code, broken.stdout) == (1, "")
    assert f"{file}:1:8: broken YAML" in broken.stderr
    assert len(server.requests("ApplyDefinition")) == 2


def test_definition_validate(server: ScriptedServer, at: list[str], tmp_path: Path) -> None:
    """As a compiler prints it, or as JSON lines."""
    file = tmp_path / "trip.yaml"
    file.write_text(TRIP)
    violation = definition_service_pb2.Violation(field="steps[1].needs[0]", description="no such step")
    server.on("ValidateDefinition", definition_service_pb2.ValidateDefinitionResponse())
    server.always("ValidateDefinition", definition_service_pb2.ValidateDefinitionResponse(violations=[violation]))

    fine = run("definition", "validate", str(file), *at)
    wrong = run("definition", "validate", str(file), *at)
    as_lines = run("definition", "validate", str(file), *at, "-o", "jsonl")
    alone = run("definition", "validate", str(file), "--server", "127.0.0.1:1")

    assert (fine.code, fine.stdout) == (0, f"{file}: fine\n")
    assert (wrong.code, wrong.stdout) == (1, f"{file}:5:13: steps[1].needs[0]: no such step\n")
    assert as_lines.json == {
        "file": str(file),
        "line": 5,
        "column": 13,
        "field": "steps[1].needs[0]",
        "description": "no such step",
    }
    assert alone.code == 5
    assert "the form of all files is right" in alone.stderr


def test_definition_get_and_list(server: ScriptedServer, at: list[str]) -> None:
    """A definition comes out as a file that can go in again."""
    trip = definition_pb2.Definition(name="trip", steps=[definition_pb2.Step(id="a", input='{"b":"${input.b}"}')])
    version = definition_pb2.DefinitionVersion(definition=trip, version=3, hash="abcdef0123456789")
    server.always("GetDefinition", definition_service_pb2.GetDefinitionResponse(version=version))
    server.always("ListDefinitions", definition_service_pb2.ListDefinitionsResponse(versions=[version]))

    got = run("definition", "get", "trip", *at)
    listed = run("definition", "list", *at)

    assert got.stdout == "name: trip\nsteps:\n- id: a\n  input:\n    b: ${input.b}\n"
    assert listed.lines[1].split() == ["trip", "3", "1", "abcdef012345"]
    assert run("definition", "get", "trip", *at, "-o", "json").json["version"] == 3


def test_cluster_status(server: ScriptedServer, second_server: ScriptedServer, at: list[str]) -> None:
    """Every address is asked; one that does not answer makes the code 5 and does not hide the others."""
    for number, node in enumerate((server, second_server)):
        count = cluster_service_pb2.JobCount(state=common_pb2.JOB_STATE_RUNNING, count=3)
        shard = cluster_service_pb2.ShardStatus(leader=number == 0, leader_id="n0", sequence=9, jobs=[count])
        node.always("GetStatus", cluster_service_pb2.GetStatusResponse(node_id=f"n{number}", shards=[shard]))

    both = run("cluster", "status", *at, "--server", second_server.address)
    partly = run("cluster", "status", *at, "--server", "127.0.0.1:1", "-o", "jsonl")

    assert both.code == 0
    assert [line.split()[:3] for line in both.lines[-2:]] == [["n0", "0", "leader"], ["n1", "0", "follower"]]
    assert both.lines[-1].endswith("3 RUNNING")
    assert partly.code == 5
    assert partly.json["node_id"] == "n0"
    assert "127.0.0.1:1" in partly.stderr


def test_agent_list(server: ScriptedServer, at: list[str]) -> None:
    """Who is there, for what, and with how much room."""
    agent = agent_service_pb2.Agent(
        session_id="s", name="trip@host", queue="q", actions=["a", "b"], slots=4, slots_taken=1
    )
    agent.connected = True
    server.always("ListAgents", agent_service_pb2.ListAgentsResponse(agents=[agent]))

    assert run("agent", "list", *at).lines[1].split() == ["trip@host", "q", "a,b", "1/4", "connected", "s"]


def test_version() -> None:
    """Of stepward and what it stands on."""
    ran = run("version")

    assert ran.code == 0
    assert ran.stdout.startswith("stepward ")
    assert "grpcio" in ran.stdout
