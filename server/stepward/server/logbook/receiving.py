"""The side of a follower: what of a leader's append reaches pysyncobj, and what of its answer leaves.

pysyncobj deletes everything behind the entry to which an append is attached, and adds what came. An append that
overlaps with what was acknowledged would take that back, so here only what is new reaches it. And it believes that its
whole journal is the leader's when an append fits anywhere, so commit index and acknowledgement are cut to what this
append has proved.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from stepward.server.logbook.frames import UNKNOWN_AGE, Ability, Append, AppendAnswer, Compacted, HigherTerm
from stepward.server.logbook.journal import Entry

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stepward.server.logbook.elections import Elections
    from stepward.server.logbook.post import Post
    from stepward.server.logbook.quarantine import Quarantine
    from stepward.server.logbook.raft import Raft
    from stepward.server.logbook.room import Room


class _Answering(NamedTuple):
    """The message that is being answered. `proven_index`: up to where it has proved that the journals are alike."""

    round: int
    sent_ms: int
    proven_index: int


class Receiver:
    """Takes over what the leader sends."""

    def __init__(self, raft: Raft, post: Post, elections: Elections, quarantine: Quarantine, room: Room) -> None:
        self._raft = raft
        self._room = room
        self._journal = raft.journal
        self._post = post
        self._elections = elections
        self._quarantine = quarantine
        self._answering = _Answering(0, 0, 0)
        # The leader that has compacted what this node lacks, and its term; empty when there is none.
        self._compacted_by = ""
        self._compacted_term = 0

    @property
    def behind(self) -> str:
        """The leader of this term, when only all of its rows can help this node; else empty."""
        return self._compacted_by if self._compacted_term == self._raft.term else ""

    def on_append(self, leader_id: str, frame: Append) -> None:
        """Take over entries, or hear that the leader lives."""
        if not self._is_heard(leader_id, frame.term):
            return
        self._journal.note_held(frame.held_index)
        entries = [
            Entry(entry.command, frame.prev_index + offset, entry.term, self._decided_at_ms(entry.age_ms))
            for offset, entry in enumerate(frame.entries, 1)
        ]
        previous = (frame.prev_index, frame.prev_term)
        if self._journal.term_of(frame.prev_index) != frame.prev_term:
            # It proves nothing. pysyncobj refuses it; entries that it cannot attach need not be handed over.
            self._answering = _Answering(frame.round, frame.sent_ms, 0)
            self._raft.append(
                leader_id,
                term=frame.term,
                previous=previous,
                commit_index=0,
                entries=[],
            )
            return
        self._compacted_by = ""
        if not self._takes_entries():
            entries = []
        proven_index = frame.prev_index + len(entries)
        self._answering = _Answering(frame.round, frame.sent_ms, proven_index)
        previous, new = self._new_ones(previous, entries)
        self._raft.append(
            leader_id,
            term=frame.term,
            previous=previous,
            commit_index=self._proven(frame.commit_index, proven_index),
            entries=new,
        )

    def on_compacted(self, leader_id: str, frame: Compacted) -> None:
        """The leader lives, and cannot help with entries. Say again and again from where on it could."""
        if not self._is_heard(leader_id, frame.term):
            return
        self._raft.hear_leader(leader_id, frame.term)
        self._compacted_by, self._compacted_term = leader_id, frame.term
        self._answering = _Answering(frame.round, frame.sent_ms, 0)
        self.answer(leader_id, next_index=self._raft.commit_index + 1, matches=False)

    def installed(self) -> None:
        """All rows came from elsewhere."""
        self._compacted_by = ""

    def answer(self, leader_id: str, next_index: int, matches: bool) -> None:
        """Answer the append that was taken over last; called by pysyncobj too, while it takes it over."""
        if self._quarantine.mute:
            return
        answering = self._answering
        next_index = self._acknowledged(next_index) if matches else self._where_to_go_on(next_index)
        ability = Ability(
            free_bytes=self._room.free_bytes(self._raft.now_ms),
            takes_entries=self._takes_entries(),
            may_lead=not self._quarantine.active,
        )
        self._post.put(
            leader_id, AppendAnswer(self._raft.term, answering.round, answering.sent_ms, matches, next_index, ability)
        )

    def _is_heard(self, leader_id: str, term: int) -> bool:
        """Whether a message comes from the leader of this term or of a later one; tell an older one that it is over."""
        if term < self._raft.term:
            self._answer_lower_term(leader_id)
            return False
        assert not (self._raft.leads and term == self._raft.term), f"{leader_id} leads term {term}, too"
        self._elections.hear_leader(leader_id)
        return True

    def _decided_at_ms(self, age_ms: int) -> int | None:
        """When an entry was decided, by this node's clock: the way here is left out, so it is never too long ago."""
        return None if age_ms == UNKNOWN_AGE else self._raft.now_ms - age_ms

    # The rules, each of which can be tried without.

    def _takes_entries(self) -> bool:
        """Whether there is room for what is new. What is here already can always be committed and acknowledged."""
        return self._room.takes_entries(self._raft.now_ms)

    def _answer_lower_term(self, leader_id: str) -> None:
        self._post.put(leader_id, HigherTerm(self._raft.term))

    def _new_ones(self, previous: tuple[int, int], entries: Sequence[Entry]) -> tuple[tuple[int, int], Sequence[Entry]]:
        """What of an append is not in the journal, and behind which entry it belongs.

        Only a real conflict truncates: an append without anything new is attached behind the last entry.
        """
        count = 0
        while count < len(entries) and self._journal.term_of(entries[count].index) == entries[count].term:
            count += 1
        if count == len(entries):
            return self._journal.last, []
        return (entries[count - 1].index, entries[count - 1].term) if count else previous, entries[count:]

    def _proven(self, commit_index: int, proven_index: int) -> int:
        """The commit index, as far as this append proves that the entries up to it are the leader's."""
        return min(commit_index, proven_index)

    def _acknowledged(self, next_index: int) -> int:
        """What is acknowledged: nothing beyond what this append has proved."""
        return min(next_index, self._answering.proven_index + 1)

    def _where_to_go_on(self, next_index: int) -> int:
        """Where the leader should go on: behind what is committed, which both have for sure."""
        return min(next_index, self._raft.commit_index + 1)
