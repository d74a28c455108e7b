"""The side of a leader: which entries go to which follower, and what its answers mean.

At most one round of appends leaves in a step, when everything of the step is known: so what is proposed and what is
committed travel together, and a follower that is far behind gets a bounded number of bytes ahead of its answers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from stepward.server.logbook import frames
from stepward.server.logbook.errors import FrameUnreadable
from stepward.server.logbook.frames import UNKNOWN_AGE, Append, AppendAnswer, Compacted, FrameEntry
from stepward.server.logbook.post import Post

if TYPE_CHECKING:
    from stepward.server.logbook.contacts import Contacts
    from stepward.server.logbook.journal import Entry
    from stepward.server.logbook.outbox import Frame
    from stepward.server.logbook.raft import Raft

# One message holds so much, or one entry that is larger.
APPEND_BYTES_MAX: Final = 1 << 20
# So much is on its way to one follower and not answered. A slow link would else hold a queue of minutes.
IN_FLIGHT_BYTES_MAX: Final = 4 << 20
# That more is committed waits so long for the next entries, which tell it, too. They nearly always follow, and a
# message of its own costs both ends about as much as entries do.
NOTICE_MS_MAX: Final = 10
# When there is nothing to tell.
_NEVER_MS: Final = 1 << 62


class Sender:
    """Sends this leader's entries."""

    def __init__(self, raft: Raft, contacts: Contacts) -> None:
        self._raft = raft
        self._journal = raft.journal
        # Its own, since it is emptied before the flush.
        self._post = Post()
        self._contacts = contacts
        # The number of the last round of appends that left; messages of one release share it.
        self.round = 0
        self._due: set[str] = set()
        self._term = 0
        # By peer: the round after which its next index was moved back, and from where on entries were sent since.
        self._rewound: dict[str, int] = {}
        self._sent_from: dict[str, int] = {}
        # Who has not been told yet that more is committed, and when all of them are, at the latest.
        self._put_off: set[str] = set()
        self._put_off_until_ms = 0
        # By peer: until when it counts as one that serves somebody.
        self._serves_until_ms: dict[str, int] = {}

    def want_round(self) -> None:
        """Send to all followers with the next release, entries or not."""
        self._due.update(self._raft.peers)

    def send_news(self) -> None:
        """There are new entries, or more is committed: that alone can wait for who serves nobody."""
        for peer in self._raft.connected:
            if self._raft.next_index(peer) <= self._journal.last_index or self._serves_somebody(peer):
                self._due.add(peer)
                continue
            if not self._put_off:
                self._put_off_until_ms = self._raft.now_ms + NOTICE_MS_MAX
            self._put_off.add(peer)

    def serves(self, peer_id: str, for_ms: int) -> None:
        """Somebody waits for a follower to apply what is committed: for so long it hears of each commit at once."""
        until_ms = self._raft.now_ms + for_ms
        self._serves_until_ms[peer_id] = max(until_ms, self._serves_until_ms.get(peer_id, 0))
        if peer_id in self._put_off:
            self._due.add(peer_id)

    @property
    def notice_at_ms(self) -> int:
        """When followers are told that more is committed, if nothing else is sent to them before."""
        return self._put_off_until_ms if self._put_off else _NEVER_MS

    def linked(self, peer_id: str) -> None:
        """What was on its way on an older stream may be lost: go on behind what was acknowledged."""
        match = self._raft.match_index(peer_id)
        if self._raft.leads and match:
            self._rewind(peer_id, match + 1)

    def on_answer(self, peer_id: str, frame: AppendAnswer) -> None:
        """A follower has answered.

        Raises:
            FrameUnreadable: It claims to have what this leader has not.
        """
        if self._adopts_higher(peer_id, frame.term) or not self._answers_this_term(frame) or not self._raft.leads:
            return
        if frame.next_index > self._journal.last_index + 1:
            raise FrameUnreadable(
                f"it answers for entry {frame.next_index - 1}; the last is {self._journal.last_index}"
            )
        self._contacts.answered(peer_id, round_=frame.round, sent_ms=frame.sent_ms, ability=frame.ability)
        if not frame.ability.takes_entries:
            self._go_no_further(peer_id, frame)
        elif frame.matches:
            before = self._raft.next_index(peer_id)
            self._raft.acknowledge(peer_id, frame.next_index)
            self._raft.send_next(peer_id, self._after_acknowledgement(before, self._raft.next_index(peer_id)))
            if self._raft.next_index(peer_id) <= self._journal.last_index:
                self._due.add(peer_id)
        else:
            self._raft.respond(peer_id)
            if self._is_newer_than_rewind(peer_id, frame.round):
                self._rewind(peer_id, max(frame.next_index, 1))

    def _go_no_further(self, peer_id: str, frame: AppendAnswer) -> None:
        """A follower takes no entries: not those that are on their way, either.

        Each sign of life is attached where it stands, so that it is not refused; and everything goes on from there when
        an answer says that it takes entries again.
        """
        if frame.matches:
            self._raft.acknowledge(peer_id, frame.next_index)
        else:
            self._raft.respond(peer_id)
        self._raft.send_next(peer_id, max(frame.next_index, 1))

    def on_higher_term(self, peer_id: str, term: int) -> None:
        """A peer has seen a later term: this leader is over."""
        self._adopts_higher(peer_id, term)

    def release(self) -> list[Frame]:
        """A round of appends to all followers for which one is due."""
        if not self._raft.leads:
            self._due.clear()
            self._put_off.clear()
            return []
        if self.notice_at_ms <= self._raft.now_ms:
            self._due.update(self._put_off)
            self._put_off.clear()
        if self._term != self._raft.term:
            self._term, self._rewound, self._sent_from = self._raft.term, {}, {}
        due = [peer for peer in self._raft.peers if peer in self._due and peer in self._raft.connected]
        self._due.clear()
        # Whatever is sent says up to where all is committed.
        self._put_off.difference_update(due)
        if not due:
            return []
        self.round += 1
        encoded: dict[tuple[int, int], bytes] = {}
        for peer in due:
            self._send(peer, encoded)
        return self._post.take()

    def _send(self, peer_id: str, encoded: dict[tuple[int, int], bytes]) -> None:
        """Everything that the follower lacks and that fits into what may be on its way, or that this leader lives."""
        following = self._raft.next_index(peer_id)
        if following <= self._journal.first_index:
            self._post.put(peer_id, Compacted(self._raft.term, self.round, self._raft.now_ms))
            return
        if not self._contacts.takes_entries(peer_id):
            self._post.put_encoded(peer_id, self._append(following, following - 1, encoded))
            return
        sent_from = self._sent_from.setdefault(peer_id, following)
        room = IN_FLIGHT_BYTES_MAX - self._journal.bytes_between(
            max(self._raft.match_index(peer_id) + 1, sent_from), following
        )
        while True:
            last = self._journal.last_fitting(following, min(room, APPEND_BYTES_MAX), frames.ENTRIES_MAX)
            self._post.put_encoded(peer_id, self._append(following, last, encoded))
            room -= self._journal.bytes_between(following, last + 1)
            following = last + 1
            self._raft.send_next(peer_id, following)
            if room <= 0 or following > self._journal.last_index:
                break

    def _append(self, first: int, last: int, encoded: dict[tuple[int, int], bytes]) -> bytes:
        """The message with the entries from `first` to `last`; the same for all followers."""
        content = encoded.get((first, last))
        if content is None:
            previous_term = self._journal.term_of(first - 1)
            assert previous_term is not None
            message = Append(
                term=self._raft.term,
                prev_index=first - 1,
                prev_term=previous_term,
                commit_index=self._raft.commit_index,
                round=self.round,
                sent_ms=self._raft.now_ms,
                entries=[self._aged(entry) for entry in self._journal.between(first, last + 1)],
                held_index=self._raft.held_index,
            )
            content = encoded[first, last] = frames.encode(message)
        return content

    def _aged(self, entry: Entry) -> FrameEntry:
        age_ms = UNKNOWN_AGE if entry.decided_at_ms is None else max(0, self._raft.now_ms - entry.decided_at_ms)
        return FrameEntry(entry.term, age_ms, entry.command)

    def _rewind(self, peer_id: str, next_index: int) -> None:
        """Send again from there. What is on its way already will be refused, too, and those refusals mean nothing."""
        self._raft.send_next(peer_id, next_index)
        self._rewound[peer_id] = self.round
        self._sent_from[peer_id] = next_index
        # Where entries cannot help a message each period says so; at once it would go to and fro as fast as it can.
        if next_index > self._journal.first_index:
            self._due.add(peer_id)

    def _serves_somebody(self, peer_id: str) -> bool:
        """Whether somebody may wait for a follower to apply what is committed."""
        return self._raft.now_ms < self._serves_until_ms.get(peer_id, 0)

    # The rules, each of which can be tried without.

    def _adopts_higher(self, peer_id: str, term: int) -> bool:
        if term <= self._raft.term:
            return False
        self._raft.adopt(peer_id, term)
        return True

    def _answers_this_term(self, frame: AppendAnswer) -> bool:
        """An answer to what was sent in an older term says nothing about the journal of this one."""
        return frame.term == self._raft.term

    def _after_acknowledgement(self, before: int, after: int) -> int:
        """An acknowledgement moves nothing back: what was sent after it was, is on its way and needs no second copy."""
        return max(before, after)

    def _is_newer_than_rewind(self, peer_id: str, round_: int) -> bool:
        """Whether a refusal answers a message that was sent after the last one was obeyed."""
        return round_ > self._rewound.get(peer_id, 0)
