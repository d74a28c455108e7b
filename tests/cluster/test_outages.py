"""What a watchdog says of outages, and when; the dead-man address falls silent. `outages` is the table."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cluster.outage_plays import play
from tests.cluster.outages import Outage, breaches, in_ci


@pytest.mark.timeout(120)
@pytest.mark.parametrize("outage", in_ci())
async def test_outage(outage: Outage, tmp_path: Path) -> None:
    seen = await play(tmp_path, outage)
    print(*seen.told, f"still for {seen.still_s:.1f} s, decided after {seen.decided_s} s", sep="\n")

    assert breaches(outage, seen) == []
