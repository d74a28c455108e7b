"""Leadership that is handed over."""

import pytest

from stepward.server.logbook import frames
from stepward.server.logbook.transfers import PATIENCE_MS
from tests.logbook.hand import Hand, command
from tests.logbook.rules import take_away
from tests.logbook.three import IDS, STEP_MS, Three


def led() -> Hand:
    """A leader whose followers have everything."""
    hand = Hand()
    hand.lead()
    for peer in hand.peers:
        hand.answer(peer, next_index=3)
    hand.step()
    return hand


@pytest.mark.parametrize("target", IDS)
@pytest.mark.parametrize("under_load", [False, True])
def test_target_leads_within_200_ms(target: str, under_load: bool) -> None:
    three = Three().start()
    leader = three.settle()
    if leader.node_id == target:
        target = three.others(leader)[0].node_id
    for _ in range(20):
        three.propose(leader, 5 * under_load)
        three.step()
    assert leader.engine.transfer(target, three.now_ms) == ""

    assert three.until(lambda: three[target].engine.leads and three[target].engine.settled) <= 200
    assert [host.engine.elections for host in three.hosts.values() if host.node_id == target] >= [1]
    three.run(1_000)
    assert {host.engine.leader_id for host in three.hosts.values()} == {target}


def test_red_transfer_is_not_held_up_by_one_who_hears_the_leader(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both others hear it: the target's wish to stand has to say who asked for it, in all of its election."""

    def moved() -> bool:
        three = Three().start()
        leader = three.settle()
        target = three.others(leader)[0]
        leader.engine.transfer(target.node_id, three.now_ms)
        three.run(PATIENCE_MS)
        return target.engine.leads

    assert moved()
    take_away(monkeypatch, "a transfer passes those who hear the leader")
    assert not moved()


def test_without_a_name_it_goes_to_the_one_that_has_most() -> None:
    hand = led()
    hand.engine.propose(command("a"))
    hand.step()
    hand.answer("n3", next_index=4)
    assert hand.engine.transfer("", hand.now_ms) == ""

    assert frames.StandNow(1) in hand.heard("n3")


def test_it_waits_until_the_target_has_everything() -> None:
    """Before, the target would not win, and the cluster be without a leader."""
    hand = led()
    hand.engine.propose(command("a"))
    hand.step()
    hand.engine.transfer("n2", hand.now_ms)
    assert frames.StandNow(1) not in hand.heard("n2")
    hand.answer("n2", next_index=4)

    assert frames.StandNow(1) in hand.heard("n2")


@pytest.mark.parametrize(("ms", "under_way"), [(PATIENCE_MS - 1, True), (PATIENCE_MS, False)])
@pytest.mark.parametrize("caught_up", [True, False])
def test_it_is_given_up(ms: int, under_way: bool, caught_up: bool) -> None:
    """The leader then goes on."""
    hand = led()
    if not caught_up:
        hand.engine.propose(command("a"))
    hand.engine.transfer("n2", hand.now_ms)
    hand.step(0)
    for peer in hand.peers:
        hand.answer(peer, next_index=3)
    hand.step(ms)

    assert (hand.engine.transferring, hand.engine.leads) == (under_way, True)


def test_it_is_over_when_the_target_leads() -> None:
    three = Three().start()
    leader = three.settle()
    leader.engine.transfer(three.others(leader)[0].node_id, three.now_ms)
    assert leader.engine.transferring
    three.until(lambda: three.leader is not leader and three.leader is not None)
    three.run(STEP_MS)

    assert not leader.engine.transferring


def test_lease_is_given_up_for_the_whole_term(monkeypatch: pytest.MonkeyPatch) -> None:
    """The target may win at any moment, also long after this leader has gone on."""

    def lease() -> int:
        hand = led()
        hand.engine.transfer("n2", hand.now_ms)
        hand.step()
        for _ in range(100):
            for peer in hand.peers:
                hand.answer(peer, next_index=3)
            hand.step()
        assert hand.engine.leads
        assert not hand.engine.transferring
        return hand.engine.lease_until_ms(hand.now_ms)

    assert lease() == 0
    take_away(monkeypatch, "a transfer gives up the lease")
    assert lease() > 0


def test_without_lease_a_round_confirms() -> None:
    hand = led()
    hand.engine.transfer("n2", hand.now_ms)
    hand.step()
    hand.step(PATIENCE_MS)
    stamp = hand.engine.round()
    hand.step()
    assert not hand.engine.confirmed(stamp)
    hand.answer("n3", next_index=3)

    assert hand.engine.confirmed(stamp)


def test_target_listens_to_its_leader_only() -> None:
    hand = Hand()
    hand.follow("n2")
    hand.say("n3", frames.StandNow(1))
    hand.say("n2", frames.StandNow(0))
    hand.step()

    assert (hand.engine.term, hand.engine.leader_id) == (1, "n2")


def test_signs_of_life_of_the_old_leader_do_not_hold_the_target_up() -> None:
    hand = Hand()
    hand.follow("n2")
    hand.say("n2", frames.StandNow(1))
    hand.follow("n2")

    assert frames.VoteRequest(2, 1, 0, transfer=True) in hand.heard("n3")


def test_a_later_election_of_the_target_is_its_own() -> None:
    """Those who hear a leader need not hear it again because one has asked once."""
    hand = Hand()
    hand.follow("n2")
    hand.say("n2", frames.StandNow(1))
    hand.step()
    hand.lead()

    assert hand.engine.term == 3
    assert not hand.engine._elections._was_asked_to_stand(3)


@pytest.mark.parametrize(
    ("target", "reason"),
    [
        ("n1", "n1 is not connected"),
        ("n9", "n9 is not connected"),
        ("n3", "n3 is not connected"),
    ],
)
def test_it_is_refused(target: str, reason: str) -> None:
    hand = led()
    hand.engine.unlinked("n3")

    assert reason in hand.engine.transfer(target, hand.now_ms)
    assert not hand.engine.transferring


def test_it_is_refused_when_nobody_else_is_there() -> None:
    hand = led()
    for peer in hand.peers:
        hand.engine.unlinked(peer)

    assert "no other node is connected" in hand.engine.transfer("", hand.now_ms)


def test_only_a_leader_hands_over() -> None:
    hand = Hand()
    hand.follow("n2")

    assert "does not lead" in hand.engine.transfer("n3", hand.now_ms)


def test_one_at_a_time() -> None:
    hand = led()
    hand.engine.transfer("n2", hand.now_ms)

    assert "handed to n2 already" in hand.engine.transfer("n3", hand.now_ms)
