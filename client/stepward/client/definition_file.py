"""Reads definitions from YAML or JSON files.

The only schema is the contract: a file is walked along the message `Definition`, so a field that is added there can be
written at once. What the files have beyond it: durations such as "30s", enum names in small letters, JSON templates
(`input`, `output`) written as YAML, and `defaults:` for what all steps share.

Errors here are about form: all of a file at once, each with line, column and the line itself. What a definition means
(cycles, references) is checked by the server; `DefinitionFile.problem` leads its complaints back to the lines.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from google.protobuf.descriptor import FieldDescriptor

from stepward.client.durations import parse_duration
from stepward.client.errors import DefinitionFileError, FileProblem, Violation
from stepward.client.yaml_nodes import (
    LINE_END,
    Document,
    EndlessError,
    is_null,
    is_text,
    parse_json,
    place,
    problem_at,
    quote,
    suggestion,
)
from stepward.v1.definition_pb2 import Definition, Step

if TYPE_CHECKING:
    from google.protobuf.descriptor import Descriptor
    from google.protobuf.message import Message
    from ruamel.yaml.nodes import Node

# A server takes 2 MiB of the contract's bytes, which are more as YAML.
FILE_BYTES_MAX = 8 * 1024 * 1024

DURATION = "google.protobuf.Duration"

# Fields that hold JSON text with references.
TEMPLATES = frozenset({"stepward.v1.Definition.output", "stepward.v1.Step.input"})

# What `defaults:` may give to every step. The rest says what a step is and cannot be shared.
SHAREABLE = (
    "queue",
    "retry",
    "timeouts",
    "effect",
    "start",
    "on_unknown",
    "on_exhausted",
    "reassign",
    "approval",
)

UINT32_MAX = 2**32 - 1

# In the contract a number that is 0 stands for its default. Nobody who writes a 0 means that.
SMALLEST = {
    "stepward.v1.RetryPolicy.attempts_max": "it must be at least 1: 1 means that nothing is repeated",
    "stepward.v1.RetryPolicy.factor": "it must be at least 1: 1 means that every wait is as long as the first",
}


@dataclass(frozen=True)
class DefinitionFile:
    """A definition, and where its parts stand."""

    name: str
    definition: Definition
    places: dict[str, tuple[int, int]] = field(default_factory=dict, repr=False)
    """Line and column, from 1, by path such as "steps[2].needs[0]"."""
    lines: list[str] = field(default_factory=list, repr=False)
    """Of the file."""

    def locate(self, path: str) -> tuple[int, int] | None:
        """Line and column of a field, or of the nearest thing around it that stands in the file."""
        while path not in self.places:
            shorter = re.sub(r"(\.[^.\[\]]*|\[[^\[\]]*\]|^[^.\[\]]+)$", "", path)
            if shorter == path:
                return None
            path = shorter
        return self.places[path]

    def problem(self, violation: Violation) -> FileProblem:
        """What a server says about the definition, with the place in the file where that can be told."""
        line, column = self.locate(violation.field.removeprefix("definition.")) or (0, 0)
        return problem_at(self.name, self.lines, line, column, violation.text)


def load(path: Path | str) -> Definition:
    """The definition in a file.

    Raises:
        DefinitionFileError: It cannot be read; `problems` lists all that is wrong, each with line and column.
    """
    return read(path).definition


def loads(text: str, name: str = "<text>") -> Definition:
    """The definition in a text. `name` is what errors call it.

    Raises:
        DefinitionFileError: It cannot be read.
    """
    return reads(text, name).definition


def read(path: Path | str) -> DefinitionFile:
    """As `load`, with the places."""
    name = str(path)
    try:
        content = Path(path).read_bytes()
    except OSError as error:
        raise _without_place(name, f"cannot be read: {error.strerror or error}") from None
    if len(content) > FILE_BYTES_MAX:
        raise _without_place(name, f"has {len(content)} bytes; at most {FILE_BYTES_MAX}")
    try:
        return reads(content.decode(), name)
    except UnicodeDecodeError as error:
        before = content[: error.start].decode()
        lines = LINE_END.split(before)
        # What cannot be decoded cannot be shown either.
        problem = FileProblem(name, len(lines), len(lines[-1]) + 1, "is not UTF-8 text")
        raise DefinitionFileError([problem]) from None


def reads(text: str, name: str = "<text>") -> DefinitionFile:
    """As `loads`, with the places."""
    if name.endswith(".json"):
        _check_json(text, name)
    document = Document(text, name)
    reader = _Reader(document)
    return DefinitionFile(name, reader.definition(), reader.places, document.lines)


def _without_place(name: str, description: str) -> DefinitionFileError:
    return DefinitionFileError([FileProblem(name, 0, 0, description)])


def _check_json(text: str, name: str) -> None:
    """YAML understands more than JSON, and what is named JSON should be read by every JSON reader."""
    try:
        parse_json(text)
    except json.JSONDecodeError as error:
        description = f"broken JSON: {error.msg}"
        # Counted as JSON does, for which only a newline ends a line.
        problem = problem_at(name, text.split("\n"), error.lineno, error.colno, description)
        raise DefinitionFileError([problem]) from None
    except RecursionError:
        raise _without_place(name, "nested too deeply") from None


class _Reader:
    """Walks nodes along the contract's messages."""

    def __init__(self, document: Document) -> None:
        self._document = document
        self.places: dict[str, tuple[int, int]] = {}

    def definition(self) -> Definition:
        """The definition.

        Raises:
            DefinitionFileError: Something is wrong; all of it is told.
        """
        definition = Definition()
        try:
            with self._document.collecting():
                self._definition(definition)
        except EndlessError as error:
            self._document.problems.extend(error.problems)
        self._document.raise_problems()
        return definition

    def _definition(self, definition: Definition) -> None:
        defaults: Node | None = None
        for key, key_node, node in self._document.mapping(self._document.root, "a definition"):
            if key == "defaults":
                defaults = node
                continue
            with self._document.collecting():
                self._field(definition, key, key_node, node, path="", also=["defaults"])
        if defaults is not None and not is_null(defaults):
            self._share(defaults, definition)

    def _share(self, node: Node, definition: Definition) -> None:
        """Give every step what it has not said itself."""
        defaults = Step()
        for key, key_node, value in self._document.mapping(node, "defaults"):
            with self._document.collecting():
                if key not in SHAREABLE:
                    hint = suggestion(key, list(SHAREABLE))
                    raise self._document.error(f'defaults cannot have "{key}"{hint}', key_node)
                self._field(defaults, key, key_node, value, path="defaults")
        for descriptor in Step.DESCRIPTOR.fields:
            inner = self._inside(f"defaults.{descriptor.name}")
            if not inner:
                continue
            for number, step in enumerate(definition.steps):
                own = f"steps[{number}].{descriptor.name}"
                if own not in self.places:
                    _copy_field(defaults, step, descriptor)
                    self.places.update((own + rest, found) for rest, found in inner)

    def _inside(self, path: str) -> list[tuple[str, tuple[int, int]]]:
        """The places of a field and of all within it, by what follows the path."""
        return [
            (other.removeprefix(path), found)
            for other, found in self.places.items()
            if other == path or other.startswith((f"{path}.", f"{path}["))
        ]

    def _message(self, message: Message, node: Node, path: str) -> None:
        for key, key_node, value in self._document.mapping(node, path):
            with self._document.collecting():
                self._field(message, key, key_node, value, path=path)

    def _field(
        self, message: Message, key: str, key_node: Node, node: Node, *, path: str, also: list[str] | None = None
    ) -> None:
        """Read one field into its message."""
        # Any, because the stubs give a descriptor two unrelated types.
        descriptor: Any = message.DESCRIPTOR.fields_by_name.get(key)
        if descriptor is None:
            names = [*message.DESCRIPTOR.fields_by_name, *(also or [])]
            where = f" in {path}" if path else ""
            raise self._document.error(f'unknown field "{key}"{where}{suggestion(key, names)}', key_node)
        inner = f"{path}.{key}" if path else key
        if is_null(node):
            return
        self.places[inner] = place(node)
        if descriptor.is_repeated:
            self._repeated(message, descriptor, node, inner)
        elif descriptor.message_type is not None:
            self._submessage(getattr(message, key), descriptor.message_type, node, inner)
        else:
            setattr(message, key, self._scalar(descriptor, node, inner))

    def _repeated(self, message: Message, descriptor: FieldDescriptor, node: Node, path: str) -> None:
        values: Any = getattr(message, descriptor.name)
        for number, item in enumerate(self._document.items(node, path)):
            inner = f"{path}[{number}]"
            self.places[inner] = place(item)
            with self._document.collecting():
                if descriptor.message_type is not None:
                    self._message(values.add(), item, inner)
                else:
                    values.append(self._scalar(descriptor, item, inner))

    def _submessage(self, message: Message, descriptor: Descriptor, node: Node, path: str) -> None:
        message.SetInParent()
        if descriptor.full_name == DURATION:
            self._duration(message, node, path)
        else:
            self._message(message, node, path)

    def _duration(self, message: Any, node: Node, path: str) -> None:
        text = node.value if isinstance(node.value, str) else self._document.text(node, path)
        try:
            message.FromTimedelta(parse_duration(text))
        except ValueError as error:
            raise self._document.error(f"{path}: {error}", node) from None

    def _scalar(self, descriptor: FieldDescriptor, node: Node, path: str) -> Any:
        if descriptor.full_name in TEMPLATES:
            return self._template(node, path)
        match descriptor.type:
            case FieldDescriptor.TYPE_ENUM:
                return self._enum(descriptor, node, path)
            case FieldDescriptor.TYPE_UINT32:
                return self._written(descriptor, self._uint32(node, path), node, path)
            case FieldDescriptor.TYPE_DOUBLE:
                return self._written(descriptor, self._document.number(node, path), node, path)
            case FieldDescriptor.TYPE_STRING:
                return self._document.text(node, path)
            case other:
                raise AssertionError(f"{descriptor.full_name} has type {other}, which no definition had so far")

    def _written(self, descriptor: FieldDescriptor, number: float, node: Node, path: str) -> float:
        """The number, unless it would be read as one that was never written."""
        if not number:
            rule = SMALLEST.get(descriptor.full_name, "leave it out, which means the same: the default")
            raise self._document.error(f"{path} is {number:g}; {rule}", node)
        return number

    def _uint32(self, node: Node, path: str) -> int:
        number = self._document.integer(node, path)
        if not 0 <= number <= UINT32_MAX:
            raise self._document.error(f"{path} is {number}; it must be between 1 and {UINT32_MAX}", node)
        return number

    def _enum(self, descriptor: FieldDescriptor, node: Node, path: str) -> int:
        numbers = enum_words(descriptor)
        text = self._document.text(node, path)
        # The contract's own name is understood, too.
        word = text.upper().removeprefix(_prefix(descriptor)).lower()
        if word not in numbers:
            raise self._document.error(f'{path} cannot be "{text}"{suggestion(word, list(numbers))}', node)
        return numbers[word]

    def _template(self, node: Node, path: str) -> str:
        """JSON text: what was written as YAML becomes JSON, what was written as JSON stays as it is."""
        if not is_text(node):
            return self._document.json(node)
        text: str = node.value
        try:
            parse_json(text)
        except ValueError as error:
            # A reference alone, or a sentence with one inside: a JSON string without its quotes.
            if not text.lstrip().startswith(("{", "[", '"')):
                return quote(text)
            raise self._document.error(f"{path} is broken JSON: {error}", node) from None
        return text


def enum_words(descriptor: FieldDescriptor) -> dict[str, int]:
    """The values of an enum field by the words that files have for them."""
    enum = descriptor.enum_type
    assert enum is not None
    prefix = _prefix(descriptor)
    return {value.name.removeprefix(prefix).lower(): value.number for value in enum.values if value.number}


def _prefix(descriptor: FieldDescriptor) -> str:
    enum = descriptor.enum_type
    assert enum is not None
    return enum.values[0].name.removesuffix("UNSPECIFIED")


def _copy_field(source: Message, target: Message, descriptor: FieldDescriptor) -> None:
    if descriptor.message_type is not None:
        getattr(target, descriptor.name).CopyFrom(getattr(source, descriptor.name))
    else:
        setattr(target, descriptor.name, getattr(source, descriptor.name))
