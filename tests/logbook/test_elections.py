"""Who stands, who votes for whom, and who is not listened to."""

import msgspec
import pytest

from stepward.server.logbook import frames
from stepward.server.logbook.elections import REST_MS
from stepward.server.logbook.raft import ELECTION_MAX_MS, ELECTION_MIN_MS, LEADER_FALLBACK_MS
from stepward.server.store import facts
from tests.logbook import toy
from tests.logbook.hand import BEGIN_MS, Hand
from tests.logbook.rules import take_away
from tests.logbook.three import IDS, STEP_MS, Three

# Longer than a node that has just started keeps its vote back.
STARTED_MS = ELECTION_MIN_MS


def wish(term: int, *, transfer: bool = False, last: tuple[int, int] = (9, 9)) -> frames.VoteRequest:
    """Of a candidate whose journal is as good as any."""
    return frames.VoteRequest(term, *last, transfer)


def votes(hand: Hand, candidate: str, request: frames.VoteRequest) -> bool:
    """Whether the candidate gets the vote."""
    hand.say(candidate, request)
    return frames.Vote(request.term) in hand.heard(candidate, ms=0)


def grants(hand: Hand, candidate: str, term: int, *, last: tuple[int, int] = (9, 9)) -> bool:
    """Whether the candidate would get the vote."""
    hand.say(candidate, frames.PreVoteRequest(term, 7, *last))
    answer = next(message for message in hand.heard(candidate, ms=0) if isinstance(message, frames.PreVote))
    assert (answer.term, answer.attempt) == (hand.engine.term, 7)
    return answer.granted


def voter() -> Hand:
    """A node that may vote, and hears no leader."""
    hand = Hand()
    hand.step(STARTED_MS)
    return hand


def follower() -> Hand:
    """A node that hears `n2` lead term 1."""
    hand = voter()
    hand.follow("n2")
    hand.step()
    return hand


# Pre-vote.


def test_node_asks_before_it_stands() -> None:
    hand = Hand()
    asked = hand.step(ELECTION_MAX_MS + 1)

    assert [one.message for one in asked] == [frames.PreVoteRequest(term=1, attempt=1, last_index=1, last_term=0)] * 2
    assert hand.engine.term == 0


def test_it_stands_when_a_majority_would_vote_for_it() -> None:
    hand = Hand()
    hand.step(ELECTION_MAX_MS + 1)
    hand.say("n3", frames.PreVote(0, 1, granted=True))

    assert hand.heard("n2") == [wish(1, last=(1, 0))]
    assert hand.engine.elections == 1


@pytest.mark.parametrize(
    ("attempt", "granted"),
    [
        # A refusal; an answer to another attempt.
        (1, False),
        (2, True),
    ],
)
def test_it_does_not_stand_for_other_answers(attempt: int, granted: bool) -> None:
    hand = Hand()
    hand.step(ELECTION_MAX_MS + 1)
    hand.say("n3", frames.PreVote(0, attempt, granted))
    hand.step()

    assert hand.engine.term == 0


def test_it_does_not_stand_when_a_leader_was_heard_meanwhile() -> None:
    hand = Hand()
    hand.step(ELECTION_MAX_MS + 1)
    hand.follow("n2")
    hand.say("n3", frames.PreVote(1, 1, granted=True))
    hand.step()

    assert (hand.engine.term, hand.engine.leader_id) == (1, "n2")


def test_nor_in_another_term_than_it_asked_for() -> None:
    hand = voter()
    hand.step(ELECTION_MAX_MS + 1)
    hand.say("n3", frames.PreVote(0, 1, granted=True))
    assert votes(hand, "n2", wish(5))
    hand.step()

    assert (hand.engine.term, hand.engine.elections) == (5, 0)


def test_each_attempt_is_a_new_one() -> None:
    """An answer to an older one may tell of a leader that is gone by now, or of none where there is one now."""
    hand = Hand()
    attempts = set()
    for _ in range(300):
        attempts |= {m.attempt for m in hand.heard("n2") if isinstance(m, frames.PreVoteRequest)}

    # Three seconds of timers between 300 and 600 ms.
    assert attempts == set(range(1, len(attempts) + 1))
    assert 4 <= len(attempts) <= 10


def test_deaf_follower_raises_no_term(monkeypatch: pytest.MonkeyPatch) -> None:
    """It hears nobody, and all hear it. When it hears again, the cluster must not be thrown over."""

    def terms() -> int:
        three = Three().start()
        leader = three.settle()
        deaf, other = three.others(leader)
        before = leader.engine.term
        three.cut = {(leader.node_id, deaf.node_id), (other.node_id, deaf.node_id)}
        three.run(8_000)
        three.heal()
        three.run(2_000)
        return three.settle().engine.term - before

    assert terms() == 0
    take_away(monkeypatch, "pre-vote")
    assert terms() >= 10


def test_suspended_process_does_not_stand_when_it_wakes() -> None:
    """Its timer ran out long ago, but the leader's messages wait in its inbox, and are read first."""
    three = Three().start()
    leader = three.settle()
    sleeper = three.others(leader)[0]
    sleeper.paused = True
    three.run(5_000)
    sleeper.paused = False
    three.run(1_000)

    assert three.leader is leader
    assert sleeper.engine.elections == 0


# Votes.


def test_vote_goes_to_who_asks_first() -> None:
    hand = voter()

    assert votes(hand, "n2", wish(1))
    assert not votes(hand, "n3", wish(1))
    assert votes(hand, "n3", wish(2))


@pytest.mark.parametrize(
    ("last", "granted"),
    [
        ((2, 1), True),
        ((3, 1), True),
        ((1, 2), True),
        # Shorter, or of an older leader.
        ((1, 1), False),
        ((9, 0), False),
    ],
)
def test_whose_journal_is_older_gets_no_vote(last: tuple[int, int], granted: bool) -> None:
    hand = voter()
    hand.append("n3", term=1, previous=(1, 0), entries=[("a", 1)])
    hand.step(ELECTION_MIN_MS)

    assert grants(hand, "n2", 2, last=last) is granted
    assert votes(hand, "n2", wish(2, last=last)) is granted


def test_nobody_would_vote_in_a_term_that_is_over() -> None:
    hand = voter()
    hand.say("n2", frames.HigherTerm(5))

    assert not grants(hand, "n2", 5)
    assert grants(hand, "n2", 6)


@pytest.mark.parametrize(("after_ms", "heard"), [(ELECTION_MIN_MS - 1, True), (ELECTION_MIN_MS, False)])
def test_follower_that_hears_its_leader_votes_for_nobody(
    after_ms: int, heard: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The leader counts on that for its lease, and one that cannot hear the leader must not depose it."""

    def history() -> tuple[bool, bool, int]:
        hand = voter()
        hand.follow("n2")
        hand.now_ms += after_ms
        return grants(hand, "n3", 2), votes(hand, "n3", wish(2)), hand.engine.term

    assert history() == ((False, False, 1) if heard else (True, True, 2))
    take_away(monkeypatch, "a follower that hears its leader votes for nobody")
    assert history() == (True, True, 2)


@pytest.mark.parametrize(
    "late",
    [
        # Answers to what this node asked before it heard the leader, of one who has stood in vain meanwhile.
        frames.PreVote(term=2, attempt=1, granted=False),
        frames.HigherTerm(2),
        frames.AppendAnswer(term=2, round=1, sent_ms=0, matches=True, next_index=2, ability=toy.ABLE),
    ],
)
def test_hearing_of_a_higher_term_does_not_undo_what_the_leader_was_answered(late: frames.Message) -> None:
    """The leader has not heard of that term, and counts on the answer; with this vote two would lead at once."""
    hand = follower()
    hand.say("n3", late)
    assert hand.engine.term == 2

    assert not grants(hand, "n3", 3)
    assert not votes(hand, "n3", wish(3))
    hand.now_ms += ELECTION_MIN_MS
    assert votes(hand, "n3", wish(3))


def test_no_lease_is_broken_by_a_late_answer_that_tells_of_a_higher_term() -> None:
    """`Three` sees to it that nobody leads a later term while a leader of an older one counts on its lease."""
    three = Three().start()
    leader, follower_, candidate = three.elect("n1"), three["n2"], three["n3"]
    three.run(STARTED_MS)
    # Nobody hears the leader for a while. n3 stands with the consent of n2, which asks n3, too.
    three.cut = {("n1", "n2"), ("n1", "n3"), ("n3", "n1")}
    candidate.engine._elections._deadline_ms = three.now_ms + ELECTION_MIN_MS
    follower_.engine._elections._deadline_ms = three.now_ms + ELECTION_MIN_MS + 2 * STEP_MS
    three.until(lambda: candidate.engine.term == leader.engine.term + 1)
    three.cut |= {("n3", "n2")}
    three.until(lambda: any(isinstance(message, frames.PreVote) for message in three.waiting("n3", "n2")))
    # Now n2 hears the leader again and answers it: the leader has its lease. Then it loses n2 for good.
    three.cut -= {("n1", "n2")}
    three.until(lambda: leader.engine.lease_until_ms(three.now_ms) > three.now_ms)
    three.cut |= {("n1", "n2"), ("n2", "n1")}
    # What n3 said before comes late; and it asks again.
    three.cut -= {("n3", "n2")}
    candidate.engine._elections._deadline_ms = three.now_ms

    three.until(lambda: candidate.engine.leads or follower_.engine.leads)
    assert candidate.engine.term == follower_.engine.term > leader.engine.term


def test_the_leader_itself_may_stand_again() -> None:
    """It was restarted, and who else should lead?"""
    assert votes(follower(), "n2", wish(2))


def led() -> Hand:
    """A leader whose followers have answered just now."""
    hand = Hand()
    hand.lead()
    for peer in hand.peers:
        hand.answer(peer, next_index=3)
    return hand


@pytest.mark.parametrize(("after_ms", "followed"), [(ELECTION_MIN_MS - 1, True), (ELECTION_MIN_MS, False)])
def test_leader_that_is_followed_hears_no_candidate(
    after_ms: int, followed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that cannot hear it, and was not heard by the others either, would depose it all the time."""

    def history() -> bool:
        hand = led()
        hand.now_ms += after_ms
        hand.say("n3", wish(2))
        hand.step(0)
        return hand.engine.leads

    assert history() is followed
    take_away(monkeypatch, "a leader that is followed hears no candidate")
    assert not history()


@pytest.mark.parametrize(("after_ms", "may"), [(ELECTION_MIN_MS - 1, False), (ELECTION_MIN_MS, True)])
def test_no_vote_right_after_the_start(after_ms: int, may: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has forgotten that it heard a leader, which may still count on its answer."""

    def history() -> tuple[bool, bool]:
        hand = Hand()
        hand.now_ms += after_ms
        return grants(hand, "n2", 1), votes(hand, "n2", wish(1))

    assert history() == (may, may)
    take_away(monkeypatch, "no vote right after the start")
    assert history() == (True, True)


def test_a_vote_counts_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A message that comes twice would elect a leader of a minority; with five nodes two votes are needed."""

    def history() -> bool:
        hand = Hand(peers=("n2", "n3", "n4", "n5"))
        hand.step(ELECTION_MAX_MS + 1)
        for peer in ("n2", "n3"):
            hand.say(peer, frames.PreVote(0, 1, granted=True))
        hand.step()
        for _ in range(5):
            hand.say("n2", frames.Vote(1))
        leads = hand.engine.leads
        hand.say("n3", frames.Vote(1))
        assert hand.engine.leads
        return leads

    assert not history()
    take_away(monkeypatch, "one vote of a peer a term")
    assert history()


def test_vote_of_another_term_counts_for_nothing() -> None:
    hand = Hand()
    hand.step(ELECTION_MAX_MS + 1)
    hand.say("n3", frames.PreVote(0, 1, granted=True))
    hand.step()
    for term in (0, *range(2, 99)):
        hand.say("n2", frames.Vote(term))

    assert not hand.engine.leads
    # Nor is it remembered: there are very many terms.
    assert not hand.engine._elections._counted


def test_split_election_is_held_again() -> None:
    """Nobody has won; each begins anew after a time of its own."""
    three = Three().start()
    three.run(100)
    for host in three.hosts.values():
        host.engine._elections._deadline_ms = three.now_ms + ELECTION_MIN_MS
    three.until(lambda: three.leader is not None and three.leader.engine.settled, ms=3_000)


# Who leads.


def test_leader_without_a_majority_gives_up() -> None:
    three = Three().start()
    leader = three.settle()
    three.isolate(leader)

    assert three.until(lambda: not leader.engine.leads) <= LEADER_FALLBACK_MS + 2 * STEP_MS


@pytest.mark.parametrize(("after_ms", "known"), [(ELECTION_MAX_MS - 1, "n2"), (ELECTION_MAX_MS, "")])
def test_leader_that_is_not_heard_is_not_named(after_ms: int, known: str) -> None:
    """Whoever is sent to it would come back."""
    hand = voter()
    hand.follow("n2")
    contact_at_ms = hand.now_ms
    hand.step(after_ms)

    assert (hand.engine.leader_id, hand.engine.contact_at_ms) == (known, contact_at_ms)


def test_leader_names_itself() -> None:
    hand = led()

    assert (hand.engine.leader_id, hand.engine.contact_at_ms) == ("n1", hand.now_ms)


def test_nobody_is_named_at_the_start() -> None:
    hand = Hand()

    assert hand.engine.leader_id == ""
    assert hand.engine.contact_at_ms == BEGIN_MS - ELECTION_MAX_MS


def test_leader_that_steps_down_leaves_it_to_others() -> None:
    """Its disk is slow. It goes on as a follower, and votes."""
    three = Three().start()
    slow = three.settle()
    slow.engine.step_down(three.now_ms)
    assert not slow.engine.leads
    three.run(STEP_MS)
    following = three.settle()
    assert following is not slow
    following.kill()
    three.until(lambda: three.leader is not None)

    assert three.leader is not slow


@pytest.mark.parametrize(("after_ms", "asks"), [(REST_MS - 1, False), (REST_MS + 2 * ELECTION_MAX_MS, True)])
def test_it_stands_again_after_a_while(after_ms: int, asks: bool) -> None:
    """The others may be gone for good."""
    hand = led()
    hand.engine.step_down(hand.now_ms)
    said = [one for _ in range(after_ms // STEP_MS) for one in hand.heard()]

    assert any(isinstance(message, frames.PreVoteRequest) for message in said) is asks


def test_who_does_not_lead_steps_down_from_nothing() -> None:
    hand = follower()
    hand.engine.step_down(hand.now_ms)

    assert hand.engine.leader_id == "n2"


# Over restarts.


def test_h079_nobody_votes_twice_in_a_term() -> None:
    """Term and vote are on the disk before the vote leaves."""
    hand = voter()
    assert votes(hand, "n2", wish(9))
    hand.store.lose_uncommitted()
    again = Hand(store=hand.store)
    again.step(STARTED_MS)

    assert again.engine.term == 9
    assert not votes(again, "n3", wish(9))
    assert votes(again, "n3", wish(10))
    assert msgspec.msgpack.decode(again.store.fact(facts.TERM) or b"") == [10, "n3"]


@pytest.mark.parametrize("late", IDS)
def test_h079_a_slow_node_with_an_old_journal_overwrites_nothing(late: str) -> None:
    """All are restarted at once, two go on and commit, the third comes two seconds later."""
    three = Three().start()
    commands = three.propose(three.settle(), 5)
    three.until(lambda: three.all_have(commands))
    for host in three.hosts.values():
        host.kill()
    three.start(*(node_id for node_id in IDS if node_id != late))
    more = three.propose(three.settle(), 5)
    three.run(2_000)
    assert len(three.acknowledged) == 10
    three[late].start()

    three.until(lambda: three.all_have(more))


@pytest.mark.parametrize("seed", range(12))
def test_h105_one_leader_a_term_however_often_nodes_are_restarted(seed: int) -> None:
    """`Three` holds every leader against those before: one a term, and nothing acknowledged is missing from it."""
    three = Three(seed).start()
    for _ in range(60):
        victim = IDS[three.rng.randrange(3)]
        if three.rng.random() < 0.7:
            victim = (three.leader or three[victim]).node_id
        three.run(three.rng.randrange(0, 400, 10))
        if three.leader is not None:
            three.propose(three.leader, 3)
        three.run(three.rng.randrange(0, 100, 10))
        three[victim].kill()
        three.run(three.rng.randrange(0, 300, 10))
        three[victim].start()
    commands = three.propose(three.settle(), 1)

    three.until(lambda: three.all_have(commands))
    assert len(three.leaders) >= 5
    assert len(three.acknowledged) >= 20
