"""What goes into a step of a replica, and what comes out of it."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple, Protocol

from msgspec import Struct

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from stepward.server.core.commands import Answer, Command
    from stepward.server.core.decide import Decision, Moment
    from stepward.server.core.reader import Reader
    from stepward.server.core.rows import Head, Row
    from stepward.server.store.interface import Incoming


class Instant(NamedTuple):
    """What a host's clocks say. `steady_ms` counts suspension (CLOCK_BOOTTIME) and belongs to one boot."""

    steady_ms: int
    wall_ms: int


class Proposal(NamedTuple):
    """A command that someone waits for. `token` is the host's own, and comes back with the answer.

    An urgent one is decided with the next batch, in front of whatever waits: a lease hangs on it. One with a `share`
    asks for new work: it waits behind what belongs to work that exists, and takes turns with those of other shares.
    """

    token: object
    command: Command
    urgent: bool = False
    share: str = ""


class Confirm(NamedTuple):
    """Asks which batches a reader must see. Answered `Confirmed` once it is sure that this node led when it came."""

    token: object


class Transfer(NamedTuple):
    """Asks to hand leadership to another node; empty: to the one that is most up to date. Answered `Transferred`."""

    token: object
    target_id: str = ""


class Recover(NamedTuple):
    """A person's word that these nodes will never come back with what they have promised. Answered `Recovered`."""

    token: object
    gone_ids: frozenset[str]


class Arrived(NamedTuple):
    """A message of a peer. `connection` rises with every stream that the peer opens, also over its restarts."""

    peer_id: str
    connection: int
    content: bytes


class Linked(NamedTuple):
    """A new stream to a peer stands: what is sent from now on arrives in order, or not at all."""

    peer_id: str


class Unlinked(NamedTuple):
    """The stream to a peer is gone."""

    peer_id: str


class Serves(NamedTuple):
    """Clients or agents of a peer wait for it to apply what is committed, and will for so long from now on.

    A leader tells such a peer at once what is committed, and others with the next entries, or a little later.
    """

    peer_id: str
    for_ms: int


Letter = Proposal | Confirm | Transfer | Recover | Arrived | Linked | Unlinked | Serves


class Confirmed(NamedTuple):
    """Answer to `Confirm`: everything up to the sequence that comes with it was committed when it was asked."""


class Transferred(NamedTuple):
    """Answer to `Transfer`: who leads now, in which term."""

    leader_id: str
    term: int


class Recovered(NamedTuple):
    """Answer to `Recover`."""


class Answered(NamedTuple):
    """What became of a proposal, or of a question: exactly one for each.

    A Rejection NOT_LEADER, OVERLOADED or DISK_FULL says that it was never decided; COMMIT_UNKNOWN says that nobody
    knows. An answer of any other kind was decided on the rows of `sequence`, or is itself part of that batch.
    """

    token: object
    answer: Answer | Confirmed | Transferred | Recovered
    sequence: int


class Frame(NamedTuple):
    """A message for a peer, to be put on the stream to it behind those before; dropped when there is none."""

    peer_id: str
    content: bytes


@dataclass(frozen=True)
class Applied:
    """A batch that is applied and durable.

    `changes` are the decoded rows (None: deleted) when this leader decided the batch; None when it came from
    elsewhere, and then `puts` and `deletes` say the same in bytes. The batch that opens an epoch changes no row.
    """

    sequence: int
    epoch: int
    changes: Mapping[bytes, Row | None] | None
    puts: Sequence[tuple[bytes, bytes]]
    deletes: Sequence[bytes]

    @cached_property
    def rows_by_kind(self) -> Mapping[int, list[tuple[bytes, Row | bytes | None]]]:
        """What the batch put and deleted (None), by the first byte of the key; in bytes when it came from elsewhere.

        Told once for all who follow batches: each of them wants a few kinds of row, and a batch may have thousands.
        """
        found: defaultdict[int, list[tuple[bytes, Row | bytes | None]]] = defaultdict(list)
        if self.changes is not None:
            for change in self.changes.items():
                found[change[0][0]].append(change)
            return found
        for put in self.puts:
            found[put[0][0]].append(put)
        for key in self.deletes:
            found[key[0]].append((key, None))
        return found


class Standing(NamedTuple):
    """What a replica is at the end of a step. `leads`: its epoch is open and it decides commands.

    `leader_id` is the node that leads as far as this one knows, empty when it knows none. Until `lease_until_ms`, on
    the steady clock, nobody else can lead. `contact_at_ms` is when a leader was last heard of, also this node itself. A
    node whose disk is nearly full takes no entries of its leader.
    """

    leads: bool
    epoch: int
    term: int
    head: Head
    leader_id: str = ""
    lease_until_ms: int = 0
    contact_at_ms: int = 0
    quarantined: bool = False
    takes_entries: bool = True

    @property
    def told(self) -> tuple[bool, int, str, bool]:
        """What of a standing is told when it changes; the rest changes all the time."""
        return self.leads, self.epoch, self.leader_id, self.quarantined


class Follower(NamedTuple):
    """Another node as the leader sees it. `answered_at_ms`, on the steady clock: None when it has not yet answered.

    What its newest answer told, None before the first: how much its disk can still take, whether it takes entries, and
    whether it is in quarantine.
    """

    node_id: str
    connected: bool
    match_index: int
    answered_at_ms: int | None
    free_bytes: int | None = None
    takes_entries: bool | None = None
    quarantined: bool | None = None


class Condition(NamedTuple):
    """What an operator asks for beside the standing: too much to be made for every step.

    `waiting` counts commands that wait for a batch. The log is kept from `log_first_index` to `log_last_index`. On a
    leader `majority_free_bytes` is what each disk of a majority can take at least; None: it has not heard from one.
    """

    waiting: int
    log_first_index: int
    log_last_index: int
    elections: int = 0
    followers: Sequence[Follower] = ()
    majority_free_bytes: int | None = None


class Outbox(NamedTuple):
    """What a step gave. `wake_at_ms` is the steady instant at which `step` wants to be called again, at the latest.

    `fetch_from` names the node that leads when this one can only go on with all of its rows; it stays until it has
    them. `installed`: it has them since the last step, and whoever follows what is applied starts over from rows before
    it looks at `applied`. `unreadable` are peers of which something could not be read: the host closes their streams.
    `is_deciding`: a batch is on its way to the others, so no proposal can be decided before one of them has answered.
    """

    answers: Sequence[Answered]
    applied: Sequence[Applied]
    standing: Standing
    wake_at_ms: int
    frames: Sequence[Frame] = ()
    fetch_from: str = ""
    installed: bool = False
    unreadable: Sequence[str] = ()
    is_deciding: bool = False


class Fetched(NamedTuple):
    """All rows of the node that leads, and where they stand. Complete, checked, and not yet installed.

    `head` is the last batch that they hold, as it stands beside them; the other two are index and term of the last
    entry that they hold.
    """

    incoming: Incoming
    head: bytes
    applied_index: int
    applied_term: int


class Decider(Protocol):
    """The rules: `core.decide.decide` with its limits and its chance filled in."""

    def __call__(self, reader: Reader, commands: Sequence[Command], moment: Moment, /) -> Decision: ...


class ReplicaLimits(Struct, frozen=True):
    """Bounds of one replica."""

    # Commands gathered into one batch: the decision has to fit between two heartbeats.
    commands_max: int = 2_000
    # Gathering stops here: entries of this size keep a follower's catch-up in small bites.
    gathered_bytes_max: int = 1 << 20
    # One command alone may need more, up to here; above it the engine would cut the batch into pieces.
    batch_bytes_max: int = 8 << 20
    # Proposals that wait. Admission stands in front of this; here is only the last wall before memory ends.
    waiting_max: int = 100_000
    # When one that found no place should come back: this wall is met only when everything in front of it has failed.
    overloaded_retry_after_ms: int = 1_000
    # Journal entries that are kept although the rows hold them: what followers that were away for a short while can be
    # given one by one. All of them are in memory.
    journal_entries_max: int = 4_096
    journal_bytes_max: int = 64 << 20
    # Of those that every voter holds. One that has just started has applied a batch or two less than it holds, and is
    # sent these again; nobody asks for older ones, and they would be disk and memory that grow while nothing happens.
    held_entries_max: int = 128
    # As above, but while another node fetches all rows: a minute of full load, and less memory than the rows may need.
    pinned_entries_max: int = 65_536
    pinned_bytes_max: int = 128 << 20
    # Below this much free disk nothing is decided: a commit that fails half-way ends the process.
    free_bytes_min: int = 32 << 20
    # Below this a follower takes no entries, until it has as much as a leader needs. What it took before, and its terms
    # and votes, still find room.
    free_bytes_follower_min: int = 16 << 20
    # How long a node whose disk is full leads before it hands over once more, in case leadership came back: when all
    # disks are full it should not go round and round, but say so.
    full_disk_leads_ms: int = 10_000
    # How often the engine moves when nothing happens, and no timer of its own is due. Nobody depends on it.
    idle_ms: int = 100
    # How often it moves while it waits for something beside its own timers: a transfer, an epoch that opens.
    tick_ms: int = 20
    # A leader whose flush took longer gives up: a whole election would have been over, and the others have quick disks.
    flush_ms_max_leader: int = 600
    # How old an answer about the free disk may be.
    free_bytes_age_ms: int = 100
