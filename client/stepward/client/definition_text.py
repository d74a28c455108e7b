"""A definition as the text of a definition file, which gives the same definition when it is read.

The inverse of `definition_file`, and like it written along the contract's message, so that no field can be forgotten.
"""

from __future__ import annotations

import io
import json
from typing import TYPE_CHECKING, Any

from google.protobuf.descriptor import FieldDescriptor
from ruamel.yaml import YAML
from ruamel.yaml.nodes import ScalarNode
from ruamel.yaml.representer import SafeRepresenter

from stepward.client.definition_file import DURATION, TEMPLATES, enum_words
from stepward.client.durations import format_duration

if TYPE_CHECKING:
    from google.protobuf.message import Message

    from stepward.v1.definition_pb2 import Definition


class _Representer(SafeRepresenter):
    """Writes texts so that every character of them is read again."""

    def text(self, text: str) -> ScalarNode:
        # Outside of double quotes, characters such as U+0085 and U+2028 end a line and are read as a space.
        style = None if text.isprintable() else '"'
        node: ScalarNode = self.represent_scalar("tag:yaml.org,2002:str", text, style=style)
        return node


_Representer.add_representer(str, _Representer.text)


def as_yaml(definition: Definition) -> str:
    """The definition as YAML. Durations are whole milliseconds, as in all files."""
    # Any, because the stubs know this attribute by its default only.
    yaml: Any = YAML(typ="safe", pure=True)
    yaml.Representer = _Representer
    yaml.default_flow_style = False
    yaml.sort_base_mapping_type_on_output = False
    yaml.allow_unicode = True
    stream = io.StringIO()
    yaml.dump(_mapping(definition), stream)
    return stream.getvalue()


def _mapping(message: Message) -> dict[str, Any]:
    """The fields that are set, in the contract's order."""
    return {descriptor.name: _field(descriptor, value) for descriptor, value in message.ListFields()}


def _field(descriptor: FieldDescriptor, value: Any) -> Any:
    if descriptor.is_repeated:
        return [_one(descriptor, item) for item in value]
    return _one(descriptor, value)


def _one(descriptor: FieldDescriptor, value: Any) -> Any:
    if descriptor.message_type is not None:
        is_duration = descriptor.message_type.full_name == DURATION
        return format_duration(value.ToTimedelta()) if is_duration else _mapping(value)
    if descriptor.full_name in TEMPLATES:
        return _template(value)
    if descriptor.type == FieldDescriptor.TYPE_ENUM:
        # A number that this software does not know stays one: the reader then says so.
        return {number: word for word, number in enum_words(descriptor).items()}.get(value, value)
    return value


def _template(text: str) -> Any:
    """What gives this text again when it is read; the text itself where nothing nicer does, as with 1.10."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return text
    if not _is_plain(value) or _compact(value) != text:
        return text
    return value if isinstance(value, dict | list) or (isinstance(value, str) and value.startswith("$")) else text


def _is_plain(value: Any) -> bool:
    """Whether YAML writes all of it as JSON does: floats have forms of their own there."""
    match value:
        case dict():
            return all(_is_plain(inner) for inner in value.values())
        case list():
            return all(_is_plain(inner) for inner in value)
        case _:
            return not isinstance(value, float)


def _compact(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
