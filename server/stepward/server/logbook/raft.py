"""pysyncobj, held by the hand: elections, log matching and commit, and nothing else of it.

It is pinned to one version and used at its seams: the journal, the transport, and private names that are checked
before anything starts. It has no thread, no socket, no pipe, no clock and no timer of its own here, keeps no dump file,
pickles nothing, sends no entries by itself, and applying an entry hands its bytes out. This module is the only one that
knows those names.
"""

from __future__ import annotations

import math
import zlib
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pysyncobj.syncobj
from pysyncobj import SyncObj, SyncObjConf
from pysyncobj.node import Node
from pysyncobj.transport import Transport
from pysyncobj.version import VERSION

from stepward.server.logbook.errors import EngineUnfit

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from stepward.server.logbook.journal import Entry, StoreJournal

_VERSION: Final = "0.3.17"

# Half a second at the median until another node leads; a leader without a majority gives up within one.
ELECTION_MIN_MS: Final = 300
ELECTION_MAX_MS: Final = 600
# How often a leader says that it lives when nothing else does. This is most of what a cluster at rest costs, on every
# node; and of four in a minimum election timeout three may be late before anybody stands.
APPEND_PERIOD_MS: Final = 75
LEADER_FALLBACK_MS: Final = 1_000
# How much later each reading of the clock is, in seconds. Small beside all of the above, and not so small that waiting
# takes long.
_READING: Final = 1e-4
# From this size on pysyncobj cuts a command into pieces, which is broken. Batches stay far below.
_CHUNKING_BYTES: Final = 16 << 20

METHODS: Final = (
    "_SyncObj__doApplyCommand",
    "_SyncObj__loadDumpFile",
    "_SyncObj__sendAppendEntries",
    "_SyncObj__tryLogCompaction",
    "_applyCommand",
    "_checkCommandsToApply",
    "_getLeader",
    "_isLeader",
    "doTick",
    "raftCommitIndex",
    "raftCurrentTerm",
    "raftLastApplied",
)
GLOBALS: Final = ("PIPE_NOTIFIER_ENABLED", "createJournal", "createPoller", "monotonicTime")
FIELDS: Final = (
    "_SyncObj__lastResponseTime",
    "_SyncObj__newAppendEntriesTime",
    "_SyncObj__raftCommitIndex",
    "_SyncObj__raftLastApplied",
    "_SyncObj__raftMatchIndex",
    "_SyncObj__raftNextIndex",
)
SEAM: Final = ("_onMessageReceived", "_onNodeConnected", "_onNodeDisconnected", "send")


def check_version(version: str, library: Any, globals_: Any, seam: Any) -> None:
    """Refuse a pysyncobj that is not the one that was made safe.

    Raises:
        EngineUnfit: It has another version, or lacks a name that this module relies on.
    """
    missing = [name for name in METHODS if not hasattr(library, name)]
    missing += [name for name in GLOBALS if not hasattr(globals_, name)]
    missing += [name for name in SEAM if not hasattr(seam, name)]
    if version != _VERSION or missing:
        raise EngineUnfit(version, missing)


def check_fields(made: Any, *, timer_seen: bool) -> None:
    """Refuse a pysyncobj whose objects are others than those that were made safe.

    Raises:
        EngineUnfit: A field that this module relies on is not there, or its election timer has another name.
    """
    missing = [name for name in FIELDS if name not in vars(made)]
    missing += [] if timer_seen else ["_SyncObj__raftElectionDeadline"]
    if missing:
        raise EngineUnfit(VERSION, missing)


class _Clock:
    """The monotonic clock that pysyncobj reads: it stands still within a tick, but for a little at each reading.

    The host's steady clock counts suspension, which CLOCK_MONOTONIC_RAW does not. And time that comes in as an argument
    can be simulated. Some of pysyncobj's loops end only when time has passed; hence the little.
    """

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        self.seconds += _READING
        return self.seconds


class _NullPoller:
    """pysyncobj polls its sockets here; it has none."""

    def poll(self, timeout: float) -> None: ...

    def subscribe(self, descriptor: int, callback: object, mask: int) -> None: ...

    def unsubscribe(self, descriptor: int) -> None: ...


# pysyncobj's clock and its pipe are globals of its module, read at every call, so they are set for good. All engines
# of a process share the clock; each sets it before it moves.
_clock: Final = _Clock()
check_version(VERSION, SyncObj, pysyncobj.syncobj, Transport)
pysyncobj.syncobj.monotonicTime = _clock
pysyncobj.syncobj.PIPE_NOTIFIER_ENABLED = False


@contextmanager
def _injected(journal: StoreJournal) -> Iterator[None]:
    """What pysyncobj makes for itself while it is constructed, made by us."""
    module = pysyncobj.syncobj
    before = module.createJournal, module.createPoller
    module.createJournal, module.createPoller = lambda _path: journal, lambda _kind: _NullPoller()
    try:
        yield
    finally:
        module.createJournal, module.createPoller = before


class Voice(NamedTuple):
    """What pysyncobj wants to say or to have done; each is called while it moves.

    `answer_append(peer_id, next_index, matches)`, `request_vote(peer_id, term, last_index, last_term)`, `vote(peer_id,
    term)` are messages; `send_appends()` asks for a round of appends since a sign of life is due, `send_news()` since
    there are new entries or more is committed; `restart_timer()` asks for the election timer to begin anew,
    `apply(index, command)` for an entry to be applied.
    """

    answer_append: Callable[[str, int, bool], None]
    request_vote: Callable[[str, int, int, int], None]
    vote: Callable[[str, int], None]
    send_appends: Callable[[], None]
    send_news: Callable[[], None]
    restart_timer: Callable[[], None]
    apply: Callable[[int, bytes], None]


class _Seam(Transport):  # type: ignore[misc]  # pysyncobj has no types
    """Where pysyncobj believes its messages to leave. Those that it must never send end the node."""

    def __init__(self) -> None:
        super().__init__(None, None, [])
        self.voice: Voice | None = None

    def send(self, node: Any, message: dict[str, Any]) -> bool:
        """Called by pysyncobj for each message."""
        assert self.voice is not None, message["type"]
        match message["type"]:
            case "next_node_idx":
                self.voice.answer_append(node.id, message["next_node_idx"], message["success"])
            case "request_vote":
                self.voice.request_vote(node.id, message["term"], message["last_log_index"], message["last_log_term"])
            case "response_vote":
                self.voice.vote(node.id, message["term"])
            case kind:
                raise AssertionError(f"pysyncobj sends {kind} to {node.id}")
        return True


class _Member(Node):  # type: ignore[misc]  # pysyncobj has no types
    """A node whose place in a set is the same in every process, so that a simulation can be repeated."""

    def __init__(self, node_id: str) -> None:
        super().__init__(node_id)
        self._place = zlib.crc32(node_id.encode())

    def __hash__(self) -> int:  # type: ignore[explicit-override]  # `override` is of 3.12
        return self._place


class _Held(SyncObj):  # type: ignore[misc]  # pysyncobj has no types
    """Applies by calling back, begins where the rows are, never compacts, sends entries or stands by itself."""

    # Of pysyncobj: when the next sign of life is due.
    _SyncObj__newAppendEntriesTime: float

    def __init__(self, node_id: str, members: Sequence[_Member], journal: StoreJournal, seam: _Seam) -> None:
        self._seam = seam
        self._timer_seen = False
        # Stands for election in this tick. Its own deadline is never reached, so that a process that was suspended
        # between our checks and its tick cannot stand by accident.
        self.stands = False
        with _injected(journal):
            super().__init__(_Member(node_id), members, _configuration(), transport=seam)
        check_fields(self, timer_seen=self._timer_seen)
        # pysyncobj begins at 1 and would apply a compacted journal never.
        self._SyncObj__raftLastApplied = journal.applied

    @property
    def _SyncObj__raftElectionDeadline(self) -> float:
        return -math.inf if self.stands else math.inf

    @_SyncObj__raftElectionDeadline.setter
    def _SyncObj__raftElectionDeadline(self, _: float) -> None:
        self._timer_seen = True
        if self._seam.voice is not None:
            self._seam.voice.restart_timer()

    def _SyncObj__doApplyCommand(self, command: bytes) -> None:
        assert self._seam.voice is not None
        self._seam.voice.apply(self.raftLastApplied + 1, command)

    def _SyncObj__sendAppendEntries(self) -> None:
        assert self._seam.voice is not None
        now = _clock()
        is_sign_of_life = now > self._SyncObj__newAppendEntriesTime
        self._SyncObj__newAppendEntriesTime = now + APPEND_PERIOD_MS / 1_000
        if is_sign_of_life:
            self._seam.voice.send_appends()
        else:
            self._seam.voice.send_news()

    def _SyncObj__tryLogCompaction(self) -> None:
        """Done by the journal, in the replica's transaction."""

    def _SyncObj__loadDumpFile(self, clearJournal: bool) -> None:  # noqa: N803 - pysyncobj's names
        raise AssertionError(f"pysyncobj loads a dump file (clearJournal={clearJournal}); there is none")


def _configuration() -> Any:
    return SyncObjConf(
        autoTick=False,
        # One batch is in flight at a time: waiting for more to send along would only cost time.
        appendEntriesUseBatch=False,
        appendEntriesBatchSizeBytes=_CHUNKING_BYTES,
        appendEntriesPeriod=APPEND_PERIOD_MS / 1_000,
        raftMinTimeout=ELECTION_MIN_MS / 1_000,
        raftMaxTimeout=ELECTION_MAX_MS / 1_000,
        leaderFallbackTimeout=LEADER_FALLBACK_MS / 1_000,
        commandsWaitLeader=False,
        dynamicMembershipChange=False,
        useFork=False,
        fullDumpFile=None,
        journalFile=None,
    )


class Raft:
    """pysyncobj under names of ours. `at` sets the moment at which everything that follows happens."""

    def __init__(self, *, node_id: str, peers: Sequence[str], journal: StoreJournal, now_ms: int) -> None:
        self.node_id = node_id
        self.peers = tuple(peers)
        self.journal = journal
        self.now_ms = now_ms
        self.connected: set[str] = set()
        self._members = {peer: _Member(peer) for peer in peers}
        self._seam = _Seam()
        self.at(now_ms)
        self._held = _Held(node_id, list(self._members.values()), journal, self._seam)

    def speak_by(self, voice: Voice) -> None:
        """Before anything moves: who hears what it wants."""
        self._seam.voice = voice

    def at(self, now_ms: int) -> None:
        """It is now that much, on the steady clock."""
        self.now_ms = self.journal.now_ms = now_ms
        _clock.seconds = now_ms / 1_000

    @property
    def leads(self) -> bool:
        """Whether this node believes to be the leader of its term."""
        return bool(self._held._isLeader())

    @property
    def term(self) -> int:
        """The current term."""
        return int(self._held.raftCurrentTerm)

    @property
    def leader_id(self) -> str:
        """Who was last known to lead this term; empty when nobody was."""
        leader = self._held._getLeader()
        return "" if leader is None else str(leader.id)

    @property
    def commit_index(self) -> int:
        """The last entry known to be committed."""
        return int(self._held.raftCommitIndex)

    @property
    def others_needed(self) -> int:
        """How many others make a majority together with this node."""
        return (len(self.peers) + 1) // 2

    @property
    def append_at_ms(self) -> int:
        """When this leader says next that it lives, if it says nothing before."""
        # Up to the next millisecond: a tick a little too early does nothing.
        return math.ceil(self._held._SyncObj__newAppendEntriesTime * 1_000) + 1

    def tick(self, *, stand: bool) -> None:
        """Let time pass: commits, applies, appends, and the one election if it shall stand."""
        self._held.stands = stand
        self._held.doTick(0)
        self._held.stands = False

    def propose(self, command: bytes) -> None:
        """Append a command as leader."""
        self._held._applyCommand(command, None)
        self._held._checkCommandsToApply()

    def link(self, peer_id: str) -> None:
        """There is a stream to the peer."""
        self.connected.add(peer_id)
        self._seam._onNodeConnected(self._members[peer_id])

    def unlink(self, peer_id: str) -> None:
        """There is none any more."""
        self.connected.discard(peer_id)
        self._seam._onNodeDisconnected(self._members[peer_id])

    # What peers said, once the guards have let it pass.

    def append(
        self, leader_id: str, *, term: int, previous: tuple[int, int], commit_index: int, entries: Sequence[Entry]
    ) -> None:
        """Take over what the leader of that term sent behind the entry `previous` (index, term); answers at once."""
        self._deliver(
            leader_id,
            type="append_entries",
            term=term,
            commit_index=commit_index,
            entries=entries,
            prevLogIdx=previous[0],
            prevLogTerm=previous[1],
        )

    def hear_leader(self, leader_id: str, term: int) -> None:
        """The leader of that term lives; nothing is known of its log. What pysyncobj makes of a snapshot not ready."""
        self._deliver(leader_id, type="append_entries", term=term, commit_index=0, serialized=None)

    def ask_vote(self, candidate_id: str, *, term: int, last_index: int, last_term: int) -> None:
        """Give the candidate the vote if it may have it."""
        self._deliver(candidate_id, type="request_vote", term=term, last_log_index=last_index, last_log_term=last_term)

    def adopt(self, peer_id: str, term: int) -> None:
        """A higher term was heard of: follow in it. Asked for a vote by one whose log can never win, pysyncobj does."""
        self.ask_vote(peer_id, term=term, last_index=-1, last_term=-1)

    def count_vote(self, voter_id: str, term: int) -> None:
        """A peer has given its vote for that term."""
        self._deliver(voter_id, type="response_vote", term=term)

    def acknowledge(self, peer_id: str, next_index: int) -> None:
        """A follower holds everything below `next_index`."""
        self._deliver(peer_id, type="next_node_idx", next_node_idx=next_index, reset=False, success=True)

    def respond(self, peer_id: str) -> None:
        """A follower has answered, and that is all."""
        self._deliver(peer_id, type="next_node_idx", next_node_idx=0, reset=False, success=False)

    def _deliver(self, peer_id: str, **message: Any) -> None:
        self._seam._onMessageReceived(self._members[peer_id], message)

    # What a leader knows of its followers.

    def next_index(self, peer_id: str) -> int:
        """The entry that the peer is sent next."""
        return int(self._held._SyncObj__raftNextIndex.get(self._members[peer_id], 0))

    def send_next(self, peer_id: str, index: int) -> None:
        """Send the peer that entry next."""
        self._held._SyncObj__raftNextIndex[self._members[peer_id]] = index

    def match_index(self, peer_id: str) -> int:
        """Up to where the peer is known to hold what this leader does; 0: not known."""
        return int(self._held._SyncObj__raftMatchIndex.get(self._members[peer_id], 0))

    @property
    def held_index(self) -> int:
        """Up to where every voter is known to hold what this leader does; 0 on any other node."""
        if not self.leads:
            return 0
        return min(map(self.match_index, self.peers), default=self.journal.last_index)

    def forget_match(self, peer_id: str) -> None:
        """The peer has lost what it had."""
        if self._members[peer_id] in self._held._SyncObj__raftMatchIndex:
            self._held._SyncObj__raftMatchIndex[self._members[peer_id]] = 0

    def give_up(self) -> None:
        """Lead no more: it is as if nobody had answered for long. Nothing happens in a cluster of one."""
        for member in self._members.values():
            self._held._SyncObj__lastResponseTime[member] = -math.inf
        self.tick(stand=False)

    def installed(self) -> None:
        """The journal begins anew where the rows now are."""
        self._held._SyncObj__raftCommitIndex = self._held._SyncObj__raftLastApplied = self.journal.applied

    def close(self) -> None:
        """End it. Nothing is written."""
        self._held.destroy()
