"""How many sessions may be open."""

from __future__ import annotations

from stepward.server.core import leases
from stepward.server.core.commands import OpenSession, SessionOpened, Sweep
from stepward.server.core.limits import Limits
from stepward.server.core.rejections import Reason, Rejection
from tests.core.world import World


def hello(session_id: str) -> OpenSession:
    return OpenSession(session_id, "default", "q", ("a",), 1, session_id, "t", "n1")


def test_sessions_are_bounded() -> None:
    """The last one at the bound gets in, also of one batch; one more is told to come back when some have ended."""
    world = World(limits=Limits(session_ttl_ms=3_000, sessions_max=3))
    answers = world.do(*(hello(f"s{number}") for number in range(4)))

    assert [type(answer) for answer in answers] == [SessionOpened] * 3 + [Rejection]
    refused = answers[-1]
    assert isinstance(refused, Rejection)
    assert (refused.reason, refused.retry_after_ms) == (Reason.OVERLOADED, 3_000)


def test_session_that_is_open_may_be_resumed_at_the_bound() -> None:
    """It needs no more room; what it holds hangs on it."""
    world = World(limits=Limits(session_ttl_ms=3_000, sessions_max=1))
    world.one(hello("s0"))

    assert world.one(hello("s0")) == SessionOpened(2, 3_000)


def test_session_that_has_ended_makes_room() -> None:
    """A flood of hellos holds places no longer than a lease."""
    world = World(limits=Limits(session_ttl_ms=3_000, sessions_max=1))
    world.one(hello("s0"))
    world.now_ms = leases.session_end_led_ms(renewed_led_ms=0, ttl_ms=3_000, kill_grace_ms=world.limits.kill_grace_ms)
    world.one(Sweep(100))

    assert isinstance(world.one(hello("s1")), SessionOpened)
