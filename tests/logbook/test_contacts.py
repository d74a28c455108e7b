"""Until when nobody else can lead, and how a leader knows that it still does."""

import pytest

from stepward.server.logbook import frames
from stepward.server.logbook.contacts import FOREVER_MS, LEASE_MS
from stepward.server.logbook.raft import ELECTION_MIN_MS
from tests.logbook import toy
from tests.logbook.hand import Hand


def led(*, peers: tuple[str, ...] = ("n2", "n3")) -> Hand:
    hand = Hand(peers=peers)
    hand.lead()
    return hand


def answer_sent_at(hand: Hand, peer_id: str, sent_ms: int) -> None:
    hand.say(peer_id, frames.AppendAnswer(hand.engine.term, hand.engine._sender.round, sent_ms, True, 3, toy.ABLE))


def test_lease_counts_from_when_the_answered_message_was_sent() -> None:
    """Not from its answer, which may have waited in an inbox while this process was paused."""
    hand = led()
    sent_ms = hand.now_ms
    hand.now_ms += 100
    answer_sent_at(hand, "n2", sent_ms)

    assert hand.engine.lease_until_ms(hand.now_ms) == sent_ms + LEASE_MS


def test_lease_is_half_of_what_a_follower_keeps_its_vote_back() -> None:
    """The other half is for clocks that do not run alike."""
    assert 2 * LEASE_MS == ELECTION_MIN_MS


@pytest.mark.parametrize(
    ("peers", "ages", "lease"),
    [
        # Of three: the newest of the two others makes a majority. Of five: the second newest.
        (("n2", "n3"), {"n2": 40}, 40),
        (("n2", "n3"), {"n2": 40, "n3": 10}, 10),
        (("n2", "n3"), {}, None),
        (("n2", "n3", "n4", "n5"), {"n2": 40, "n3": 10, "n4": 30}, 30),
        (("n2", "n3", "n4", "n5"), {"n2": 40}, None),
        # Of two: the other one.
        (("n2",), {"n2": 40}, 40),
        (("n2",), {}, None),
    ],
)
def test_lease_needs_a_majority(peers: tuple[str, ...], ages: dict[str, int], lease: int | None) -> None:
    hand = led(peers=peers)
    for peer, age_ms in ages.items():
        answer_sent_at(hand, peer, hand.now_ms - age_ms)

    expected = 0 if lease is None else hand.now_ms - lease + LEASE_MS
    assert hand.engine.lease_until_ms(hand.now_ms) == expected


def test_late_answer_does_not_shorten_the_lease() -> None:
    hand = led()
    answer_sent_at(hand, "n2", hand.now_ms)
    before = hand.engine.lease_until_ms(hand.now_ms)
    answer_sent_at(hand, "n2", hand.now_ms - 100)

    assert hand.engine.lease_until_ms(hand.now_ms) == before


def test_no_message_was_sent_in_the_future() -> None:
    """A stamp that is wrong must not make a lease that is too long."""
    hand = led()
    answer_sent_at(hand, "n2", hand.now_ms + 60_000)

    assert hand.engine.lease_until_ms(hand.now_ms) == hand.now_ms + LEASE_MS


def test_alone_it_lasts_for_ever() -> None:
    hand = Hand(peers=())
    hand.step()

    assert hand.engine.lease_until_ms(hand.now_ms) == FOREVER_MS
    assert hand.engine.confirmed(hand.engine.round())


def test_who_does_not_lead_has_none() -> None:
    hand = led()
    answer_sent_at(hand, "n2", hand.now_ms)
    hand.say("n3", frames.HigherTerm(9))

    assert hand.engine.lease_until_ms(hand.now_ms) == 0
    assert not hand.engine.confirmed(0)


def test_answers_of_an_older_term_are_forgotten() -> None:
    hand = led()
    answer_sent_at(hand, "n2", hand.now_ms)
    hand.say("n3", frames.HigherTerm(9))
    hand.lead()

    assert hand.engine.lease_until_ms(hand.now_ms) == 0


def test_a_newcomer_is_not_the_one_that_answered() -> None:
    hand = led()
    answer_sent_at(hand, "n2", hand.now_ms)
    hand.say("n2", frames.Hello(2))

    assert hand.engine.lease_until_ms(hand.now_ms) == 0


def test_round_is_confirmed_by_answers_to_what_was_sent_after_it() -> None:
    """What was sent before it says nothing about now."""
    hand = led()
    hand.step(LEASE_MS)
    before = hand.engine._sender.round
    stamp = hand.engine.round()
    hand.say("n2", frames.AppendAnswer(hand.engine.term, before, hand.now_ms - LEASE_MS, True, 3, toy.ABLE))
    assert not hand.engine.confirmed(stamp)
    assert [type(message) for message in hand.heard("n2", ms=0)] == [frames.Append]
    hand.say("n2", frames.AppendAnswer(hand.engine.term, before + 1, hand.now_ms - LEASE_MS, True, 3, toy.ABLE))

    assert hand.engine.confirmed(stamp)


def test_refusal_confirms_too() -> None:
    """The follower follows, whatever its journal holds."""
    hand = led()
    stamp = hand.engine.round()
    hand.step()
    hand.answer("n2", next_index=2, matches=False)

    assert hand.engine.confirmed(stamp)


@pytest.mark.parametrize(("after_ms", "confirmed"), [(LEASE_MS - 1, True), (LEASE_MS, False)])
def test_lease_confirms_at_once(after_ms: int, confirmed: bool) -> None:
    hand = led()
    answer_sent_at(hand, "n2", hand.now_ms)
    hand.step(after_ms)

    assert hand.engine.confirmed(hand.engine.round()) is confirmed


def test_followers_as_the_leader_sees_them() -> None:
    hand = led()
    hand.answer("n2", next_index=3)
    hand.engine.unlinked("n3")

    first, second = hand.engine.followers()
    assert (first.node_id, first.connected, first.match_index, first.answered_at_ms) == ("n2", True, 2, hand.now_ms)
    assert (second.node_id, second.connected, second.match_index, second.answered_at_ms) == ("n3", False, 0, None)
