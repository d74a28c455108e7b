"""How long ago the head was decided: the gap that log time has to make up for when an epoch opens.

Exact is what steady clocks of one boot say: this node's own, when the head was decided on this machine or came here
from a leader that said how old it was; or else another node's, which is asked. An age is never too long: the way of a
message does not count. Only when no node knows it are wall clocks compared with the head's, and the smallest difference
that a majority sees counts, since a clock that is ahead would fire every timer at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from stepward.server.logbook import batch as batches
from stepward.server.logbook.frames import REGULAR, UNKNOWN_AGE, AgeAnswer, AgeQuestion

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from stepward.server.core.rows import Head
    from stepward.server.logbook.engine import Engine
    from stepward.server.logbook.journal import Entry, StoreJournal
    from stepward.server.logbook.outbox import Instant

# How long to wait for nodes that have not answered once a majority has: one of them may know exactly.
_ANSWERS_MS_MAX: Final = 250
# A question or its answer is lost when a stream breaks; so often it is asked again.
_ASKED_EVERY_MS: Final = 100
# Batches that are hashed to find one: what follows the last committed one is what a few leaderships left.
_HASHED_MAX: Final = 16


def entry_of(journal: StoreJournal, head_hash: bytes) -> int | None:
    """The index of the entry that holds this batch, if it is one of the journal's last."""
    hashed = 0
    for position in range(len(journal) - 1, -1, -1):
        entry: Entry = journal[position]
        if entry.command[:1] != REGULAR:
            continue
        if batches.hash_of(memoryview(entry.command)[len(REGULAR) :]) == head_hash:
            return entry.index
        hashed += 1
        if hashed == _HASHED_MAX:
            break
    return None


class _Heard(NamedTuple):
    """What another node said, and when this came."""

    answer: AgeAnswer
    at_ms: int


class HeadAge:
    """Finds out how old the head is, and tells others.

    Args:
        journal: Where the entry of the head may be, with the instant at which it was decided.
        engine: Carries questions to the other nodes.
        peers: The other nodes.
        boot_id: Names the boot to which the steady clock belongs.
    """

    def __init__(self, *, journal: StoreJournal, engine: Engine, peers: Sequence[str], boot_id: str) -> None:
        self._journal = journal
        self._engine = engine
        self._peers = tuple(peers)
        self._boot_id = boot_id
        # The head that is asked for, since when, and when last.
        self._asked_hash = b""
        self._asking_since_ms = 0
        self._asked_at_ms = 0
        self._heard: dict[str, _Heard] = {}

    def known_ms(self, head: Head, now: Instant) -> int | None:
        """How old the head is by what this node itself knows exactly."""
        if head.boot_id == self._boot_id:
            return max(0, now.steady_ms - head.decided_steady_ms)
        return self._stamped_ms(head.hash, now)

    def gap_ms(self, head: Head, now: Instant) -> int | None:
        """How old the head is, as well as the nodes together know it; None while answers are awaited."""
        if head.sequence == 0:
            # Nothing waits for anything yet.
            return 0
        # What this node did not know when it asked it will not learn by itself.
        known = None if head.hash == self._asked_hash else self.known_ms(head, now)
        if known is not None:
            return known
        self._ask(head, now)
        heard = [(one.answer, now.steady_ms - one.at_ms) for one in self._heard.values()]
        exact = [answer.age_ms + since_ms for answer, since_ms in heard if answer.age_ms != UNKNOWN_AGE]
        if exact:
            return min(exact)
        silent = len(self._peers) - len(heard)
        majority = 2 * (len(heard) + 1) > len(self._peers) + 1
        if silent and not (majority and now.steady_ms - self._asking_since_ms >= _ANSWERS_MS_MAX):
            return None
        walls = [now.wall_ms, *(answer.wall_ms + since_ms for answer, since_ms in heard)]
        return max(0, min(walls) - head.wall_ms)

    def answer(self, peer_id: str, question: AgeQuestion, head: Head, now: Instant) -> None:
        """Tell a node how old one of its batches is, if this one knows, and what the wall clock says here."""
        own = question.head_hash == head.hash
        age_ms = self.known_ms(head, now) if own else self._stamped_ms(question.head_hash, now)
        told_ms = UNKNOWN_AGE if age_ms is None else age_ms
        self._engine.say(peer_id, AgeAnswer(question.head_hash, told_ms, max(0, now.wall_ms)))

    def hear(self, peer_id: str, answer: AgeAnswer, now: Instant) -> None:
        """Another node has answered."""
        if answer.head_hash == self._asked_hash:
            self._heard[peer_id] = _Heard(answer, now.steady_ms)

    def forget(self) -> None:
        """Nothing is asked any more: this node does not lead, or has its answer."""
        self._asked_hash, self._heard = b"", {}

    def _stamped_ms(self, head_hash: bytes, now: Instant) -> int | None:
        """By the entry that holds the batch, which says when it was decided if that was in this boot."""
        index = entry_of(self._journal, head_hash)
        decided_at_ms = None if index is None else self._engine.decided_at_ms(index)
        return None if decided_at_ms is None else max(0, now.steady_ms - decided_at_ms)

    def _ask(self, head: Head, now: Instant) -> None:
        """Ask every node that has not answered, now and then."""
        if self._asked_hash != head.hash:
            self._asked_hash, self._heard, self._asking_since_ms = head.hash, {}, now.steady_ms
        elif now.steady_ms - self._asked_at_ms < _ASKED_EVERY_MS:
            return
        self._asked_at_ms = now.steady_ms
        for peer_id in self._silent():
            self._engine.say(peer_id, AgeQuestion(head.hash))

    def _silent(self) -> Iterator[str]:
        return (peer_id for peer_id in self._peers if peer_id not in self._heard)
