"""The jobs that are measured. A shape is part of every figure, so it changes only with a new name."""

from __future__ import annotations

from google.protobuf.duration_pb2 import Duration

from stepward.v1 import definition_pb2
from stepward.v1.common_pb2 import Payload

# Three steps in a row; each gets the job's input and gives about 100 bytes.
TRIP = "bench-trip"
TRIP_STEPS = ("reserve", "charge", "confirm")
QUEUE = "bench"

INPUT = Payload(
    data=b'{"reference":"abc123","from":"LHR","to":"TRN","passengers":2,"note":"yyyyyyyyyyyyyyyyyyyyyyyyyyyyyyy"}',
    encoding="json/utf-8",
)
OUTPUT = {"done": True, "reference": "abc123", "note": "x" * 56}


def trip() -> definition_pb2.Definition:
    """Three steps in a row that start on offer, with plain retries."""
    return definition_pb2.Definition(
        name=TRIP,
        steps=[
            definition_pb2.Step(
                id=step,
                queue=QUEUE,
                needs=TRIP_STEPS[:place][-1:],
                timeouts=definition_pb2.Timeouts(start_to_close=Duration(seconds=60)),
                start=definition_pb2.START_MODE_ON_OFFER,
            )
            for place, step in enumerate(TRIP_STEPS)
        ],
        description="What the benchmark runs.",
    )


SHAPES = {"trip": trip}
