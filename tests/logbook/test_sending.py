"""What a leader sends, and what it makes of the answers."""

from collections import Counter
from collections.abc import Sequence

import pytest

from stepward.server.logbook import frames, sending
from stepward.server.logbook.errors import FrameUnreadable
from stepward.server.logbook.raft import APPEND_PERIOD_MS
from stepward.server.logbook.sending import Sender
from tests.logbook import toy
from tests.logbook.hand import Hand, Said, command
from tests.logbook.rules import take_away


def leading(*, term_begins: bool = True) -> Hand:
    """A leader of term 1 whose no-op (entry 2) both others have."""
    hand = Hand()
    hand.lead()
    if term_begins:
        for peer in hand.peers:
            hand.answer(peer, next_index=3)
        hand.step()
    return hand


def appends(messages: list[frames.Message]) -> list[tuple[int, list[bytes]]]:
    """What was sent: behind which entry, and the commands."""
    return [
        (message.prev_index, [entry.command for entry in message.entries])
        for message in messages
        if isinstance(message, frames.Append)
    ]


def test_proposal_goes_to_all_in_one_message_each() -> None:
    hand = leading()
    for what in "abc":
        hand.engine.propose(command(what))

    expected = [(2, [b"\x00a", b"\x00b", b"\x00c"])]
    assert [appends([said.message]) for said in hand.step()] == [expected, expected]


def test_what_is_committed_travels_with_what_is_new() -> None:
    """So a step says one thing to each, not first that it committed and then that there is more."""
    hand = leading()
    hand.engine.propose(command("a"))
    hand.step()
    hand.answer("n2", next_index=4)
    hand.engine.tick(hand.now_ms)
    hand.engine.propose(command("b"))
    sent = hand.heard("n2")

    assert appends(sent) == [(3, [b"\x00b"])]
    assert [message.commit_index for message in sent if isinstance(message, frames.Append)] == [3]


def committing(*, serves: int | None = None) -> Hand:
    """A leader that has just heard that a majority has what it sent last; `serves`: `n2` does, for so long."""
    hand = leading()
    # What its first step as leader put off.
    hand.step()
    if serves is not None:
        hand.engine.serves("n2", serves, hand.now_ms)
    hand.engine.propose(command("a"))
    hand.step(1)
    hand.answer("n2", next_index=4)
    return hand


def commits(said: Sequence[Said]) -> list[tuple[str, int]]:
    """Who was told up to where all is committed."""
    return sorted((one.peer_id, one.message.commit_index) for one in said if isinstance(one.message, frames.Append))


def test_that_more_is_committed_waits_for_the_next_entries() -> None:
    """They nearly always follow; a message of its own for each batch costs all three as much as the batch does."""
    hand = committing()
    assert commits(hand.step(1)) == []
    assert hand.applied[-1] == (3, command("a"))
    hand.engine.propose(command("b"))
    assert commits(hand.step(1)) == [("n2", 3), ("n3", 3)]
    later = [one for _ in range(2 * sending.NOTICE_MS_MAX) for one in commits(hand.step(1))]

    assert later == []


def test_that_more_is_committed_does_not_wait_for_long() -> None:
    """And the host is told when to step for it, and then for the next sign of life."""
    hand = committing()
    hand.step(1)
    at_ms = hand.now_ms + sending.NOTICE_MS_MAX
    assert hand.engine.due_at_ms(50) == at_ms
    assert [one for _ in range(sending.NOTICE_MS_MAX - 1) for one in commits(hand.step(1))] == []
    assert commits(hand.step(1)) == [("n2", 3), ("n3", 3)]

    assert at_ms == hand.now_ms
    assert at_ms < hand.engine.due_at_ms(50) <= at_ms + APPEND_PERIOD_MS
    assert commits(hand.step(1)) == []


def test_who_serves_somebody_is_told_at_once_what_is_committed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Agents and callers there wait for it to be applied there."""
    assert commits(committing(serves=60_000).step(1)) == [("n2", 3)]
    monkeypatch.setattr(Sender, "_serves_somebody", lambda _, __: False)
    assert commits(committing(serves=60_000).step(1)) == []


def test_who_is_said_to_serve_is_told_what_was_put_off() -> None:
    hand = committing()
    hand.step(1)
    hand.engine.serves("n2", 100, hand.now_ms)

    assert commits(hand.step(1)) == [("n2", 3)]


@pytest.mark.parametrize(("serves", "told"), [(2, []), (3, [("n2", 3)])])
def test_a_node_serves_for_as_long_as_was_said(serves: int, told: list[tuple[str, int]]) -> None:
    """The notice is due 2 ms after it was said; and what is said later does not shorten it."""
    hand = committing(serves=serves)
    hand.engine.serves("n2", 0, hand.now_ms)

    assert commits(hand.step(1)) == told


def test_nothing_is_put_off_for_who_is_away() -> None:
    """Or the host would be woken for it again and again."""
    hand = committing()
    hand.step(1)
    for peer in hand.peers:
        hand.engine.unlinked(peer)
    hand.step(sending.NOTICE_MS_MAX)

    assert hand.engine.due_at_ms(50) > hand.now_ms


def test_leader_says_that_it_lives() -> None:
    hand = leading()
    messages = [message for _ in range(100) for message in hand.heard("n2")]

    # Each period, and the steps do not divide it evenly.
    assert len(messages) == pytest.approx(1_000 / APPEND_PERIOD_MS, rel=0.2)
    assert {entries for _, commands in appends(messages) for entries in commands} == set()


def test_what_is_on_its_way_is_not_sent_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stock pysyncobj goes back to each acknowledgement, and a loaded link carries everything twice and more."""

    def copies() -> Counter[bytes]:
        hand = leading()
        seen: Counter[bytes] = Counter()
        for number in range(20):
            hand.engine.propose(command(f"{number}"))
            for _, commands in appends(hand.heard("n2")):
                seen.update(commands)
            # Three are always on their way.
            hand.answer("n2", next_index=max(3, number))
        return seen

    assert set(copies().values()) == {1}
    take_away(monkeypatch, "what is on its way is not sent again")
    assert max(copies().values()) >= 3


def test_late_refusals_are_not_obeyed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each would have the whole tail sent again; they queue up behind each other and the link never gets free."""

    def copies() -> int:
        hand = leading()
        rounds = []
        for number in range(20):
            hand.engine.propose(command(f"{number}"))
            hand.step()
            rounds.append(hand.engine._sender.round)
        seen: Counter[bytes] = Counter()
        # The first message was lost with its stream, so the follower refuses every one behind it.
        for round_ in rounds:
            hand.say(
                "n2",
                frames.AppendAnswer(
                    hand.engine.term, round_, hand.now_ms, matches=False, next_index=3, ability=toy.ABLE
                ),
            )
            for _, commands in appends(hand.heard("n2")):
                seen.update(commands)
        return max(seen.values())

    assert copies() == 1
    take_away(monkeypatch, "one rewind a round trip")
    assert copies() >= 10


def test_refusal_of_what_was_sent_after_the_rewind_is_obeyed() -> None:
    """The first answer of a follower that has lost its tail may not be its last."""
    hand = leading()
    for number in range(5):
        hand.engine.propose(command(f"{number}"))
        hand.step()
    hand.answer("n2", next_index=5, matches=False)
    assert [previous for previous, _ in appends(hand.heard("n2"))] == [4]
    hand.answer("n2", next_index=3, matches=False)

    assert [previous for previous, _ in appends(hand.heard("n2"))] == [2]


def test_answer_to_an_older_term_counts_for_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """It told of a journal that the follower may have had to replace since, in a term that others led."""

    def history() -> Hand:
        hand = leading(term_begins=False)
        for number in range(3):
            hand.engine.propose(command(f"{number}"))
        hand.step()
        hand.say("n2", frames.HigherTerm(2))
        hand.step()
        assert hand.lead() == 3
        hand.answer("n2", next_index=7, term=1)
        hand.step()
        return hand

    assert history().applied == []
    take_away(monkeypatch, "answers carry their term")
    assert len(history().applied) == 5


@pytest.mark.parametrize("kind", ["answer", "told", "pre-vote"])
def test_leader_that_hears_a_higher_term_is_over(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Or it would go on beside a node that follows nobody."""

    def history() -> tuple[bool, int]:
        hand = leading()
        if kind == "answer":
            hand.answer("n2", next_index=3, term=7)
        elif kind == "told":
            hand.say("n2", frames.HigherTerm(7))
        else:
            hand.say("n2", frames.PreVote(term=7, attempt=1, granted=False))
        hand.step()
        return hand.engine.leads, hand.engine.term

    assert history() == (False, 7)
    take_away(monkeypatch, "a leader hears a higher term")
    assert history() == ((True, 1) if kind != "pre-vote" else (False, 7))


def test_answer_for_what_the_leader_has_not_is_refused() -> None:
    hand = leading()
    hand.answer("n2", next_index=3)
    with pytest.raises(FrameUnreadable):
        hand.answer("n2", next_index=4)

    assert hand.engine.followers()[0].match_index == 2


def test_answers_reach_who_does_not_lead() -> None:
    """It led when it asked."""
    hand = Hand()
    hand.follow("n2")
    hand.answer("n3", next_index=9)

    assert hand.engine.followers() == ()


def far_behind(entries: int, size: int) -> Hand:
    """A leader with so many entries that `n2` knows nothing of."""
    hand = leading(term_begins=False)
    for number in range(entries):
        hand.engine.propose(command(f"{number}".ljust(size, ".")))
    hand.step()
    hand.answer("n2", next_index=2, matches=False)
    return hand


@pytest.mark.parametrize(
    ("size", "entries", "most"),
    [
        # Exactly what may be on its way, and one entry more.
        (1 << 16, 64, 64),
        (1 << 16, 65, 64),
        # At least one goes, however large it is.
        (5 << 20, 2, 1),
    ],
)
def test_what_is_on_its_way_is_bounded(size: int, entries: int, most: int) -> None:
    """A follower that is far behind on a slow link would else be sent minutes of it at once."""
    assert sending.IN_FLIGHT_BYTES_MAX == 64 << 16
    hand = far_behind(entries, size - 1)
    # The no-op of the term is small, so it goes along.
    sent = [sent for _, sent in appends(hand.heard("n2"))]
    large = sum(len(one) >= size for commands in sent for one in commands)

    assert large == most
    assert all(sum(map(len, commands)) <= max(sending.APPEND_BYTES_MAX, size) for commands in sent)


def test_an_answer_makes_room_for_more() -> None:
    hand = far_behind(200, 1 << 16)
    got = 1
    for _ in range(30):
        for previous, commands in appends(hand.heard("n2")):
            if previous == got:
                got += len(commands)
        hand.answer("n2", next_index=got + 1)

    assert got == hand.journal.last_index
    assert hand.engine.followers()[0].match_index == got


def test_no_more_than_so_many_entries_in_a_message(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frames, "ENTRIES_MAX", 16)
    hand = far_behind(40, 10)

    assert [len(commands) for _, commands in appends(hand.heard("n2"))] == [16, 16, 9]


def compacted(hand: Hand) -> None:
    """Everything that is applied leaves the journal, but for the last two entries."""
    hand.answer("n3", next_index=hand.journal.last_index + 1)
    hand.step()
    hand.journal._entries_max = 2
    for _ in range(10):
        hand.journal.compact()


def test_who_needs_what_is_gone_is_told_so_once_a_period() -> None:
    hand = far_behind(100, 10)
    compacted(hand)
    hand.answer("n2", next_index=2, matches=False)
    seen = []
    for _ in range(100):
        heard = hand.heard("n2")
        seen += heard
        if heard:
            hand.answer("n2", next_index=2, matches=False)

    assert {type(message) for message in seen} == {frames.Compacted}
    assert len(seen) == pytest.approx(1_000 / APPEND_PERIOD_MS, rel=0.2)


def test_who_comes_back_with_all_rows_gets_entries_again() -> None:
    hand = far_behind(100, 10)
    compacted(hand)
    hand.heard("n2")
    applied = hand.journal.applied
    hand.engine.propose(command("next"))
    hand.answer("n2", next_index=applied + 1, matches=False)

    assert appends(hand.heard("n2")) == [(applied, [b"\x00next"])]


def test_new_stream_begins_behind_what_was_acknowledged() -> None:
    """What was on its way on the old one may be lost, and it would take a refusal to notice."""
    hand = leading()
    for number in range(5):
        hand.engine.propose(command(f"{number}"))
        hand.step()
    hand.answer("n2", next_index=5)
    hand.engine.unlinked("n2")
    assert hand.heard("n2", ms=100) == []
    hand.engine.linked("n2")

    assert appends(hand.heard("n2")) == [(4, [b"\x002", b"\x003", b"\x004"])]


def test_ages_travel_with_the_entries() -> None:
    """A new leader has to know how long ago the head was decided, by its own clock."""
    hand = leading()
    hand.engine.propose(command("a"))
    hand.step()
    hand.step(ms=300)
    hand.answer("n2", next_index=3, matches=False)
    sent = [message for message in hand.heard("n2") if isinstance(message, frames.Append)]
    follower = Hand()
    follower.now_ms += 50_000
    follower.append("n2", term=1, previous=(1, 0), entries=[("no-op", 1)])
    follower.say("n2", sent[0])

    # It was decided in the step before the first one.
    assert [entry.age_ms for entry in sent[0].entries] == [320]
    assert follower.engine.decided_at_ms(3) == follower.now_ms - 320


def test_age_that_nobody_knows_stays_unknown() -> None:
    follower = Hand()
    entry = frames.FrameEntry(1, frames.UNKNOWN_AGE, command("a"))
    follower.say("n2", frames.Append(1, 1, 0, 1, 1, 0, [entry], 0))

    assert follower.engine.decided_at_ms(2) is None
