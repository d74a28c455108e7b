"""What goes in as an input, and how it comes out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec
import pytest

from stepward.client.payloads import BYTES, JSON, Payload, encode


@dataclass
class Trip:
    who: str
    days: int = 1


class Struct(msgspec.Struct):
    who: str


@pytest.mark.parametrize(
    ("value", "payload"),
    [
        (None, None),
        ({"who": "ann"}, Payload(b'{"who":"ann"}')),
        ([1, None], Payload(b"[1,null]")),
        (0, Payload(b"0")),
        ("", Payload(b'""')),
        (Trip("ann"), Payload(b'{"who":"ann","days":1}')),
        (Struct("ann"), Payload(b'{"who":"ann"}')),
        # Already encoded: not a byte is changed.
        (msgspec.Raw(b'{"a": 1.10}'), Payload(b'{"a": 1.10}')),
        (Payload(b"1.10"), Payload(b"1.10")),
        # Opaque.
        (b"\x00\xff", Payload(b"\x00\xff", BYTES)),
        (bytearray(b"x"), Payload(b"x", BYTES)),
    ],
)
def test_encode(value: Any, payload: Payload | None) -> None:
    """Anything with a JSON form, and bytes."""
    assert encode(value) == payload


def test_encode_refuses() -> None:
    """Before anything is sent."""
    with pytest.raises(TypeError, match="input of type object has no JSON form"):
        encode(object())


@pytest.mark.parametrize(
    ("value", "complaint"),
    [
        (float("nan"), "the input is nan, which JSON cannot hold"),
        ({"x": float("inf")}, r"the input\.x is inf"),
        ({"x": [None, (1.0, float("-inf"))]}, r"the input\.x\[1\]\[1\] is -inf"),
        ({"raw": msgspec.Raw(b"null"), "x": float("nan")}, r"the input\.x is nan"),
        ("\udcff", "a text of the input is not Unicode"),
    ],
)
def test_encode_refuses_what_would_become_something_else(value: Any, complaint: str) -> None:
    """The encoder would write null for what is no number, and the job would run with that."""
    with pytest.raises(ValueError, match=complaint):
        encode(value)


def test_encode_keeps_a_null_that_was_meant() -> None:
    """Also beside JSON that is already encoded."""
    assert encode({"a": None, "b": msgspec.Raw(b"null"), "c": Trip("ann")}) == Payload(
        b'{"a":null,"b":null,"c":{"who":"ann","days":1}}'
    )


@pytest.mark.parametrize(
    ("payload", "value"),
    [
        (Payload(b'{"a": 1.10}'), {"a": 1.1}),
        (Payload(b'{"a": 1}', ""), {"a": 1}),
        (Payload(b"", JSON), None),
        (Payload(b"\xff", BYTES), b"\xff"),
    ],
)
def test_decode(payload: Payload, value: Any) -> None:
    """JSON is decoded, everything else is left alone."""
    assert payload.decode() == value


def test_decode_as() -> None:
    """A wrong shape says where it is wrong."""
    assert Payload(b'{"who":"ann","days":2}').decode_as(Trip) == Trip("ann", 2)
    with pytest.raises(ValueError, match=r"\$\.days"):
        Payload(b'{"who":"ann","days":"x"}').decode_as(Trip)
