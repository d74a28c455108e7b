"""Streams and sessions: hello, digests, resuming, and what a session's end leaves behind."""

from __future__ import annotations

import hashlib

import pytest

from stepward.agents.attempts import AttemptKey, held_digest
from stepward.agents.outcomes import Stopped
from stepward.v1 import agent_service_pb2 as wire
from tests.agents.played import KILL_GRACE_MS, ON_ACCEPT, TTL_MS, Played, offer, ref


def test_digest_is_the_one_of_the_contract() -> None:
    """The first 8 bytes of the SHA-256 of the sorted lines "job/step/token", as a big-endian number."""
    keys = [AttemptKey("0-b", "hotel", 7), AttemptKey("0-a", "flight", 12)]
    expected = hashlib.sha256(b"0-a/flight/12\n0-b/hotel/7").digest()[:8]

    assert held_digest(keys) == int.from_bytes(expected, "big")
    assert held_digest([]) == int.from_bytes(hashlib.sha256(b"").digest()[:8], "big")


def test_hello_comes_first_and_alone() -> None:
    """Everything else follows the welcome, reports too."""
    played = Played()
    played.open()
    played.offer("flight", 7)
    played.lose_stream()
    played.connect()
    assert played.ended("flight", 7) == ["hello session-1 held=[flight#7]"]
    assert played.passes(1_000) == []
    played.welcome()

    assert played.out() == ["report succeeded flight#7"]


def test_session_is_resumed_under_its_name() -> None:
    played = Played()
    played.open()
    played.lose_stream()
    played.connect()

    assert played.out() == ["hello session-1 held=[]"]


def test_heartbeat_shows_what_is_held() -> None:
    """Received, and outcome not yet acknowledged; not what was refused."""
    played = Played(slots=3)
    played.open()
    played.offers(offer("runs", 7), offer("ended", 7), offer("asks", 7, start=ON_ACCEPT), offer("refused", 7))
    played.ended("ended", 7)
    held = [AttemptKey("0-job", step, 7) for step in ("asks", "ended", "runs")]
    played.passes(TTL_MS // 6)
    heartbeat = [one.heartbeat for one in played.messages if one.WhichOneof("message") == "heartbeat"][-1]

    assert heartbeat.held_digest == held_digest(held)
    assert heartbeat.busy_slots == 2
    assert not heartbeat.held
    assert not heartbeat.held_is_complete


def test_whole_list_goes_with_the_next_heartbeat_when_asked_for() -> None:
    played = Played()
    played.open()
    played.offer("flight", 7)
    played.passes(TTL_MS // 6, acknowledged=False)
    played.acknowledge(send_held=True)
    played.passes(TTL_MS // 6, acknowledged=False)
    asked = played.heartbeats[-1]
    played.acknowledge()
    played.passes(TTL_MS // 6, acknowledged=False)

    assert [one.step_id for one in asked.held] == ["flight"]
    assert asked.held_is_complete
    assert not played.heartbeats[-1].held_is_complete


def test_redirect_leads_to_another_node() -> None:
    """The session stays."""
    played = Played()
    played.open()
    played.session.received(played.now_ms, wire.WorkResponse(redirect=wire.Redirect(addresses=["b:1", "c:1"])))

    assert played.out() == ["change node b:1 c:1"]


def test_new_node_is_not_blamed_for_the_silence_of_the_old_one() -> None:
    """What was not answered on a closed stream never will be."""
    played = Played()
    played.open()
    played.passes(TTL_MS // 6 + 1_000, acknowledged=False)
    played.lose_stream()
    played.passes(1_900)
    played.connect()
    played.out()

    assert played.passes(TTL_MS // 6 - 50) == []
    assert played.passes(50) == ["change node"]


def silent_hello_ms(played: Played) -> int:
    """How long the next node may leave a hello unanswered."""
    played.lose_stream()
    played.connect()
    played.out()
    since_ms = played.now_ms
    while not played.passes(50, acknowledged=False):
        assert played.now_ms - since_ms < 10 * TTL_MS
    return played.now_ms - since_ms


def test_h010_two_dead_hosts_leave_time_for_a_third_before_the_lease_ends() -> None:
    """The renewal is given TTL/3, the next hello TTL/6: the rest of the lease is for the third node."""
    played = Played()
    played.open()
    began_ms = played.now_ms
    while played.passes(50, acknowledged=False)[-1:] != ["change node"]:
        assert played.now_ms - began_ms < TTL_MS
    played.heartbeats.clear()
    assert played.now_ms - began_ms <= TTL_MS // 6 + TTL_MS // 3 + 50

    second_ms = silent_hello_ms(played)

    assert second_ms <= TTL_MS // 6 + 50
    assert played.now_ms - began_ms <= TTL_MS * 3 // 4
    assert played.session.lease_runs(played.now_ms)


def test_hellos_in_vain_make_the_agent_more_patient() -> None:
    """Where all nodes are slow, one that only changes nodes is never welcomed; a welcome is what begins anew."""
    played = Played()
    played.open()

    given_ms = [silent_hello_ms(played) for _ in range(6)]
    played.lose_stream()
    played.open()
    given_again_ms = silent_hello_ms(played)

    sixth = -(-(TTL_MS // 6) // 50) * 50
    assert given_ms[0] == given_again_ms == sixth
    assert [later / given_ms[0] for later in given_ms] == pytest.approx([1, 2, 4, 8, 8, 8], rel=0.05)


def test_what_came_together_is_read_in_its_order() -> None:
    """The answer frees the slot that the offer behind it takes; the other way round it would be handed back."""
    played = Played(slots=1)
    played.open()
    played.offer("flight", 7, start=ON_ACCEPT)
    answer = wire.ReportAnswer(attempt=ref("flight", 7), result=wire.REPORT_RESULT_CANCELLED)
    responses = [
        wire.WorkResponse(answers=wire.ReportAnswers(answers=[answer])),
        wire.WorkResponse(offers=wire.Offers(offers=[offer("hotel", 8)])),
    ]
    together = wire.WorkResponse(together=wire.Together(responses=responses))
    played.session.received(played.now_ms, together)

    assert played.out() == ["start hotel#8"]
    assert [key.step_id for key in played.session.held] == ["hotel"]


def test_heartbeat_answered_beside_an_offer_lets_it_start() -> None:
    """Each is read as if it had come alone: an offer behind the answer that renews the lease is under that lease."""
    played = Played()
    played.open()
    played.passes(TTL_MS // 6, acknowledged=False)
    heartbeat = played.heartbeats[-1]
    played.now_ms += TTL_MS - TTL_MS // 6
    responses = [
        wire.WorkResponse(heartbeat=wire.HeartbeatAnswer(number=heartbeat.number)),
        wire.WorkResponse(offers=wire.Offers(offers=[offer("flight", 7)])),
    ]
    together = wire.WorkResponse(together=wire.Together(responses=responses))
    played.session.received(played.now_ms, together)

    assert played.out() == ["start flight#7"]


def test_hello_says_that_the_agent_reads_what_comes_together() -> None:
    """Else a node sends each message alone."""
    played = Played()
    played.connect()
    played.out()

    assert played.messages[-1].hello.reads_together


def test_message_of_a_newer_protocol_is_passed_over() -> None:
    played = Played()
    played.open()
    played.session.received(played.now_ms, wire.WorkResponse())

    assert played.out() == []


def over(played: Played) -> list[str]:
    """The node refuses the hello of the session, and the process opens another one."""
    played.lose_stream()
    played.connect()
    played.out()
    played.lose_stream()
    played.session.session_over(played.now_ms, "session-2")
    played.generation = 0
    return played.out()


def test_session_that_is_over_is_followed_by_a_new_one() -> None:
    played = Played()
    played.open()
    over(played)
    played.connect()

    assert played.out() == ["hello session-2 held=[]"]


def test_what_ran_under_an_ended_session_has_lost_its_lease() -> None:
    """The rules for lost leases hold: idempotent handlers may go on for a TTL, others are cancelled at once."""
    played = Played()
    played.open()
    played.offers(offer("flight", 7), offer("charge", 7, idempotent=False))

    assert over(played) == ["lease lost flight#7", "lease lost charge#7", "cancel charge#7 LEASE_LOST"]
    assert played.open() == []
    played.ended("charge", 7, Stopped())
    assert "cancel flight#7 LEASE_LOST" not in played.passes(TTL_MS - 50)
    assert "cancel flight#7 LEASE_LOST" in played.passes(50)


def test_new_session_does_not_hold_what_the_old_one_held() -> None:
    played = Played()
    played.open()
    played.offers(offer("runs", 7), offer("ended", 7), offer("asks", 7, start=ON_ACCEPT))
    played.ended("ended", 7)
    over(played)
    played.connect()

    assert played.out() == ["hello session-2 held=[]"]
    assert played.session.busy_slots == 1


def test_lease_of_the_new_session_that_runs_again_is_not_that_of_the_old_one() -> None:
    played = Played()
    played.open()
    played.offer("flight", 7)
    over(played)
    played.open()
    played.passes(TTL_MS, acknowledged=False)
    played.acknowledge()

    assert "lease back flight#7" not in played.out()


def test_new_session_does_not_save_the_handlers_of_the_old_one() -> None:
    """Its lease is not theirs: the process ends if they do not stop."""
    played = Played()
    played.open()
    played.offer("charge", 7, idempotent=False)
    over(played)
    played.open()

    assert "end process 70" not in played.passes(KILL_GRACE_MS - 50)
    assert "end process 70" in played.passes(50)


def test_outcome_of_an_ended_session_is_reported_by_the_new_one() -> None:
    """With the old reference; it is answered STALE_TOKEN, kept as an observation, and done with."""
    played = Played()
    played.open()
    played.offer("flight", 7)
    over(played)
    played.open()

    assert played.ended("flight", 7) == ["report succeeded flight#7"]
    assert played.answer("flight", 7, "STALE_TOKEN") == []
    played.lose_stream()
    assert played.open() == []


def test_outcome_that_waits_survives_the_end_of_its_session() -> None:
    played = Played()
    played.open()
    played.offer("flight", 7)
    played.lose_stream()
    played.ended("flight", 7)
    played.session.session_over(played.now_ms, "session-2")
    played.generation = 0
    assert played.session.held == []

    assert played.open() == ["report succeeded flight#7"]


@pytest.mark.parametrize("recorded", [False, True])
def test_what_has_not_started_under_an_ended_session_never_starts(recorded: bool) -> None:
    """An agent starts only what belongs to its current session."""
    played = Played()
    played.open()
    played.offer("charge", 7, start=ON_ACCEPT)
    if recorded:
        played.passes(TTL_MS, acknowledged=False)
        played.answer("charge", 7)
    over(played)

    assert played.open() == ["report refused charge#7 handed_back"]
    assert played.passes(1_000) == []


def test_hello_says_the_generation_of_its_session() -> None:
    """That of the newest welcome; a new session has none. A cluster that has ended the session then says so."""
    played = Played()
    played.open()
    played.lose_stream()
    played.open()
    over(played)
    played.open()
    hellos = [one.hello for one in played.messages if one.WhichOneof("message") == "hello"]

    assert [(one.session_id, one.generation) for one in hellos] == [
        ("session-1", 0),
        ("session-1", 1),
        ("session-1", 2),
        ("session-2", 0),
    ]


def test_session_that_ends_during_a_partition_leaves_its_handlers_to_their_lease() -> None:
    """Nothing goes on under the next session: what is idempotent has one TTL from the end of the lease, and no more."""
    played = Played()
    played.open()
    played.offers(offer("flight", 7), offer("charge", 7, idempotent=False))
    played.lose_stream()
    # The lease ends after a TTL, and the partition a little later.
    lost = played.passes(TTL_MS + 1_000)
    refused = over(played)
    reopened = played.open()

    assert lost == ["lease lost flight#7", "lease lost charge#7", "cancel charge#7 LEASE_LOST"]
    assert refused == []
    # What happened is told; an answer STALE_TOKEN would only stop the handler sooner.
    assert reopened == ["report started flight#7", "report started charge#7"]
    assert played.session.held == []
    played.ended("charge", 7, Stopped())
    assert "cancel flight#7 LEASE_LOST" not in played.passes(TTL_MS - 1_000 - 50)
    assert "cancel flight#7 LEASE_LOST" in played.passes(50)


def test_generation_that_does_not_rise_is_not_taken_for_a_resumed_session() -> None:
    """The contract rules it out; a session of the same name would still be another one."""
    played = Played()
    played.open()
    played.lose_stream()
    played.open()
    played.offer("charge", 7, idempotent=False)
    played.lose_stream()
    played.connect()
    played.out()
    played.welcome(generation=1)

    assert played.out() == ["lease lost charge#7", "cancel charge#7 LEASE_LOST"]
    played.acknowledge()
    assert played.offer("hotel", 8) == ["start hotel#8"]


def test_lease_of_a_recreated_session_counts_from_its_hello() -> None:
    played = Played()
    played.open()
    played.lose_stream()
    played.connect()
    played.out()
    played.now_ms += TTL_MS - 1
    played.welcome(generation=1)
    played.out()
    assert played.offer("flight", 7) == ["start flight#7"]
    played.now_ms += 1

    assert played.offer("hotel", 7) == []
