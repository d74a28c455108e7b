"""A line of a file with a caret below one of its characters, as compilers show where something is wrong."""

from __future__ import annotations

from unicodedata import combining, east_asian_width

# Of a longer line only the surroundings of the place are shown.
WIDTH_MAX = 100

# What is cut off is told by these, on either side.
CUT = "..."


def excerpt(line_text: str, *, line: int, column: int) -> str:
    """The line behind its number, and the caret below.

    Args:
        line_text: The whole line, without its end.
        line: Its number, from 1.
        column: The character to point to, from 1; one behind the last is the end of the line.
    """
    shown, offset = _window(line_text, column - 1)
    before = "".join(_blank(character) for character in shown[:offset])
    margin = " " * len(str(line))
    return f"  {line} | {_printable(shown)}\n  {margin} | {before}^"


def _window(text: str, at: int) -> tuple[str, int]:
    """The part of the text around a place, and where in it the place is."""
    if len(text) <= WIDTH_MAX:
        return text, at
    begin = max(0, min(at - WIDTH_MAX // 2, len(text) - WIDTH_MAX))
    end = begin + WIDTH_MAX
    head = CUT if begin else ""
    tail = CUT if end < len(text) else ""
    return head + text[begin:end] + tail, at - begin + len(head)


def _printable(text: str) -> str:
    """A control character would move the cursor, and the caret would stand below another one."""
    return "".join(character if character == "\t" or character.isprintable() else "\ufffd" for character in text)


def _blank(character: str) -> str:
    """What takes as much room as the character: a tab keeps its own idea of that."""
    if character == "\t":
        return "\t"
    if combining(character):
        return ""
    return "  " if east_asian_width(character) in "WF" else " "
