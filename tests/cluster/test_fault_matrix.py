"""Every fault in every kind of step: noticed in time, decided as documented, nothing lost, orphaned or done twice.

`fault_cells` is the table. One run of processes plays all cells that were asked for; each is then judged on its own.
"""

from __future__ import annotations

import asyncio
import fcntl

import msgspec
import pytest

from tests.cluster import fault_page
from tests.cluster.fault_cells import CELLS, FIRST, Cell
from tests.cluster.fault_plays import Run, run
from tests.cluster.fault_sightings import breaches
from tests.repo.sources import ROOT

EVERY = [pytest.param(cell, id=cell.id, marks=[] if cell in FIRST else pytest.mark.slow) for cell in CELLS]


@pytest.fixture(scope="session")
def matrix(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Run:
    """What was seen of all cells that this session asks for.

    When several processes share the tests, the first to come plays for all of them.
    """
    wanted = {cell for item in request.session.items if (cell := asked_for(item))}
    if worker_id == "master":
        return asyncio.run(run(tmp_path_factory.mktemp("faults") / "run", sorted(wanted)))
    shared = tmp_path_factory.getbasetemp().parent / "faults"
    with shared.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        told = shared.with_suffix(".json")
        if not told.exists():
            told.write_bytes(msgspec.json.encode(asyncio.run(run(shared, sorted(wanted)))))
        return msgspec.json.decode(told.read_bytes(), type=Run)


def asked_for(item: pytest.Item) -> Cell | None:
    """The cell that a test is about."""
    if isinstance(item, pytest.Function) and hasattr(item, "callspec"):
        cell = item.callspec.params.get("cell")
        return cell if isinstance(cell, Cell) else None
    return None


@pytest.mark.timeout(300)
@pytest.mark.parametrize("cell", EVERY)
def test_fault(matrix: Run, cell: Cell) -> None:
    assert matrix.troubles.get(cell.fault, "") == ""
    seen = matrix.sightings[cell.id]
    told = [f"{event.type} {event.step_id} led={event.led_ms} {event.detail}" for event in seen.history]
    print(f"noticed after {seen.noticed_after_ms} ms, ended after {seen.ended_after_ms} ms", *told, sep="\n")

    assert breaches(seen) == []


def test_page_has_the_rows_of_the_matrix() -> None:
    """The figures are those of a run; what is promised is what is tested. `make docs` writes the page anew."""
    page = (ROOT / "docs/faults.md").read_text(encoding="utf-8")

    assert fault_page.rows_of(page) == {fault_page.fixed(cell) for cell in CELLS}


def test_every_fault_and_every_kind_is_played_every_day() -> None:
    assert {cell.fault for cell in FIRST} == {cell.fault for cell in CELLS}
    assert {cell.kind for cell in FIRST} == {cell.kind for cell in CELLS}
