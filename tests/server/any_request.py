"""Requests of any shape, drawn from the descriptors of the contract: a call that is added to it is drawn by itself.

Values lean towards what exists (`Known`), since a request that fails at its first field shows little.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from hypothesis import strategies as st

# Deep enough for every message of the contract; what lies deeper is left out.
DEPTH_MAX = 5
LONG = [63, 64, 65, 128, 129, 256, 257, 1_024, 1_025, 5_000]

TEXT = st.one_of(
    # Strings of the contract are UTF-8, which has no halves of surrogate pairs.
    st.text(st.characters(exclude_categories=["Cs"]), max_size=12),
    st.sampled_from(LONG).map(lambda count: "x" * count),
    st.sampled_from(
        ["\0", "a\0b", "../..", "a b", "\U0001f600" * 64, "${input.a}", '{"a":"${steps.a.output}"}', "{", "null"]
    ),
)
JSON = [b"{}", b"null", b'{"a":1}', b'{"happened":true,"output":1}', b"[" * 64 + b"]" * 64, b"[" * 5_000, b"{", b"NaN"]
BYTES = st.one_of(
    st.sampled_from(JSON),
    st.binary(max_size=12),
    st.sampled_from([4_096, 4_097, 100_000]).map(bytes),
    st.sampled_from([4_094, 4_095]).map(lambda count: b'"' + b"x" * count + b'"'),
)
REALS = st.sampled_from([0.0, 1.0, 2.5, -1.0, 1e308, 5e-324, float("nan"), float("inf"), float("-inf")])
BITS = {
    FieldDescriptor.CPPTYPE_INT32: (-(2**31), 2**31 - 1),
    FieldDescriptor.CPPTYPE_ENUM: (-(2**31), 2**31 - 1),
    FieldDescriptor.CPPTYPE_INT64: (-(2**63), 2**63 - 1),
    FieldDescriptor.CPPTYPE_UINT32: (0, 2**32 - 1),
    FieldDescriptor.CPPTYPE_UINT64: (0, 2**64 - 1),
}


@dataclass
class Known:
    """Values that mean something to the node, by the name of the field."""

    by_field: dict[str, list[Any]] = field(default_factory=dict)

    def add(self, name: str, *values: Any) -> None:
        known = self.by_field.setdefault(name, [])
        known += [value for value in values if value not in known]


def requests(descriptor: Descriptor, known: Known, *, oneof: str = "") -> st.SearchStrategy[Message]:
    """Messages of one kind; `oneof`: the field that its oneof always holds.

    Half of them are wild in every field; the others are sane but for a field here and there, or they would all be
    refused for the first of their faults.
    """

    @st.composite
    def drawn(draw: st.DrawFn) -> Message:
        return _Drawing(draw, known, wild=draw(st.booleans())).message(descriptor, DEPTH_MAX, oneof=oneof)

    return drawn()


class _Drawing:
    """One request in the making."""

    def __init__(self, draw: st.DrawFn, known: Known, *, wild: bool) -> None:
        self._draw = draw
        self._known = known.by_field
        self._wild = wild

    def message(self, descriptor: Descriptor, depth: int, *, oneof: str = "") -> Message:
        message: Message = GetMessageClass(descriptor)()
        chosen = {one.name: self._draw(st.sampled_from([*one.fields, None])) for one in descriptor.oneofs}
        for one in descriptor.fields:
            if one.containing_oneof is not None:
                is_there = one.name == oneof if oneof else chosen[one.containing_oneof.name] is one
            else:
                is_there = self._draw(st.integers(0, 3 if self._wild else 12)) > 0
            if is_there and (one.message_type is None or depth):
                self._set(message, one, depth)
        return message

    def _set(self, message: Message, one: FieldDescriptor, depth: int) -> None:
        """Draw a value, or several, and set the field."""
        if one.message_type is not None and one.message_type.GetOptions().map_entry:
            texts = TEXT if self._is_wild() else st.sampled_from(["k", "v"])
            getattr(message, one.name).update(self._draw(st.dictionaries(texts, texts, max_size=3)))
        elif one.is_repeated:
            count = self._draw(st.integers(0, 3))
            getattr(message, one.name).extend([self._value(one, depth) for _ in range(count)])
        elif one.message_type is not None:
            getattr(message, one.name).CopyFrom(self._value(one, depth))
        else:
            setattr(message, one.name, self._value(one, depth))

    def _value(self, one: FieldDescriptor, depth: int) -> Any:
        if one.message_type is not None:
            return self.message(one.message_type, depth - 1)
        there = self._known.get(one.name)
        if self._is_wild():
            return self._draw(_anything(one) if not there else st.one_of(st.sampled_from(there), _anything(one)))
        return self._draw(st.sampled_from(there) if there else _sane(one))

    def _is_wild(self) -> bool:
        return self._wild or self._draw(st.integers(0, 15)) == 15


def _anything(one: FieldDescriptor) -> st.SearchStrategy[Any]:
    """Values of a field that is no message, whatever they may be."""
    match one.cpp_type:
        case FieldDescriptor.CPPTYPE_STRING:
            return BYTES if one.type == FieldDescriptor.TYPE_BYTES else TEXT
        case FieldDescriptor.CPPTYPE_BOOL:
            return st.booleans()
        case FieldDescriptor.CPPTYPE_DOUBLE | FieldDescriptor.CPPTYPE_FLOAT:
            return REALS
        case FieldDescriptor.CPPTYPE_ENUM:
            return st.one_of(_sane(one), st.sampled_from([-1, 99, *BITS[one.cpp_type]]))
        case kind:
            least, most = BITS[kind]
            extremes = [value for value in (0, 1, 2, 50, 1_000, 1_001, -1, least, most) if least <= value <= most]
            return st.one_of(st.sampled_from(extremes), st.integers(least, most))


def _sane(one: FieldDescriptor) -> st.SearchStrategy[Any]:
    """Values that some rule may like."""
    match one.cpp_type:
        case FieldDescriptor.CPPTYPE_STRING:
            return st.sampled_from([b"{}", b'{"a":1}', b"1"] if one.type == FieldDescriptor.TYPE_BYTES else ["x", ""])
        case FieldDescriptor.CPPTYPE_BOOL:
            return st.booleans()
        case FieldDescriptor.CPPTYPE_DOUBLE | FieldDescriptor.CPPTYPE_FLOAT:
            return st.sampled_from([0.0, 1.0, 2.5])
        case FieldDescriptor.CPPTYPE_ENUM:
            assert one.enum_type is not None
            return st.sampled_from([value.number for value in one.enum_type.values])
        case _:
            return st.integers(0, 3)
