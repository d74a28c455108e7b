"""When the processes of handlers are killed that do not stop, so that the agent itself need not end."""

from __future__ import annotations

from stepward.agents.outcomes import Stopped
from tests.agents.played import KILL_GRACE_MS, TTL_MS, Played


def played_killable() -> Played:
    played = Played(actions=("work", "crunch"), killable=("crunch",))
    played.open()
    return played


def test_cancelled_process_gets_half_of_the_grace() -> None:
    """The other half is for its end to be noticed. It is killed once, and reported when it is gone."""
    played = played_killable()
    played.offer("flight", 7, action="crunch")
    played.passes(500)
    played.answer("flight", 7)
    played.cancel("flight", 7)

    assert played.passes(KILL_GRACE_MS // 2 - 50) == []
    assert played.passes(50) == ["kill flight#7"]
    assert played.passes(TTL_MS) == []
    assert played.session.busy_slots == 1
    assert played.ended("flight", 7, Stopped()) == ["report stopped flight#7"]


def test_thread_cannot_be_killed() -> None:
    """It gets all the time of its attempt, as ever."""
    played = played_killable()
    played.offer("flight", 7, action="work")
    played.cancel("flight", 7)

    assert "kill flight#7" not in played.passes(10 * KILL_GRACE_MS)


def test_process_is_killed_before_the_agent_would_have_to_end() -> None:
    """The lease is over at TTL; the agent must be gone a grace later, or all that acts under the lease."""
    played = played_killable()
    played.offer("flight", 7, action="crunch", idempotent=False)
    lines = played.passes(TTL_MS, acknowledged=False)

    assert "cancel flight#7 LEASE_LOST" in lines
    assert played.passes(KILL_GRACE_MS // 2 - 50, acknowledged=False) == []
    assert played.passes(50, acknowledged=False) == ["kill flight#7"]
    played.ended("flight", 7, Stopped())
    assert played.passes(TTL_MS, acknowledged=False) == []


def test_idempotent_process_goes_on_for_one_more_ttl() -> None:
    played = played_killable()
    played.offer("flight", 7, action="crunch", idempotent=True)
    lines = played.passes(2 * TTL_MS + KILL_GRACE_MS // 2 - 50, acknowledged=False)
    after = played.passes(50, acknowledged=False)

    assert "cancel flight#7 LEASE_LOST" in lines
    assert "kill flight#7" not in lines
    assert after == ["kill flight#7"]


def test_process_is_killed_at_once_after_a_pause_in_which_all_came_due() -> None:
    """The cluster may give the work to another at this moment; what does not end now takes the agent with it."""
    played = played_killable()
    played.offer("flight", 7, action="crunch", idempotent=False)
    lines = played.jumps(3 * TTL_MS)

    assert [line for line in lines if "flight#7" in line and "report" not in line] == [
        "lease lost flight#7",
        "cancel flight#7 LEASE_LOST",
        "kill flight#7",
    ]
    assert "end process 70" not in lines
    assert "end process 70" in played.passes(100, acknowledged=False)
