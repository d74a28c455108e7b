"""Input mapping: JSON text in which string values refer to the job's input and to what other steps gave.

A string that is exactly one reference becomes the referred value, byte for byte; a reference inside a longer string
becomes the text of a string, number or boolean. The notation:

    ${input}                          the job's input
    ${input.guests[0].name}           a member of it: names of letters, digits, _ and -, and indexes in brackets
    ${input["any key"]}               a member whose name has other characters, as a JSON string
    ${steps.flight.output.id}         from what the step `flight` gave; everything behind `output` as above
    ${steps["book.flight"].output}    a step whose id has a dot
    $${                               a literal ${; before a { every $$ stands for one $

References stand in values only, not in keys. A payload that is not JSON can be referred to as a whole only, by a
template that is nothing but that reference.
"""

from __future__ import annotations

import re
from functools import lru_cache
from itertools import groupby, islice
from typing import TYPE_CHECKING, Final, NoReturn

from msgspec import Struct, structs

from stepward.server.core import json_text
from stepward.server.core.rows import Payload

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from msgspec import Raw

    from stepward.server.core.limits import Limits

# What no template may exceed, whatever the limits say; it bounds the recursion of whoever reads the outcome.
TEMPLATE_DEPTH_MAX: Final = 64
# Templates whose compiled form is kept. A step's template is rendered again for every job.
TEMPLATES_KEPT_MAX: Final = 1_024
# Members that a message names when the one asked for is missing.
MEMBERS_NAMED_MAX: Final = 8

_STRING: Final = re.compile(rb'(?P<string>"(?:[^"\\]|\\.)*+")(?P<colon>[ \t\n\r]*+:)?', re.DOTALL)
_OPENING: Final = re.compile(r"(?P<dollars>\$++)\{")
_ROOT: Final = re.compile(r"\$\{(?P<root>input|steps)(?![\w-])")
_NAME: Final = re.compile(r"[\w-]++")
_SEGMENT: Final = re.compile(
    r'\.(?P<name>[\w-]++)|\[(?P<index>0|[1-9][0-9]{0,8})\]|\[(?P<quoted>"(?:[^"\\]|\\["\\/bfnrt]|\\u[0-9a-fA-F]{4})*+")\]'
)


class Source(Struct, frozen=True):
    """Where a value comes from: what a step gave, or the job's input when `step_id` is empty."""

    step_id: str = ""

    def __str__(self) -> str:
        return f"the output of step {json_text.quoted(self.step_id)}" if self.step_id else "the job's input"


class Reference(Struct, frozen=True):
    """One reference. `text` is as written; `inside`: in a longer string, so that its text is wanted."""

    text: str
    source: Source
    path: tuple[str | int, ...]
    inside: bool
    offset: int


class Template(Struct, frozen=True):
    """A compiled template: literal JSON text and references, in order."""

    parts: tuple[bytes | Reference, ...]

    @property
    def references(self) -> tuple[Reference, ...]:
        """All references, in order."""
        return tuple(part for part in self.parts if isinstance(part, Reference))


class TemplateError(ValueError):
    """A template that cannot be compiled. `offset` is the byte at which the string or the fault begins."""

    def __init__(self, message: str, *, offset: int = 0) -> None:
        super().__init__(message)
        self.message = message
        self.offset = offset


class MappingError(ValueError):
    """A reference that the values at hand cannot satisfy. `kind` is that of the failure it becomes."""

    def __init__(self, message: str, *, kind: str) -> None:
        super().__init__(message)
        self.message = message
        self.kind = kind


@lru_cache(maxsize=TEMPLATES_KEPT_MAX)
def compile_template(template: bytes) -> Template:
    """Take a template apart. An empty one stands for the job's whole input.

    Raises:
        TemplateError: It is not JSON, or a reference in it breaks the notation.
    """
    text = template.strip(b" \t\n\r")
    if not text:
        return Template((Reference("${input}", Source(), (), inside=False, offset=0),))
    fault = json_text.json_check(text, TEMPLATE_DEPTH_MAX)
    if fault is not None:
        msg = f"it is not JSON: {fault}"
        raise TemplateError(msg)
    return Template(tuple(_join(_parts(text))))


def _join(parts: Iterator[bytes | Reference]) -> Iterator[bytes | Reference]:
    """The parts with neighbouring literals made one."""
    for is_literal, group in groupby(parts, lambda part: isinstance(part, bytes)):
        if is_literal:
            yield b"".join(part for part in group if isinstance(part, bytes))
        else:
            yield from group


def _parts(text: bytes) -> Iterator[bytes | Reference]:
    """Literal text and references of a template that is JSON."""
    at = 0
    for found in _STRING.finditer(text):
        # The common case first: no reference, and no escape that could hide one.
        if b"$" not in found["string"] and b"\\" not in found["string"]:
            continue
        pieces = tuple(_pieces(json_text.decode_string(found["string"]), found.start()))
        if pieces == ((pieces[0][0], None),) and "$" not in pieces[0][0]:
            continue
        if found["colon"] is not None and len(pieces) > 1:
            msg = f"a key cannot hold a reference, at byte {found.start()}; write $${{ for a literal ${{"
            raise TemplateError(msg, offset=found.start())
        yield text[at : found.start()]
        yield from _value(pieces)
        at = found.end("string")
    yield text[at:]


def _value(pieces: tuple[tuple[str, Reference | None], ...]) -> Iterator[bytes | Reference]:
    """A string of a template as JSON text and references."""
    match pieces:
        case (("", Reference() as whole), ("", None)):
            yield whole
        case _:
            yield b'"'
            for literal, reference in pieces:
                yield json_text.encode_string(literal)[1:-1]
                if reference is not None:
                    yield structs.replace(reference, inside=True)
            yield b'"'


def _pieces(string: str, offset: int) -> Iterator[tuple[str, Reference | None]]:
    """Literal texts, each with the reference that follows it; None after the last."""
    at = 0
    literal = ""
    for opening in _OPENING.finditer(string):
        if opening.start() < at:
            # Inside the reference before, in a quoted name.
            continue
        pairs, odd = divmod(len(opening["dollars"]), 2)
        literal += string[at : opening.start()] + "$" * pairs
        at = opening.end("dollars")
        if odd:
            reference, at = _reference(string, at - 1, offset)
            yield literal, reference
            literal = ""
    yield literal + string[at:], None


def _reference(string: str, start: int, offset: int) -> tuple[Reference, int]:
    """The reference that begins at `start`, and where it ends."""
    source, at = _source(string, start, offset)
    path: list[str | int] = []
    while (segment := _SEGMENT.match(string, at)) is not None:
        path.append(_segment(segment))
        at = segment.end()
    if string[at : at + 1] != "}":
        raise _syntax_error(string, start, at, 'expected .name, [index], ["name"] or }', offset)
    return Reference(string[start : at + 1], source, tuple(path), inside=False, offset=offset), at + 1


def _segment(segment: re.Match[str]) -> str | int:
    if segment["index"] is not None:
        return int(segment["index"])
    if segment["quoted"] is not None:
        return json_text.decode_string(segment["quoted"].encode("utf-8", "surrogatepass"))
    return segment["name"]


def _source(string: str, start: int, offset: int) -> tuple[Source, int]:
    """What a reference reads from, and where its path begins."""
    root = _ROOT.match(string, start)
    if root is None:
        expected = "a reference begins with ${input or ${steps.ID.output; write $${ for a literal ${"
        raise _syntax_error(string, start, start, expected, offset)
    if root["root"] == "input":
        return Source(), root.end()
    step = _SEGMENT.match(string, root.end())
    if step is None or step["index"] is not None:
        raise _syntax_error(string, start, root.end(), "expected a step id, as in ${steps.ID.output}", offset)
    if not string.startswith(".output", step.end()) or _NAME.match(string, step.end() + len(".output")):
        expected = 'expected .output behind the step id; an id with dots is written ${steps["a.b"].output}'
        raise _syntax_error(string, start, step.end(), expected, offset)
    return Source(str(_segment(step))), step.end() + len(".output")


def _syntax_error(string: str, start: int, at: int, expected: str, offset: int) -> TemplateError:
    rest = json_text.quoted(string[at : at + 16]) if at < len(string) else "the end"
    reference = json_text.quoted(string[start : start + 64])
    return TemplateError(f"in {reference}, at byte {offset}: {expected}; found {rest}", offset=offset)


def render(
    template: Template, lookup: Callable[[Source], Payload], limits: Limits, *, kind: str = "INPUT_MAPPING"
) -> Payload:
    """Put the values into the template. Called once for each attempt; `lookup` gives payloads as they are stored.

    A template that is nothing but one whole source gives its payload untouched, whatever its encoding. Everything else
    is JSON, of at most `payload_bytes_max`. An empty JSON payload counts as null.

    Raises:
        MappingError: A reference cannot be satisfied, or the outcome would be too large.
    """
    if len(template.parts) == 1 and isinstance(only := template.parts[0], Reference) and not only.path:
        return lookup(only.source)
    values = _Values(lookup, limits, kind)
    pieces = []
    size_bytes = 0
    for part in template.parts:
        piece = part if isinstance(part, bytes) else values.text(part)
        size_bytes += len(piece)
        if size_bytes > limits.payload_bytes_max:
            msg = f"the mapping gives more than {limits.payload_bytes_max} bytes; refer to smaller parts"
            raise MappingError(msg, kind=kind)
        pieces.append(piece)
    return Payload(b"".join(pieces))


class _Values:
    """The values that one rendering refers to. Each level of a source is taken apart at most once."""

    def __init__(self, lookup: Callable[[Source], Payload], limits: Limits, kind: str) -> None:
        self._lookup = lookup
        self._limits = limits
        self._kind = kind
        self._levels: dict[tuple[Source, tuple[str | int, ...]], dict[str, Raw] | list[Raw]] = {}
        self._whole: dict[Source, bytes] = {}

    def text(self, reference: Reference) -> bytes:
        """The JSON text that takes the place of a reference."""
        value = self._source(reference)
        for depth, segment in enumerate(reference.path):
            value = self._descend(reference, depth, segment, value)
        text = bytes(value)
        if not reference.inside:
            return text
        type_name = json_text.type_name(text)
        if type_name not in {"string", "number", "boolean"}:
            self._fail(
                reference, f"is {_a(type_name)}; inside a longer string only text, numbers and booleans can stand"
            )
        # The inside of a JSON string fits into another one as it is, escapes and all.
        return text[1:-1] if type_name == "string" else text

    def _source(self, reference: Reference) -> bytes:
        source = reference.source
        if source not in self._whole:
            payload = self._lookup(source)
            if payload.encoding not in json_text.ENCODINGS:
                encoding = json_text.quoted(payload.encoding)
                self._fail(reference, f"cannot be looked into, because {source} has the encoding {encoding}")
            text = payload.data.strip(b" \t\n\r") or b"null"
            fault = json_text.json_check(text, self._limits.json_depth_max)
            if fault is not None:
                self._fail(reference, f"cannot be looked into, because {source} is not JSON: {fault}")
            self._whole[source] = text
        return self._whole[source]

    def _descend(self, reference: Reference, depth: int, segment: str | int, value: bytes | Raw) -> Raw:
        """The value of one segment inside the value before it."""
        level = self._level(reference, depth, value)
        if isinstance(level, dict) and isinstance(segment, str) and segment in level:
            return level[segment]
        if isinstance(level, list) and isinstance(segment, int) and segment < len(level):
            return level[segment]
        wanted = f"no member {json_text.quoted(segment)}" if isinstance(segment, str) else f"no element [{segment}]"
        self._fail(reference, f"was not found: {_place(reference, depth)} is {_describe(level, value)}, with {wanted}")

    def _level(self, reference: Reference, depth: int, value: bytes | Raw) -> dict[str, Raw] | list[Raw] | None:
        key = (reference.source, reference.path[:depth])
        if key not in self._levels:
            match json_text.type_name(value):
                case "object":
                    self._levels[key] = json_text.members(value)
                case "array":
                    self._levels[key] = json_text.elements(value)
                case _:
                    return None
        return self._levels[key]

    def _fail(self, reference: Reference, what: str) -> NoReturn:
        msg = f"{json_text.quoted(reference.text)} {what}"
        raise MappingError(msg, kind=self._kind)


def _place(reference: Reference, depth: int) -> str:
    """A value on the path of a reference, in words."""
    if depth == 0:
        return str(reference.source)
    path = "".join(
        f"[{segment}]"
        if isinstance(segment, int)
        else f".{segment}"
        if _NAME.fullmatch(segment)
        else f"[{json_text.quoted(segment)}]"
        for segment in reference.path[:depth]
    )
    return f"{path.removeprefix('.')} of {reference.source}"


def _describe(level: dict[str, Raw] | list[Raw] | None, value: bytes | Raw) -> str:
    """What was found where a member or an element was wanted. Names members, never values."""
    match level:
        case dict() if not level:
            return "an empty object"
        case dict():
            named = ", ".join(json_text.quoted(name[:64]) for name in islice(level, MEMBERS_NAMED_MAX))
            more = f" and {len(level) - MEMBERS_NAMED_MAX} more" if len(level) > MEMBERS_NAMED_MAX else ""
            return f"an object of {named}{more}"
        case list():
            return f"an array of {len(level)}"
        case None:
            return _a(json_text.type_name(value))


def _a(type_name: str) -> str:
    match type_name:
        case "null":
            return "null"
        case "object" | "array":
            return f"an {type_name}"
        case _:
            return f"a {type_name}"
