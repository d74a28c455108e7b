"""What a leader knows from the answers of its followers: that it still leads, and until when nobody else can."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from stepward.server.logbook.raft import ELECTION_MIN_MS

if TYPE_CHECKING:
    from collections.abc import Callable

    from stepward.server.logbook.frames import Ability
    from stepward.server.logbook.raft import Raft

# A follower that has answered votes for nobody else for a minimum election timeout after it heard the message. Half of
# it is left for clocks that do not run alike.
LEASE_MS: Final = ELECTION_MIN_MS // 2
# The lease of a node that nobody could replace.
FOREVER_MS: Final = 1 << 62


class Contact(NamedTuple):
    """The newest answer of a peer in this term: when it came, and which message it answered, sent when."""

    answered_at_ms: int
    round: int
    sent_ms: int
    ability: Ability


class Contacts:
    """Answers of this term by peer. Those of an older term are forgotten when it is over."""

    def __init__(self, raft: Raft) -> None:
        self._raft = raft
        self._term = 0
        self._contacts: dict[str, Contact] = {}
        self._given_up_term = 0

    def of(self, peer_id: str) -> Contact | None:
        """The newest answer of a peer in this term."""
        return self._current().get(peer_id)

    def answered(self, peer_id: str, *, round_: int, sent_ms: int, ability: Ability) -> None:
        """A peer has answered a message of that round. Answers may come out of order with those before a new stream."""
        before = self._current().get(peer_id)
        # No message was sent later than now, whatever an answer says.
        sent_ms = min(sent_ms, self._raft.now_ms)
        if before is not None:
            round_, sent_ms = max(before.round, round_), max(before.sent_ms, sent_ms)
        self._contacts[peer_id] = Contact(self._raft.now_ms, round_, sent_ms, ability)

    def takes_entries(self, peer_id: str) -> bool:
        """Whether a peer can be sent entries: it can until it says otherwise."""
        contact = self.of(peer_id)
        return contact is None or contact.ability.takes_entries

    def is_fresh(self, peer_id: str) -> bool:
        """Whether a peer has answered within the minimum election timeout."""
        contact = self.of(peer_id)
        return contact is not None and self._raft.now_ms - contact.answered_at_ms < ELECTION_MIN_MS

    def forget(self, peer_id: str) -> None:
        """The peer is another than the one that answered."""
        self._current().pop(peer_id, None)

    def give_up_lease(self) -> None:
        """Another node may be elected from now on although it was heard: in this term the lease counts no more."""
        self._given_up_term = self._raft.term

    def majority_is_fresh(self) -> bool:
        """Whether a majority has answered within the minimum election timeout."""
        newest = self._majority_newest(lambda contact: contact.answered_at_ms)
        return newest is not None and self._raft.now_ms - newest < ELECTION_MIN_MS

    def lease_until_ms(self) -> int:
        """Until when nobody else can lead; 0 when this node does not, or cannot know."""
        if not self._raft.leads or self._lease_is_given_up():
            return 0
        if not self._raft.peers:
            return FOREVER_MS
        sent_ms = self._majority_newest(lambda contact: contact.sent_ms)
        return 0 if sent_ms is None else sent_ms + LEASE_MS

    def confirmed(self, round_: int) -> bool:
        """Whether a majority has answered a message sent after that round, so that this node led then."""
        if not self._raft.leads:
            return False
        answered = self._majority_newest(lambda contact: contact.round)
        return not self._raft.peers or (answered is not None and answered > round_)

    def _lease_is_given_up(self) -> bool:
        return self._given_up_term == self._raft.term

    def _majority_newest(self, mark: Callable[[Contact], int]) -> int | None:
        """The newest mark that a majority has reached, this node among it; None when no majority has any."""
        needed = self._raft.others_needed
        marks = sorted((mark(contact) for contact in self._current().values()), reverse=True)
        return marks[needed - 1] if 0 < needed <= len(marks) else None

    def _current(self) -> dict[str, Contact]:
        if self._term != self._raft.term:
            self._term, self._contacts = self._raft.term, {}
        return self._contacts
