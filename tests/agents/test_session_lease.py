"""The lease, from the agent's side."""

from __future__ import annotations

import pytest

from stepward.agents.lease import HELLO, UNANSWERED_MAX, Lease
from tests.agents.played import HEARTBEAT_MS, KILL_GRACE_MS, ON_ACCEPT, TTL_MS, Played


def test_lease_counts_from_when_the_acknowledged_heartbeat_was_sent() -> None:
    """H012, H013: the answer may come late; what it proves is as old as the heartbeat."""
    lease = Lease()
    lease.ttl_ms = TTL_MS
    lease.sent(1, 1_000)
    lease.acknowledged(1)

    assert lease.ends_at_ms == 1_000 + TTL_MS
    assert lease.runs(1_000 + TTL_MS - 1)
    assert not lease.runs(1_000 + TTL_MS)


@pytest.mark.parametrize(
    ("acknowledged", "ends_at_ms"),
    [
        # Nothing was acknowledged: there is no lease.
        ([], None),
        # The newest counts,
        ([1, 2], 2_000 + TTL_MS),
        # also when an older answer comes after it,
        ([2, 1], 2_000 + TTL_MS),
        # and when the one between got none.
        ([3], 3_000 + TTL_MS),
        # An answer to what was never sent proves nothing.
        ([7], None),
    ],
)
def test_lease_counts_from_the_newest_acknowledged(acknowledged: list[int], ends_at_ms: int | None) -> None:
    lease = Lease()
    lease.ttl_ms = TTL_MS
    for number in (1, 2, 3):
        lease.sent(number, number * 1_000)
    for number in acknowledged:
        lease.acknowledged(number)

    assert lease.ends_at_ms == ends_at_ms


def test_lease_is_not_renewed_by_an_answer_of_an_older_stream() -> None:
    """Its heartbeat may have been read by a node that no longer counts."""
    lease = Lease()
    lease.ttl_ms = TTL_MS
    lease.sent(HELLO, 1_000)
    lease.acknowledged(HELLO)
    lease.sent(1, 5_000)
    lease.stream_closed()
    lease.acknowledged(1)

    assert lease.ends_at_ms == 1_000 + TTL_MS


def test_lease_follows_a_bounded_number_of_heartbeats() -> None:
    """A node that is silent is left long before; the bound holds also if not."""
    lease = Lease()
    lease.ttl_ms = TTL_MS
    for number in range(1, UNANSWERED_MAX + 2):
        lease.sent(number, number)
    lease.acknowledged(UNANSWERED_MAX + 1)

    assert lease.ends_at_ms is None

    lease.acknowledged(UNANSWERED_MAX)

    assert lease.ends_at_ms == UNANSWERED_MAX + TTL_MS


def test_hello_that_is_welcomed_counts_from_when_it_was_sent() -> None:
    """A welcome is the first acknowledgement."""
    played = Played()
    played.connect()
    played.out()
    played.now_ms += TTL_MS - 1
    played.welcome()
    played.out()

    assert played.offer("flight", 7) == ["start flight#7"]

    played.now_ms += 1

    assert played.offer("hotel", 7) == []


def test_session_counts_its_lease_from_when_it_sent_the_heartbeat() -> None:
    """The answer was under way for a second, which is a second less for the agent."""
    played = Played()
    played.open()
    played.passes(HEARTBEAT_MS, acknowledged=False)
    assert len(played.heartbeats) == 1
    sent_at_ms = played.now_ms
    played.now_ms += 1_000
    played.acknowledge()

    assert played.session.lease_runs(sent_at_ms + TTL_MS - 1)
    assert not played.session.lease_runs(sent_at_ms + TTL_MS)


def test_offer_without_a_lease_is_not_started_and_not_held() -> None:
    """The next digest shows that it is missing, so it comes again if it is still meant; then it may start."""
    played = Played()
    played.open()
    played.passes(TTL_MS, acknowledged=False)

    assert played.offer("flight", 7) == []
    assert played.session.held == []

    # The heartbeat that went out last is acknowledged after all.
    played.acknowledge()

    assert played.offer("flight", 7) == ["start flight#7"]


def test_offer_that_was_dropped_starts_after_a_new_welcome() -> None:
    played = Played()
    played.open()
    played.lose_stream()
    played.passes(TTL_MS)
    played.open()

    assert played.offer("flight", 7) == ["start flight#7"]


def test_accept_that_is_recorded_without_a_lease_waits_for_it() -> None:
    """The cluster has granted it; it starts when the lease runs again, unless the session is over by then."""
    played = Played()
    played.open()
    played.passes(TTL_MS - 100, acknowledged=False)
    assert played.offer("flight", 7, start=ON_ACCEPT) == ["report accepted flight#7"]
    played.passes(200, acknowledged=False)

    assert played.answer("flight", 7) == []

    played.acknowledge()

    assert played.out() == ["start flight#7"]


def test_not_idempotent_handler_is_cancelled_at_once_when_the_lease_has_ended() -> None:
    """Another agent must not find it still at work."""
    played = Played()
    played.open()
    played.offer("charge", 7, idempotent=False)
    before = played.passes(TTL_MS - 50, acknowledged=False)
    at_the_end = played.passes(50, acknowledged=False)

    assert before == ["report started charge#7", "change node"]
    assert at_the_end == ["lease lost charge#7", "cancel charge#7 LEASE_LOST"]


def test_idempotent_handler_goes_on_for_one_more_ttl() -> None:
    """A short time without a leader must not lose its work."""
    played = Played()
    played.open()
    played.offer("flight", 7, idempotent=True)
    played.passes(TTL_MS - 50, acknowledged=False)
    at_the_end = played.passes(50, acknowledged=False)
    another_ttl = played.passes(TTL_MS - 50, acknowledged=False)
    after_it = played.passes(50, acknowledged=False)

    assert at_the_end == ["lease lost flight#7"]
    assert another_ttl == []
    assert after_it == ["cancel flight#7 LEASE_LOST"]


@pytest.mark.parametrize(
    ("idempotent", "killed_after_ms"),
    [
        (False, TTL_MS + KILL_GRACE_MS),
        (True, TTL_MS + TTL_MS + KILL_GRACE_MS),
    ],
)
def test_handler_that_does_not_stop_ends_the_process(idempotent: bool, killed_after_ms: int) -> None:
    """By then the cluster may give its work to another, so neither a thread nor its neighbours are spared."""
    played = Played()
    played.open()
    played.offer("charge", 7, idempotent=idempotent)
    played.passes(killed_after_ms - 50, acknowledged=False)

    assert not played.session.finished
    assert played.passes(50, acknowledged=False) == ["end process 70"]
    assert played.session.finished


def test_handler_that_stops_in_time_saves_the_process() -> None:
    played = Played()
    played.open()
    played.offer("charge", 7, idempotent=False)
    played.passes(TTL_MS + KILL_GRACE_MS - 50, acknowledged=False)
    played.ended("charge", 7)

    assert played.passes(10 * TTL_MS, acknowledged=False) == []


def test_lease_that_runs_again_saves_what_has_gone_on() -> None:
    """The session was not over for the cluster: the same token still counts."""
    played = Played()
    played.open()
    played.offer("flight", 7, idempotent=True)
    played.passes(TTL_MS + 100, acknowledged=False)
    played.lose_stream()
    played.open()

    assert played.passes(3 * TTL_MS) == []
    assert played.ended("flight", 7) == ["report succeeded flight#7"]


def test_lease_that_runs_again_says_so_to_handlers() -> None:
    played = Played()
    played.open()
    played.offer("flight", 7, idempotent=True)
    played.passes(TTL_MS + 100, acknowledged=False)
    played.lose_stream()

    assert "lease back flight#7" in played.open()


def test_cancelled_handler_of_a_lease_that_runs_again_does_not_end_the_process() -> None:
    """The reason to kill is gone; it may use up its own time like any handler that ignores a cancel."""
    played = Played()
    played.open()
    played.offer("charge", 7, idempotent=False)
    played.passes(TTL_MS + 100, acknowledged=False)
    played.lose_stream()
    played.open()

    assert played.passes(5 * TTL_MS) == []
    assert played.ended("charge", 7) == ["report succeeded charge#7"]


def test_pause_beyond_every_bound_still_lets_handlers_hear_of_their_cancel() -> None:
    """The process stood still for an hour. An async handler needs a turn of its loop to stop; then the end comes."""
    played = Played()
    played.open()
    played.offer("charge", 7, idempotent=False)

    assert played.jumps(3_600_000) == ["report started charge#7", "lease lost charge#7", "cancel charge#7 LEASE_LOST"]
    assert played.jumps(99) == []
    assert played.jumps(1) == ["end process 70"]


def test_outcome_that_exists_is_reported_when_the_connection_is_back() -> None:
    """The token decides whether it counts."""
    played = Played()
    played.open()
    played.offer("flight", 7)
    played.lose_stream()
    played.passes(TTL_MS + 100)

    assert played.ended("flight", 7) == []
    assert played.open() == ["report succeeded flight#7"]


def test_heartbeats_go_out_six_times_a_ttl() -> None:
    played = Played()
    played.open()
    played.passes(TTL_MS)
    numbers = [one.heartbeat.number for one in played.messages if one.WhichOneof("message") == "heartbeat"]

    # The first goes with the welcome.
    assert numbers == [1, 2, 3, 4, 5, 6, 7]


def test_node_that_does_not_acknowledge_for_a_third_of_the_ttl_is_left() -> None:
    """The lease then has two thirds left in which another node may acknowledge."""
    played = Played()
    played.open()
    # The next heartbeat goes out after one interval, and its answer is missing from then on.
    assert played.passes(HEARTBEAT_MS + TTL_MS // 3 - 50, acknowledged=False) == []
    assert played.passes(50, acknowledged=False) == ["change node"]
    # Said once a stream.
    assert played.passes(1_000, acknowledged=False) == []


def test_node_that_does_not_welcome_is_left() -> None:
    """Also before anything is known about its TTL."""
    played = Played()
    played.connect()
    played.out()

    assert played.passes(2_950) == []
    assert played.passes(50) == ["change node"]
