"""The jobs that the users of a mix submit: how each must end, and what must have been done for it by then."""

from __future__ import annotations

import random

from loadtest.shapes import PLAIN, compensate, waiting
from stepward.client import JobState

# Of the jobs that are run, one in so many must be undone.
COMPENSATED_EVERY = 10

TRIPS = PLAIN
UNDONE = compensate()
# Nobody takes it; an operator cancels it.
NOBODYS = waiting()
SHAPES = (TRIPS, UNDONE, NOBODYS)

ENDS = {
    TRIPS.name: JobState.COMPLETED,
    UNDONE.name: JobState.COMPENSATED,
    NOBODYS.name: JobState.CANCELLED,
}

# Ends of the keys of the effects that a job must have had, behind its id.
EFFECTS = {
    TRIPS.name: ("reserve/1", "charge/1", "confirm/1"),
    UNDONE.name: ("reserve/1", "charge/1", "refuse/1", "reserve/1/undo", "charge/1/undo"),
    NOBODYS.name: (),
}


def drawn() -> str:
    """The name of a job to run: mostly a trip."""
    return UNDONE.name if random.randrange(COMPENSATED_EVERY) == 0 else TRIPS.name
