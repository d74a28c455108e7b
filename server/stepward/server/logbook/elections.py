"""Who may lead next: when this node stands, whom it votes for, and whose wish to stand it does not hear.

The timer is ours. A node asks first whether it would win (pre-vote), so one that was cut off raises no term. And it
does not vote against a leader that is heard (stickiness), so one that cannot hear the leader disturbs nobody.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from stepward.server.logbook.frames import PreVote, PreVoteRequest, StandNow, Vote, VoteRequest
from stepward.server.logbook.raft import ELECTION_MAX_MS, ELECTION_MIN_MS

if TYPE_CHECKING:
    from random import Random

    from stepward.server.logbook.contacts import Contacts
    from stepward.server.logbook.post import Post
    from stepward.server.logbook.quarantine import Quarantine
    from stepward.server.logbook.raft import Raft

# How long a node that has stepped down leaves it to others to lead.
REST_MS: Final = 3_000


class Elections:
    """The election timer of this node, its pre-votes and its votes."""

    def __init__(self, raft: Raft, post: Post, contacts: Contacts, quarantine: Quarantine, rng: Random) -> None:
        self._raft = raft
        self._post = post
        self._contacts = contacts
        self._quarantine = quarantine
        self._rng = rng
        self._started_ms = raft.now_ms
        # When a leader was last heard of, and which; none was yet. pysyncobj forgets it with every higher term, also
        # one that only somebody's late answer tells of: but the leader still counts on what this node answered it.
        self._heard_ms = raft.now_ms - ELECTION_MAX_MS
        self._heard_id = ""
        self._rest_until_ms = raft.now_ms
        self._attempt = 0
        # The term in which this node would stand, while it asks who would vote for it; else 0.
        self._asked_term = 0
        self._grants: set[str] = set()
        # The term for which it stands in the next tick; else 0.
        self._won_term = 0
        # The term for which a leader has asked this node to stand; such votes are let pass by those who hear it.
        self._transfer_term = 0
        self._counted: set[tuple[str, int]] = set()
        # How often this node has stood since it started.
        self.count = 0
        self._deadline_ms = 0
        self.restart_timer()

    @property
    def leader_id(self) -> str:
        """Who leads; empty when nobody is known to."""
        if self._raft.leads:
            return self._raft.node_id
        return self._raft.leader_id if self._raft.now_ms - self._heard_ms < ELECTION_MAX_MS else ""

    @property
    def contact_at_ms(self) -> int:
        """When a leader was last heard of; now when it is this node."""
        return self._raft.now_ms if self._raft.leads else self._heard_ms

    @property
    def stands_at_ms(self) -> int:
        """When this node asks for votes if it hears nothing until then."""
        return self._deadline_ms + 1

    def restart_timer(self) -> None:
        """A leader was heard of, or a vote given, or an election begun: leave time for what follows from it."""
        self._deadline_ms = self._raft.now_ms + self._rng.randint(ELECTION_MIN_MS, ELECTION_MAX_MS)

    def hear_leader(self, leader_id: str) -> None:
        """The leader of the current term, or of a later one, was heard."""
        self._heard_ms, self._heard_id = self._raft.now_ms, leader_id
        # But a leader that hands over goes on saying that it lives until the other one has won.
        if self._won_term == 0 or self._won_term != self._transfer_term:
            self._asked_term = self._won_term = 0

    def rest(self) -> None:
        """Leave it to others to lead for a while."""
        self._rest_until_ms = self._raft.now_ms + REST_MS

    def stands(self) -> bool:
        """Called once before each tick: whether this node stands for election in it."""
        if not self._raft.peers:
            # There is nobody whose silence would have to be waited for.
            return not self._raft.leads
        if self._raft.leads or self._quarantine.active:
            self.restart_timer()
            self._asked_term = self._won_term = 0
            return False
        if self._won_term:
            stands = self._won_term == self._raft.term + 1
            self._asked_term = self._won_term = 0
            self.count += stands
            return stands
        if self._raft.now_ms > self._deadline_ms:
            self.restart_timer()
            if self._raft.now_ms >= self._rest_until_ms:
                self._ask_first()
        return False

    def _ask_first(self) -> None:
        """Begin a pre-vote: the term rises only when a majority would vote for this node."""
        self._attempt += 1
        self._asked_term, self._grants = self._raft.term + 1, set()
        last_index, last_term = self._raft.journal.last
        for peer in self._raft.peers:
            self._post.put(peer, PreVoteRequest(self._asked_term, self._attempt, last_index, last_term))

    def on_pre_vote_request(self, peer_id: str, frame: PreVoteRequest) -> None:
        """Say whether the peer would have this node's vote."""
        last_index, last_term = self._raft.journal.last
        granted = (
            self._may_vote()
            and not self._hears_another(peer_id)
            and frame.term > self._raft.term
            and (frame.last_term, frame.last_index) >= (last_term, last_index)
        )
        self._post.put(peer_id, PreVote(self._raft.term, frame.attempt, granted))

    def on_pre_vote(self, peer_id: str, frame: PreVote) -> None:
        """A peer has said whether it would vote for this node."""
        if frame.term > self._raft.term:
            self._asked_term = 0
            self._raft.adopt(peer_id, frame.term)
        elif self._asked_term and frame.granted and frame.attempt == self._attempt:
            self._grants.add(peer_id)
            if len(self._grants) >= self._raft.others_needed:
                self._won_term = self._asked_term

    def request_vote(self, peer_id: str, term: int, last_index: int, last_term: int) -> None:
        """This node stands, and asks a peer for its vote."""
        self._post.put(peer_id, VoteRequest(term, last_index, last_term, transfer=self._was_asked_to_stand(term)))

    def on_vote_request(self, peer_id: str, frame: VoteRequest) -> None:
        """Vote for a peer, unless this node may not vote or hears a leader that has not asked for it."""
        if self._may_vote() and (frame.transfer or not self._hears_another(peer_id)):
            self._raft.ask_vote(peer_id, term=frame.term, last_index=frame.last_index, last_term=frame.last_term)

    def vote(self, peer_id: str, term: int) -> None:
        """This node gives a peer its vote."""
        self._post.put(peer_id, Vote(term))

    def on_vote(self, peer_id: str, frame: Vote) -> None:
        """Count the vote of a peer: one a term, since pysyncobj would count each that comes."""
        if frame.term == self._raft.term and not self._is_counted(peer_id, frame.term):
            self._counted = {one for one in self._counted if one[1] == frame.term} | {(peer_id, frame.term)}
            self._raft.count_vote(peer_id, frame.term)

    def on_stand_now(self, peer_id: str, frame: StandNow) -> None:
        """The leader wants this node to lead: stand in the next tick, without asking first."""
        if self._quarantine.active or self._raft.leader_id != peer_id or frame.term != self._raft.term:
            return
        self._transfer_term = self._won_term = frame.term + 1

    # The rules, each of which can be tried without.

    def _may_vote(self) -> bool:
        return not self._quarantine.active and not self._has_just_started()

    def _has_just_started(self) -> bool:
        """A node has forgotten which leader it heard; for as long as that one may count on it, it votes for nobody."""
        return self._raft.now_ms - self._started_ms < ELECTION_MIN_MS

    def _hears_another(self, peer_id: str) -> bool:
        return self._is_followed() if self._raft.leads else self._follows_another(peer_id)

    def _is_followed(self) -> bool:
        """A leader with a fresh majority need not hear of elections."""
        return self._contacts.majority_is_fresh()

    def _follows_another(self, peer_id: str) -> bool:
        """A follower that hears its leader helps nobody else to lead."""
        fresh = self._raft.now_ms - self._heard_ms < ELECTION_MIN_MS
        return fresh and peer_id != self._heard_id

    def _was_asked_to_stand(self, term: int) -> bool:
        """Whether the leader before has asked for this election, so that those who hear it still need not mind."""
        return term == self._transfer_term

    def _is_counted(self, peer_id: str, term: int) -> bool:
        return (peer_id, term) in self._counted
