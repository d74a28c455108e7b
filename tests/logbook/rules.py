"""The guards, each with the way to take it away: so a test, or a simulation, sees what happens without it.

In the product there is no switch for any of them.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from stepward.server.logbook.contacts import Contacts
from stepward.server.logbook.elections import Elections
from stepward.server.logbook.engine import Engine
from stepward.server.logbook.journal import StoreJournal
from stepward.server.logbook.quarantine import Newcomers, Quarantine
from stepward.server.logbook.raft import Raft
from stepward.server.logbook.receiving import Receiver
from stepward.server.logbook.replica import Replica
from stepward.server.logbook.sending import Sender


class Rule(NamedTuple):
    """Where a guard stands, and what stands there without it."""

    owner: type
    name: str
    instead: Any


def always(answer: object) -> Callable[..., Any]:
    """Whatever it is asked."""
    return lambda *_, **__: answer


def _stand_at_once(elections: Elections) -> None:
    elections._won_term = elections._raft.term + 1


def _trust_the_tail(raft: Raft, leader_id: str, term: int) -> None:
    raft._deliver(leader_id, type="append_entries", term=term, commit_index=raft.journal.last_index, serialized=None)


RULES: dict[str, Rule] = {
    "flush before promise": Rule(Replica, "_flush_before_outbox", always(None)),
    "only new entries are taken over": Rule(Receiver, "_new_ones", lambda _, previous, entries: (previous, entries)),
    "no commit beyond what is proved": Rule(Receiver, "_proven", lambda _, commit_index, __: commit_index),
    "no acknowledgement beyond what is proved": Rule(Receiver, "_acknowledged", lambda _, next_index: next_index),
    "no commit by a message without entries": Rule(Raft, "hear_leader", _trust_the_tail),
    "a refusal points behind the committed": Rule(Receiver, "_where_to_go_on", lambda _, next_index: next_index),
    "a lower term is answered": Rule(Receiver, "_answer_lower_term", always(None)),
    "a leader hears a higher term": Rule(Sender, "_adopts_higher", always(False)),
    "one rewind a round trip": Rule(Sender, "_is_newer_than_rewind", always(True)),
    "what is on its way is not sent again": Rule(Sender, "_after_acknowledgement", lambda _, __, after: after),
    "answers carry their term": Rule(Sender, "_answers_this_term", always(True)),
    "frames of an older stream are dropped": Rule(Engine, "_is_newest", always(True)),
    "a wiped node is in quarantine": Rule(Quarantine, "_counts", always(True)),
    "every voter tells its term": Rule(Quarantine, "_all_have_answered", always(True)),
    "until then it acknowledges nothing": Rule(Quarantine, "_knows_terms", always(True)),
    "it holds what the leader held": Rule(Quarantine, "_holds_what_the_leader_held", always(True)),
    "the leader has committed": Rule(Quarantine, "_leader_has_committed", always(True)),
    "who answers is not gone": Rule(Quarantine, "_is_alive", always(False)),
    "a newcomer has nothing": Rule(Newcomers, "_forget", always(None)),
    "pre-vote": Rule(Elections, "_ask_first", _stand_at_once),
    "a follower that hears its leader votes for nobody": Rule(Elections, "_follows_another", always(False)),
    "a leader that is followed hears no candidate": Rule(Elections, "_is_followed", always(False)),
    "no vote right after the start": Rule(Elections, "_has_just_started", always(False)),
    "one vote of a peer a term": Rule(Elections, "_is_counted", always(False)),
    "a transfer passes those who hear the leader": Rule(Elections, "_was_asked_to_stand", always(False)),
    "a transfer gives up the lease": Rule(Contacts, "_lease_is_given_up", always(False)),
    "committed at the start is what is applied": Rule(
        StoreJournal, "getRaftCommitIndex", lambda journal: journal.last_index
    ),
}


def take_away(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    """Let the engine run without these guards."""
    for name in names:
        rule = RULES[name]
        monkeypatch.setattr(rule.owner, rule.name, rule.instead)
