"""One engine whose peers a test speaks for, message by message."""

import random
from collections.abc import Sequence
from typing import NamedTuple

from stepward.server.logbook import frames
from stepward.server.logbook.engine import NO_OP, REGULAR, Engine
from stepward.server.logbook.journal import found
from stepward.server.logbook.outbox import ReplicaLimits
from stepward.server.logbook.raft import ELECTION_MAX_MS
from stepward.server.logbook.room import Room
from stepward.server.store.memory import MemoryStore
from tests.logbook import toy

BEGIN_MS = 10_000


class Said(NamedTuple):
    """A message that left, and to whom."""

    peer_id: str
    message: frames.Message


class Hand:
    """Node `n1` of a cluster, moved by hand."""

    def __init__(
        self,
        *,
        peers: Sequence[str] = ("n2", "n3"),
        store: MemoryStore | None = None,
        incarnation: int = 1,
        limits: ReplicaLimits | None = None,
    ) -> None:
        if store is None:
            store = MemoryStore()
            found(store)
            store.commit()
        self.store = store
        self.peers = peers
        self.journal = toy.journal(store)
        self.now_ms = BEGIN_MS
        self.applied: list[tuple[int, bytes]] = []
        self.engine = Engine(
            node_id="n1",
            peers=peers,
            journal=self.journal,
            apply=self._apply,
            now_ms=self.now_ms,
            rng=random.Random(1),
            room=Room(store, limits or ReplicaLimits(), now_ms=self.now_ms),
            incarnation=incarnation,
        )
        for peer in peers:
            self.engine.linked(peer)

    def _apply(self, index: int, command: bytes) -> None:
        self.journal.mark_applied(index)
        self.applied.append((index, command))

    def say(self, peer_id: str, message: frames.Message, *, connection: int = 1) -> None:
        """What a peer says, now."""
        self.engine.receive(peer_id, connection, frames.encode(message), self.now_ms)

    def step(self, ms: int = 10) -> list[Said]:
        """Let time pass; what leaves."""
        self.now_ms += ms
        self.engine.tick(self.now_ms)
        appends = self.engine.release_appends()
        self.store.commit()
        return [Said(frame.peer_id, frames.decode(frame.content)) for frame in (*appends, *self.engine.release())]

    def heard(self, *peers: str, ms: int = 10) -> list[frames.Message]:
        """Let time pass; what leaves to these peers."""
        return [said.message for said in self.step(ms) if said.peer_id in (peers or self.peers)]

    def append(
        self,
        leader_id: str,
        *,
        term: int,
        previous: tuple[int, int],
        entries: Sequence[tuple[str, int]] = (),
        commit_index: int = 1,
        round_: int = 1,
        sent_ms: int = 0,
        connection: int = 1,
        held_index: int = 0,
    ) -> None:
        """A leader sends entries: what and term each."""
        sent = [frames.FrameEntry(entry_term, 0, command(what)) for what, entry_term in entries]
        message = frames.Append(term, *previous, commit_index, round_, sent_ms, sent, held_index)
        self.say(leader_id, message, connection=connection)

    def answer(
        self,
        peer_id: str,
        *,
        next_index: int,
        matches: bool = True,
        term: int | None = None,
        connection: int = 1,
        ability: frames.Ability = toy.ABLE,
    ) -> None:
        """A follower answers the newest round."""
        engine = self.engine
        message = frames.AppendAnswer(
            engine.term if term is None else term, engine._sender.round, self.now_ms, matches, next_index, ability
        )
        self.say(peer_id, message, connection=connection)

    def lead(self) -> int:
        """Let it win an election with the votes of all; the term that it leads. Nobody has its no-op yet."""
        said = self.step(ELECTION_MAX_MS + 1)
        attempts = {one.message.attempt for one in said if isinstance(one.message, frames.PreVoteRequest)}
        for attempt in attempts:
            for peer in self.peers:
                self.say(peer, frames.PreVote(self.engine.term, attempt, granted=True))
        self.step()
        for peer in self.peers:
            self.say(peer, frames.Vote(self.engine.term))
        assert self.engine.leads
        self.step()
        return self.engine.term

    def follow(self, leader_id: str = "n2", *, term: int = 1) -> None:
        """Let it hear a leader that has nothing new."""
        self.append(leader_id, term=term, previous=self.journal.last)

    def entries(self) -> list[tuple[str, int]]:
        """What its journal holds behind the first entry: what and term."""
        return [("no-op" if e.command == NO_OP else e.command[1:].decode(), e.term) for e in self.journal[1:]]


def command(what: str) -> bytes:
    """An entry that says so."""
    return NO_OP if what == "no-op" else REGULAR + what.encode()
