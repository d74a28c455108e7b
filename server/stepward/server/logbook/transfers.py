"""Handing leadership to another node, which a leader does before it is stopped, or when its disk is slow."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from stepward.server.logbook.frames import StandNow

if TYPE_CHECKING:
    from stepward.server.logbook.contacts import Contacts
    from stepward.server.logbook.post import Post
    from stepward.server.logbook.raft import Raft

# How long the other node has to catch up; and then, to win. Longer than both take when all is well.
PATIENCE_MS: Final = 500
# What a node may lack that nobody has named: so much comes to it well within that time.
LACKING_BYTES_MAX: Final = 4 << 20


class _Transfer(NamedTuple):
    term: int
    target_id: str
    until_ms: int
    asked: bool


class Transfers:
    """The transfer of leadership that is under way, if one is."""

    def __init__(self, raft: Raft, post: Post, contacts: Contacts) -> None:
        self._raft = raft
        self._post = post
        self._contacts = contacts
        self._current: _Transfer | None = None

    @property
    def under_way(self) -> bool:
        """Whether one is, so that nothing may be proposed."""
        return self._current is not None

    def begin(self, target_id: str, *, free_bytes_min: int = 0) -> str:
        """Hand leadership to a peer; empty: to the one that can lead soonest, and has so much room on its disk.

        Returns:
            Why not; empty when it has begun.
        """
        if not self._raft.leads:
            return "this node does not lead"
        if self._current is not None:
            return f"leadership is being handed to {self._current.target_id} already"
        if not self._raft.connected:
            return "no other node is connected to the leader"
        if not target_id:
            target_id = self._best(free_bytes_min)
            if not target_id:
                others = ", ".join(sorted(self._raft.connected))
                return (
                    f"no other node can lead now: {others} is silent, behind, in quarantine or without room on its disk"
                )
        elif target_id not in self._raft.connected:
            return f"{target_id} is not connected to the leader"
        elif not self._may_lead(target_id):
            return f"{target_id} is in quarantine: it does not hold yet what it may have acknowledged"
        self._current = _Transfer(self._raft.term, target_id, self._raft.now_ms + PATIENCE_MS, asked=False)
        return ""

    def tick(self) -> None:
        """Ask the other node to stand once it has everything; give it up when it takes too long."""
        current = self._current
        if current is None:
            return
        if not self._raft.leads or self._raft.term != current.term or self._raft.now_ms >= current.until_ms:
            self._current = None
        elif not current.asked and self._has_everything(current.target_id):
            # From here on it may win at any moment, so in this term nothing is read under the lease any more.
            self._contacts.give_up_lease()
            self._post.put(current.target_id, StandNow(current.term))
            self._current = current._replace(asked=True, until_ms=self._raft.now_ms + PATIENCE_MS)

    def _best(self, free_bytes_min: int) -> str:
        """Who can lead soonest; empty when nobody can soon."""
        able = [peer for peer in sorted(self._raft.connected) if self._can_lead_soon(peer, free_bytes_min)]
        return max(
            able, key=lambda peer: (self._contacts.takes_entries(peer), self._raft.match_index(peer)), default=""
        )

    def _can_lead_soon(self, peer_id: str, free_bytes_min: int) -> bool:
        contact, journal = self._contacts.of(peer_id), self._raft.journal
        if contact is None or not self._contacts.is_fresh(peer_id) or contact.ability.free_bytes < free_bytes_min:
            return False
        lacks_bytes = journal.bytes_between(self._raft.match_index(peer_id) + 1, journal.last_index + 1)
        return lacks_bytes <= LACKING_BYTES_MAX and self._may_lead(peer_id)

    def _may_lead(self, peer_id: str) -> bool:
        """Whether a peer may stand for election: it may until it says otherwise."""
        contact = self._contacts.of(peer_id)
        return contact is None or contact.ability.may_lead

    def _has_everything(self, peer_id: str) -> bool:
        return self._raft.match_index(peer_id) == self._raft.journal.last_index
