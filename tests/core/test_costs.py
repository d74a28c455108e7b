"""What the rules read and write for each command of a plain job: exactly so many rows, whatever else is stored.

A change that needs more rows, or fewer, changes these numbers on purpose.
"""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from stepward.server.core.commands import Failed
from stepward.server.core.rows import DefinitionBody
from tests.core.crew import Crew, counted
from tests.core.world import World, step_spec

TRIP = DefinitionBody(
    "trip",
    (
        step_spec("reserve", dependents=(1,)),
        step_spec("charge", needs=(0,), dependents=(2,)),
        step_spec("confirm", needs=(1,)),
    ),
    b"",
    b"",
)
NOBODYS = DefinitionBody("nobodys", (replace(step_spec("wait"), queue="nobody"),), b"", b"")
OTHERS = 200


def world_with(others: int) -> tuple[World, Crew]:
    """A crew for trips, and as many trips that have ended and jobs that wait."""
    world = World()
    world.define(TRIP)
    world.define(NOBODYS)
    crew = Crew(world, TRIP, slots=10)
    for number in range(others):
        world.submit(f"ended-{number}", "trip")
        crew.work(f"ended-{number}")
        world.submit(f"waiting-{number}", "nobodys")
    return world, crew


@pytest.mark.parametrize("others", [1, OTHERS])
def test_rows_of_a_trip(monkeypatch: pytest.MonkeyPatch, others: int) -> None:
    """Of its submission, of two outcomes that make another step possible, and of the one that ends it."""
    world, crew = world_with(others)
    costs = []
    with counted(monkeypatch) as submission:
        world.submit("job", "trip")
    costs.append((submission.gets, submission.puts))
    for _ in TRIP.steps:
        with counted(monkeypatch) as outcome:
            crew.report(*crew.held())
        costs.append((outcome.gets, outcome.puts))

    assert world.job_state("job") == "COMPLETED"
    # Read, and put or deleted.
    assert costs == [(5, 11), (9, 12), (9, 12), (9, 10)]


@pytest.mark.parametrize("others", [1, OTHERS])
def test_rows_of_a_failure(monkeypatch: pytest.MonkeyPatch, others: int) -> None:
    """Of one that is tried again, and of one that ends the job."""
    world, crew = world_with(others)
    costs = []
    for job_id, retryable in (("first", True), ("second", False)):
        world.submit(job_id, "trip")
        crew.gives = Failed("Busy", "", retryable=retryable)
        with counted(monkeypatch) as outcome:
            crew.report(*crew.held())
        costs.append((outcome.gets, outcome.puts))

    assert costs == [(19, 10), (30, 21)]
