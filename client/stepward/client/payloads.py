"""Payloads: the bytes that go into a job and come out of it.

Bytes are kept as they are; JSON is decoded when somebody asks, each time anew, so that nobody can change what another
reader sees.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec

JSON = "json/utf-8"
BYTES = "application/octet-stream"

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Payload:
    """Bytes, and what they are."""

    data: bytes
    encoding: str = JSON
    """"json/utf-8" (also when empty) is what a step's input mapping can look into."""

    @property
    def is_json(self) -> bool:
        return self.encoding in ("", JSON)

    def decode(self) -> Any:
        """The value that the JSON stands for, None for no bytes at all; of another encoding the bytes.

        Raises:
            ValueError: The bytes are not JSON although they are said to be.
        """
        if not self.is_json:
            return self.data
        return msgspec.json.decode(self.data) if self.data else None

    def decode_as(self, kind: type[T]) -> T:
        """The value as a dataclass, msgspec struct, TypedDict or anything else that msgspec can build.

        Raises:
            ValueError: The bytes are not JSON of that kind; the message names the place.
        """
        return msgspec.json.decode(self.data, type=kind)


def encode(value: Any) -> Payload | None:
    """The payload of what somebody passed as input; None stands for no payload.

    JSON that is already encoded goes in as `Payload(data)` or `msgspec.Raw(data)`; plain bytes are opaque, and no input
    mapping can look into them.

    Raises:
        TypeError: The value has no JSON form.
        ValueError: Something in it has none: a NaN, an infinity, half of a character.
    """
    match value:
        case None:
            return None
        case Payload():
            return value
        case bytes() | bytearray() | memoryview():
            return Payload(bytes(value), BYTES)
        case _:
            return Payload(_json(value))


def _json(value: Any) -> bytes:
    try:
        encoded = msgspec.json.encode(value)
        # The encoder writes null for what is no number. Most inputs have no null, so they are spared the walk.
        if b"null" in encoded:
            _refuse_no_numbers(msgspec.to_builtins(value, enc_hook=_leave_raw), "the input")
        return encoded
    except UnicodeEncodeError as error:
        raise ValueError(f"a text of the input is not Unicode ({error}); JSON cannot hold it") from None
    except TypeError as error:
        raise TypeError(
            f"input of type {type(value).__name__} has no JSON form ({error}); pass plain values, a dataclass, "
            "a msgspec struct, or bytes"
        ) from None


def _leave_raw(value: Any) -> None:
    """JSON that is already encoded has been looked at by whoever made it."""
    if not isinstance(value, msgspec.Raw):
        raise TypeError(f"{type(value).__name__} is not a plain value")


def _refuse_no_numbers(value: Any, place: str) -> None:
    """Raise ValueError where a float is NaN or infinite: a handler would take the null for a value."""
    match value:
        case float() if not math.isfinite(value):
            raise ValueError(f"{place} is {value}, which JSON cannot hold; pass None or a text instead")
        case dict():
            for key, inner in value.items():
                _refuse_no_numbers(inner, f"{place}.{key}")
        case list() | tuple() | set() | frozenset():
            for number, inner in enumerate(value):
                _refuse_no_numbers(inner, f"{place}[{number}]")
