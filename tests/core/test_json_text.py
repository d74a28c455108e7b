"""JSON as text."""

import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from stepward.server.core import json_text
from stepward.server.core.json_text import json_check
from tests.core.json_texts import JsonText, json_texts

DEPTH_MAX = 64


@pytest.mark.parametrize(
    "data",
    [
        b"null",
        b' \t\r\n{ "a" : [ ] } ',
        b"[]",
        b'""',
        # Numbers that no float holds.
        b"1e400",
        b"-0.0E-999999999",
        b"9" * 10_000,
        # Characters that some stores cannot hold: they are escapes here, six harmless bytes.
        b'"\\u0000"',
        b'"\\ud83d"',
        b'{"\\udc00": ["\\ud83d"]}',
        # The same key twice is bad style and good grammar.
        b'{"a": 1, "a": 2}',
        # As deep as it may be; brackets in strings and closed ones do not count.
        b"[" * 64 + b"]" * 64,
        b'{"a":' * 64 + b"1" + b"}" * 64,
        b'"' + b"[" * 1_000 + b'"',
        b"[" + b"[]," * 1_000 + b"[]]",
        b'["\\"[[' + b"[" * 100 + b'"]',
    ],
)
def test_accepted(data: bytes) -> None:
    """What RFC 8259 calls JSON text is accepted."""
    assert json_check(data, DEPTH_MAX) is None


@pytest.mark.parametrize(
    ("data", "fault"),
    [
        (b"", "expected a value at byte 0, found the end"),
        (b" \n", "expected a value at byte 2, found the end"),
        (b'"a\xff"', "it is not UTF-8 at byte 2"),
        # A surrogate in UTF-8 is no UTF-8.
        (b'"\xed\xa0\xbd"', "it is not UTF-8 at byte 1"),
        # A byte order mark.
        (b"\xef\xbb\xbf{}", "expected a value at byte 0"),
        (b"[1,]", 'expected a value at byte 3, found "]"'),
        (b"[,1]", 'expected a value or ] at byte 1, found ",1]"'),
        (b"[1 2]", 'expected a comma or ] at byte 3, found "2]"'),
        (b'{"a"}', 'expected a colon at byte 4, found "}"'),
        (b'{"a":1,}', 'expected a key at byte 7, found "}"'),
        (b"{1:2}", 'expected a key or } at byte 1, found "1:2}"'),
        (b'{"a":1 "b"', 'expected a comma or } at byte 7, found "\\"b\\""'),
        (b'{"a":1', "expected a comma or } at byte 6, found the end"),
        (b"[1}", 'expected a comma or ] at byte 2, found "}"'),
        (b"{} {}", 'expected the end at byte 3, found "{}"'),
        (b"01", 'expected the end at byte 1, found "1"'),
        (b"1.", 'expected the end at byte 1, found "."'),
        (b"-", 'expected a value at byte 0, found "-"'),
        (b"NaN", 'expected a value at byte 0, found "NaN"'),
        (b"'a'", "expected a value at byte 0, found \"'a'\""),
        (b'"\x00"', 'expected a value at byte 0, found "\\"\\u0000\\""'),
        (b'"\\q"', "expected a value at byte 0"),
        (b'"abc', "expected a value at byte 0"),
        (b"[" * 65 + b"]" * 65, "it is more than 64 levels deep at byte 64"),
        (b'{"a":' * 65 + b"1" + b"}" * 65, "it is more than 64 levels deep at byte 320"),
        # Far deeper than any stack, closed and not.
        (b"[" * 200_000, "it is more than 64 levels deep at byte 64"),
        (b"[" * 100_000 + b"]" * 100_000, "it is more than 64 levels deep at byte 64"),
    ],
)
def test_refused(data: bytes, fault: str) -> None:
    """What is not accepted is refused with the place and with what was found there."""
    found = json_check(data, DEPTH_MAX)

    assert found is not None
    assert found.startswith(fault)


FRAGMENTS = [
    *"{}[],:0-.e+ \n\x0b",
    '"a"',
    '"',
    "\\",
    "true",
    "nul",
    "\\u0041",
    "\\n",
    "\x00",
    "é",
    '"b":',
    '"\\ud83d"',
    "1",
]


@given(st.lists(st.sampled_from(FRAGMENTS), max_size=10).map("".join))
@example("[1,\n]")
def test_two_readers_agree(text: str) -> None:
    """The fast check and the one that explains accept the same texts, those of the standard library but for NaN."""
    try:
        json.loads(text)
        accepted = True
    except json.JSONDecodeError:
        accepted = False

    assert (json_check(text.encode(), DEPTH_MAX) is None) is accepted
    assert (json_text._first_fault(text.encode(), DEPTH_MAX) is None) is accepted


@given(st.binary(max_size=40))
def test_any_bytes_have_an_answer(data: bytes) -> None:
    """Nothing that arrives can crash the check, and its words can be sent on."""
    fault = json_check(data, DEPTH_MAX)

    assert fault is None or fault.encode()


@given(json_texts)
def test_parts_are_slices(text: JsonText) -> None:
    """A value taken from an object or an array has the bytes that it had there, single surrogates or not."""
    assert json_check(text.data, DEPTH_MAX) is None
    parts: dict[str, bytes] | dict[int, bytes]
    match json_text.type_name(text.data):
        case "object":
            parts = {key: bytes(raw) for key, raw in json_text.members(text.data).items()}
        case "array":
            parts = {index: bytes(raw) for index, raw in enumerate(json_text.elements(text.data))}
        case _:
            parts = {}

    assert parts == {path[0]: slice_.encode() for path, slice_ in text.slices.items() if len(path) == 1}


@pytest.mark.parametrize("surrogate", ["", ', "s": "\\ud83d"'])
def test_of_a_key_that_occurs_twice_the_last_value_counts(surrogate: str) -> None:
    """As nearly every reader has it; whichever of the two readers is used."""
    members = json_text.members(f'{{"a": 1, "a": 2{surrogate}}}'.encode())

    assert bytes(members["a"]) == b"2"


@given(st.text() | st.sampled_from(["\ud83d", "a\udc00"]))
def test_strings_come_back(string: str) -> None:
    """Also those that UTF-8 cannot encode."""
    assert json_text.decode_string(json_text.encode_string(string)) == string
