"""What goes first under the brake, and when the others may follow: its new agents must have been heard from."""

from __future__ import annotations

import pytest

from stepward.server.core import brake
from stepward.server.core.brake_rows import Cause
from tests.core.test_brake import brake_row, holder, pass_alive, swept, world_of
from tests.core.world import World
from tests.scenarios.trips import SESSION_END_MS, renew


def let_canaries_go_to(new: str, **bounds: int) -> World:
    """A world in which twenty agents are lost, and another one is given the first five steps; the others are held."""
    world = world_of(20, agents=20, slots=1, **bounds)
    world.now_ms = SESSION_END_MS
    assert swept(world).remedied == world.limits.brake_canaries
    world.open(new, ("pay",), slots=100)
    world.now_ms += 10
    swept(world)
    row = brake_row(world)
    assert row is not None
    assert {holder(world, canary.job_id) for canary in row.canaries} == {new}
    return world


@pytest.mark.parametrize("falls_silent", [False, True])
def test_canaries_whose_new_agents_fall_silent_prolong_the_hold(falls_silent: bool) -> None:
    """Their leases would end much later than the hold, so that nobody would have learnt anything from them."""
    world = let_canaries_go_to("new")
    if not falls_silent:
        pass_alive(world, SESSION_END_MS + world.limits.brake_hold_ms, "new")
    world.now_ms = SESSION_END_MS + world.limits.brake_hold_ms

    answer = swept(world)

    row = brake_row(world)
    assert row is not None
    assert row.cause is (Cause.MASS_LOSS if falls_silent else Cause.NONE)
    assert answer.remedied == (world.limits.brake_canaries if falls_silent else 15)


def test_hold_waits_until_new_agents_were_heard_from() -> None:
    """With a long lease they say only later that they are there; neither good nor bad is known before."""
    world = let_canaries_go_to("new", brake_hold_ms=500)
    offered_ms, silent = world.now_ms, list[int]()
    for world.now_ms in range(SESSION_END_MS + 500, offered_ms + 1_000, 100):
        silent.append(swept(world).remedied)
    renew(world, "new")
    world.now_ms += brake.CANARY_LOOK_MS

    assert set(silent) == {0}
    assert swept(world).remedied == 15
