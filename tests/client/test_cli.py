"""The command line: what all its commands share, and the small ones."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from stepward.client import errors
from stepward.client.cli.demo import PLAYS
from stepward.client.cli.exits import ExitCode, code_of, code_of_state
from stepward.client.values import JobState
from stepward.v1 import (
    agent_service_pb2,
    job_service_pb2,
)
from tests.client.command_line import run
from tests.client.job_messages import job
from tests.client.scripted_server import ScriptedServer

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


def test_help_of_the_demo_has_a_line_for_each_play() -> None:
    """A paragraph that is filled would run them together."""
    lines = [line.strip() for line in run("demo", "--help").stdout.splitlines()]

    assert [sum(line.startswith(f"{play} ") for line in lines) for play in PLAYS] == [1, 1, 1]


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
        ["job", "run", "trip", "-i", "a=1", "-i", "a=2"],
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
    """The address that was tried."""
    ran = run("job", "list", "--server", "127.0.0.1:1")

    assert (ran.code, ran.stdout) == (5, "")
    assert "no stepward server answers at 127.0.0.1:1 (Connection refused)" in ran.stderr
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


def test_agent_list(server: ScriptedServer, at: list[str]) -> None:
    """Who is there, for what, and with how much room."""
    agent = agent_service_pb2.Agent(
        session_id="s", name="trip@host", queue="q", actions=["a", "b"], slots=4, slots_taken=1
    )
    agent.connected = True
    server.always("ListAgents", agent_service_pb2.ListAgentsResponse(agents=[agent]))

    assert run("agent", "list", *at).lines[1].split() == ["trip@host", "q", "a,b", "1/4", "connected", "s"]


@pytest.mark.parametrize("spelling", ["version", "--version"])
def test_version(spelling: str) -> None:
    """Of stepward and what it stands on, in both ways in which people ask."""
    ran = run(spelling)

    assert ran.code == 0
    assert ran.stdout.startswith("stepward ")
    assert "grpcio" in ran.stdout


@pytest.mark.parametrize("arguments", [["version"], ["--help"], ["job", "list", "--server", "HERE"]])
def test_output_onto_a_full_disk(server: ScriptedServer, arguments: list[str]) -> None:
    """One line and code 1, also when Python flushes at its end."""
    server.always("ListJobs", job_service_pb2.ListJobsResponse(jobs=[job()]))
    with Path("/dev/full").open("w") as full:
        ran = subprocess.run(
            [sys.executable, "-m", "stepward.client.console"]
            + [one.replace("HERE", f"127.0.0.1:{server.port}") for one in arguments],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )

    assert (ran.returncode, ran.stderr) == (1, "error: the output cannot be written: No space left on device\n")


def test_ctrl_c_while_it_loads_is_quiet() -> None:
    """It ends of the signal, as a program does that has no handler yet, and no traceback is printed."""
    script = (
        "import os, signal, sys\n"
        "class Finder:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'stepward.client.cli.job': os.kill(os.getpid(), signal.SIGINT)\n"
        "sys.meta_path.insert(0, Finder())\n"
        "from stepward.client.console import main; main()"
    )
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)

    assert (ran.returncode, ran.stdout, ran.stderr) == (-signal.SIGINT, "", "")


def test_pages_of_the_demo_that_cannot_be_written() -> None:
    """Said before anything is started."""
    ran = run("demo", "--docs", "/proc/nowhere")

    assert (ran.code, ran.stdout) == (2, "")
    assert "--docs: nothing can be written into /proc/nowhere: No such file" in " ".join(ran.stderr.split())


def test_without_utf8_in_the_locale(server: ScriptedServer) -> None:
    """What was typed cannot be read then, which is said; what is printed into a pipe is UTF-8 all the same."""
    server.on("ListJobs", job_service_pb2.ListJobsResponse(jobs=[job(labels={"who": "Zoë"})]))
    environment = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    command = [
        sys.executable,
        "-c",
        "from stepward.client.cli import main; main()",
        "--server",
        f"127.0.0.1:{server.port}",
        "job",
    ]

    submitted = subprocess.run(
        [*command, "submit", "trip", "-i", "who=Zoë"], env=environment, capture_output=True, check=False
    )
    listed = subprocess.run([*command, "list", "-o", "json"], env=environment, capture_output=True, check=False)

    assert submitted.returncode == 2
    assert b"is not text in the locale of this terminal" in submitted.stderr
    assert "Zoë" in listed.stdout.decode()
