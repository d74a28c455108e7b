"""What a follower takes over, and what it acknowledges."""

import pytest

from stepward.server.logbook import frames
from tests.logbook import toy
from tests.logbook.hand import Hand
from tests.logbook.rules import take_away
from tests.logbook.three import Three

THREE = [("a", 1), ("b", 1), ("c", 1)]


def answers(hand: Hand, peer_id: str = "n2") -> list[tuple[bool, int]]:
    """What it says about its journal: whether it is the leader's, below which index."""
    heard = [message for message in hand.heard(peer_id) if isinstance(message, frames.AppendAnswer)]
    return [(message.matches, message.next_index) for message in heard]


def test_entries_are_taken_over_and_acknowledged() -> None:
    hand = Hand()
    hand.append("n2", term=1, previous=(1, 0), entries=THREE)

    assert answers(hand) == [(True, 5)]
    assert hand.entries() == THREE


def test_what_is_committed_is_applied() -> None:
    hand = Hand()
    hand.append("n2", term=1, previous=(1, 0), entries=THREE, commit_index=3)
    hand.step()

    assert hand.applied == [(2, b"\x00a"), (3, b"\x00b")]


@pytest.mark.parametrize("entries", [[], THREE[:1], THREE[:2]])
def test_append_that_holds_nothing_new_truncates_nothing(
    entries: list[tuple[str, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was acknowledged stays: the leader counts on it. Overlapping appends are common on a loaded link."""

    def history() -> list[tuple[str, int]]:
        hand = Hand()
        hand.append("n2", term=1, previous=(1, 0), entries=THREE)
        assert answers(hand) == [(True, 5)]
        hand.append("n2", term=1, previous=(1, 0), entries=entries)
        return hand.entries()

    assert history() == THREE
    take_away(monkeypatch, "only new entries are taken over")
    assert history() == entries


def test_overlap_is_cut_off_and_the_rest_taken_over() -> None:
    hand = Hand()
    hand.append("n2", term=1, previous=(1, 0), entries=THREE[:2])
    hand.append("n2", term=1, previous=(1, 0), entries=THREE)

    assert answers(hand) == [(True, 4), (True, 5)]
    assert hand.entries() == THREE


def test_real_conflict_truncates() -> None:
    hand = Hand()
    hand.append("n3", term=1, previous=(1, 0), entries=THREE)
    hand.append("n2", term=2, previous=(1, 0), entries=[("a", 1), ("x", 2)])

    assert answers(hand) == [(True, 4)]
    assert hand.entries() == [("a", 1), ("x", 2)]


def doomed_tail() -> Hand:
    """Of three entries only the first was committed; the leader of term 2 has others behind it, and has committed 4."""
    hand = Hand()
    hand.append("n3", term=1, previous=(1, 0), entries=[("ok", 1), ("doomed", 1), ("doomed, too", 1)], commit_index=2)
    hand.step()
    hand.append("n2", term=2, previous=(1, 0), entries=[("ok", 1)], commit_index=4)
    return hand


def test_nothing_is_committed_beyond_what_is_proved(monkeypatch: pytest.MonkeyPatch) -> None:
    """An append that fits says nothing about the tail behind it, which may be doomed."""

    def history() -> list[tuple[int, bytes]]:
        hand = doomed_tail()
        hand.step()
        return hand.applied

    assert history() == [(2, b"\x00ok")]
    take_away(monkeypatch, "no commit beyond what is proved")
    assert history() == [(2, b"\x00ok"), (3, b"\x00doomed"), (4, b"\x00doomed, too")]


def test_nothing_is_acknowledged_beyond_what_is_proved(monkeypatch: pytest.MonkeyPatch) -> None:
    """The leader would count a tail that it does not have itself as its own."""
    assert answers(doomed_tail()) == [(True, 3)]
    take_away(monkeypatch, "no acknowledgement beyond what is proved")
    assert answers(doomed_tail()) == [(True, 5)]


def test_append_that_does_not_fit_proves_nothing() -> None:
    hand = Hand()
    hand.append("n3", term=1, previous=(1, 0), entries=THREE)
    hand.step()
    hand.append("n2", term=2, previous=(4, 2), entries=[("x", 2)], commit_index=4)

    assert answers(hand) == [(False, 2)]
    assert (hand.entries(), hand.applied) == (THREE, [])


def test_leader_without_the_entries_commits_nothing_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Such a message is made where a snapshot is not ready. Stock pysyncobj takes the commit index from it."""

    def history() -> Hand:
        hand = Hand()
        hand.append("n3", term=1, previous=(1, 0), entries=THREE)
        hand.step()
        hand.say("n2", frames.Compacted(term=2, round=7, sent_ms=3))
        return hand

    hand = history()
    said = hand.heard("n2")
    assert said == [frames.AppendAnswer(term=2, round=7, sent_ms=3, matches=False, next_index=2, ability=toy.ABLE)]
    assert (hand.engine.behind, hand.engine.leader_id, hand.applied) == ("n2", "n2", [])
    take_away(monkeypatch, "no commit by a message without entries")
    hand = history()
    hand.step()
    assert len(hand.applied) == 3


def test_behind_is_over_when_entries_help() -> None:
    hand = Hand()
    hand.say("n2", frames.Compacted(term=1, round=1, sent_ms=0))
    assert hand.engine.behind == "n2"
    hand.append("n2", term=1, previous=(1, 0))

    assert hand.engine.behind == ""


def test_behind_is_over_with_the_term() -> None:
    """Another leader may still have the entries."""
    hand = Hand()
    hand.say("n2", frames.Compacted(term=1, round=1, sent_ms=0))
    hand.append("n3", term=2, previous=(5, 2))

    assert hand.engine.behind == ""


@pytest.mark.parametrize("kind", ["append", "compacted"])
def test_leader_of_a_lower_term_is_told(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def history() -> list[frames.Message]:
        hand = Hand()
        hand.follow("n3", term=5)
        hand.step()
        if kind == "append":
            hand.follow("n2", term=4)
        else:
            hand.say("n2", frames.Compacted(term=4, round=1, sent_ms=0))
        assert hand.engine.leader_id == "n3"
        return hand.heard("n2")

    assert history() == [frames.HigherTerm(5)]
    take_away(monkeypatch, "a lower term is answered")
    assert history() == []


def test_node_whose_term_ran_ahead_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """It voted in an election that came to nothing. Whoever only ignores its leader stays alone for ever."""

    def history() -> bool:
        three = Three().start()
        leader = three.settle()
        stranded = three.others(leader)[0]
        stranded.engine._raft.adopt(leader.node_id, leader.engine.term + 5)
        three.run(3_000)
        commands = three.propose(three.settle(), 3)
        three.run(1_000)
        return three.all_have(commands)

    assert history()
    take_away(monkeypatch, "a lower term is answered")
    assert not history()


def test_long_divergent_tail_is_replaced_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A refusal points behind what is committed, which always fits; one index a time took minutes."""

    def refusals() -> int:
        three = Three().start()
        deposed = three.settle()
        three.isolate(deposed)
        for _ in range(20):
            three.propose(deposed, 10)
            three.step()
        three.until(lambda: three.leader is not deposed and three.leader is not None)
        commands = three.propose(three.settle(), 250)
        three.run(500)
        three.close_streams(deposed.node_id)
        three.heal()
        counted: list[frames.Message] = []
        three.watch = lambda sender, _, message: counted.append(message) if sender == deposed.node_id else None
        three.until(lambda: three.all_have(commands), ms=20_000)
        return sum(isinstance(message, frames.AppendAnswer) and not message.matches for message in counted)

    assert refusals() <= 3
    take_away(monkeypatch, "a refusal points behind the committed")
    assert refusals() >= 100


def test_follower_that_fetched_all_rows_goes_on_with_entries() -> None:
    """It says at each sign of life from where on entries would help; a lost answer costs one period."""
    three = Three().start()
    leader = three.settle()
    late = three.others(leader)[0]
    late.kill()
    for _ in range(10):
        three.propose(leader, 10)
        three.step()
    three.run(200)
    leader.journal._entries_max = 10
    leader.journal.compact()
    late.start()
    three.until(lambda: late.engine.behind == leader.node_id)
    assert three.leader is leader
    late.install(leader)
    commands = three.propose(leader, 3)
    three.until(lambda: set(commands) <= {command for _, command in late.applied})

    assert late.engine.behind == ""
