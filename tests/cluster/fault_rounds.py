"""The faults of agents, handlers and services on three nodes, one after the other, beside a watchdog.

Such faults are what supervision is there for. So the watchdog is to say nothing of them, or at most that the brake
holds something back.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from msgspec import Struct

from tests.cluster.fault_cells import CELLS, Cell, Fault
from tests.cluster.fault_plays import ALONE, play
from tests.cluster.fault_sightings import Sighting
from tests.cluster.fault_sightings import breaches as breaches_of
from tests.cluster.fault_stage import Stage
from tests.cluster.outage_plays import WELL_S_MAX, told_since
from tests.cluster.outages import Told
from tests.cluster.watch import watching

# What befalls the server has rows of its own where there are three.
FAULTS: Final = tuple(fault for fault in Fault if fault not in ALONE)
HARMLESS: Final = frozenset({"BRAKE", "BREAKER"})


class Round(Struct, frozen=True):
    """One fault in all kinds of steps, and what the watchdog said meanwhile."""

    fault: Fault
    sightings: tuple[Sighting, ...]
    told: tuple[Told, ...]


def cells_of(fault: Fault) -> list[Cell]:
    return [cell for cell in CELLS if cell.fault is fault]


async def rounds(folder: Path, faults: Iterable[Fault]) -> list[Round]:
    """Play faults on one cluster of three nodes. Each begins when the watchdog says that all is well."""
    played = []
    async with Stage.opened(folder, three_nodes=True) as stage:
        with watching(folder, stage.rig.address, "--no-canary") as watch:
            for fault in faults:
                await asyncio.to_thread(
                    watch.until, lambda: watch.level == "WELL", seconds_max=WELL_S_MAX, what="all is well"
                )
                began_s = time.monotonic()
                seen = await play(stage, fault, cells_of(fault))
                played.append(Round(fault, tuple(seen), tuple(told_since(watch, began_s))))
    return played


def breaches(seen: Round) -> list[str]:
    """One sentence for each thing that is not as it must be."""
    found = [f"{one.cell.id}: {breach}" for one in seen.sightings for breach in breaches_of(one)]
    wrong = [told for told in seen.told if told.level not in ("WELL", "WARNING") or not HARMLESS.issuperset(told.kinds)]
    return [*found, *(f"{seen.fault}: the watchdog said {told.level}: {told.text}" for told in wrong)]
