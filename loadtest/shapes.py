"""The jobs that are measured. A shape is part of every figure, so it changes only with a new name."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from google.protobuf.duration_pb2 import Duration

from stepward.v1 import definition_pb2
from stepward.v1.common_pb2 import JOB_STATE_COMPENSATED, JOB_STATE_COMPLETED, JobState, Payload

QUEUE = "bench"
# Nobody serves it: jobs that wait.
NOBODYS_QUEUE = "bench-nobody"

TRIP = "bench-trip"
# Three steps in a row; each gets the job's input and gives about 100 bytes.
TRIP_STEPS = ("reserve", "charge", "confirm")
# Undoes the first two; `refuse` fails for good.
UNDO = "undo"
REFUSE = "refuse"
# A step of a chain or a fan.
LINK = "link"
ACTIONS = (*TRIP_STEPS, UNDO, REFUSE, LINK)

INPUT = Payload(
    data=b'{"reference":"abc123","from":"LHR","to":"TRN","passengers":2,"note":"yyyyyyyyyyyyyyyyyyyyyyyyyyyyyyy"}',
    encoding="json/utf-8",
)
OUTPUT = {"done": True, "reference": "abc123", "note": "x" * 56}
OUTPUT_BYTES = json.dumps(OUTPUT).encode()


@dataclass(frozen=True)
class Shape:
    """What a job is, and how it must end."""

    definition: definition_pb2.Definition
    steps: int
    """Handlers that run for one job, those that undo, too."""
    end: JobState.ValueType = JOB_STATE_COMPLETED

    @property
    def name(self) -> str:
        """By which a job of it is submitted."""
        return self.definition.name


def trip() -> definition_pb2.Definition:
    """Three steps in a row that start on offer, with plain retries."""
    return _definition(TRIP, [_step(step, needs=TRIP_STEPS[:place][-1:]) for place, step in enumerate(TRIP_STEPS)])


def compensate() -> Shape:
    """A trip whose third step fails for good: the two before are undone."""
    reserve, charge = TRIP_STEPS[:2]
    steps = [
        _step(reserve, undo=definition_pb2.Undo(action=UNDO)),
        _step(charge, needs=(reserve,), undo=definition_pb2.Undo(action=UNDO)),
        _step(REFUSE, needs=(charge,)),
    ]
    return Shape(_definition("bench-compensate", steps), steps=5, end=JOB_STATE_COMPENSATED)


def deep(links: int) -> Shape:
    """A chain."""
    ids = [f"link-{number}" for number in range(links)]
    steps = [_step(step, action=LINK, needs=ids[:place][-1:]) for place, step in enumerate(ids)]
    # The chain's output would be the last one's in any case; the fan's must not be all of them.
    return Shape(_definition(f"bench-deep-{links}", steps, output="{}"), steps=links)


def wide(links: int) -> Shape:
    """Steps of which none waits for another."""
    steps = [_step(f"link-{number}", action=LINK) for number in range(links)]
    return Shape(_definition(f"bench-wide-{links}", steps, output="{}"), steps=links)


def waiting() -> Shape:
    """One step that nobody takes."""
    return Shape(_definition("bench-waiting", [_step("wait", action=LINK, queue=NOBODYS_QUEUE)]), steps=0)


def _definition(name: str, steps: Sequence[definition_pb2.Step], output: str = "") -> definition_pb2.Definition:
    return definition_pb2.Definition(name=name, steps=steps, output=output, description="What the benchmark runs.")


def _step(
    step: str,
    *,
    action: str = "",
    queue: str = QUEUE,
    needs: Sequence[str] = (),
    undo: definition_pb2.Undo | None = None,
) -> definition_pb2.Step:
    return definition_pb2.Step(
        id=step,
        action=action,
        queue=queue,
        needs=needs,
        timeouts=definition_pb2.Timeouts(start_to_close=Duration(seconds=60)),
        start=definition_pb2.START_MODE_ON_OFFER,
        undo=undo,
    )


PLAIN = Shape(trip(), steps=len(TRIP_STEPS))
