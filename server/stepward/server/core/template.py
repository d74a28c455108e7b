"""Templates: JSON text in which string values refer to the job's input and to what other steps gave.

A string that is exactly one reference becomes the referred value, byte for byte; a reference inside a longer string
becomes the text of a string, number or boolean. The notation:

    ${input}                          the job's input
    ${input.guests[0].name}           a member of it: names of letters, digits, _ and -, and indexes in brackets
    ${input["any key"]}               a member whose name has other characters, as a JSON string
    ${steps.flight.output.id}         from what the step `flight` gave; everything behind `output` as above
    ${steps["book.flight"].output}    a step whose id has a dot
    $${                               a literal ${; before a { every $$ stands for one $

References stand in values only, not in keys.
"""

from __future__ import annotations

import re
from functools import lru_cache
from itertools import groupby
from typing import TYPE_CHECKING, Final

from msgspec import Struct, structs

from stepward.server.core import json_text

if TYPE_CHECKING:
    from collections.abc import Iterator

# What no template may exceed, whatever the limits say; it bounds the recursion of whoever reads the outcome.
TEMPLATE_DEPTH_MAX: Final = 64
# Templates whose compiled form is kept. A step's template is rendered again for every job.
TEMPLATES_KEPT_MAX: Final = 1_024

_STRING: Final = re.compile(rb'(?P<string>"(?:[^"\\]|\\.)*+")(?P<colon>[ \t\n\r]*+:)?', re.DOTALL)
_OPENING: Final = re.compile(r"(?P<dollars>\$++)\{")
_ROOT: Final = re.compile(r"\$\{(?P<root>input|steps)(?![\w-])")
NAME: Final = re.compile(r"[\w-]++")
_SEGMENT: Final = re.compile(
    r"\.(?P<name>[\w-]++)"
    r"|\[(?P<index>0|[1-9][0-9]{0,8})\]"
    r'|\[(?P<quoted>"(?:[^"\\\x00-\x1f]|\\["\\/bfnrt]|\\u[0-9a-fA-F]{4})*+")\]'
)


class Source(Struct, frozen=True):
    """Where a value comes from: what a step gave, or the job's input when `step_id` is empty."""

    step_id: str = ""


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
        if not is_literal:
            yield from group
        elif literal := b"".join(part for part in group if isinstance(part, bytes)):
            yield literal


def _parts(text: bytes) -> Iterator[bytes | Reference]:
    """Literal text and references of a template that is JSON."""
    at = 0
    for found in _STRING.finditer(text):
        # The common case first: no reference, and no escape that could hide one.
        if b"$" not in found["string"] and b"\\" not in found["string"]:
            continue
        string = json_text.decode_string(found["string"])
        pieces = tuple(_pieces(string, found.start()))
        if pieces == ((string, None),):
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
    if not string.startswith(".output", step.end()) or NAME.match(string, step.end() + len(".output")):
        expected = 'expected .output behind the step id; an id with dots is written ${steps["a.b"].output}'
        raise _syntax_error(string, start, step.end(), expected, offset)
    return Source(str(_segment(step))), step.end() + len(".output")


def _syntax_error(string: str, start: int, at: int, expected: str, offset: int) -> TemplateError:
    rest = json_text.quoted(string[at : at + 16]) if at < len(string) else "the end"
    reference = json_text.quoted(string[start : start + 64])
    return TemplateError(f"in {reference}, at byte {offset}: {expected}; found {rest}", offset=offset)
