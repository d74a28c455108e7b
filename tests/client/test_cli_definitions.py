"""`stepward definition` against a real server that answers by a script."""

from __future__ import annotations

import json
from pathlib import Path

import grpc
import pytest
from google.protobuf.duration_pb2 import Duration

from stepward.client.cli.definition import NAMED_MAX
from stepward.v1 import (
    definition_pb2,
    definition_service_pb2,
)
from stepward.v1.definition_service_pb2 import DetectionLatency
from tests.client.command_line import run
from tests.client.scripted_server import Refused, ScriptedServer

NO_DEFINITION = Refused(grpc.StatusCode.NOT_FOUND, "DEFINITION_NOT_FOUND", "there is no definition tripp")
TRIP = "name: trip\nsteps:\n  - id: a\n  - id: b\n    needs: [aa]\n"


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


def test_a_version_that_does_not_exist(server: ScriptedServer, at: list[str]) -> None:
    """Its name was right, so only the version is spoken of."""
    stored = definition_pb2.DefinitionVersion(definition=definition_pb2.Definition(name="trip"), version=3)
    server.always("SubmitJob", NO_DEFINITION)
    server.always("GetDefinition", NO_DEFINITION)
    server.always("ListDefinitions", definition_service_pb2.ListDefinitionsResponse(versions=[stored]))

    for arguments in (["job", "run"], ["job", "submit"], ["definition", "get"]):
        ran = run(*arguments, "trip", "--version", "9", *at)
        assert ran.code == 3
        assert 'definition "trip" has no version 9; its newest is 3' in ran.stderr
        assert "did you mean" not in ran.stderr


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
    assert (wrong.code, wrong.lines) == (
        1,
        [f"{file}:5:13: steps[1].needs[0]: no such step", "  5 |     needs: [aa]", "    |             ^"],
    )
    assert as_lines.json == {
        "file": str(file),
        "line": 5,
        "column": 13,
        "field": "steps[1].needs[0]",
        "severity": "error",
        "description": "no such step",
    }
    assert alone.code == 5
    assert f"the form is right, the meaning needs a server: {file}" in alone.stderr


def test_definition_validate_warns_and_promises(server: ScriptedServer, at: list[str], tmp_path: Path) -> None:
    """What is hardly meant is told, and how soon trouble is noticed: each promise once, with those of whom it holds."""
    file = tmp_path / "trip.yaml"
    file.write_text(TRIP)
    within, text = Duration(seconds=16, nanos=934_000_000), "a crashed agent is ..."
    promises = [DetectionLatency(trouble="JOB_DEADLINE", text="a job that does not end is ...")]
    for step_id, part in (*((f"s{n}", "action") for n in range(NAMED_MAX)), ("s0", "undo")):
        lost = DetectionLatency(step_id=step_id, part=part, trouble="LEASE_LOST", within=within, text=text)
        promises.append(lost)
    warning = definition_service_pb2.Violation(field="steps[1]", description="it has no undo")
    answer = definition_service_pb2.ValidateDefinitionResponse(warnings=[warning], detections=promises)
    server.always("ValidateDefinition", answer)

    told = run("definition", "validate", str(file), *at)
    as_lines = run("definition", "validate", str(file), *at, "-o", "jsonl")

    assert told.code == as_lines.code == 0
    assert told.lines[0] == f"{file}:4:5: steps[1]: warning: it has no undo"
    assert told.lines[-3:] == [
        f"{file}: fine",
        "  the job: a job that does not end is ...",
        "  s0, s1, s2, s3, s4, s5, s6, s7 and 1 more: a crashed agent is ...",
    ]
    said = [json.loads(line) for line in as_lines.lines]
    assert (said[0]["severity"], said[0]["description"]) == ("warning", "it has no undo")
    assert said[2] == {
        "file": str(file),
        "step": "s0",
        "part": "action",
        "trouble": "LEASE_LOST",
        "within": "16s934ms",
        "description": "a crashed agent is ...",
    }
    assert len(said) == 1 + len(promises)


def test_definition_validate_tells_form_and_meaning_at_once(
    server: ScriptedServer, at: list[str], tmp_path: Path
) -> None:
    """What cannot be read is told beside what the server says of the others, and never sent."""
    broken, readable = tmp_path / "broken.yaml", tmp_path / "readable.yaml"
    broken.write_text("nam: x\nstep: []\n")
    readable.write_text(TRIP)
    violation = definition_service_pb2.Violation(field="steps[1].needs[0]", description="no such step")
    server.always("ValidateDefinition", definition_service_pb2.ValidateDefinitionResponse(violations=[violation]))

    both = run("definition", "validate", str(broken), str(readable), *at)
    as_lines = run("definition", "validate", str(broken), *at, "-o", "jsonl")
    applied = run("definition", "apply", str(broken), str(readable), *at)

    assert (both.code, as_lines.code, applied.code) == (1, 1, 1)
    assert both.stderr == f"not yet looked at by a server, which may find more: {broken}\n"
    assert [line.partition(": ")[0] for line in both.lines if line.startswith(str(tmp_path))] == [
        f"{broken}:1:1",
        f"{broken}:2:1",
        f"{readable}:5:13",
    ]
    assert json.loads(as_lines.lines[1]) == {
        "file": str(broken),
        "line": 2,
        "column": 1,
        "field": "",
        "severity": "error",
        "description": 'unknown field "step", did you mean "steps"?',
    }
    assert applied.stderr.splitlines()[0] == f'{broken}:1:1: unknown field "nam", did you mean "name"?'
    assert len(server.requests("ValidateDefinition")) == 1
    assert server.requests("ApplyDefinition") == []


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
