"""A line with a caret below the right character."""

import pytest

from stepward.client.excerpts import WIDTH_MAX, excerpt


@pytest.mark.parametrize(
    ("text", "column", "shown", "below"),
    [
        ("name: x", 7, "name: x", "      ^"),
        ("name: x", 1, "name: x", "^"),
        # Behind the end: what is missing is missing there.
        ("name:", 6, "name:", "     ^"),
        ("", 1, "", "^"),
        # A tab is as wide as the terminal makes it, above and below.
        ("\tname: x", 2, "\tname: x", "\t^"),
        # Wide characters take two places, combining ones none.
        ("\u540d\u524d: x", 5, "\u540d\u524d: x", "      ^"),
        ("e\u0301: x", 5, "e\u0301: x", "   ^"),
        # What moves the cursor is not printed.
        ("a\x1b[31mb", 7, "a\ufffd[31mb", "      ^"),
    ],
)
def test_caret_stands_below_the_character(text: str, column: int, shown: str, below: str) -> None:
    assert excerpt(text, line=7, column=column) == f"  7 | {shown}\n    | {below}"


def test_number_is_as_wide_as_it_is() -> None:
    assert excerpt("ab", line=1234, column=2) == "  1234 | ab\n       |  ^"


@pytest.mark.parametrize(
    ("length", "column", "cut"),
    [
        (WIDTH_MAX, WIDTH_MAX, (False, False)),
        (WIDTH_MAX + 1, 1, (False, True)),
        (WIDTH_MAX + 1, WIDTH_MAX + 1, (True, False)),
        (WIDTH_MAX * 3, WIDTH_MAX, (True, True)),
    ],
)
def test_long_lines_are_cut_around_the_place(length: int, column: int, cut: tuple[bool, bool]) -> None:
    """A line of a generated file may have a megabyte."""
    text = "".join("X" if number + 1 == column else "-" for number in range(length))

    line, caret = (
        part.removeprefix("  1 | ").removeprefix("    | ") for part in excerpt(text, line=1, column=column).split("\n")
    )

    assert line[len(caret) - 1] == "X"
    assert (line.startswith("..."), line.endswith("...")) == cut
    assert len(line.replace("...", "")) == WIDTH_MAX
