"""Values of every kind of command and answer, filled from its own type hints, so that a new field is in it at once."""

from __future__ import annotations

import enum
import types
import typing
from typing import Any

import msgspec

from stepward.server.core.commands import Answer, AnyCommand

COMMANDS: tuple[type[msgspec.Struct], ...] = typing.get_args(AnyCommand)
ANSWERS: tuple[type[msgspec.Struct], ...] = typing.get_args(Answer)


def samples(type_: type[msgspec.Struct]) -> list[Any]:
    """Values of a type: one for each kind of what stands in its unions."""
    fields = msgspec.structs.fields(type_)
    hints = typing.get_type_hints(type_)
    choices = {field.name: _values(hints[field.name], number) for number, field in enumerate(fields, start=1)}
    longest = max(map(len, choices.values()), default=1)
    return [type_(**{name: of[at % len(of)] for name, of in choices.items()}) for at in range(longest)]


def _values(hint: Any, number: int) -> list[Any]:
    """Some values of a type hint; numbers and texts differ from field to field, so that none can be swapped."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in {types.UnionType, typing.Union}:
        return [value for argument in arguments for value in _values(argument, number)]
    if origin is tuple:
        return [(value,) for value in _values(arguments[0], number)]
    if origin is dict:
        return [{f"key {number}": value for value in _values(arguments[1], number)}]
    if hint is type(None):
        return [None]
    if issubclass(hint, msgspec.Struct):
        return samples(hint)
    if issubclass(hint, enum.Enum):
        return [list(hint)[number % len(hint)]]
    plain: dict[type, list[Any]] = {
        bool: [True, False],
        int: [number, 2**63 - 1],
        float: [number / 2],
        str: [f"text {number}", ""],
        bytes: [b"\x00\xff" * number, b""],
    }
    return plain[hint]
