"""The drain: take nothing more, hand back, finish, and say honestly what was stopped."""

from __future__ import annotations

from stepward.agents.outcomes import Stopped
from stepward.v1 import agent_service_pb2 as wire
from tests.agents.played import DRAIN_MS, KILL_GRACE_MS, ON_ACCEPT, Played, offer


def drain(played: Played) -> list[str]:
    played.session.drain(played.now_ms)
    return played.out()


def test_h070_what_has_not_started_is_handed_back_at_once() -> None:
    """H070: and what runs may finish. The drain is told first, so that the cluster offers it to others right away."""
    played = Played(slots=5)
    played.open()
    played.offers(*(offer(step, 7) for step in "ab"), *(offer(step, 7, start=ON_ACCEPT) for step in "cde"))

    assert drain(played) == [
        "drain",
        "report refused c#7 handed_back",
        "report refused d#7 handed_back",
        "report refused e#7 handed_back",
    ]
    assert played.ended("a", 7) == ["report succeeded a#7"]
    assert played.ended("b", 7) == ["report succeeded b#7"]


def test_h070_offer_that_crosses_the_drain_is_handed_back() -> None:
    """H070: it was on its way. Waiting for the end of a lease would cost the job many seconds."""
    played = Played()
    played.open()
    drain(played)

    assert played.offer("flight", 7) == ["report refused flight#7 handed_back"]


def test_accept_that_is_recorded_during_the_drain_does_not_start() -> None:
    played = Played()
    played.open()
    played.offer("charge", 7, start=ON_ACCEPT)
    drain(played)

    assert played.answer("charge", 7) == []
    assert played.session.busy_slots == 0


def test_idle_agent_ends_when_the_cluster_agrees_that_nothing_is_held() -> None:
    """An offer may cross the drain, so the end waits for one heartbeat that both sides agree on."""
    played = Played()
    played.open()
    assert drain(played) == ["drain"]

    assert played.passes(150) == []
    lines = played.passes(150)

    assert lines == ["finish 0"]


def test_end_waits_while_the_cluster_counts_something_as_held() -> None:
    """It is on its way, and arrives while the stream is still open."""
    played = Played()
    played.open()
    drain(played)
    played.passes(200, acknowledged=False)
    played.acknowledge(send_held=True)
    assert played.passes(100, acknowledged=False) == []
    assert played.offer("flight", 7) == ["report refused flight#7 handed_back"]
    assert played.passes(500) == []
    played.answer("flight", 7)

    assert "finish 0" in played.passes(500)


def test_end_waits_for_the_answers() -> None:
    played = Played()
    played.open()
    played.offer("flight", 7)
    drain(played)
    played.ended("flight", 7)
    assert "finish 0" not in played.passes(2_000)
    played.answer("flight", 7)

    assert "finish 0" in played.passes(500)


def test_answers_that_do_not_come_are_not_waited_for_for_ever() -> None:
    """The exit code says that not everything was delivered; the lease decides."""
    played = Played()
    played.open()
    played.offer("flight", 7)
    drain(played)
    played.ended("flight", 7)

    assert "finish 1" not in played.passes(4_950)
    assert "finish 1" in played.passes(100)


def test_h071_handler_that_does_not_finish_in_time_is_stopped_and_never_a_success() -> None:
    """H071: it is reported as stopped by the drain, so that the step runs again elsewhere and uses no attempt."""
    played = Played()
    played.open()
    played.offer("flight", 7)
    drain(played)

    assert played.passes(DRAIN_MS - 50) == ["report started flight#7"]
    played.answer("flight", 7)
    assert played.passes(50) == ["cancel flight#7 DRAINING"]
    assert played.ended("flight", 7, Stopped()) == ["report stopped flight#7 draining"]
    played.answer("flight", 7)
    assert "finish 0" in played.passes(500)


def test_h071_handler_that_cannot_be_stopped_is_not_said_to_have_stopped() -> None:
    """H071: a compensation would trust that word while a thread still acts. The process ends; the lease decides."""
    played = Played()
    played.open()
    played.offer("deaf", 7)
    drain(played)
    assert played.passes(500) == ["report started deaf#7"]
    played.answer("deaf", 7)

    assert played.passes(DRAIN_MS + KILL_GRACE_MS) == ["cancel deaf#7 DRAINING", "end process 70"]


def test_drain_does_not_wait_for_the_time_of_a_deaf_handler() -> None:
    """It may have ten minutes left; the drain has not."""
    played = Played()
    played.open()
    played.offer("deaf", 7)
    played.cancel("deaf", 7, wire.CANCEL_REASON_JOB_ENDING)
    played.passes(500)
    played.answer("deaf", 7)
    drain(played)

    assert played.passes(DRAIN_MS + KILL_GRACE_MS - 50) == []
    assert "end process 70" in played.passes(500)


def test_cancel_during_a_drain_is_no_drain() -> None:
    """Why it was stopped decides what follows: a drain uses no attempt."""
    played = Played()
    played.open()
    played.offer("flight", 7)
    drain(played)
    played.cancel("flight", 7, wire.CANCEL_REASON_JOB_ENDING)

    assert played.ended("flight", 7, Stopped()) == ["report stopped flight#7"]


def test_next_node_is_told_of_the_drain() -> None:
    played = Played()
    played.open()
    played.offer("flight", 7)
    drain(played)
    played.lose_stream()

    assert played.open() == ["drain"]


def test_agent_without_a_node_and_without_work_ends_at_once() -> None:
    """Ctrl-C while no server answers."""
    played = Played()
    drain(played)

    assert played.passes(50) == ["finish 0"]


def test_drain_may_be_repeated() -> None:
    """The first one set the time."""
    played = Played()
    played.open()
    played.offer("flight", 7)
    drain(played)
    played.passes(DRAIN_MS - 50)
    assert drain(played) == []

    assert played.passes(50) == ["cancel flight#7 DRAINING"]
