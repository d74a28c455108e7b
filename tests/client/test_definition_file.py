"""Definition files: what they may say, and what is said about those that are wrong."""

from __future__ import annotations

from pathlib import Path

import pytest
from google.protobuf.duration_pb2 import Duration

from stepward.client.definition_file import FILE_BYTES_MAX, load, loads, read, reads
from stepward.client.definition_text import as_yaml
from stepward.client.errors import DefinitionFileError, Violation
from stepward.client.yaml_nodes import NODES_MAX, PROBLEMS_MAX
from stepward.v1 import definition_pb2 as pb

TRIP = """\
name: trip
description: Books a trip, or nothing.
deadline: 2h
on_deadline: cancel
steps:
  - id: flight
    action: book-flight
    queue: trip
    input: {who: "${input.who}", to: "${input.to}"}
    retry: {attempts_max: 3, initial: 1s, factor: 2, cap: 10s, non_retryable_kinds: [SoldOut], time_max: 5m}
    timeouts: {start_to_close: 30s, queue: 1h, heartbeat: 5s, schedule_to_close: 1h30m}
    effect: non_idempotent
    start: on_accept
    on_unknown: compensate
    on_exhausted: continue
    reassign: avoid_same_agent
    approval: required
    undo:
      action: cancel-flight
      retry: {initial: 500ms}
      timeouts: {start_to_close: 1d}
      queue: undo
      effect: non_idempotent
    verify:
      action: find-flight
      retry: {attempts_max: 2}
      timeouts: {queue: 1m}
      queue: desk
  - id: hotel
    needs: [flight]
output:
  flight: ${steps.flight.output.id}
"""

TRIP_DEFINITION = pb.Definition(
    name="trip",
    description="Books a trip, or nothing.",
    steps=[
        pb.Step(
            id="flight",
            action="book-flight",
            queue="trip",
            input='{"who":"${input.who}","to":"${input.to}"}',
            retry=pb.RetryPolicy(
                attempts_max=3,
                initial=Duration(seconds=1),
                factor=2,
                cap=Duration(seconds=10),
                non_retryable_kinds=["SoldOut"],
                time_max=Duration(seconds=300),
            ),
            timeouts=pb.Timeouts(
                start_to_close=Duration(seconds=30),
                queue=Duration(seconds=3600),
                heartbeat=Duration(seconds=5),
                schedule_to_close=Duration(seconds=5400),
            ),
            effect=pb.EFFECT_NON_IDEMPOTENT,
            start=pb.START_MODE_ON_ACCEPT,
            on_unknown=pb.ON_UNKNOWN_COMPENSATE,
            on_exhausted=pb.ON_EXHAUSTED_CONTINUE,
            reassign=pb.REASSIGN_AVOID_SAME_AGENT,
            approval=pb.APPROVAL_REQUIRED,
            undo=pb.Undo(
                action="cancel-flight",
                retry=pb.RetryPolicy(initial=Duration(nanos=500_000_000)),
                timeouts=pb.Timeouts(start_to_close=Duration(seconds=86400)),
                queue="undo",
                effect=pb.EFFECT_NON_IDEMPOTENT,
            ),
            verify=pb.Verify(
                action="find-flight",
                retry=pb.RetryPolicy(attempts_max=2),
                timeouts=pb.Timeouts(queue=Duration(seconds=60)),
                queue="desk",
            ),
        ),
        pb.Step(id="hotel", needs=["flight"]),
    ],
    output='{"flight":"${steps.flight.output.id}"}',
    deadline=Duration(seconds=7200),
    on_deadline=pb.ON_DEADLINE_CANCEL,
)


def step_input(written: str) -> str:
    return loads(f"name: x\nsteps:\n  - id: a\n    input: {written}\n").steps[0].input


def test_everything_can_be_said() -> None:
    """Each field of the contract."""
    assert loads(TRIP) == TRIP_DEFINITION


def test_no_field_is_forgotten() -> None:
    """The sample above sets every field, so that one which is added to the contract is tried here."""
    step = TRIP_DEFINITION.steps[0]
    set_fields = {descriptor.name for descriptor, _ in step.ListFields()} | {"needs"}

    assert set_fields == set(pb.Step.DESCRIPTOR.fields_by_name)
    for message in (TRIP_DEFINITION, step.retry, step.timeouts, step.undo, step.verify):
        assert {descriptor.name for descriptor, _ in message.ListFields()} == set(message.DESCRIPTOR.fields_by_name)


def test_json_is_read_too() -> None:
    """Tabs included, which YAML alone would not take."""
    text = '{\n\t"name": "trip",\n\t"steps": [\n\t\t{"id": "a", "timeouts": {"queue": "5m"}}\n\t]\n}'

    assert loads(text, "trip.json").steps[0].timeouts.queue.seconds == 300


def test_a_stored_definition_becomes_a_file_again() -> None:
    """What `definition get` prints can be applied, and is equal."""
    for written in (TRIP, "name: x\nsteps:\n- id: a\n  input: '{\"a\": 1.10}'\n- id: b\n  input: ${input}\n"):
        definition = loads(written)

        assert loads(as_yaml(definition)) == definition


@pytest.mark.parametrize(
    "text", ["a\x85b", "\u2028", "\ufeff", "\x00", "a\r\nb", "\n", " ", "\u00a0", "\U0001f600", "'\\\""]
)
def test_every_character_survives_being_written(text: str) -> None:
    """Also those that YAML takes for the end of a line."""
    definition = pb.Definition(name="x", description=text)

    assert loads(as_yaml(definition)) == definition


@pytest.mark.parametrize(
    ("written", "json"),
    [
        # As YAML: references stay texts, numbers keep their digits.
        ('{who: "${input.who}"}', '{"who":"${input.who}"}'),
        ("{price: 1.10, n: 9007199254740993}", '{"price":1.10,"n":9007199254740993}'),
        ("{a: yes, b: true, c: null, d: [1, {e: x}]}", '{"a":"yes","b":true,"c":null,"d":[1,{"e":"x"}]}'),
        ("{when: 2026-11-30, at: 22:30}", '{"when":"2026-11-30","at":"22:30"}'),
        ("{hex: 0x1F, big: 1_000, half: .5}", '{"hex":31,"big":1000,"half":0.5}'),
        ("{größe: ä}", '{"größe":"ä"}'),
        ("[1, 2]", "[1,2]"),
        ("{}", "{}"),
        ("5", "5"),
        # As JSON text: nothing is touched.
        ("'{\"a\":  1.10}'", '{"a":  1.10}'),
        ("'[1, 2]'", "[1, 2]"),
        ("'\"x\"'", '"x"'),
        # A reference alone, or a sentence with one inside, is a JSON string without its quotes.
        ("${steps.a.output}", '"${steps.a.output}"'),
        ("'dear ${input.who}'", '"dear ${input.who}"'),
        # Nothing written is nothing set.
        ("", ""),
        ("null", ""),
    ],
)
def test_templates(written: str, json: str) -> None:
    """An input is JSON, however it is written."""
    assert step_input(written) == json


def test_defaults_fill_what_a_step_leaves_open() -> None:
    """A step's own word wins as a whole: a retry of its own takes nothing from the default."""
    definition = loads("""\
name: x
defaults: {queue: trip, retry: {attempts_max: 7, cap: 5s}, effect: non_idempotent}
steps:
  - id: a
  - id: b
    queue: other
    retry: {attempts_max: 1}
""")

    first, second = definition.steps
    assert (first.queue, first.retry.attempts_max, first.retry.cap.seconds) == ("trip", 7, 5)
    assert (second.queue, second.retry) == ("other", pb.RetryPolicy(attempts_max=1))
    assert first.effect == second.effect == pb.EFFECT_NON_IDEMPOTENT


BROKEN = [
    # Broken YAML: line and column of what the parser stumbled over.
    ("name: x\nsteps: [\n  - id: a\n", "t.yaml:3:3: broken YAML: "),
    ("name: x\n\tsteps: []\n", "t.yaml:2:1: broken YAML: found character '\\t'"),
    ("name: *x\n", "t.yaml:1:7: broken YAML: found undefined alias"),
    ("name: x\n---\nname: y\n", "t.yaml:2:1: another document begins here; a file holds one definition"),
    ('name: "\\q"\n', "t.yaml:1:9: broken YAML: found unknown escape character 'q'"),
    ("", "t.yaml: is empty"),
    ("# nothing but words\n", "t.yaml: is empty"),
    ("[]", "t.yaml:1:1: a definition must be a mapping of fields, not a list"),
    ("trip", 't.yaml:1:1: a definition must be a mapping of fields, not the text "trip"'),
    # Names that do not exist, with the one that was meant.
    ("name: x\nstep: []\n", 't.yaml:2:1: unknown field "step", did you mean "steps"?'),
    ("name: x\ndefault: {}\n", 't.yaml:2:1: unknown field "default", did you mean "defaults"?'),
    (
        "name: x\nsteps:\n  - id: a\n    retry: {atempts_max: 3}\n",
        't.yaml:4:13: unknown field "atempts_max" in steps[0].retry, did you mean "attempts_max"?',
    ),
    (
        "name: x\nsteps:\n  - id: a\n    wibble: 3\n",
        't.yaml:4:5: unknown field "wibble" in steps[0]; there are id, action, queue, needs,',
    ),
    ("name: x\ndefaults: {needs: [a]}\n", 't.yaml:2:12: defaults cannot have "needs"; there are queue, retry'),
    (
        "name: x\nsteps:\n  - id: a\n    effect: idempotant\n",
        't.yaml:4:13: steps[0].effect cannot be "idempotant", did you mean "idempotent"?',
    ),
    # Twice the same name would be half a definition.
    ("name: x\nname: y\n", 't.yaml:2:1: "name" stands here for the second time; first in line 1'),
    (
        'name: x\nsteps:\n  - id: a\n    input:\n      b: 1\n      "b": 2\n',
        't.yaml:6:7: "b" stands here for the second time; first in line 5',
    ),
    # Wrong kinds.
    ("name: 2026\n", 't.yaml:1:7: name must be a text, not the integer 2026; write "2026" in quotes'),
    ("name: true\n", "t.yaml:1:7: name must be a text, not the boolean true"),
    ("name: x\nsteps: {id: a}\n", "t.yaml:2:8: steps must be a list, not a mapping"),
    ("name: x\nsteps: [a]\n", 't.yaml:2:9: steps[0] must be a mapping of fields, not the text "a"'),
    ("name: x\nsteps:\n  - id: a\n    needs: b\n", 't.yaml:4:12: steps[0].needs must be a list, not the text "b"'),
    (
        "name: x\nsteps:\n  - id: a\n    needs: [1]\n",
        "t.yaml:4:13: steps[0].needs[0] must be a text, not the integer 1",
    ),
    (
        "name: x\nsteps:\n  - id: a\n    retry: {attempts_max: many}\n",
        't.yaml:4:27: steps[0].retry.attempts_max must be a whole number, not the text "many"',
    ),
    (
        "name: x\nsteps:\n  - id: a\n    retry: {attempts_max: -1}\n",
        "t.yaml:4:27: steps[0].retry.attempts_max is -1; it must be between 1 and 4294967295",
    ),
    # A 0 would silently become the default.
    (
        "name: x\nsteps:\n  - id: a\n    retry: {attempts_max: 0}\n",
        "t.yaml:4:27: steps[0].retry.attempts_max is 0; it must be at least 1: 1 means that nothing is repeated",
    ),
    (
        "name: x\ndefaults: {retry: {factor: 0.0}}\n",
        "t.yaml:2:28: defaults.retry.factor is 0; it must be at least 1: 1 means that every wait is as long as ",
    ),
    (
        "name: x\nsteps:\n  - id: a\n    retry: {factor: [2]}\n",
        "t.yaml:4:21: steps[0].retry.factor must be a number, not a list",
    ),
    (
        "name: x\nsteps:\n  - id: a\n    timeouts: {queue: 30}\n",
        "t.yaml:4:23: steps[0].timeouts.queue: 30 has no unit; write 30s",
    ),
    (
        "name: x\nsteps:\n  - id: a\n    timeouts: {queue: {s: 30}}\n",
        "t.yaml:4:23: steps[0].timeouts.queue must be a text, not a mapping",
    ),
    (
        "name: x\nsteps:\n  - id: a\n    retry: {initial: 1x}\n",
        "t.yaml:4:22: steps[0].retry.initial: unknown unit 'x' in '1x'",
    ),
    # Templates.
    ("name: x\nsteps:\n  - id: a\n    input: '{\"a\": }'\n", "t.yaml:4:12: steps[0].input is broken JSON: "),
    ("name: x\nsteps:\n  - id: a\n    input: {a: .nan}\n", "t.yaml:4:16: .nan has no form in JSON"),
    (
        "name: x\nsteps:\n  - id: a\n    input: {a: !color red}\n",
        "t.yaml:4:16: a value tagged !color has no form in JSON",
    ),
    (
        "name: x\nsteps:\n  - id: a\n    input: {[1]: 2}\n",
        "t.yaml:4:13: the name of a field must be a text, not a list",
    ),
    ("a: &a {b: 1}\nname: x\n", 't.yaml:1:1: unknown field "a"'),
    ("name: x\nsteps:\n  - &a {id: a}\n  - {<<: *a}\n", 't.yaml:4:6: "<<" is not understood here'),
    # What has no end.
    (f"name: x\nsteps:\n  - id: a\n    input: {'[' * 70}{']' * 70}\n", "t.yaml:4:77: nested deeper than 64 levels"),
    (f"name: {'[' * 2_000}\n", "t.yaml: nested too deeply"),
    ("name: x\nsteps:\n  - id: a\n    input: &b [*b]\n", "t.yaml:4:12: nested deeper than 64 levels"),
]


@pytest.mark.parametrize(("text", "complaint"), BROKEN)
def test_what_is_wrong_is_said_with_its_place(text: str, complaint: str) -> None:
    """File, line, column, the value, and what to write instead."""
    with pytest.raises(DefinitionFileError) as caught:
        loads(text, "t.yaml")

    assert str(caught.value).startswith(complaint)
    assert str(caught.value) == str(caught.value).strip()


def test_a_short_text_cannot_stand_for_an_endless_one() -> None:
    """Aliases of aliases are counted as often as they are used."""
    lines = ["a0: &a0 [1, 1, 1, 1, 1, 1, 1, 1, 1, 1]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 9)]
    text = "name: x\nsteps:\n  - id: a\n    input:\n" + "".join(f"      {line}\n" for line in lines)

    with pytest.raises(DefinitionFileError, match=f"more than {NODES_MAX} values, aliases counted"):
        loads(text, "t.yaml")


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ('{"name": "x",}', "t.json:1:14: broken JSON: "),
        ("name: x\n", "t.json:1:1: broken JSON: Expecting value"),
        ('{\n  "name": "x",\n  "stops": []\n}', 't.json:3:3: unknown field "stops", did you mean "steps"?'),
    ],
)
def test_json_is_strict(text: str, complaint: str) -> None:
    """What is named JSON should be read by every JSON reader."""
    with pytest.raises(DefinitionFileError) as caught:
        loads(text, "t.json")

    assert str(caught.value).startswith(complaint)


def test_files(tmp_path: Path) -> None:
    """A file that cannot be read says so by its name."""
    good, broken, large = tmp_path / "good.yaml", tmp_path / "broken.yaml", tmp_path / "large.yaml"
    good.write_text(TRIP)
    broken.write_bytes(b"name: x\ndescription: \xff\n")
    large.write_bytes(b"#" * (FILE_BYTES_MAX + 1))

    assert load(good) == load(str(good)) == TRIP_DEFINITION
    with pytest.raises(DefinitionFileError, match=r"absent\.yaml: cannot be read: No such file"):
        load(tmp_path / "absent.yaml")
    with pytest.raises(DefinitionFileError, match=r"broken\.yaml:2:14: is not UTF-8 text"):
        load(broken)
    with pytest.raises(DefinitionFileError, match=f"has {FILE_BYTES_MAX + 1} bytes; at most {FILE_BYTES_MAX}"):
        load(large)
    large.write_bytes(b"name: x\n#" + b"#" * (FILE_BYTES_MAX - 9))
    assert load(large).name == "x"


@pytest.mark.parametrize(
    ("path", "place"),
    [
        ("steps[1].needs[0]", (30, 13)),
        ("steps[0].retry.factor", (10, 51)),
        ("steps[0].undo.retry.initial", (20, 24)),
        ("output", (32, 3)),
        # What stands nowhere is led to what is around it.
        ("steps[1].action", (29, 5)),
        ("steps[0].input.who", (9, 12)),
        ("steps[0].retry.non_retryable_kinds[7]", (10, 85)),
        ("steps[9]", (6, 3)),
        ("nothing", None),
        ("", None),
    ],
)
def test_locate(path: str, place: tuple[int, int] | None) -> None:
    """The server speaks of paths, a person looks for lines."""
    assert reads(TRIP).locate(path) == place


def test_locate_leads_to_defaults() -> None:
    """What a step got from the defaults is wrong there."""
    file = reads("name: x\ndefaults:\n  retry: {factor: 200}\nsteps:\n  - id: a\n")

    assert file.locate("steps[0].retry.factor") == (3, 19)


def test_what_a_server_says_is_shown_in_its_line(tmp_path: Path) -> None:
    """A violation as a compiler would print it."""
    path = tmp_path / "trip.yaml"
    path.write_text(TRIP)
    file = read(path)

    assert file.problem(Violation("steps[1].needs[0]", "no such step")).text == (
        f"{path}:30:13: steps[1].needs[0]: no such step\n  30 |     needs: [flight]\n     |             ^"
    )
    assert file.problem(Violation("definition.name", "is taken")).text.startswith(f"{path}:1:7: definition.name: is ")
    assert file.problem(Violation("", "and 3 more")).text == f"{path}: and 3 more"


def test_all_that_is_wrong_is_told_at_once() -> None:
    """In the order of the file, each with its line; what is right beside it is no trouble."""
    with pytest.raises(DefinitionFileError) as caught:
        loads(
            """\
name: 2026
defaults: {needs: [a], retry: {factor: 0}}
steps:
  - id: a
    retry: {atempts_max: 3, initial: 1x}
    input: {a: .nan, b: !color red, c: 1}
  - [b]
  - id: c
    id: d
    needs: [1, a, {}]
stop: []
""",
            "t.yaml",
        )

    assert [(problem.line, problem.column) for problem in caught.value.problems] == [
        *((1, 7), (2, 12), (2, 40), (5, 13), (5, 38), (6, 16), (6, 25), (7, 5), (9, 5), (10, 13), (10, 19), (11, 1)),
    ]
    assert str(caught.value).splitlines()[9:12] == [
        't.yaml:5:13: unknown field "atempts_max" in steps[0].retry, did you mean "attempts_max"?',
        "  5 |     retry: {atempts_max: 3, initial: 1x}",
        "    |             ^",
    ]


@pytest.mark.parametrize(("wrong", "told"), [(PROBLEMS_MAX, PROBLEMS_MAX), (PROBLEMS_MAX + 1, PROBLEMS_MAX + 1)])
def test_told_problems_are_bounded(wrong: int, told: int) -> None:
    """Whoever has more will read the file again."""
    with pytest.raises(DefinitionFileError) as caught:
        loads("".join(f"wrong{number}: 1\n" for number in range(wrong)))

    problems = caught.value.problems
    assert len(problems) == told
    assert problems[-1].description.startswith("unknown field" if wrong == PROBLEMS_MAX else "and 1 more; correct")


def test_a_shared_mistake_is_told_once() -> None:
    """An alias is read as often as it is used; its mistake stands in one place."""
    with pytest.raises(DefinitionFileError) as caught:
        loads("name: x\nsteps:\n  - id: a\n    retry: &r {caps: 1s}\n  - id: b\n    retry: *r\n")

    assert [problem.description.partition(" in ")[0] for problem in caught.value.problems] == [
        'unknown field "caps"'
    ] * 2
    assert len({problem.line for problem in caught.value.problems}) == 1
