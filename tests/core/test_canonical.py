"""Hashes of definitions and fingerprints of submissions."""

from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from stepward.server.core.canonical import canonical_json, definition_hash, submission_fingerprint
from stepward.server.core.definition import compile_definition
from stepward.server.core.definition_source import DefinitionSource, RetrySource, StepSource, TimeoutsSource, UndoSource
from stepward.server.core.limits import Limits
from stepward.server.core.rows import DefinitionBody, Payload
from tests.core.json_texts import JsonText, Number, Value, json_texts, values, written

LIMITS = Limits()


def fingerprint(input: bytes = b"{}", encoding: str = "", **changed: Any) -> bytes:
    asked: dict[str, Any] = {
        "namespace": "n",
        "definition_name": "d",
        "definition_version": 0,
        "labels": {},
        "deadline_ms": 0,
    }
    return submission_fingerprint(**{**asked, **changed}, input=Payload(input, encoding), limits=LIMITS)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (b'{"a":1,"b":2}', b' { "b" : 2 ,\n"a" : 1 } '),
        (b'{"a":{"x":1,"y":[]}}', b'{"a":{"y":[],"x":1}}'),
        (b'"Zo\xc3\xab /"', b'"Zo\\u00eb \\/"'),
        (b'{"\\u0061":1}', b'{"a":1}'),
        (b'"\\ud83d\\ude00"', '"\N{GRINNING FACE}"'.encode()),
        (b'"\\ud83d"', b'"\\uD83D"'),
        (b"1", b"1.0"),
        (b"1", b"1e0"),
        (b"1", b"10E-1"),
        (b"100", b"1e+2"),
        (b"0.1", b"1e-01"),
        (b"-1.50", b"-15e-1"),
        (b"0", b"-0.000e99"),
        (b"1e400", b"10e399"),
        (b"1e999999999", b"0.1e1000000000"),
        (b"9007199254740993", b"9007199254740993.0"),
        (b"1" + b"0" * 5_000, b"1e5000"),
    ],
)
def test_same_input(one: bytes, other: bytes) -> None:
    """Whitespace, the order of members, escapes and the way in which a number is written do not matter."""
    assert fingerprint(one) == fingerprint(other)
    assert fingerprint(one) == fingerprint(other, "json/utf-8")


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (b"9007199254740993", b"9007199254740992"),
        (b"1e400", b"1e401"),
        (b"0.1", b"0.1000000000000000055511151231257827"),
        (b"1", b"-1"),
        (b"1", b'"1"'),
        # What looks like the canonical form of a number is a string all the same.
        (b"1", b'"1e0"'),
        (b"[1,2]", b"[2,1]"),
        (b"[1,2]", b"[12]"),
        (b"[]", b"{}"),
        (b"null", b"[]"),
        (b"null", b""),
        (b"null", b'"null"'),
        (b"1", b"true"),
        (b"0", b"false"),
        (b'{"a":null}', b"{}"),
        (b'{"a":"b"}', b'[["a","b"]]'),
        # Which of two counts is not for us to say.
        (b'{"a":1,"a":2}', b'{"a":2,"a":1}'),
        (b'{"a":1,"a":2}', b'{"a":2}'),
        # The same letter in two forms of Unicode is two strings.
        (b'"\\u00e9"', b'"e\\u0301"'),
        # Not JSON: bytes.
        (b"{nope", b"{nope "),
        (b"1e" + b"9" * 5_000, b"10e" + b"9" * 5_000),
    ],
)
def test_other_input(one: bytes, other: bytes) -> None:
    """Another value is another request, however close."""
    assert fingerprint(one) != fingerprint(other)


@pytest.mark.parametrize(
    "changed",
    [
        {"namespace": "m"},
        {"definition_name": "e"},
        {"definition_version": 1},
        {"labels": {"a": "b"}},
        {"deadline_ms": 1},
        # Where one field ends and the next begins matters.
        {"namespace": "nd", "definition_name": ""},
        {"input": b"{} ", "encoding": "x"},
        {"input": b"{}", "encoding": "x"},
    ],
)
def test_other_request(changed: dict[str, Any]) -> None:
    """Everything that decides over the job counts."""
    assert fingerprint(**changed) != fingerprint()


def test_bytes_of_another_encoding_count_as_they_are() -> None:
    """They are not looked into, even when they look like JSON."""
    assert fingerprint(b"{}", "x") != fingerprint(b"{ }", "x")
    assert fingerprint(b"{}", "x") != fingerprint(b"{}", "y")
    assert fingerprint(b"\xff\x00", "x") == fingerprint(b"\xff\x00", "x")


def test_labels_have_no_order() -> None:
    """A map has none on the wire."""
    assert fingerprint(labels={"a": "1", "b": "2"}) == fingerprint(labels={"b": "2", "a": "1"})
    assert fingerprint(labels={"a": "1", "b": "2"}) != fingerprint(labels={"a": "2", "b": "1"})


def test_fingerprint_stays() -> None:
    """It is stored with a key, so a later release must give the same one, or count its form up."""
    assert (
        fingerprint(b'{"b": 1.0, "a": ["x", null, true]}', labels={"k": "v"}).hex()
        == "8f46bf57b4fd10bb59482b6363298c9d1c3de8d79debab10e2692d27a6850e13"
    )


@given(values.flatmap(lambda value: st.tuples(written(value), written(value))))
def test_writing_does_not_matter(texts: Any) -> None:
    """Any two ways to write a value have one canonical form."""
    one, other = texts

    assert fingerprint(one.data) == fingerprint(other.data)


def exact(value: Value) -> Any:
    """A value as Python compares it: numbers by their exact value, and nothing equal to another type."""
    match value:
        case Number(text):
            return Decimal(text)
        case list():
            return [exact(element) for element in value]
        case dict():
            return {key: exact(member) for key, member in value.items()}
        case _:
            return (value,)


@given(values, values, st.data())
def test_value_matters(one: Value, other: Value, data: st.DataObject) -> None:
    """Fingerprints are equal exactly when the values are."""
    equal = fingerprint(data.draw(written(one)).data) == fingerprint(data.draw(written(other)).data)

    assert equal is (exact(one) == exact(other))


plain_numbers = st.from_regex(r"\A-?(0|[1-9][0-9]{0,3})(\.[0-9]{1,3})?([eE][+-]?[0-3])?\Z")


@given(plain_numbers, plain_numbers)
def test_numbers_compare_by_value(one: str, other: str) -> None:
    """However they are written."""
    assert (canonical_json(one.encode()) == canonical_json(other.encode())) is (Decimal(one) == Decimal(other))


@given(json_texts)
def test_canonical_form_is_json_of_the_same_form(text: JsonText) -> None:
    """Canonical twice is canonical once."""
    canonical = canonical_json(text.data)

    assert canonical_json(canonical) == canonical


def test_huge_numbers_cost_nothing() -> None:
    """Nothing is expanded: a payload of the largest size ends at once, whatever its exponents."""
    for number in (
        "1e" + "9" * 200_000,
        "9" * 200_000,
        "1e999999999999",
        "0." + "0" * 200_000 + "1",
        "0e" + "9" * 9_999,
    ):
        assert fingerprint(number.encode()) != fingerprint(b"1")


STEP = StepSource(
    "a",
    input='{"x": "${input.x}"}',
    retry=RetrySource(non_retryable_kinds=("B", "A")),
    undo=UndoSource("u"),
)


def hashed(
    *steps: StepSource, name: str = "trip", source_bytes: bytes = b"", output: str = "", description: str = ""
) -> bytes:
    body = compile_definition(
        DefinitionSource(name, steps, output=output, description=description), LIMITS, source_bytes
    )
    assert isinstance(body, DefinitionBody), body
    return definition_hash(body)


@pytest.mark.parametrize(
    "same",
    [
        structs.replace(STEP, action="a", queue="default", effect=1, start=1, on_unknown=1),
        structs.replace(STEP, retry=RetrySource(5, 1_000, 2.0, 60_000, ("A", "B"))),
        structs.replace(STEP, timeouts=TimeoutsSource(600_000, 86_400_000)),
        structs.replace(STEP, undo=UndoSource("u", RetrySource(5), TimeoutsSource(600_000), "default")),
        structs.replace(STEP, input='{"x": "${input.x}"}\n'),
    ],
)
def test_same_definition(same: StepSource) -> None:
    """Defaults spelled out are defaults, and sets have no order."""
    assert hashed(same) == hashed(STEP)


def test_same_definition_in_other_bytes() -> None:
    """The message is kept to be read back and is no part of the hash."""
    assert hashed(STEP, source_bytes=b"x") == hashed(STEP)
    assert hashed(StepSource("a"), StepSource("b"), StepSource("c", needs=("a", "b"))) == hashed(
        StepSource("a"), StepSource("b"), StepSource("c", needs=("b", "a"))
    )


@pytest.mark.parametrize(
    "other",
    [
        structs.replace(STEP, id="b"),
        structs.replace(STEP, action="b"),
        structs.replace(STEP, queue="b"),
        structs.replace(STEP, input='{"x": "${input.y}"}'),
        structs.replace(STEP, retry=RetrySource(4)),
        structs.replace(STEP, timeouts=TimeoutsSource(599_999)),
        structs.replace(STEP, timeouts=TimeoutsSource(None, 86_399_999)),
        structs.replace(STEP, effect=2),
        structs.replace(STEP, start=2),
        structs.replace(STEP, on_unknown=2),
        structs.replace(STEP, undo=None),
        structs.replace(STEP, undo=UndoSource("v")),
    ],
)
def test_other_definition(other: StepSource) -> None:
    """Whatever decides over a job counts."""
    assert hashed(other) != hashed(STEP)


def test_description_counts() -> None:
    """It changes no job; but a new one must not be lost, and a version that was read must not change."""
    assert hashed(STEP, description="Books a trip.") != hashed(STEP)


def test_positions_count() -> None:
    """Rows of running jobs name steps by their position: equal hashes must mean equal positions."""
    assert hashed(StepSource("a"), StepSource("b")) != hashed(StepSource("b"), StepSource("a"))
    assert hashed(STEP, name="other") != hashed(STEP)
    assert hashed(STEP, output="{}") != hashed(STEP)
