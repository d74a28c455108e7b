"""Long reads in slices: whoever looks at many rows gives the loop back every few milliseconds.

Each slice reads rows of its own: no snapshot stays open while others have the loop.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Final

from stepward.server.api import lookup

if TYPE_CHECKING:
    from collections.abc import Callable

    from google.protobuf.duration_pb2 import Duration

    from stepward.server.gateway import Gateway
    from stepward.server.reading import Reading

# How long one slice may have the loop (ms). A lease has seconds, but each call that waits for the loop has less.
SLICE_MS_MAX: Final = 5.0


class Slice:
    """The time that one slice may take. It is over after a row, never before one: so each slice gets on."""

    def __init__(self) -> None:
        self._ends_at_s = time.perf_counter() + SLICE_MS_MAX / 1_000

    @property
    def is_over(self) -> bool:
        """Whether the loop is others' now."""
        return time.perf_counter() >= self._ends_at_s


async def look(gateway: Gateway, consistency: int, look_on: Callable[[Reading], bool]) -> tuple[int, Duration | None]:
    """Let something look at rows until it has seen enough; the revision of the newest rows that it saw.

    The loop goes on between two slices, so that whoever else is waiting does not wait for all of this. Rows only
    get newer, so those of the first slice say how old what was seen may be.

    Raises:
        Refused: NO_LEADER.
    """

    def once(reader: Reading) -> tuple[bool, int]:
        return look_on(reader), reader.head().sequence

    (enough, revision), staleness = await lookup.read(gateway, consistency, once)
    while not enough:
        await asyncio.sleep(0)
        with gateway.own_rows() as reader:
            enough, revision = once(reader)
    return revision, staleness
