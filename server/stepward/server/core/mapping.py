"""Input mapping: values put into a template, without taking apart more of them than the references name.

A payload that is not JSON can be referred to as a whole only, by a template that is nothing but that reference.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Final, NoReturn

from stepward.server.core import json_text
from stepward.server.core.rows import Payload
from stepward.server.core.template import NAME, Reference, Source, Template, compile_template

if TYPE_CHECKING:
    from collections.abc import Callable

    from msgspec import Raw

    from stepward.server.core.limits import Limits
    from stepward.server.core.rows import DefinitionBody

# Members that a message names when the one asked for is missing.
MEMBERS_NAMED_MAX: Final = 8


class MappingError(ValueError):
    """Values that cannot be put into the template. `kind` is that of the failure it becomes.

    Kinds: INPUT_MAPPING and INPUT_TOO_LARGE, or OUTPUT_MAPPING and OUTPUT_TOO_LARGE for the output of a job.
    """

    def __init__(self, message: str, *, kind: str) -> None:
        super().__init__(message)
        self.message = message
        self.kind = kind


def render_output(body: DefinitionBody, lookup: Callable[[Source], Payload], limits: Limits) -> Payload:
    """What a job gives when all of its steps have succeeded.

    Without an output template: what the only step gave that nothing needs, or an object of what they gave by step id.

    Raises:
        MappingError: A reference cannot be satisfied, or the outcome would be too large.
    """
    return render(output_template(body), lookup, limits, wanted="OUTPUT")


def output_template(body: DefinitionBody) -> Template:
    """The template of a job's output: the definition's own, or the one that stands for none."""
    if body.output:
        return compile_template(body.output)
    sinks = [_whole_output(step.id) for step in body.steps if not step.dependents]
    if len(sinks) == 1:
        return Template((sinks[0],))
    parts: list[bytes | Reference] = []
    for sink in sinks:
        parts += [(b"," if parts else b"{") + json_text.encode_string(sink.source.step_id) + b":", sink]
    return Template((*parts, b"}"))


def _whole_output(step_id: str) -> Reference:
    return Reference(f"${{steps[{json_text.quoted(step_id)}].output}}", Source(step_id), (), inside=False, offset=0)


def render(
    template: Template, lookup: Callable[[Source], Payload], limits: Limits, *, wanted: str = "INPUT"
) -> Payload:
    """Put the values into the template. Called once for each attempt; `lookup` gives payloads as they are stored.

    A template that is nothing but one whole source gives its payload untouched, whatever its encoding. Everything else
    is JSON, of at most `payload_bytes_max`. An empty JSON payload counts as null.

    Raises:
        MappingError: A reference cannot be satisfied, or the outcome would be too large.
    """
    if len(template.parts) == 1 and isinstance(only := template.parts[0], Reference) and not only.path:
        return lookup(only.source)
    values = _Values(lookup, limits, wanted)
    pieces = []
    size_bytes = 0
    for part in template.parts:
        piece = part if isinstance(part, bytes) else values.text(part)
        size_bytes += len(piece)
        if size_bytes > limits.payload_bytes_max:
            msg = f"the mapping gives more than {limits.payload_bytes_max} bytes; refer to smaller parts"
            raise MappingError(msg, kind=f"{wanted}_TOO_LARGE")
        pieces.append(piece)
    return Payload(b"".join(pieces))


class _Values:
    """The values that one rendering refers to. Each level of a source is taken apart at most once."""

    def __init__(self, lookup: Callable[[Source], Payload], limits: Limits, wanted: str) -> None:
        self._lookup = lookup
        self._limits = limits
        self._wanted = wanted
        self._read_bytes = 0
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
                self._fail(reference, f"cannot be looked into, because {_origin(source)} has the encoding {encoding}")
            self._read_bytes += len(payload.data)
            if self._read_bytes > self._limits.mapping_read_bytes_max:
                msg = (
                    f"the mapping looks into more than {self._limits.mapping_read_bytes_max} bytes of other payloads; "
                    "refer to fewer of them, or let an earlier step bring them together"
                )
                raise MappingError(msg, kind=f"{self._wanted}_TOO_LARGE")
            text = payload.data.strip(b" \t\n\r") or b"null"
            fault = json_text.json_check(text, self._limits.json_depth_max)
            if fault is not None:
                self._fail(reference, f"cannot be looked into, because {_origin(source)} is not JSON: {fault}")
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
        raise MappingError(msg, kind=f"{self._wanted}_MAPPING")


def _origin(source: Source) -> str:
    return f"the output of step {json_text.quoted(source.step_id)}" if source.step_id else "the job's input"


def _place(reference: Reference, depth: int) -> str:
    """A value on the path of a reference, in words."""
    if depth == 0:
        return _origin(reference.source)
    path = "".join(
        f"[{segment}]"
        if isinstance(segment, int)
        else f".{segment}"
        if NAME.fullmatch(segment)
        else f"[{json_text.quoted(segment)}]"
        for segment in reference.path[:depth]
    )
    return f"{path.removeprefix('.')} of {_origin(reference.source)}"


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
