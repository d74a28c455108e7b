"""Writes `docs/outages.md` from a run of all outages and of the faults of steps: `make outages`, as root.

It takes some minutes, and needs root since one outage cuts wires. Rows are those of `outages` and `fault_cells`, the
figures are those of the run.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from tests.cluster import fault_page, fault_rounds
from tests.cluster.fault_rounds import Round
from tests.cluster.nodes import TTL_MS
from tests.cluster.outage_plays import play
from tests.cluster.outages import DUE_S, MUST, PING_S, Outage, Seen, Told, breaches

COLUMNS: Final = (
    "what happens",
    "what the watchdog says, and when",
    "no new beat for",
    "what falls due meanwhile is decided",
    "after",
    "canaries that come back",
    "the dead-man address",
)

TEXT_CHARACTERS_MAX: Final = 110

INTRODUCTION: Final = f"""\
# What a watchdog says when nodes or supervision fail

This page was written by `make outages`: three nodes, a watchdog beside them and the server that it tells, all real
processes, and each outage on a cluster of its own, as `tests/cluster/test_outages.py` makes it. The figures are what
that run saw on a machine of two cores. [watchdog.md](watchdog.md) says what the words of the watchdog mean, and
[faults.md](faults.md) what becomes of steps when agents, handlers and services fail.

In each row a step falls due {DUE_S:.0f} s after the beginning of the outage: nobody takes it, and its queue timeout is
judged by whoever supervises then. Times count from the beginning of the outage. The watchdog looks five times a second,
calls the dead-man address every {PING_S:.0f} s and sends at most one canary job a second here, the next one when the
last one is back. Where none came back, one was with the agent of a node that was hit, and its lease of
{TTL_MS // 1000} s had not ended when the row did. Such a canary is told when it is late by 10 s.
"""

ROUNDS: Final = """\
## The faults of steps, on three nodes

What befalls agents, handlers and services is what supervision is there for: it decides as on one node, and the watchdog
has nothing to say. These are the rows of [faults.md](faults.md), played one fault after the other on three nodes. What
hangs on a lease takes longer than there, since leases do; what is decided is the same.
"""

ROUND_COLUMNS: Final = (
    "what happens",
    "step",
    "noticed as",
    "after",
    "what is decided",
    "step, job",
    "ended after",
    "at the service",
    "what the watchdog says",
)


class Fixed(NamedTuple):
    """What of a row is the same in every run."""

    title: str
    decided: str


def fixed(outage: Outage) -> Fixed:
    must = MUST[outage]
    title = f"{must.title}; {must.heals}" if must.heals else must.title
    return Fixed(title, must.decided)


def rows_of(page: str) -> tuple[list[Fixed], list[fault_page.Fixed]]:
    """The rows of both tables of a page, without their figures."""
    tables = [
        [[cell.strip() for cell in line.strip("|").split(" | ")] for line in part.splitlines() if line.startswith("|")]
        for part in page.split("\n## ")
    ]
    outages, faults = (table[2:] for table in tables)
    return [Fixed(row[0], row[3]) for row in outages], [
        fault_page.Fixed(row[0], row[1], row[2], row[4], row[5]) for row in faults
    ]


def render(seen: Mapping[Outage, Seen], played: Sequence[Round]) -> str:
    """The page."""
    outages = _table(COLUMNS, [_row(outage, seen[outage]) for outage in Outage])
    faults = _table(ROUND_COLUMNS, [row for one in played for row in _round_rows(one)])
    return f"{INTRODUCTION}\n{outages}\n\n{ROUNDS}\n{faults}\n"


def _table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def _round_rows(played: Round) -> Iterable[Sequence[str]]:
    said = _lines(played.told) or "nothing"
    for sighting in played.sightings:
        row = fault_page.fixed(sighting.cell)
        after_ms = sighting.noticed_after_ms
        after = "" if after_ms is None else f"{after_ms / 1000:.1f} s"
        ended = f"{sighting.ended_after_ms / 1000:.1f} s"
        end = (ended, fault_page.deeds(sighting), said)
        yield (row.title, row.step, row.noticed, after, row.decided, row.end, *end)


def _row(outage: Outage, seen: Seen) -> Sequence[str]:
    row = fixed(outage)
    decided = "" if seen.decided_s is None else f"{seen.decided_s:.1f} s"
    return (
        row.title,
        _said(seen),
        f"{seen.still_s:.1f} s",
        row.decided,
        decided,
        "" if outage is Outage.WATCHDOG_KILLED else str(seen.canaries),
        _dead_man(outage, seen),
    )


def _said(seen: Seen) -> str:
    if seen.healed_s is None:
        return _lines(seen.told) or "nothing"
    before = [told for told in seen.told if told.after_s <= seen.healed_s]
    ends = f"{seen.healed_s:.1f} s: (the outage ends)"
    return "<br>".join(part for part in (_lines(before), ends, _lines(seen.told[len(before) :])) if part)


def _lines(told: Sequence[Told]) -> str:
    said = (f"{one.after_s:.1f} s: {one.level}" + (f" ({_short(one)})" if one.level != "WELL" else "") for one in told)
    return "<br>".join(text.replace("|", "/") for text in said)


def _short(told: Told) -> str:
    """The gravest reason; what gRPC says of a connection is longer than anybody needs here."""
    return textwrap.shorten(told.text, TEXT_CHARACTERS_MAX, placeholder=" ...")


def _dead_man(outage: Outage, seen: Seen) -> str:
    if not MUST[outage].says and outage is not Outage.WATCHDOG_KILLED:
        return "is called all the while"
    if seen.pinged_s <= 0:
        return "hears nothing more"
    return f"was called last at {seen.pinged_s:.1f} s"


async def _play_all(folder: Path) -> dict[Outage, Seen]:
    """One after the other: each has its own cluster, and measures times."""
    seen: dict[Outage, Seen] = {}
    for outage in Outage:
        (folder / outage).mkdir()
        seen[outage] = await play(folder / outage, outage)
        print(outage, *seen[outage].told, sep="\n  ", file=sys.stderr)
    return seen


def main() -> int:
    """Play all and write the page. It is not written when something was not as it must be."""
    with tempfile.TemporaryDirectory() as folder:
        seen = asyncio.run(_play_all(Path(folder)))
        played = asyncio.run(fault_rounds.rounds(Path(folder) / "faults", fault_rounds.FAULTS))
    wrong = [f"{outage}: {text}" for outage in Outage for text in breaches(outage, seen[outage])]
    wrong += [text for one in played for text in fault_rounds.breaches(one)]
    if wrong:
        print("the page was not written:", *wrong, sep="\n", file=sys.stderr)
        return 1
    Path(sys.argv[1]).write_text(render(seen, played), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
