"""Equality that does not depend on how something was written: hashes of definitions, fingerprints of submissions."""

from __future__ import annotations

import json
import re
from hashlib import sha256
from json.encoder import encode_basestring_ascii
from typing import TYPE_CHECKING, Final, TypeAlias

import msgspec
from msgspec import structs

from stepward.server.core import json_text

if TYPE_CHECKING:
    from stepward.server.core.limits import Limits
    from stepward.server.core.rows import DefinitionBody, Payload

# Raised when the form changes, so that a fingerprint never equals one of another form by accident.
FINGERPRINT_FORM: Final = 2
# An exponent of more digits is compared as written: no such number means anything, and sums of such exponents cost
# more than a submission may.
EXPONENT_DIGITS_MAX: Final = 1_000

_NUMBER: Final = re.compile(r"(-?)([0-9]+)(?:\.([0-9]+))?(?:[eE]([+-]?[0-9]+))?")
_encode = msgspec.msgpack.Encoder(order="deterministic").encode


class _Number(str):
    """A number in canonical form; not to be taken for a string of the same characters."""

    __slots__ = ()


_Value: TypeAlias = "str | bool | list[_Value] | tuple[tuple[str, _Value], ...] | None"


def definition_hash(body: DefinitionBody) -> bytes:
    """SHA-256 of what a job of this definition runs, and of its description.

    The order of fields and defaults spelled out do not matter. The order of the steps does: rows of running jobs name
    steps by it, so equal hashes must mean equal positions. A description changes no job, but a new one that made no new
    version would be lost, or would have to change a version that others have read.
    """
    return sha256(_encode(structs.replace(body, source=b""))).digest()


def submission_fingerprint(
    *,
    namespace: str,
    definition_name: str,
    definition_version: int,
    input: Payload,
    labels: dict[str, str],
    deadline_ms: int,
    limits: Limits,
) -> bytes:
    """SHA-256 of what a submission asks for, with version and deadline as asked for (0: the newest; the definition's).

    JSON inputs are equal when their values are: whitespace, the order of members, escapes and the way in which a
    number is written do not matter. Other inputs, and text that only claims to be JSON, are equal when their bytes are.
    """
    asked = (
        FINGERPRINT_FORM,
        namespace,
        definition_name,
        definition_version,
        _canonical_input(input, limits),
        sorted(labels.items()),
        deadline_ms,
    )
    return sha256(_encode(asked)).digest()


def _canonical_input(input: Payload, limits: Limits) -> tuple[str, bytes]:
    if input.encoding not in json_text.ENCODINGS:
        return input.encoding, input.data
    if json_text.json_check(input.data, limits.json_depth_max) is not None:
        return "", input.data
    return "json", canonical_json(input.data)


def canonical_json(data: bytes) -> bytes:
    """The one text of all JSON texts of equal value. `data` has passed `json_check`, which bounds the recursion.

    The values of a key that occurs twice stay in their order: readers differ in which of them counts.
    """
    value: _Value = _DECODER.decode(data.decode())
    return _text(value).encode("ascii")


def _members(pairs: list[tuple[str, _Value]]) -> tuple[tuple[str, _Value], ...]:
    return tuple(sorted(pairs, key=lambda pair: pair[0]))


def _text(value: _Value) -> str:
    # The most frequent first: every submission with a key comes through here.
    if isinstance(value, str):
        return value if type(value) is _Number else encode_basestring_ascii(value)
    if isinstance(value, tuple):
        return "{" + ",".join([f"{encode_basestring_ascii(key)}:{_text(member)}" for key, member in value]) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(_text, value)) + "]"
    return json.dumps(value)


def _number(text: str) -> _Number:
    """A number as its sign, its digits without outer zeros, and a power of ten; never a float, never expanded."""
    match = _NUMBER.fullmatch(text)
    assert match is not None, text
    sign, whole, fraction, exponent = match[1], match[2], match[3] or "", match[4] or "0"
    digits = (whole + fraction).lstrip("0")
    significant = digits.rstrip("0")
    if not significant:
        return _Number("0")
    if len(exponent) > EXPONENT_DIGITS_MAX:
        return _Number(text)
    power = int(exponent) - len(fraction) + len(digits) - len(significant)
    return _Number(f"{sign}{significant}e{power}")


_DECODER: Final = json.JSONDecoder(parse_int=_number, parse_float=_number, object_pairs_hook=_members)
