"""Raft for one replica: pysyncobj with a guard in front of each of its holes.

What a peer sends goes to the guard that it concerns, and from there to pysyncobj if it may; what pysyncobj wants to say
goes out through the same guards. Messages wait until `release`, which is called when the step is durable.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, assert_never

from stepward.server.logbook import frames
from stepward.server.logbook.contacts import Contacts
from stepward.server.logbook.elections import Elections
from stepward.server.logbook.frames import (
    NO_OP,
    REGULAR,
    AgeAnswer,
    AgeQuestion,
    Append,
    AppendAnswer,
    Compacted,
    Hello,
    HelloAnswer,
    HigherTerm,
    Message,
    PreVote,
    PreVoteRequest,
    StandNow,
    Vote,
    VoteRequest,
)
from stepward.server.logbook.outbox import Follower
from stepward.server.logbook.post import Post
from stepward.server.logbook.quarantine import Newcomers, Quarantine
from stepward.server.logbook.raft import Raft, Voice
from stepward.server.logbook.receiving import Receiver
from stepward.server.logbook.sending import Sender
from stepward.server.logbook.transfers import Transfers

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from random import Random

    from stepward.server.logbook.journal import StoreJournal
    from stepward.server.logbook.outbox import Frame
    from stepward.server.logbook.room import Room

__all__ = ["NO_OP", "REGULAR", "Engine"]


class Engine:
    """Raft for one replica. Calls `apply` only from inside `tick` and `step_down`.

    Args:
        node_id: This node.
        peers: The other voters.
        journal: Opened on the replica's store; says whether this node is in quarantine.
        apply: Called with the index and the bytes of each committed entry, in order, once.
        now_ms: The moment of the start, on the steady clock.
        rng: For the election timer.
        room: How much the disk can still take.
        incarnation: Of this node: how often it has begun with an empty directory.

    Raises:
        EngineUnfit: pysyncobj lacks a name that we rely on.
    """

    def __init__(
        self,
        *,
        node_id: str,
        peers: Sequence[str],
        journal: StoreJournal,
        apply: Callable[[int, bytes], None],
        now_ms: int,
        rng: Random,
        room: Room,
        incarnation: int = 1,
    ) -> None:
        self._journal = journal
        self._room = room
        self._raft = raft = Raft(node_id=node_id, peers=peers, journal=journal, now_ms=now_ms)
        self._post = post = Post()
        self._contacts = Contacts(raft)
        self._quarantine = Quarantine(raft, post, incarnation=incarnation)
        self._newcomers = Newcomers(raft, post, self._contacts, self._quarantine)
        self._elections = Elections(raft, post, self._contacts, self._quarantine, rng)
        self._receiver = Receiver(raft, post, self._elections, self._quarantine, room)
        self._sender = Sender(raft, self._contacts)
        self._transfers = Transfers(raft, post, self._contacts)
        # By peer: the newest stream from it. What comes on an older one is late.
        self._connections: dict[str, int] = {}
        raft.speak_by(
            Voice(
                answer_append=self._receiver.answer,
                request_vote=self._elections.request_vote,
                vote=self._elections.vote,
                send_appends=self._sender.want_round,
                send_news=self._sender.send_news,
                restart_timer=self._elections.restart_timer,
                apply=apply,
            )
        )

    # What happens.

    def tick(self, now_ms: int) -> None:
        """Let time pass: elections, commits, applies."""
        self._raft.at(now_ms)
        self._transfers.tick()
        self._quarantine.tick()
        self._raft.tick(stand=self._elections.stands())
        self._journal.note_held(self._raft.held_index)

    def receive(self, peer_id: str, connection: int, content: bytes, now_ms: int) -> AgeQuestion | AgeAnswer | None:
        """Take in a message of a peer.

        Returns:
            The message when it is none of the engine's business.

        Raises:
            FrameUnreadable: It is none that this version knows; nothing of it has happened.
        """
        self._raft.at(now_ms)
        if not self._is_newest(peer_id, connection):
            return None
        message = frames.decode(content)
        self._connections[peer_id] = connection
        match message:
            case AgeQuestion() | AgeAnswer():
                return message
            case _:
                self._dispatch(peer_id, message)
                return None

    def _is_newest(self, peer_id: str, connection: int) -> bool:
        """Whether a message comes on the newest stream of its sender: one that comes late is out of order."""
        return connection >= self._connections.get(peer_id, connection)

    def _dispatch(self, peer_id: str, message: Message) -> None:
        match message:
            case Append():
                self._receiver.on_append(peer_id, message)
            case Compacted():
                self._receiver.on_compacted(peer_id, message)
            case AppendAnswer():
                self._sender.on_answer(peer_id, message)
            case HigherTerm(term=term):
                self._sender.on_higher_term(peer_id, term)
            case PreVoteRequest():
                self._elections.on_pre_vote_request(peer_id, message)
            case PreVote():
                self._elections.on_pre_vote(peer_id, message)
            case VoteRequest():
                self._elections.on_vote_request(peer_id, message)
            case Vote():
                self._elections.on_vote(peer_id, message)
            case StandNow():
                self._elections.on_stand_now(peer_id, message)
            case Hello():
                self._newcomers.on_hello(peer_id, message)
            case HelloAnswer():
                self._quarantine.on_answer(peer_id, message)
            case AgeQuestion() | AgeAnswer():
                raise AssertionError("these are the replica's")
            case _:
                assert_never(message)

    def linked(self, peer_id: str) -> None:
        """A new stream to the peer stands; what was sent before may be lost."""
        self._raft.link(peer_id)
        self._sender.linked(peer_id)

    def unlinked(self, peer_id: str) -> None:
        """There is no stream to the peer."""
        self._raft.unlink(peer_id)

    def serves(self, peer_id: str, for_ms: int, now_ms: int) -> None:
        """Somebody waits for the peer to apply what is committed; see `Sender.serves`."""
        self._raft.at(now_ms)
        self._sender.serves(peer_id, for_ms)

    def say(self, peer_id: str, message: AgeQuestion | AgeAnswer) -> None:
        """Send a peer what is none of the engine's business."""
        self._post.put(peer_id, message)

    def release_appends(self) -> list[Frame]:
        """What a leader sends its followers. It may leave before what was written is durable: it promises nothing.

        That this node leads was durable before anybody voted for it. And it counts itself among those that hold an
        entry only when another one has answered for that entry, which is heard in a later step, behind the flush.
        """
        return self._sender.release()

    def due_at_ms(self, tick_ms: int) -> int:
        """When time alone moves something next, on the steady clock; `tick_ms`: how long to wait for what has no timer.

        It may be past, or too early; nothing happens without a tick.
        """
        if self._transfers.under_way or self._quarantine.active:
            return self._raft.now_ms + tick_ms
        if not self._raft.leads:
            return self._elections.stands_at_ms
        return min(self._raft.append_at_ms, self._sender.notice_at_ms)

    def release(self) -> list[Frame]:
        """What else is to be sent, in order. Call it when everything that was written is durable: it is promises."""
        return self._post.take()

    # What the replica wants.

    def propose(self, command: bytes) -> None:
        """Append a command as leader. It is applied in a tick, or never."""
        assert self.leads
        assert not self.transferring, "the other node would never have everything"
        assert command[:1] == REGULAR
        self._raft.propose(command)
        assert self._journal[-1][0] is command, "what was proposed is not the journal's last entry"

    def round(self) -> int:
        """Ask all followers whether this node still leads; the stamp is for `confirmed`."""
        self._sender.want_round()
        return self._sender.round

    def confirmed(self, stamp: int) -> bool:
        """Whether this node led when that round was asked for: a majority has said so, or the lease does."""
        return self._contacts.confirmed(stamp) or self._contacts.lease_until_ms() > self._raft.now_ms

    def lease_until_ms(self, now_ms: int) -> int:
        """Until when, on the steady clock, nobody else can lead; 0 when that is not known."""
        self._raft.at(now_ms)
        return self._contacts.lease_until_ms()

    def transfer(self, target_id: str, now_ms: int, *, free_bytes_min: int = 0) -> str:
        """Hand leadership to another node; empty: see `Transfers.begin`. Propose nothing while it is under way.

        Returns:
            Why not; empty when it has begun.
        """
        self._raft.at(now_ms)
        return self._transfers.begin(target_id, free_bytes_min=free_bytes_min)

    def step_down(self, now_ms: int) -> None:
        """Lead no more, and leave it to others for a while. Does nothing in a cluster of one."""
        self._raft.at(now_ms)
        if self._raft.peers and self._raft.leads:
            self._elections.rest()
            self._raft.give_up()

    def recover(self, gone_ids: frozenset[str], now_ms: int) -> str:
        """Leave quarantine without the answers of nodes that are gone for good. What only they held is lost.

        Returns:
            Why not; empty when that was taken note of.
        """
        self._raft.at(now_ms)
        return self._quarantine.recover(gone_ids)

    def installed(self) -> None:
        """The store holds other rows and another journal, which was read anew."""
        self._raft.installed()
        self._receiver.installed()

    # What is known.

    @property
    def leads(self) -> bool:
        """Whether this node believes to be the leader of its term."""
        return self._raft.leads

    @property
    def term(self) -> int:
        """The current term."""
        return self._raft.term

    @property
    def settled(self) -> bool:
        """Whether an entry of this term is applied, and so everything that earlier leaders left behind."""
        return self._journal.term_of(self._journal.applied) == self.term

    @property
    def leader_id(self) -> str:
        """Who leads, as far as this node knows; empty when it has not heard of anybody lately."""
        return self._elections.leader_id

    @property
    def contact_at_ms(self) -> int:
        """When a leader was last heard of, on the steady clock; now while it is this node."""
        return self._elections.contact_at_ms

    @property
    def elections(self) -> int:
        """How often this node has stood for election since it started."""
        return self._elections.count

    @property
    def quarantined(self) -> bool:
        """Whether this node has begun with an empty directory and does not count fully yet."""
        return self._quarantine.active

    @property
    def transferring(self) -> bool:
        """Whether leadership is being handed over."""
        return self._transfers.under_way

    @property
    def takes_entries(self) -> bool:
        """Whether this node takes entries of a leader, or its disk is nearly full."""
        return self._room.takes_entries(self._raft.now_ms)

    def majority_free_bytes(self) -> int | None:
        """How much the disks of a majority can still take, as far as this leader knows; None when it does not."""
        known = [self._room.free_bytes(self._raft.now_ms)]
        known += [contact.ability.free_bytes for contact in map(self._contacts.of, self._raft.connected) if contact]
        needed = self._raft.others_needed
        return sorted(known, reverse=True)[needed] if needed < len(known) else None

    @property
    def behind(self) -> str:
        """The leader whose rows alone can bring this node up to date; empty when entries can."""
        return self._receiver.behind

    def followers(self) -> tuple[Follower, ...]:
        """The peers, as the leader sees them; none on any other node."""
        return tuple(self._follower(peer) for peer in self._raft.peers) if self._raft.leads else ()

    def _follower(self, peer_id: str) -> Follower:
        contact = self._contacts.of(peer_id)
        connected, match_index = peer_id in self._raft.connected, self._raft.match_index(peer_id)
        if contact is None:
            return Follower(peer_id, connected, match_index, None)
        ability = contact.ability
        return Follower(
            peer_id,
            connected,
            match_index,
            contact.answered_at_ms,
            free_bytes=ability.free_bytes,
            takes_entries=ability.takes_entries,
            quarantined=not ability.may_lead,
        )

    def decided_at_ms(self, index: int) -> int | None:
        """When the entry was decided, on this node's steady clock, or a little later; None when nobody can tell."""
        return self._journal.decided_at_ms(index)

    def close(self) -> None:
        """End it. Nothing is written."""
        self._raft.close()
