"""Payloads: the bytes that go into a job and come out of it.

Bytes are kept as they are; JSON is decoded when somebody asks, each time anew, so that nobody can change what another
reader sees.
"""

from __future__ import annotations

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
        return msgspec.json.encode(value)
    except TypeError as error:
        raise TypeError(
            f"input of type {type(value).__name__} has no JSON form ({error}); pass plain values, a dataclass, "
            "a msgspec struct, or bytes"
        ) from None
