"""What an input or an output of a definition is made of: plain values, and references that the server fills in.

    {"who": input_("who"), "flight": flight.output("id"), "note": text("for ", input_("who"))}

A plain string stands for itself. One that holds "${" is refused, because nobody can tell whether it was meant as a
reference: f-strings with references in them end up there, too.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

from stepward.client.errors import DefinitionError
from stepward.client.yaml_nodes import DEPTH_MAX

if TYPE_CHECKING:
    from stepward.client.definition import Definition

# Also what the notation can say: "[999999999]".
INDEX_MAX = 999_999_999

_PLAIN_NAME = re.compile(r"[A-Za-z0-9_-]+")
_DOLLARS_BEFORE_BRACE = re.compile(r"\$+(?=\{)")
_DOLLARS_AT_END = re.compile(r"\$+\Z")

Key: TypeAlias = str | int


@dataclass(frozen=True, slots=True)
class Reference:
    """A value that is not known before the job runs: `input_(...)`, or `output(...)` of a step.

    Alone it is replaced by the referred value as it is; inside `text(...)` by the text of a string, number or boolean.
    """

    step_id: str
    """Empty: the job's input."""
    path: tuple[Key, ...]
    owner: Definition | None = field(default=None, repr=False)
    """The definition that the step belongs to."""

    def __post_init__(self) -> None:
        for key in self.path:
            if isinstance(key, bool) or not isinstance(key, str | int):
                raise DefinitionError(f"a reference goes by names and indexes, not by {key!r}")
            if isinstance(key, int) and not 0 <= key <= INDEX_MAX:
                raise DefinitionError(f"index {key} in a reference must be between 0 and {INDEX_MAX}")

    def __str__(self) -> str:  # type: ignore[explicit-override]  # `override` is of Python 3.12
        """As definition files write it: so an f-string with a reference in it is refused as a plain string."""
        root = f"steps{_segment(self.step_id)}.output" if self.step_id else "input"
        return f"${{{root}{''.join(map(_segment, self.path))}}}"


@dataclass(frozen=True, slots=True)
class Literal:
    """A string that stands for itself, whatever is in it."""

    text: str


@dataclass(frozen=True, slots=True)
class Text:
    """A string with references in it."""

    parts: tuple[str | Literal | Reference, ...]


Value: TypeAlias = (
    "str | int | float | bool | Reference | Literal | Text | Mapping[str, Value] | Sequence[Value] | None"
)


def input_(*path: Key) -> Reference:
    """The job's input, or what lies in it: `input_("guests", 0, "name")`.

    Raises:
        DefinitionError: The path has something else than names and indexes.
    """
    return Reference("", path)


def literal(text: str) -> Literal:
    """A string that stands for itself although it holds "${"."""
    return Literal(text)


def text(*parts: str | Literal | Reference) -> Text:
    """A string made of parts: `text("Dear ", input_("who"))`. References are replaced by their text.

    Raises:
        DefinitionError: There is a reference and nothing else: that would be the value itself, and not its text.
    """
    said = [part for part in parts if part not in ("", Literal(""))]
    if len(said) == 1 and isinstance(said[0], Reference):
        raise DefinitionError(
            f"text() of {said[0]} alone would be the value itself; write the reference without text()"
        )
    return Text(parts)


def template(value: object, place: str) -> str:
    """The JSON text with references that a definition holds.

    Raises:
        DefinitionError: The value has no such form; the message names the place in it.
    """
    return _json(value, place, 0)


def references(value: object) -> Iterator[Reference]:
    """All references in a value that has a template."""
    match value:
        case Reference():
            yield value
        case Text(parts=parts):
            yield from (part for part in parts if isinstance(part, Reference))
        case Mapping():
            for inner in value.values():
                yield from references(inner)
        case list() | tuple():
            for inner in value:
                yield from references(inner)


def _json(value: object, place: str, depth: int) -> str:
    if depth > DEPTH_MAX:
        raise DefinitionError(f"{place} is nested deeper than {DEPTH_MAX} levels")
    match value:
        case Reference() | Literal() | Text() | str():
            return _quote(_string(value, place), place)
        case Mapping():
            members = (
                f"{_key(key, place)}:{_json(inner, f'{place}.{key}', depth + 1)}" for key, inner in value.items()
            )
            return "{" + ",".join(members) + "}"
        case list() | tuple():
            return "[" + ",".join(_json(one, f"{place}[{at}]", depth + 1) for at, one in enumerate(value)) + "]"
        case None | bool() | int():
            return json.dumps(value)
        case float() if math.isfinite(value):
            return json.dumps(value)
        case float():
            raise DefinitionError(f"{place} is {value}, which JSON cannot hold")
        case _:
            raise DefinitionError(
                f"{place} is a {type(value).__name__}, which has no JSON form; write a str, int, float, bool, None, "
                "dict, list or tuple of these, or a reference"
            )


def _key(key: object, place: str) -> str:
    if not isinstance(key, str):
        raise DefinitionError(f"{place} has the key {key!r}; the keys of a JSON object are strings")
    if "${" in key:
        raise DefinitionError(f"{place} has the key {key!r}; a key cannot hold a reference")
    return _quote(key, place)


def _string(value: str | Reference | Literal | Text, place: str) -> str:
    """A string with its references in the notation of definition files."""
    match value:
        case Reference():
            return str(value)
        case Text(parts=parts):
            return _joined(parts, place)
        case _:
            return _escaped(_literal(value, place))


def _joined(parts: tuple[str | Literal | Reference, ...], place: str) -> str:
    joined, plain = "", ""
    for part in parts:
        if isinstance(part, Reference):
            # A dollar before a reference would be taken for its escape.
            joined += _DOLLARS_AT_END.sub(_doubled, _escaped(plain)) + str(part)
            plain = ""
        else:
            plain += _literal(part, place)
    return joined + _escaped(plain)


def _literal(part: object, place: str) -> str:
    match part:
        case Literal(text=text):
            return text
        case str() if "${" in part:
            raise DefinitionError(
                f'{place} holds "${{" in {part!r}; write input_(...), step.output(...) or text(...) for a reference, '
                "literal(...) for the characters themselves"
            )
        case str():
            return part
        case _:
            raise DefinitionError(f"{place}: text() is made of strings and references, not of a {type(part).__name__}")


def _escaped(plain: str) -> str:
    return _DOLLARS_BEFORE_BRACE.sub(_doubled, plain)


def _doubled(dollars: re.Match[str]) -> str:
    return dollars[0] * 2


def _quote(string: str, place: str) -> str:
    try:
        string.encode()
    except UnicodeEncodeError as error:
        raise DefinitionError(f"{place} has no form in UTF-8: {error.reason} at character {error.start}") from None
    return json.dumps(string, ensure_ascii=False)


def _segment(key: Key) -> str:
    if isinstance(key, int):
        return f"[{key}]"
    return f".{key}" if _PLAIN_NAME.fullmatch(key) else f"[{json.dumps(key, ensure_ascii=False)}]"
