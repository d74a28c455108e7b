"""Writes docs/museum.md, which tells of every planted fault and of who sees it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tests.museum.exhibits import ROOMS
from tests.repo.sources import ROOT

if TYPE_CHECKING:
    from tests.museum.exhibit import Exhibit

PAGE: Final = ROOT / "docs" / "museum.md"
_HEAD: Final = """\
# The museum of faults

Each line is a fault that some system had, or could have. `tests/museum` plants it: some words of one function are
changed while a named test runs, and that test must turn red, soon and for the reason that is told here. Without the
fault it must be green. A rule whose fault nobody sees is a rule that nobody notices when it is gone.

This page is written by `make museum`; a test keeps it equal to what is planted.
"""
_COLUMNS: Final = """\
| fault | where in the world | planted in | seen by | which says |
|---|---|---|---|---|
"""


def page() -> str:
    """The whole page."""
    parts = [_HEAD]
    for room, exhibits in ROOMS.items():
        parts.append(f"\n## {room}\n\n{_COLUMNS}")
        parts += [_line(exhibit) for exhibit in exhibits]
    return "".join(parts)


def _line(exhibit: Exhibit) -> str:
    where = exhibit.patch.where.removeprefix("stepward.").replace(":", ".")
    seen_by = exhibit.detector.removeprefix("tests/").replace("::", " ").replace(".py", "")
    cells = [exhibit.fault, exhibit.history, f"`{where}`", f"`{seen_by}`", f"`{exhibit.says}`"]
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |\n"


if __name__ == "__main__":
    PAGE.write_text(page())
