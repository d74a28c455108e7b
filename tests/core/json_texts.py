"""Random JSON as people and programs write it: any whitespace, any escape, numbers that no float holds."""

import json
from dataclasses import dataclass
from typing import TypeAlias

from hypothesis import strategies as st


@dataclass(frozen=True)
class Number:
    """A number as it is written."""

    text: str


Path: TypeAlias = tuple[str | int, ...]
Value: TypeAlias = "Number | str | bool | list[Value] | dict[str, Value] | None"


@dataclass(frozen=True)
class JsonText:
    """JSON text, and which part of it each path leads to."""

    text: str
    slices: dict[Path, str]

    @property
    def data(self) -> bytes:
        """The text as a payload holds it."""
        return self.text.encode()


ODD_STRINGS = ["\ud83d", "a\udc00b", "\0", "]}", '"', "\\", "$", "${input}", "a.b", "0"]
ODD_NUMBERS = ["1.10", "-0", "1e400", "9007199254740993", "1E+2", "1e999999999", "0.1"]

spaces = st.text(" \t\r\n", max_size=2)
strings = st.text(max_size=6) | st.sampled_from(ODD_STRINGS)
numbers = st.builds(
    Number,
    st.from_regex(r"\A-?(0|[1-9][0-9]{0,30})(\.[0-9]{1,20})?([eE][+-]?[0-9]{1,6})?\Z") | st.sampled_from(ODD_NUMBERS),
)
scalars: st.SearchStrategy[Value] = st.none() | st.booleans() | numbers | strings


def containers(inner: st.SearchStrategy[Value]) -> st.SearchStrategy[Value]:
    """Arrays and objects."""
    return st.lists(inner, max_size=3) | st.dictionaries(strings, inner, max_size=3)


values: st.SearchStrategy[Value] = st.recursive(scalars, containers, max_leaves=8)


@st.composite
def written(draw: st.DrawFn, value: Value) -> JsonText:
    """One of the ways to write a value: members in any order, any whitespace, any escapes. Numbers stay as they are."""
    match value:
        case list():
            parts = [draw(written(element)) for element in value]
            text = ",".join(draw(spaces) + part.text + draw(spaces) for part in parts)
            return _container("[" + text + "]", list(enumerate(parts)))
        case dict():
            members = [(key, draw(written(inner))) for key, inner in draw(st.permutations(list(value.items())))]
            pairs = [draw(spaces) + draw(escaped(key)) + draw(spaces) + ":" + part.text for key, part in members]
            return _container("{" + ",".join(pairs) + draw(spaces) + "}", members)
        case str():
            text = draw(escaped(value))
        case Number():
            text = value.text
        case _:
            text = json.dumps(value)
    return JsonText(text, {(): text})


def _container(text: str, parts: list[tuple[str, JsonText]] | list[tuple[int, JsonText]]) -> JsonText:
    slices: dict[Path, str] = {(): text}
    for segment, part in parts:
        slices |= {(segment, *path): slice_ for path, slice_ in part.slices.items()}
    return JsonText(text, slices)


@st.composite
def escaped(draw: st.DrawFn, string: str) -> str:
    """A string in quotes, with some of its characters escaped that need not be."""
    pieces = []
    for character in string:
        units = character.encode("utf-16-be", "surrogatepass").hex()
        numbered = "".join(f"\\u{units[at : at + 4]}" for at in range(0, len(units), 4))
        plain = json.dumps(character, ensure_ascii="\ud800" <= character <= "\udfff")[1:-1]
        pieces.append(draw(st.sampled_from([plain, plain, numbered])))
    return f'"{"".join(pieces)}"'


json_texts: st.SearchStrategy[JsonText] = values.flatmap(written)
