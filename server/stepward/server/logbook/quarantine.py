"""A node that has begun with an empty directory in a cluster that exists, and what it may do meanwhile.

It has forgotten what it promised: votes, and entries that it acknowledged. So its acknowledgements count for nothing
until every other voter has told it its term and the highest is adopted durably: else an old leader that was paused,
and a node that has forgotten that there is a newer one, would acknowledge together what is lost later. And it neither
votes nor stands until it holds what the leader held when that leader first heard of it, with an entry of that leader's
own term committed: else a log that lacks what this node had acknowledged could win with its vote.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec
from msgspec import Struct

from stepward.server.logbook.errors import JournalCorrupt
from stepward.server.logbook.frames import Hello, HelloAnswer
from stepward.server.store import facts

if TYPE_CHECKING:
    from stepward.server.logbook.contacts import Contacts
    from stepward.server.logbook.post import Post
    from stepward.server.logbook.raft import Raft
    from stepward.server.store.interface import Rows, Store

# How often a node says that it is there until it is whole: beside a catch-up that takes seconds, at once.
HELLO_PERIOD_MS: Final = 100
# Who has answered such a greeting within this time is not gone.
ALIVE_MS: Final = 10 * HELLO_PERIOD_MS


class State(Struct, frozen=True, forbid_unknown_fields=True):
    """What is kept of it. `gone_ids` are voters of which a person has said that they will never answer."""

    terms_adopted: bool = False
    gone_ids: tuple[str, ...] = ()


_encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder(State).decode
_decode_newcomers: Final = msgspec.msgpack.Decoder(dict[str, int]).decode
# There is no quarantine, or no more.
_WHOLE: Final = b""


def begin(store: Store) -> None:
    """Put a node into quarantine before it starts for the first time, in the open transaction."""
    store.put_fact(facts.QUARANTINE, _encode(State()))


def read(store: Rows) -> State | None:
    """What is kept of a quarantine; None when there is none.

    Raises:
        JournalCorrupt: What stands there is none.
    """
    value = store.fact(facts.QUARANTINE)
    if value is None or value == _WHOLE:
        return None
    try:
        return _decode(value)
    except msgspec.DecodeError as error:
        raise JournalCorrupt(f"the quarantine of this node cannot be read: {error}") from error


def read_newcomers(store: Rows) -> dict[str, int]:
    """The newest incarnation of each other node that has begun anew, as far as this node has answered it.

    Raises:
        JournalCorrupt: What stands there is none.
    """
    value = store.fact(facts.NEWCOMERS)
    if value is None:
        return {}
    try:
        return _decode_newcomers(value)
    except msgspec.DecodeError as error:
        raise JournalCorrupt(f"which nodes have begun anew cannot be read: {error}") from error


class Quarantine:
    """The quarantine of this node, if it is in one."""

    def __init__(self, raft: Raft, post: Post, *, incarnation: int) -> None:
        self._raft = raft
        self._post = post
        self._incarnation = incarnation
        self._state = read(raft.journal.store)
        # When each voter has answered this incarnation last.
        self._answered: dict[str, int] = {}
        # By the term that its sender led: what this node has to hold before it is whole.
        self._needed: dict[int, int] = {}
        self._next_hello_ms = raft.now_ms

    @property
    def active(self) -> bool:
        """Whether this node is in quarantine: it neither votes nor stands."""
        return not self._counts()

    @property
    def mute(self) -> bool:
        """Whether its acknowledgements would not be worth anything yet, so that it gives none."""
        return not self._counts() and not self._knows_terms()

    def tick(self) -> None:
        """End it when it may end; else say again that this node is there."""
        if self._state is None:
            return
        if self._may_end():
            self._end()
        elif self._raft.now_ms >= self._next_hello_ms:
            self._next_hello_ms = self._raft.now_ms + HELLO_PERIOD_MS
            for peer in self._raft.peers:
                self._post.put(peer, Hello(self._incarnation))

    def on_answer(self, peer_id: str, frame: HelloAnswer) -> None:
        """A voter has told its term: whatever this node may have promised was in none that is higher."""
        if self._state is None or frame.incarnation != self._incarnation:
            return
        if frame.term > self._raft.term:
            self._raft.adopt(peer_id, frame.term)
        self._answered[peer_id] = self._raft.now_ms
        # What leaders of older terms held is nothing to wait for.
        if frame.needed_index and frame.term >= max(self._needed, default=0):
            self._needed = {frame.term: frame.needed_index}
        self._adopt_terms()

    def recover(self, gone_ids: frozenset[str]) -> str:
        """Go on without the answers of voters that are gone for good; what only they and this node knew is lost.

        Returns:
            Why not; empty when it does.
        """
        if self._state is None:
            return "this node is in no quarantine: it has all that it promised, and waits for nobody"
        strangers = gone_ids - set(self._raft.peers)
        if strangers:
            return f"{', '.join(sorted(strangers))}: no other node of this cluster has that name"
        if len(self._raft.peers) - len(gone_ids) < self._raft.others_needed:
            return f"with {len(gone_ids)} of {len(self._raft.peers) + 1} nodes gone there is no majority left"
        alive = sorted(filter(self._is_alive, gone_ids))
        if alive:
            return f"{', '.join(alive)} answers this node, and so is not gone; name only nodes that never will again"
        self._keep(State(self._state.terms_adopted, tuple(sorted(gone_ids))))
        self._adopt_terms()
        return ""

    def _adopt_terms(self) -> None:
        assert self._state is not None
        if not self._state.terms_adopted and self._all_have_answered():
            self._keep(State(terms_adopted=True, gone_ids=self._state.gone_ids))

    def _may_end(self) -> bool:
        if not self._knows_terms():
            return False
        if self._nobody_can_lead_without_it():
            return True
        return bool(self._raft.leader_id) and self._holds_what_the_leader_held() and self._leader_has_committed()

    def _end(self) -> None:
        # In the transaction of the entries that it waited for, so no restart finds one without the other.
        self._state = None
        self._raft.journal.store.put_fact(facts.QUARANTINE, _WHOLE)

    def _keep(self, state: State) -> None:
        self._state = state
        self._raft.journal.store.put_fact(facts.QUARANTINE, _encode(state))

    # The rules, each of which can be tried without.

    def _counts(self) -> bool:
        """Whether this node has everything that it ever promised."""
        return self._state is None

    def _knows_terms(self) -> bool:
        """Whether it has adopted, durably, a term that is at least as high as any in which it may have promised."""
        return self._state is None or self._state.terms_adopted

    def _all_have_answered(self) -> bool:
        assert self._state is not None
        return self._answered.keys() >= set(self._raft.peers) - set(self._state.gone_ids)

    def _is_alive(self, peer_id: str) -> bool:
        """Whether a voter that knows what it has promised was heard a moment ago, whatever a person says of it."""
        answered_at_ms = self._answered.get(peer_id)
        return answered_at_ms is not None and self._raft.now_ms - answered_at_ms < ALIVE_MS

    def _nobody_can_lead_without_it(self) -> bool:
        """Whether so many voters are gone for good that there will be no leader to wait for.

        Then the logs of those that are left decide, since nobody votes for one whose log is shorter than its own.
        """
        assert self._state is not None
        left = len(self._raft.peers) - len(self._state.gone_ids)
        return left <= self._raft.others_needed

    def _holds_what_the_leader_held(self) -> bool:
        needed = self._needed.get(self._raft.term)
        return needed is not None and self._raft.journal.last_index >= needed

    def _leader_has_committed(self) -> bool:
        return self._raft.journal.term_of(self._raft.commit_index) == self._raft.term


class Newcomers:
    """What other nodes have to know of those in quarantine."""

    def __init__(self, raft: Raft, post: Post, contacts: Contacts, quarantine: Quarantine) -> None:
        self._raft = raft
        self._post = post
        self._contacts = contacts
        self._quarantine = quarantine
        # Durable before an answer leaves: without one no newcomer takes part, and once one does, the directory that
        # its node had before must never count again, whoever was started anew meanwhile.
        self._incarnations = read_newcomers(raft.journal.store)
        # This leader's last index when it first heard of (peer, incarnation), in the term `_led_term`.
        self._first_heard: dict[tuple[str, int], int] = {}
        self._led_term = 0

    def on_hello(self, peer_id: str, frame: Hello) -> None:
        """Forget what the peer was, and tell it what it needs to know."""
        newest = self._incarnations.get(peer_id, 0)
        if frame.incarnation < newest:
            return
        if frame.incarnation > newest:
            self._remember(peer_id, frame.incarnation)
            self._forget(peer_id)
        if self._quarantine.mute:
            # It has forgotten its own terms, and an answer would say that it had none.
            return
        needed = self._needed_index(peer_id, frame.incarnation) if self._raft.leads else 0
        self._post.put(peer_id, HelloAnswer(frame.incarnation, self._raft.term, needed))

    def _remember(self, peer_id: str, incarnation: int) -> None:
        self._incarnations[peer_id] = incarnation
        self._raft.journal.store.put_fact(facts.NEWCOMERS, _encode(self._incarnations))

    def _forget(self, peer_id: str) -> None:
        """What the peer acknowledged before, it does not hold any more."""
        self._raft.forget_match(peer_id)
        self._contacts.forget(peer_id)

    def _needed_index(self, peer_id: str, incarnation: int) -> int:
        if self._led_term != self._raft.term:
            self._led_term, self._first_heard = self._raft.term, {}
        return self._first_heard.setdefault((peer_id, incarnation), self._raft.journal.last_index)
