"""Transcripts as text: blocks of comments, commands, `----`, and what came of them.

    # Why this rule exists.
    report step=flight outcome=success
    ----
    recorded
    j1 flight: OFFERED -> SUCCEEDED: StepSucceeded attempt=1 token=2

An empty line ends a block. An indented line belongs to the command above it. What holds a space is quoted as for a
shell.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass, field

RULER = "----"


class TranscriptError(Exception):
    """A transcript that cannot be read. The message names the line."""


@dataclass
class Line:
    """One command: words, and fields that must all be taken."""

    text: str
    words: list[str]
    fields: dict[str, str]
    inner: list[Line] = field(default_factory=list)

    @classmethod
    def parse(cls, text: str) -> Line:
        """A command from its line."""
        line = cls(text, [], {})
        for token in shlex.split(text):
            name, equals, value = token.partition("=")
            if equals:
                line.fields[name] = value
            else:
                line.words.append(token)
        return line

    def take(self, name: str, default: str | None = None) -> str:
        """A field, once."""
        if name in self.fields:
            return self.fields.pop(name)
        if default is None:
            msg = f"{name}= is missing in: {self.text}"
            raise TranscriptError(msg)
        return default

    def number(self, name: str, default: int | None = None) -> int:
        """A field that is a number."""
        return int(self.take(name, None if default is None else str(default)))

    def names(self, name: str) -> tuple[str, ...]:
        """A field that is a list with commas; none when it is left out."""
        return tuple(part for part in self.take(name, "").split(",") if part)

    def word(self) -> str:
        """The next word."""
        if not self.words:
            msg = f"a word is missing in: {self.text}"
            raise TranscriptError(msg)
        return self.words.pop(0)

    def done(self) -> None:
        """Refuse what nobody took: a misspelt field would silently mean its default."""
        if self.words or self.fields:
            msg = f"nobody understands {[*self.words, *self.fields]} in: {self.text}"
            raise TranscriptError(msg)


@dataclass
class Block:
    """Comments and commands as they stand in the file, and the result."""

    head: list[str]
    result: list[str]

    def commands(self) -> list[Line]:
        """The commands, with their indented lines."""
        found: list[Line] = []
        for text in self.head:
            if text.startswith("#"):
                continue
            line = Line.parse(text)
            if not text.startswith(" "):
                found.append(line)
            elif found:
                found[-1].inner.append(line)
            else:
                msg = f"an indented line needs a command above it: {text}"
                raise TranscriptError(msg)
        return found


def read(text: str) -> list[Block]:
    """The blocks of a transcript."""
    blocks = []
    for part in text.strip("\n").split("\n\n"):
        lines = part.strip("\n").split("\n")
        ruler = lines.index(RULER) if RULER in lines else len(lines)
        blocks.append(Block(lines[:ruler], lines[ruler + 1 :]))
    return blocks


def write(blocks: list[Block]) -> str:
    """The transcript of blocks. One that is only comments has no result."""
    return "\n\n".join("\n".join(_lines(block)) for block in blocks) + "\n"


def _lines(block: Block) -> list[str]:
    if all(text.startswith("#") for text in block.head):
        return block.head
    return [*block.head, RULER, *block.result]
