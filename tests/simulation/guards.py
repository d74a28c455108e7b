"""Rules of the shipped software that the simulation can do without, one at a time, to see what each is for.

A guard is taken away as faults are planted in the museum: some words of one function are changed while it is on.
"""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Final, NamedTuple

from tests.museum.planting import Patch, planted

if TYPE_CHECKING:
    from collections.abc import Iterator

_LOGBOOK: Final = "stepward.server.logbook"


class Guard(NamedTuple):
    """A rule, the failure that it prevents, and how to take it away.

    `seeds` are how many it takes until a run without it is red; 0: the simulation does not see it.
    """

    name: str
    prevents: str
    patches: tuple[Patch, ...]
    seeds: int


def _guard(name: str, prevents: str, where: str, old: str, new: str, *, seeds: int) -> Guard:
    return Guard(name, prevents, (Patch(f"{_LOGBOOK}.{where}", old, new),), seeds)


GUARDS: Final = (
    Guard(
        "flush",
        "what was promised is forgotten in a power cut: votes twice in one term, acknowledged entries lost",
        (Patch("tests.simulation.disk:Device.flush", 'self._issued.append((_FLUSH, b""))', "pass"),),
        seeds=30,
    ),
    Guard(
        "flush at the start",
        "what a killed process had written and not flushed is promised by the next, and lost in a power cut",
        (Patch("tests.simulation.disk:PageStore._load", "self._device.flush()", "pass"),),
        seeds=0,
    ),
    _guard(
        "commit before the outbox",
        "messages and answers leave before what they say is in the store",
        "replica:Replica._flush_before_outbox",
        "self._store.commit()",
        "pass",
        seeds=30,
    ),
    _guard(
        "only what is new is appended",
        "an overlapping or late append deletes what was acknowledged",
        "receiving:Receiver._new_ones",
        "count = 0\n",
        "return previous, entries\n    count = 0\n",
        seeds=100,
    ),
    _guard(
        "commit index is clamped",
        "a follower applies its own doomed entries",
        "receiving:Receiver._proven",
        "min(commit_index, proven_index)",
        "commit_index",
        seeds=100,
    ),
    _guard(
        "acknowledgement is capped",
        "a follower acknowledges a tail that nobody has proven",
        "receiving:Receiver._acknowledged",
        "min(next_index, self._answering.proven_index + 1)",
        "next_index",
        seeds=0,
    ),
    _guard(
        "refusal points behind the committed prefix",
        "catching up goes back one entry a round trip",
        "receiving:Receiver._where_to_go_on",
        "min(next_index, self._raft.commit_index + 1)",
        "next_index",
        seeds=0,
    ),
    _guard(
        "late refusals are not obeyed",
        "each late refusal has the whole tail sent again, until the link holds nothing else",
        "sending:Sender._is_newer_than_rewind",
        "round_ > self._rewound.get(peer_id, 0)",
        "True",
        seeds=0,
    ),
    _guard(
        "what is in flight is not sent again",
        "each acknowledgement has sent again what is on its way",
        "sending:Sender._after_acknowledgement",
        "max(before, after)",
        "after",
        seeds=0,
    ),
    _guard(
        "answers belong to a term",
        "an answer to an older term counts as an acknowledgement of this one",
        "sending:Sender._answers_this_term",
        "frame.term == self._raft.term",
        "True",
        seeds=0,
    ),
    Guard(
        "quarantine",
        "a wiped node votes and acknowledges although it has forgotten what it had promised",
        (
            Patch(f"{_LOGBOOK}.quarantine:Quarantine.active", "self._state is not None", "False"),
            Patch(f"{_LOGBOOK}.quarantine:Quarantine.mute", "self._state is not None", "False"),
        ),
        seeds=100,
    ),
    _guard(
        "quarantine: every voter's term",
        "a leader that was paused and a wiped node acknowledge together what is lost later",
        "quarantine:Quarantine._all_have_answered",
        "return self._answered",
        "return True or self._answered",
        seeds=0,
    ),
    _guard(
        "quarantine: the leader's last index",
        "a log that lacks what the wiped node had acknowledged wins with its vote",
        "quarantine:Quarantine._holds_what_the_leader_held",
        "return needed",
        "return True or needed",
        seeds=0,
    ),
    _guard(
        "quarantine: an entry of the leader's own term",
        "what the leader held may still be replaced by another leader",
        "quarantine:Quarantine._leader_has_committed",
        "return self",
        "return True or self",
        seeds=0,
    ),
    _guard(
        "a newcomer's match index is forgotten",
        "a leader counts what the wiped node had acknowledged before",
        "quarantine:Newcomers.on_hello",
        "self._raft.forget_match(peer_id)",
        "pass",
        seeds=0,
    ),
    _guard(
        "pre-vote",
        "a node that was cut off comes back with a higher term and unseats a healthy leader",
        "elections:Elections._ask_first",
        "self._attempt += 1",
        "self._attempt += 1\n    self._won_term = self._raft.term + 1\n    return",
        seeds=0,
    ),
    _guard(
        "followers that hear a leader vote for nobody else",
        "another node is elected while the leader still answers reads under its lease",
        "elections:Elections._follows_another",
        "return fresh",
        "return False and fresh",
        seeds=0,
    ),
    _guard(
        "a leader with a fresh majority votes for nobody",
        "a node that cannot hear it unseats a healthy leader",
        "elections:Elections._is_followed",
        "return self",
        "return False and self",
        seeds=0,
    ),
    _guard(
        "a lower term is told the higher one",
        "a node whose term has run ahead never follows again",
        "receiving:Receiver._answer_lower_term",
        "self._post.put(leader_id, HigherTerm(self._raft.term))",
        "pass",
        seeds=0,
    ),
    _guard(
        "no vote just after the start",
        "a node that has forgotten whom it heard elects another while the first reads under its lease",
        "elections:Elections._has_just_started",
        "return self",
        "return False and self",
        seeds=0,
    ),
    _guard(
        "votes of a transfer are let pass",
        "those who hear the old leader keep the new one from being elected",
        "elections:Elections.request_vote",
        "term == self._transfer_term",
        "False",
        seeds=0,
    ),
    _guard(
        "a transfer gives up the lease",
        "the old leader answers reads while the new one commits",
        "contacts:Contacts._lease_is_given_up",
        "self._given_up_term == self._raft.term",
        "False",
        seeds=0,
    ),
    _guard(
        "the lease counts from when a message was sent",
        "an answer that travelled for long makes a lease that is too long",
        "contacts:Contacts.lease_until_ms",
        "contact.sent_ms)",
        "contact.answered_at_ms)",
        seeds=0,
    ),
    _guard(
        "frames of an older stream are dropped",
        "messages are taken in another order than they were sent in",
        "engine:Engine._is_newest",
        "return connection == newest",
        "return True",
        seeds=0,
    ),
    _guard(
        "one vote a peer and term",
        "the vote of one node is counted twice and makes a majority",
        "elections:Elections._is_counted",
        "(peer_id, term) in self._counted",
        "False",
        seeds=0,
    ),
    _guard(
        "the commit index at the start is what the rows hold",
        "entries that were never committed are applied after a restart",
        "journal:StoreJournal.getRaftCommitIndex",
        "return self._applied",
        "return self.last_index",
        seeds=0,
    ),
    _guard(
        "answers without a change wait for the lease or a round",
        "a leader that was deposed answers from rows that are not the newest",
        "reads:Reads.cleared",
        "if now_ms <",
        "if True or now_ms <",
        seeds=0,
    ),
    _guard(
        "older rows are not installed",
        "rows that arrive late take acknowledged ones back",
        "replica:Replica.install",
        "if passed or self._engine.leads:",
        "if False:",
        seeds=0,
    ),
    _guard(
        "entries behind installed rows stay only when proven",
        "a tail that was never the leader's is acknowledged",
        "installing:install",
        "journal.term_of(index) == term",
        "True",
        seeds=0,
    ),
    Guard(
        "lease rule (a)",
        "a renewal is acknowledged of which a next leader knows nothing",
        (
            Patch(
                "stepward.server.core.leases:may_acknowledge",
                "return session.renewed_epoch",
                "return True or session.renewed_epoch",
            ),
            Patch("stepward.server.core.leases:record_age_ms", "return ttl_ms // 8", "return ttl_ms * 8"),
        ),
        seeds=0,
    ),
    Guard(
        "lease rule (c)",
        "a session is ended while its agent counts on its lease",
        (
            Patch(
                "stepward.server.core.leases:session_end_led_ms",
                "+ -(-ttl_ms // 3) + kill_grace_ms + margin_ms(ttl_ms)",
                "",
            ),
        ),
        seeds=0,
    ),
)


@contextmanager
def without(name: str) -> Iterator[None]:
    """The software without one of its guards; empty: with all of them."""
    guards = [guard for guard in GUARDS if guard.name == name]
    assert guards or not name, f"{name!r} is none of {[guard.name for guard in GUARDS]}"
    with ExitStack() as stack:
        for guard in guards:
            for patch in guard.patches:
                stack.enter_context(planted(patch))
        yield
