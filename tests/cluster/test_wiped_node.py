"""A node that has lost everything comes back to a cluster at work; the long form is `make wiped ROWS=1000000`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cluster import wiped

ROWS = 20_000
WATCHED_S = 1.5


@pytest.mark.slow
@pytest.mark.timeout(180)
async def test_wiped_node_takes_part_again_and_never_voted_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It fetches all rows while trips go on, and another node is elected meanwhile: not with its vote."""
    monkeypatch.setattr(wiped, "WATCHED_S", WATCHED_S)
    found = await wiped.measure(tmp_path, ROWS)
    print(found.told())

    assert found.breaches() == []


def test_what_is_over_its_bound_is_told() -> None:
    """Each in a sentence; at the bounds nothing is."""
    good = wiped.Found(1, 60.0, {"n1": 300}, (1.0, 1.0, 1.0), [(1, None), (2, None)])
    bad = wiped.Found(1, 60.1, {"n1": 301}, (1.0, 0.0, 1.0), [(1, "n2")])

    assert good.breaches() == []
    assert [text.split(";")[0] for text in bad.breaches()] == [
        "n1 had 301 MiB at the most",
        "it took part after 60.1 s",
        "it voted for n2 in term 1",
        "nobody stood for election while it was in quarantine, so not to vote was no merit",
        "no trip ended meanwhile",
    ]
