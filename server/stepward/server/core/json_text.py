"""JSON as text: checked, and taken apart one level at a time, so that what nobody looks at stays as it was written.

Decoding and encoding again would turn 1.10 into 1.1, 1e400 into infinity and 9007199254740993 into its neighbour in
every reader that knows doubles only. Of a key that occurs twice the last value counts, as nearly every reader has it.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Final

import msgspec
from msgspec import Raw

if TYPE_CHECKING:
    from collections.abc import Iterator

# The encodings of a payload that is JSON text.
ENCODINGS: Final = frozenset({"", "json/utf-8"})

_STRING: Final = rb'"[^"\\\x00-\x1f]*+(?:\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})[^"\\\x00-\x1f]*+)*+"'
_SCALAR: Final = rb"-?(?:0|[1-9][0-9]*+)(?:\.[0-9]++)?(?:[eE][+-]?[0-9]++)?|true|false|null"
_TOKEN: Final = re.compile(
    rb"[ \t\n\r]*+(?:(?P<string>" + _STRING + rb")|(?P<scalar>" + _SCALAR + rb")|(?P<mark>[\[\]{},:])|\Z)"
)
_STRINGS: Final = re.compile(rb'"(?:[^"\\]|\\.)*+"', re.DOTALL)
_NO_BRACKETS: Final = bytes(set(range(256)) - set(b"[]{}"))

# For each place in the grammar: what may stand there, and the place behind it. A string is '"', any other scalar '0',
# the end ''. Behind a value the innermost open bracket decides, so there is one place for each.
_SCALARS: Final = {'"': "after", "0": "after"}
_VALUE: Final = {**_SCALARS, "{": "first key", "[": "first element"}
_PLACES: Final[dict[str, dict[str, str]]] = {
    "value": _VALUE,
    "first element": {**_VALUE, "]": "after"},
    "first key": {'"': "colon", "}": "after"},
    "key": {'"': "colon"},
    "colon": {":": "value"},
    "after in {": {",": "key", "}": "after"},
    "after in [": {",": "value", "]": "after"},
    "after at top": {"": "end"},
}
_EXPECTED: Final = {
    "value": "a value",
    "first element": "a value or ]",
    "first key": "a key or }",
    "key": "a key",
    "colon": "a colon",
    "after in {": "a comma or }",
    "after in [": "a comma or ]",
    "after at top": "the end",
}


def json_check(data: bytes, depth_max: int) -> str | None:
    """Why `data` is not JSON text that we accept, or None.

    Accepted is what RFC 8259 calls JSON text, with objects and arrays at most `depth_max` deep, numbers of any size
    and escapes of single surrogates; it must be UTF-8 without a byte order mark. No depth can exhaust the stack.
    """
    try:
        data.decode()
    except UnicodeDecodeError as error:
        return f"it is not UTF-8 at byte {error.start}"
    if _depth(data, depth_max) <= depth_max:
        try:
            msgspec.json.decode(data, type=Raw)
        except msgspec.DecodeError:
            # Not the last word: it refuses single surrogates.
            pass
        else:
            return None
    return _first_fault(data, depth_max)


def _depth(data: bytes, depth_max: int) -> int:
    """How deep brackets nest, for JSON text; for other text never less than a reader could descend."""
    if data.count(b"{") + data.count(b"[") <= depth_max:
        return 0
    depth = deepest = 0
    for bracket in _STRINGS.sub(b"", data).translate(None, _NO_BRACKETS):
        depth += 1 if bracket in b"[{" else -1
        deepest = max(deepest, depth)
    return deepest


def _first_fault(text: bytes, depth_max: int) -> str | None:
    """What breaks the grammar or the depth first. A loop over tokens, with the open brackets on a list of our own."""
    opened: list[str] = []
    place = "value"
    for start, symbol in _symbols(text):
        if place == "after":
            place = f"after in {opened[-1]}" if opened else "after at top"
        if symbol not in _PLACES[place]:
            return f"expected {_EXPECTED[place]} at byte {start}{_found(text, start)}"
        place = _PLACES[place][symbol]
        if symbol in {"{", "["}:
            opened.append(symbol)
            if len(opened) > depth_max:
                return f"it is more than {depth_max} levels deep at byte {start}"
        elif symbol in {"}", "]"}:
            opened.pop()
    return None


def _symbols(text: bytes) -> Iterator[tuple[int, str]]:
    """Start and symbol of each token; '?' for what is none. The last one is the end or '?'."""
    at = 0
    while True:
        token = _TOKEN.match(text, at)
        if token is None:
            yield len(text) - len(text[at:].lstrip(b" \t\n\r")), "?"
            return
        match token.lastgroup:
            case "string":
                yield token.start("string"), '"'
            case "scalar":
                yield token.start("scalar"), "0"
            case "mark":
                yield token.start("mark"), token["mark"].decode()
            case _:
                yield token.end(), ""
                return
        at = token.end()


def _found(text: bytes, start: int) -> str:
    """What stands there instead, in a few characters."""
    if start >= len(text):
        return ", found the end"
    return f", found {quoted(text[start : start + 16].decode(errors='ignore'))}"


def type_name(text: bytes | Raw) -> str:
    """The type of a JSON value, by its first byte."""
    match bytes(memoryview(text)[:1]):
        case b"{":
            return "object"
        case b"[":
            return "array"
        case b'"':
            return "string"
        case b"t" | b"f":
            return "boolean"
        case b"n":
            return "null"
        case _:
            return "number"


def members(text: bytes | Raw) -> dict[str, Raw]:
    """The members of an object, their values raw. `text` has passed `json_check`."""
    try:
        return msgspec.json.decode(text, type=dict[str, Raw])
    except msgspec.DecodeError:
        # A single surrogate somewhere inside, which this decoder refuses, even in what it was told to leave raw.
        parts = _parts(bytes(text))
        return {decode_string(key): Raw(value) for key, value in zip(parts, parts, strict=True)}


def elements(text: bytes | Raw) -> list[Raw]:
    """The elements of an array, raw. `text` has passed `json_check`."""
    try:
        return msgspec.json.decode(text, type=list[Raw])
    except msgspec.DecodeError:
        return [Raw(part) for part in _parts(bytes(text))]


def _parts(text: bytes) -> Iterator[bytes]:
    """Keys and values, or elements, directly inside the outermost brackets."""
    depth = start = 0
    for token in _TOKEN.finditer(text):
        if token["mark"] in {b"{", b"["}:
            depth += 1
            if depth == 2:
                start = token.start("mark")
        elif token["mark"] in {b"}", b"]"}:
            depth -= 1
            if depth == 1:
                yield text[start : token.end()]
        elif depth == 1 and token.lastgroup in {"string", "scalar"}:
            yield token[token.lastgroup]


def decode_string(text: bytes) -> str:
    """The characters of a JSON string; a single surrogate stays one, which UTF-8 cannot encode."""
    decoded = json.loads(text)
    assert isinstance(decoded, str)
    return decoded


def encode_string(text: str) -> bytes:
    """A JSON string of these characters."""
    try:
        return json.dumps(text, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return json.dumps(text).encode()


def quoted(text: str) -> str:
    """Text in quotes for a message: one line, and always valid Unicode."""
    return encode_string(text).decode()
