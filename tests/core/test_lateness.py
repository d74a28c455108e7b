"""By how much a supervisor came late is what the supervisors of the leadership could have helped."""

from __future__ import annotations

import pytest

from stepward.server.core import keys
from stepward.server.core.commands import Started, Sweep, Swept
from stepward.server.core.epoch_rows import Epoch
from stepward.server.core.limits import Limits
from stepward.server.core.rows import Beat, DefinitionBody
from tests.core.world import World, step_spec
from tests.scenarios.trips import renew

DUE_MS = 10_000


def timed_out(*, now_ms: int, led_since_ms: int = 0) -> World:
    """A world whose one attempt was to end at DUE_MS, and its leadership began then."""
    world = World(limits=Limits(session_ttl_ms=3_600_000))
    world.define(DefinitionBody("single", (step_spec("pay", start_to_close_ms=DUE_MS),), b"", b""))
    world.open("agent", ("pay",))
    world.submit("job", "single")
    world.report("agent", "job", "pay", Started())
    world.now_ms = now_ms
    renew(world, "agent")
    world.put(keys.EPOCH, Epoch(1, led_since_ms, led_ms=led_since_ms))
    return world


@pytest.mark.parametrize(
    ("now_ms", "led_since_ms", "late_ms"),
    [
        # At once, and a little later.
        (DUE_MS, 0, 0),
        (DUE_MS + 300, 0, 300),
        # Nobody led when it fell due: from then on it could be noticed.
        (DUE_MS + 3_600_000, DUE_MS + 3_600_000, 0),
        (DUE_MS + 3_600_000, DUE_MS + 3_599_900, 100),
        (DUE_MS + 300, DUE_MS - 1, 300),
    ],
)
def test_lateness(now_ms: int, led_since_ms: int, late_ms: int) -> None:
    """It is told with the sweep and with its beat, and those behind it keep the most of the leadership."""
    world = timed_out(now_ms=now_ms, led_since_ms=led_since_ms)
    answer = world.one(Sweep(world.limits.sweep_subjects_max))
    assert isinstance(answer, Swept)
    beat = world.reader.get(keys.BEAT)

    assert answer.late_ms == (late_ms,)
    assert isinstance(beat, Beat)
    assert beat.late_ms_max == late_ms
