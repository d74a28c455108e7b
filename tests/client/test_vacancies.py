"""Why a ready step has no agent."""

from __future__ import annotations

from typing import Any

import pytest

from stepward.client.vacancies import NAMED_MAX, why_it_waits
from stepward.client.values import Agent


def agent(*actions: str, queue: str = "lab", slots: int = 16, slots_taken: int = 0, **fields: Any) -> Agent:
    return Agent(
        **{"session_id": "s", "connected": True, **fields},
        queue=queue,
        actions=actions,
        slots=slots,
        slots_taken=slots_taken,
    )


NOBODY = 'for an agent that offers "record" on queue "lab": no agent is connected to queue "lab"'
MANY = [f"a{number}" for number in range(NAMED_MAX)]


@pytest.mark.parametrize(
    ("agents", "words"),
    [
        ([], NOBODY),
        # None of these takes anything from this queue.
        ([agent("record", queue="odd"), agent("record", draining=True), agent("record", connected=False)], NOBODY),
        (
            [agent("print"), agent("scan", "print")],
            'for an agent that offers "record" on queue "lab": 2 agents on it, with "print", "scan"',
        ),
        (
            [agent("recrod", "print")],
            'for an agent that offers "record" on queue "lab": 1 agent on it, with "print", "recrod"; '
            'did you mean "recrod"?',
        ),
        # As many as are named, and one more.
        (
            [agent(*MANY)],
            'for an agent that offers "record" on queue "lab": 1 agent on it, with "a0", "a1", "a2", "a3", "a4"',
        ),
        (
            [agent(*MANY, "a5")],
            'for an agent that offers "record" on queue "lab": 1 agent on it, with "a0", "a1", "a2", "a3", "a4" '
            "and 1 more",
        ),
        # It is there, and busy. One that could not take the step counts for nothing.
        (
            [agent("record", slots_taken=16), agent("print")],
            'for a free slot: all are taken (16 of 16, 1 agent on queue "lab")',
        ),
        (
            [agent("record", slots_taken=16), agent("record", slots=1)],
            'for its turn: 2 agents on queue "lab", 16 of 17 slots taken',
        ),
    ],
)
def test_why_it_waits(agents: list[Agent], words: str) -> None:
    """Each reason is another thing to do."""
    assert why_it_waits("record", "lab", agents) == words
