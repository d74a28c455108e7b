"""What a watchdog says of outages, and when; the dead-man address falls silent. `outages` is the table."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cluster import fault_page, outage_page
from tests.cluster.fault_rounds import FAULTS, cells_of
from tests.cluster.outage_plays import play
from tests.cluster.outages import Outage, breaches, in_ci
from tests.repo.sources import ROOT


@pytest.mark.slow
@pytest.mark.timeout(120)
@pytest.mark.parametrize("outage", in_ci())
async def test_outage(outage: Outage, tmp_path: Path) -> None:
    seen = await play(tmp_path, outage)
    print(*seen.told, f"still for {seen.still_s:.1f} s, decided after {seen.decided_s} s", sep="\n")

    assert breaches(outage, seen) == []


def test_page_has_the_rows_of_the_table() -> None:
    """The figures are those of a run; what is promised is what is tested. `make outages` writes the page anew."""
    page = (ROOT / "docs/outages.md").read_text(encoding="utf-8")
    outages, faults = outage_page.rows_of(page)

    assert outages == [outage_page.fixed(outage) for outage in Outage]
    assert faults == [fault_page.fixed(cell) for fault in FAULTS for cell in cells_of(fault)]
