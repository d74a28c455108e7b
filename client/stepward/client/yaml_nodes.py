"""YAML and JSON text as nodes that know their line and column.

Nodes rather than values: a value has no place to blame, and a number would not keep the form in which it was written.
YAML is read by its version 1.2, so that `no`, `on` and `22:30` are texts.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.composer import ComposerError
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from stepward.client.errors import DefinitionFileError, FileProblem
from stepward.client.excerpts import excerpt

DEPTH_MAX = 64
# Aliases let a short text stand for an endless one. The largest definition that a server takes has some 500,000.
NODES_MAX = 1_000_000
# Problems of one file that are told. Whoever has more will read it again.
PROBLEMS_MAX = 100

TEXT, INTEGER, FLOAT, BOOLEAN, NULL = "text", "integer", "number", "boolean", "nothing"

_KINDS = {
    "tag:yaml.org,2002:str": TEXT,
    # A date has no form of its own in JSON: the text stays as it is.
    "tag:yaml.org,2002:timestamp": TEXT,
    "tag:yaml.org,2002:int": INTEGER,
    "tag:yaml.org,2002:float": FLOAT,
    "tag:yaml.org,2002:bool": BOOLEAN,
    "tag:yaml.org,2002:null": NULL,
}
LINE_END = re.compile(r"\r\n|[\r\n\x85\u2028\u2029]")
_JSON_NUMBER = re.compile(r"-?(0|[1-9]\d*)(\.\d+)?([eE][+-]?\d+)?")


class EndlessError(DefinitionFileError):
    """The text is too deep or too large to be read on."""


class Document:
    """A text under the name that errors call it by, and what has been found wrong in it so far."""

    def __init__(self, text: str, name: str) -> None:
        self.name = name
        # A line ends where YAML says so; `splitlines` would also break at a form feed.
        self.lines = LINE_END.split(text)
        self.problems: list[FileProblem] = []
        self._nodes_left = NODES_MAX
        self.root = self._compose(text)

    def problem(self, description: str, node: Node | None = None) -> FileProblem:
        """What is wrong with a node."""
        line, column = place(node) if node is not None else (0, 0)
        return problem_at(self.name, self.lines, line, column, description)

    def error(self, description: str, node: Node | None = None) -> DefinitionFileError:
        """The error to raise about a node."""
        return DefinitionFileError([self.problem(description, node)])

    @contextmanager
    def collecting(self) -> Iterator[None]:
        """Keep an error of the block and go on behind it, so that a reader learns of all at once."""
        try:
            yield
        except EndlessError:
            raise
        except DefinitionFileError as error:
            self.problems.extend(error.problems)

    def raise_problems(self) -> None:
        """Raise all that has been found wrong, in the order of the file; nothing wrong: nothing.

        Raises:
            DefinitionFileError: Something is wrong. Beyond PROBLEMS_MAX the last problem says how many more there are.
        """
        if not self.problems:
            return
        # The same node may be read twice: aliases, and defaults that many steps share.
        found = sorted(dict.fromkeys(self.problems), key=lambda problem: (problem.line, problem.column))
        if len(found) > PROBLEMS_MAX:
            more = self.problem(f"and {len(found) - PROBLEMS_MAX} more; correct these first")
            found = [*found[:PROBLEMS_MAX], more]
        raise DefinitionFileError(found)

    def mapping(self, node: Node, what: str) -> Iterator[tuple[str, Node, Node]]:
        """Key, key's node and value's node of each entry."""
        if not isinstance(node, MappingNode):
            raise self.error(f"{what} must be a mapping of fields, not {describe(node)}", node)
        self._count(node)
        first: dict[str, Node] = {}
        for key_node, value in node.value:
            key: str | None = None
            with self.collecting():
                key = self._key(key_node, first)
            if key is not None:
                yield key, key_node, value

    def items(self, node: Node, what: str) -> list[Node]:
        """The items of a list."""
        if not isinstance(node, SequenceNode):
            raise self.error(
                f"{what} must be a list, not {describe(node)}; write [...] or one item a line with -", node
            )
        self._count(node)
        items: list[Node] = node.value
        return items

    def text(self, node: Node, what: str) -> str:
        """The text of a scalar. A number is refused: `1.10` as a text is not what `1.10` as a number is."""
        if not is_text(node):
            quoted = f'; write "{node.value}" in quotes' if isinstance(node, ScalarNode) and node.value else ""
            raise self.error(f"{what} must be a text, not {describe(node)}{quoted}", node)
        text: str = node.value
        return text

    def integer(self, node: Node, what: str) -> int:
        if not isinstance(node, ScalarNode) or kind(node) != INTEGER:
            raise self.error(f"{what} must be a whole number, not {describe(node)}", node)
        return self._parse_integer(node)

    def number(self, node: Node, what: str) -> float:
        if not isinstance(node, ScalarNode) or kind(node) not in (INTEGER, FLOAT):
            raise self.error(f"{what} must be a number, not {describe(node)}", node)
        return float(self.json(node))

    def json(self, node: Node, depth: int = 0) -> str:
        """The JSON that a node stands for; numbers keep their digits. What has no such form is noted as a problem."""
        self._count(node)
        if depth > DEPTH_MAX:
            raise EndlessError([self.problem(f"nested deeper than {DEPTH_MAX} levels", node)])
        if isinstance(node, MappingNode):
            entries = self.mapping(node, "this")
            return "{" + ",".join(f"{quote(key)}:{self.json(value, depth + 1)}" for key, _, value in entries) + "}"
        if isinstance(node, SequenceNode):
            return "[" + ",".join(self.json(item, depth + 1) for item in node.value) + "]"
        scalar = ""
        with self.collecting():
            scalar = self._json_scalar(node)
        return scalar

    def _json_scalar(self, node: Node) -> str:
        text: str = node.value
        match kind(node):
            case "text":
                return quote(text)
            case "boolean":
                return text.lower()
            case "nothing":
                return "null"
            case _ if _JSON_NUMBER.fullmatch(text):
                return text
            case "integer":
                return str(self._parse_integer(node))
            case "number":
                return self._json_float(node)
            case other:
                raise self.error(f"{other} has no form in JSON; write it as a text in quotes", node)

    def _json_float(self, node: Node) -> str:
        try:
            return json.dumps(float(node.value.replace("_", "")), allow_nan=False)
        except ValueError:
            raise self.error(f"{node.value} has no form in JSON", node) from None

    def _parse_integer(self, node: Node) -> int:
        text = node.value.replace("_", "")
        try:
            return int(text, 0) if text.lstrip("+-")[:2].lower() in ("0x", "0o", "0b") else int(text)
        except ValueError:
            raise self.error(f"{node.value} is not a whole number", node) from None

    def _key(self, node: Node, first: dict[str, Node]) -> str:
        """The name of a field, noted in `first` by its node."""
        if not isinstance(node, ScalarNode):
            raise self.error(f"the name of a field must be a text, not {describe(node)}", node)
        if node.tag == "tag:yaml.org,2002:merge":
            raise self.error('"<<" is not understood here; put what all steps share under "defaults:"', node)
        key: str = node.value
        if key in first:
            line = place(first[key])[0]
            raise self.error(f'"{key}" stands here for the second time; first in line {line}', node)
        first[key] = node
        return key

    def _count(self, node: Node) -> None:
        self._nodes_left -= 1
        if self._nodes_left < 0:
            raise EndlessError([self.problem(f"more than {NODES_MAX} values, aliases counted; make it smaller", node)])

    def _compose(self, text: str) -> Node:
        try:
            root: Node | None = YAML(typ="safe", pure=True).compose(text)
        except ComposerError as error:
            # It knows the first document only when there is a second one; an alias without an anchor has no context.
            raise (self._second_document(error) if error.context_mark else self._broken(error)) from None
        except MarkedYAMLError as error:
            raise self._broken(error) from None
        except YAMLError as error:
            raise self.error(f"cannot be read as YAML: {error}") from None
        except RecursionError:
            raise self.error("nested too deeply") from None
        if root is None:
            raise self.error("is empty; a definition needs at least a name and steps")
        return root

    def _second_document(self, error: ComposerError) -> DefinitionFileError:
        text = "another document begins here; a file holds one definition, so give each a file of its own"
        return DefinitionFileError([problem_at(self.name, self.lines, error.problem_mark.line + 1, 1, text)])

    def _broken(self, error: MarkedYAMLError) -> DefinitionFileError:
        mark = error.problem_mark or error.context_mark
        context = f" ({error.context})" if error.context else ""
        line, column = (mark.line + 1, mark.column + 1) if mark else (0, 0)
        description = f"broken YAML: {error.problem}{context}"
        return DefinitionFileError([problem_at(self.name, self.lines, line, column, description)])


def problem_at(name: str, lines: Sequence[str], line: int, column: int, description: str) -> FileProblem:
    """A problem with the line that it stands in. Line 0: it has no place."""
    shown = excerpt(lines[line - 1], line=line, column=column) if 1 <= line <= len(lines) else ""
    return FileProblem(name, line, column, description, shown)


def place(node: Node) -> tuple[int, int]:
    """Line and column of a node, from 1."""
    return node.start_mark.line + 1, node.start_mark.column + 1


def kind(node: Node) -> str:
    """What a scalar is; a tag of its own for what is none of ours."""
    return _KINDS.get(node.tag or "", f"a value tagged {node.tag}")


def describe(node: Node) -> str:
    """A node in an error message."""
    if isinstance(node, MappingNode):
        return "a mapping"
    if isinstance(node, SequenceNode):
        return "a list"
    match kind(node):
        case "nothing":
            return "nothing"
        case "text":
            return f'the text "{node.value}"'
        case other:
            return f"the {other} {node.value}"


def is_text(node: Node) -> bool:
    """Whether it is a scalar that stands for a text."""
    return isinstance(node, ScalarNode) and kind(node) == TEXT


def is_null(node: Node) -> bool:
    """Whether nothing was written."""
    return isinstance(node, ScalarNode) and kind(node) == NULL


def quote(text: str) -> str:
    """A text as JSON."""
    return json.dumps(text, ensure_ascii=False)


def suggestion(wrong: str, names: list[str]) -> str:
    """The end of an error message about a name that does not exist."""
    close = get_close_matches(wrong, names, n=1)
    return f', did you mean "{close[0]}"?' if close else f"; there are {', '.join(names)}"


def parse_json(text: str) -> Any:
    """The value of a JSON text.

    Raises:
        json.JSONDecodeError: It is none; knows line and column.
    """
    return json.loads(text)
