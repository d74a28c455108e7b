"""A node that has lost its directory, and what it may not do before it has everything again."""

import pytest

from stepward.server.logbook import frames, quarantine, sending
from stepward.server.logbook.errors import JournalCorrupt
from stepward.server.logbook.quarantine import ALIVE_MS, HELLO_PERIOD_MS
from stepward.server.logbook.raft import ELECTION_MAX_MS, ELECTION_MIN_MS
from stepward.server.store import facts
from stepward.server.store.memory import MemoryStore
from tests.logbook import toy
from tests.logbook.hand import Hand
from tests.logbook.rules import take_away
from tests.logbook.three import Host, Three, Violation


def empty_store() -> MemoryStore:
    """Of a node that joins a cluster that exists."""
    store = toy.new_store()
    quarantine.begin(store)
    store.commit()
    return store


def newcomer(store: MemoryStore | None = None) -> Hand:
    """`n1` in its third incarnation, after its first step."""
    hand = Hand(store=store or empty_store(), incarnation=3)
    hand.step()
    return hand


def tell(hand: Hand, peer_id: str, term: int, *, needed_index: int = 0, incarnation: int = 3) -> None:
    hand.say(peer_id, frames.HelloAnswer(incarnation, term, needed_index))


def answers(hand: Hand, peer_id: str = "n2") -> list[frames.Message]:
    return [message for message in hand.heard(peer_id) if isinstance(message, frames.AppendAnswer)]


# One node, by hand.


def test_it_says_that_it_is_there_until_it_is_whole() -> None:
    hand = Hand(store=empty_store(), incarnation=3)
    heard = [message for _ in range(100) for message in hand.heard("n2")]

    assert set(heard) == {frames.Hello(3)}
    assert len(heard) == pytest.approx(1_000 / HELLO_PERIOD_MS, rel=0.15)


def test_it_neither_votes_nor_stands() -> None:
    hand = newcomer()
    hand.step(ELECTION_MIN_MS)
    hand.say("n2", frames.VoteRequest(5, 9, 9, transfer=True))
    hand.say("n2", frames.PreVoteRequest(5, 1, 9, 9))
    heard = [message for _ in range(100) for message in hand.heard("n2")]

    assert frames.PreVote(0, 1, granted=False) in heard
    assert not any(isinstance(message, frames.Vote | frames.PreVoteRequest) for message in heard)
    assert hand.engine.quarantined


def test_it_does_not_stand_when_it_is_asked_to() -> None:
    hand = newcomer()
    hand.follow("n2")
    hand.say("n2", frames.StandNow(1))
    hand.step()

    assert (hand.engine.term, hand.engine.elections) == (1, 0)


def test_it_stores_and_answers_nothing_before_it_knows_the_terms() -> None:
    """Refusals neither: the leader would take them for signs of life of one who follows it."""
    hand = newcomer()
    hand.append("n2", term=1, previous=(1, 0), entries=[("a", 1)])
    assert answers(hand) == []
    hand.append("n2", term=1, previous=(9, 1))
    hand.say("n2", frames.Compacted(1, 1, 1))
    assert answers(hand) == []

    assert hand.entries() == [("a", 1)]
    assert hand.engine.behind == "n2"


def test_it_acknowledges_once_every_other_has_told_its_term() -> None:
    hand = newcomer()
    tell(hand, "n2", 4)
    hand.append("n2", term=4, previous=(1, 0), entries=[("a", 4)])
    assert answers(hand) == []
    tell(hand, "n3", 6)
    # The highest is adopted, and the leader of a lower one is told so.
    hand.append("n2", term=4, previous=(2, 4))
    assert frames.HigherTerm(6) in hand.heard("n2")
    hand.append("n3", term=6, previous=(2, 4))

    assert answers(hand, "n3") == [frames.AppendAnswer(6, 1, 0, matches=True, next_index=3, ability=toy.IN_QUARANTINE)]


def test_answers_to_another_incarnation_count_for_nothing() -> None:
    """They were given before it was wiped once more, and it may have promised something since."""
    hand = newcomer()
    for peer in hand.peers:
        tell(hand, peer, 4, incarnation=2)
    hand.append("n2", term=4, previous=(1, 0), entries=[("a", 4)])

    assert answers(hand) == []


@pytest.mark.parametrize(
    ("needed_index", "own_term", "commit_index", "ends"),
    [
        (3, 4, 3, True),
        # The leader held one more when it first heard of this node.
        (4, 4, 3, False),
        # It does not hold more than the leader of another term wanted; nobody has said what this one wants.
        (0, 4, 3, False),
        # The leader has not committed any entry of its own term.
        (3, 4, 2, False),
        (3, 3, 3, False),
    ],
)
def test_when_it_ends(needed_index: int, own_term: int, commit_index: int, ends: bool) -> None:
    hand = newcomer()
    tell(hand, "n2", 4, needed_index=needed_index)
    tell(hand, "n3", 1, needed_index=2)
    entries = [("a", 3), ("no-op", own_term)]
    hand.append("n2", term=4, previous=(1, 0), entries=entries, commit_index=commit_index)
    hand.step()
    hand.step()

    assert hand.engine.quarantined is (not ends)


def test_a_long_tail_of_an_older_leader_is_not_what_the_newer_one_held(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its end is far enough, but nothing of it is the newer leader's; it would elect the older one again."""

    def history() -> tuple[bool, bool]:
        hand = newcomer()
        hand.append("n2", term=1, previous=(1, 0), entries=[("a", 1)] * 60)
        tell(hand, "n2", 1, needed_index=5)
        tell(hand, "n3", 2, needed_index=40)
        hand.append("n3", term=2, previous=(41, 2))
        hand.step()
        quarantined = hand.engine.quarantined
        hand.step(ELECTION_MAX_MS)
        hand.say("n2", frames.VoteRequest(3, 61, 1, transfer=False))
        return quarantined, frames.Vote(3) in hand.heard("n2")

    assert history() == (True, False)
    take_away(monkeypatch, "the leader has committed")
    assert history() == (False, True)


def test_it_is_over_for_good() -> None:
    """And durable together with the entries for which it waited."""
    hand = newcomer()
    for peer in hand.peers:
        tell(hand, peer, 4, needed_index=2)
    hand.append("n2", term=4, previous=(1, 0), entries=[("no-op", 4)], commit_index=2)
    hand.now_ms += 10
    hand.engine.tick(hand.now_ms)
    assert not hand.engine.quarantined
    hand.store.lose_uncommitted()
    assert newcomer(hand.store).engine.quarantined
    assert newcomer(hand.store).entries() == []


def test_what_it_knows_survives_a_restart() -> None:
    """It has acknowledged since, and must not have to ask those again that may be gone by now."""
    hand = newcomer()
    for peer in hand.peers:
        tell(hand, peer, 4)
    hand.step()
    again = newcomer(hand.store)
    again.append("n2", term=4, previous=(1, 0), entries=[("a", 4)])

    assert again.engine.quarantined
    assert answers(again) == [frames.AppendAnswer(4, 1, 0, matches=True, next_index=3, ability=toy.IN_QUARANTINE)]


def test_empty_map_is_a_quarantine_that_has_begun() -> None:
    store = toy.new_store()
    store.put_fact(facts.QUARANTINE, b"\x80")

    assert quarantine.read(store) == quarantine.State()


@pytest.mark.parametrize("value", [b"\xc1", b"\x81\xa5other\x01", b"\xc0"])
def test_quarantine_that_cannot_be_read(value: bytes) -> None:
    """To take it for none would let a node vote that has forgotten whom it voted for."""
    store = toy.new_store()
    store.put_fact(facts.QUARANTINE, value)

    with pytest.raises(JournalCorrupt):
        quarantine.read(store)


# The others.


def test_leader_tells_what_it_held_when_it_first_heard() -> None:
    """Not what it holds now: a node would run after that for as long as there is load."""
    hand = Hand()
    term = hand.lead()
    hand.say("n2", frames.Hello(3))
    hand.engine.propose(b"\x00a")
    assert frames.HelloAnswer(3, term, 2) in hand.heard("n2")
    hand.say("n2", frames.Hello(3))
    assert frames.HelloAnswer(3, term, 2) in hand.heard("n2")
    hand.say("n2", frames.Hello(4))
    assert frames.HelloAnswer(4, term, 3) in hand.heard("n2")


def test_follower_tells_its_term_only() -> None:
    hand = Hand()
    hand.follow("n3", term=7)
    hand.say("n2", frames.Hello(3))

    assert hand.heard("n2") == [frames.HelloAnswer(3, 7, 0)]


def test_one_that_has_forgotten_its_own_terms_tells_none() -> None:
    """Of two that were wiped neither can say what they had promised: only a person can."""
    hand = newcomer()
    hand.say("n2", frames.Hello(9))
    assert hand.heard("n2") == []
    for peer in hand.peers:
        tell(hand, peer, 4)
    hand.say("n2", frames.Hello(9))

    assert frames.HelloAnswer(9, 4, 0) in hand.heard("n2")


def test_what_a_newcomer_acknowledged_before_it_has_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its old acknowledgement would commit what only the leader has."""

    def history() -> list[tuple[int, bytes]]:
        hand = Hand()
        hand.lead()
        hand.answer("n2", next_index=3)
        hand.say("n2", frames.Hello(2))
        hand.step()
        return hand.applied

    assert history() == []
    take_away(monkeypatch, "a newcomer has nothing")
    assert len(history()) == 1


def test_late_words_of_an_older_incarnation_count_for_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """They were on a stream of the node that was wiped, and arrive behind those of its successor."""

    def history() -> list[tuple[int, bytes]]:
        hand = Hand()
        hand.lead()
        hand.say("n2", frames.Hello(2), connection=2)
        hand.answer("n2", next_index=3, connection=1)
        hand.step()
        return hand.applied

    assert history() == []
    take_away(monkeypatch, "frames of an older stream are dropped")
    assert len(history()) == 1


# Three nodes.


def whole(host: Host) -> bool:
    return host.up and not host.engine.quarantined


@pytest.mark.parametrize("seed", range(5))
def test_wiped_node_is_whole_again_within_a_second(seed: int) -> None:
    three = Three(seed).start()
    leader = three.settle()
    commands = three.propose(leader, 50)
    three.until(lambda: three.all_have(commands))
    wiped = three.others(leader)[0]
    wiped.wipe()
    wiped.start()

    assert three.until(lambda: whole(wiped)) <= 1_000
    assert three.until(lambda: three.all_have(commands)) <= 200
    assert three.leader is leader


def test_wiped_leader_is_whole_again() -> None:
    three = Three().start()
    leader = three.settle()
    leader.wipe()
    leader.start()

    assert three.until(lambda: whole(leader)) <= 2_000


def test_red_quarantine_ends_with_what_the_leader_held(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ending it with the first entry of the leader's term would let the wiped node elect one who lacks the others.

    The leader has committed forty entries with this node alone, and is killed while the node, wiped, catches up one by
    one; then there are it and a node that was cut off.
    """
    monkeypatch.setattr(sending, "APPEND_BYTES_MAX", 10)
    monkeypatch.setattr(sending, "IN_FLIGHT_BYTES_MAX", 10)

    def history() -> None:
        three = Three().start()
        leader = three.elect("n1")
        three.cut = {("n1", "n3"), ("n3", "n1")}
        for _ in range(40):
            three.propose(leader)
            three.step()
        assert len(three.acknowledged) >= 30
        three["n2"].wipe()
        three["n2"].start()
        for _ in range(200):
            three.step()
            if three["n2"].journal.last_index >= 5:
                break
        leader.kill()
        three.heal()
        three.run(10_000)
        assert three.leader is None

    history()
    take_away(monkeypatch, "it holds what the leader held")
    with pytest.raises(Violation, match="lacks"):
        history()


def stale_leader_and_wiped_node(three: Three) -> None:
    """`n1` was paused as leader; `n2` and `n3` went on without it, and then `n2` was wiped and sees only `n1`."""
    old = three.elect("n1")
    three.cut = {("n1", "n3"), ("n3", "n1")}
    # Acknowledgements of n2 wait in the inbox of the paused leader, so that it does not notice at once that it is old.
    three.until(lambda: bool(three.waiting("n1", "n2")))
    old.paused = True
    three.elect("n3")
    for _ in range(40):
        three.propose(three["n3"])
        three.step()
    assert len(three.acknowledged) >= 30
    three["n2"].wipe()
    three["n2"].start()
    three.cut |= {("n2", "n3"), ("n3", "n2")}
    old.paused = False
    for _ in range(40):
        if old.engine.leads:
            three.propose(old)
        three.step()


def test_red_quarantine_ends_with_the_terms_of_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """An old leader and a node that has forgotten the newer term would acknowledge together what is lost."""

    def history() -> int:
        three = Three().start()
        stale_leader_and_wiped_node(three)
        acknowledged = len(three.acknowledged)
        three.heal()
        three.run(5_000)
        assert all(whole(host) for host in three.hosts.values())
        return acknowledged

    history()
    take_away(monkeypatch, "until then it acknowledges nothing", "every voter tells its term")
    with pytest.raises(Violation):
        history()


def test_without_quarantine_a_wiped_node_elects_one_who_lacks_what_it_had(monkeypatch: pytest.MonkeyPatch) -> None:
    def history() -> bool:
        three = Three().start()
        leader = three.elect("n1")
        three.isolate(three["n3"])
        commands = three.propose(leader, 10)
        three.run(300)
        assert len(three.acknowledged) == 10
        leader.kill()
        three["n2"].wipe()
        three["n2"].start()
        three.heal()
        three.run(5_000)
        assert three.leader is None
        leader.start()
        three.until(lambda: three.all_have(commands))
        return True

    assert history()
    take_away(monkeypatch, "a wiped node is in quarantine")
    with pytest.raises(Violation, match="lacks"):
        history()


# What a person may say.


def test_recovery_goes_on_without_one_that_is_gone() -> None:
    """`n2` was wiped, and `n3` burnt. What `n1` has is what there is."""
    three = Three().start()
    commands = three.propose(three.elect("n1"), 10)
    three.until(lambda: three.all_have(commands))
    three["n3"].kill()
    three["n2"].wipe()
    three["n2"].start()
    three.run(5_000)
    assert three.leader is None
    assert three["n2"].engine.recover(frozenset({"n3"}), three.now_ms) == ""
    three.until(lambda: three["n1"].engine.leads and three["n1"].engine.settled)
    more = three.propose(three["n1"])

    three.until(lambda: set(commands + more) <= {command for _, command in three["n2"].applied})
    assert not three["n2"].engine.quarantined


def test_recovery_waits_for_those_that_are_left() -> None:
    """Their terms are needed all the same."""
    hand = newcomer()
    assert hand.engine.recover(frozenset({"n3"}), hand.now_ms) == ""
    hand.step(ELECTION_MAX_MS)
    assert hand.engine.quarantined
    tell(hand, "n2", 4)
    hand.step()

    assert (hand.engine.quarantined, hand.engine.term) == (False, 4)


def test_recovery_survives_a_restart() -> None:
    hand = newcomer()
    hand.engine.recover(frozenset({"n3"}), hand.now_ms)
    hand.step()
    again = newcomer(hand.store)
    tell(again, "n2", 4)
    again.step()

    assert not again.engine.quarantined


def test_recovery_with_a_majority_left_waits_for_its_leader() -> None:
    """Of five, with one gone: the others can elect one, and what it holds is known then."""
    hand = Hand(peers=("n2", "n3", "n4", "n5"), store=empty_store(), incarnation=3)
    hand.engine.recover(frozenset({"n5"}), hand.now_ms)
    for peer in ("n2", "n3", "n4"):
        tell(hand, peer, 4)
    hand.step()

    assert hand.engine.quarantined


@pytest.mark.parametrize(
    ("gone", "reason"),
    [
        ({"n2", "n3"}, "with 2 of 3 nodes gone there is no majority left"),
        ({"n9"}, "n9: no other node of this cluster has that name"),
        ({"n1"}, "n1: no other node"),
    ],
)
def test_recovery_is_refused(gone: set[str], reason: str) -> None:
    hand = newcomer()

    assert reason in hand.engine.recover(frozenset(gone), hand.now_ms)


def test_two_wiped_nodes_cannot_each_be_told_that_the_other_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first word was needed: both wait for each other. With the second one they would elect one that is empty."""

    def history() -> str:
        three = Three().start()
        commands = three.propose(three.elect("n1"), 10)
        three.until(lambda: three.all_have(commands))
        for wiped in (three["n2"], three["n3"]):
            wiped.wipe()
            wiped.start()
        three.run(2_000)
        assert three["n2"].engine.recover(frozenset({"n3"}), three.now_ms) == ""
        three.isolate(three["n1"])
        three.run(500)
        assert not three["n2"].engine.quarantined
        refused = three["n3"].engine.recover(frozenset({"n2"}), three.now_ms)
        three.run(5_000)
        three.heal()
        three.until(lambda: three.all_have(commands))
        return refused

    assert "n2 answers this node" in history()
    take_away(monkeypatch, "who answers is not gone")
    with pytest.raises(Violation, match="lacks"):
        history()


@pytest.mark.parametrize(("after_ms", "refused"), [(ALIVE_MS - 1, True), (ALIVE_MS, False)])
def test_who_has_answered_long_ago_may_be_gone(after_ms: int, refused: bool) -> None:
    hand = newcomer()
    tell(hand, "n3", 4)

    assert bool(hand.engine.recover(frozenset({"n3"}), hand.now_ms + after_ms)) is refused


def test_recovery_of_a_whole_node_is_refused() -> None:
    assert "no quarantine" in Hand().engine.recover(frozenset({"n3"}), 0)
