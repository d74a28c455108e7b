"""Writes `docs/faults.md` from a run of the whole fault matrix: `make docs`.

The rows are those of `fault_cells`, the figures are those of the run.
"""

from __future__ import annotations

import asyncio
import re
import sys
import tempfile
import textwrap
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from tests.cluster.fault_cells import CELLS, FIRST, KILL_GRACE_MS, TTL_MS, Cell, Fault, Kind
from tests.cluster.fault_plays import PLAYS_AT_ONCE, Run, run
from tests.cluster.fault_sightings import Sighting, breaches

COLUMNS = ("step", "noticed as", "after", "what is decided", "step, job", "ended after", "at the service")

TIMELINES = (Cell(Fault.AGENT_PAUSED, Kind.UNDOING), Cell(Fault.SERVICE_UNANSWERED, Kind.ASKABLE))

TTL, GRACE, FENCE = (f"{ms / 1000:g} s" for ms in (TTL_MS, KILL_GRACE_MS, TTL_MS + KILL_GRACE_MS))

INTRODUCTION = f"""\
# What can go wrong, and what comes of it

This page was written by `make docs`: one node, agents and a service as real processes, and each fault made in each
kind of step, as `tests/cluster/test_fault_matrix.py` does it. The figures are what that run saw, on a machine of two
cores that played {PLAYS_AT_ONCE} faults at a time.

Every handler does its deed at the service first and gets into trouble then: the deed is done, and the cluster does not
know. The service counts what was really done. In no row did a deed take effect twice under one key, or with an old
token after a newer one, although the service for steps that are not idempotent would have allowed both.

How to read it:

- The lease (TTL) is {TTL} here and 10 s unless told otherwise, so in production what hangs on it takes longer.
- **after** is how long after the beginning of the fault the cluster noticed it, by the clock that it decides by: led
  time for leases, log time for timeouts. **ended after** is when the job had ended, or waited for a person.
- What might meet an attempt that still acts waits for its agent's word, or else until it surely cannot act any more.
  For a lost one that is a TTL and {GRACE} later, {FENCE} here. A question (verify) about a step that may not be
  repeated waits, and so does every undo. An idempotent step does not: its key and its token keep a second attempt
  harmless.
- The history of a job has more events than are named here; `stepward job history JOB` shows all.
"""


class Fixed(NamedTuple):
    """What of a row is the same in every run."""

    title: str
    step: str
    noticed: str
    decided: str
    end: str


def fixed(cell: Cell) -> Fixed:
    """The row of a cell, without its figures."""
    end = cell.must.end
    noticed = f"`{cell.must.noticed}`" if cell.must.noticed else "nothing"
    return Fixed(cell.given.title, cell.kind.words, noticed, cell.must.words, f"{end.step}, {end.job}")


def rows_of(page: str) -> set[Fixed]:
    """The rows of a page, without their figures."""
    found = set()
    for section in re.split(r"^## ", page, flags=re.MULTILINE)[1:]:
        title, _, text = section.partition("\n")
        for line in text.splitlines():
            cells = [cell.strip() for cell in line.strip("|").split(" | ")]
            if line.startswith("| ") and len(cells) == len(COLUMNS) and cells[0] in {kind.words for kind in Kind}:
                found.add(Fixed(title, cells[0], cells[1], cells[3], cells[4]))
    return found


def render(sightings: Sequence[Sighting]) -> str:
    """The page."""
    seen = {sighting.cell: sighting for sighting in sightings}
    parts = [INTRODUCTION, *(_section(fault, seen) for fault in Fault)]
    return "\n".join(part.rstrip("\n") + "\n" for part in parts)


def _section(fault: Fault, seen: dict[Cell, Sighting]) -> str:
    cells = [Cell(fault, kind) for kind in Kind]
    example = next(cell for cell in cells if cell in FIRST)
    parts = [
        f"## {cells[0].given.title}",
        *_notices(cells),
        _table(COLUMNS, [_row(seen[cell]) for cell in cells]),
        *(_timeline(seen[cell]) for cell in cells if cell in TIMELINES),
        f"What `stepward job show` says in the end ({example.kind.words}):",
        "```\n" + "\n".join(seen[example].shown) + "\n```",
        "What `stepward job history` has from the beginning of the fault on:",
        "```\n" + "\n".join(_history(seen[example])) + "\n```",
    ]
    return "\n\n".join(parts) + "\n"


def _notices(cells: Sequence[Cell]) -> list[str]:
    """How the fault is noticed, and where that is otherwise in some kind of step."""
    found = [f"It is noticed {cells[0].given.bound.words(TTL_MS)}."]
    found += [f"{cell.kind.words}: {cell.must.bound.words(TTL_MS)}." for cell in cells if cell.must.bound is not None]
    return [textwrap.fill(text[0].upper() + text[1:], 120) for text in found]


def _row(sighting: Sighting) -> tuple[str, ...]:
    row = fixed(sighting.cell)
    after_ms = sighting.noticed_after_ms
    after = "" if after_ms is None else _seconds(after_ms)
    return (row.step, row.noticed, after, row.decided, row.end, _seconds(sighting.ended_after_ms), deeds(sighting))


def deeds(sighting: Sighting) -> str:
    """What the service says: what stands, and what it was asked besides."""
    words = ["the deed stands" if sighting.standing else "nothing stands"]
    effects = sum(entry.answer.effect for entry in sighting.entries)
    repeats = sum(
        entry.answer.status == 200 and not entry.answer.effect and entry.call.verb != "ask"
        for entry in sighting.entries
    )
    words.append(f"{effects} effect{'s' if effects != 1 else ''}")
    if repeats:
        words.append(f"{repeats} repeat{'s' if repeats != 1 else ''} without one")
    if sighting.stale_refused:
        words.append(f"{sighting.stale_refused} old token refused")
    return ", ".join(words)


def _history(sighting: Sighting) -> list[str]:
    """The events from the fault on, with the second of each."""
    events = [event for event in sighting.history if event.at_ms >= sighting.began.at_ms]
    seconds = [(event.at_ms - sighting.began.at_ms) / 1000 for event in events]
    return [
        f"{second:7.3f} s  {event.type:<27} {event.step_id:<5} {event.detail}".rstrip()
        for second, event in zip(seconds, events, strict=True)
    ]


def _timeline(sighting: Sighting) -> str:
    """Both sides of a cell in one picture: what the cluster wrote down and what the service was asked."""
    began_ms = sighting.began.at_ms
    happened = [(began_ms, "the fault begins")]
    happened += [(event.at_ms, event.type) for event in sighting.history if event.at_ms >= began_ms]
    happened += [
        (entry.at_ms, f"service takes {entry.call.verb}, {_taken(entry.answer.status, effect=entry.answer.effect)}")
        for entry in sighting.entries
        if entry.at_ms >= began_ms
    ]
    lines = ["timeline", f"    title {sighting.cell.given.title.replace('`', '')} ({sighting.cell.kind.words})"]
    before = ""
    for at_ms, what in sorted(happened, key=lambda one: one[0]):
        period = _seconds(at_ms - began_ms)
        lines.append(f"    {' ' * len(period) if period == before else period} : {what}")
        before = period
    return "```mermaid\n" + "\n".join(lines) + "\n```"


def _taken(status: int, *, effect: bool) -> str:
    if status != 200:
        return "and refuses it"
    return "which has an effect" if effect else "which changes nothing"


def _seconds(ms: int) -> str:
    return f"{ms / 1000:.1f} s"


def _table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join("| " + " | ".join(cell for cell in row) + " |" for row in lines)


def main() -> int:
    """Play the matrix and write the page. It is not written when something was not as it must be."""
    path = Path(sys.argv[1])
    with tempfile.TemporaryDirectory() as folder:
        seen: Run = asyncio.run(run(Path(folder) / "run", CELLS))
    wrong = [f"{fault}: {text}" for fault, text in seen.troubles.items()]
    sightings = [seen.sightings[cell.id] for cell in CELLS if cell.id in seen.sightings]
    wrong += [f"{sighting.cell.id}: {breach}" for sighting in sightings for breach in breaches(sighting)]
    if wrong:
        print("the page was not written:", *wrong, sep="\n", file=sys.stderr)
        return 1
    path.write_text(render(sightings), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
