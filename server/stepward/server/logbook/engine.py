"""pysyncobj, held by the hand: elections, log matching and commit, and nothing else of it.

It is pinned to one version and used at its seams: the journal, the transport, and a few private names that are checked
before anything starts. It has no thread, no socket, no pipe and no clock here, keeps no dump file, pickles nothing of
ours, and applying an entry hands its bytes to the replica.
"""

from __future__ import annotations

import math
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import pysyncobj.syncobj
from pysyncobj import SyncObj, SyncObjConf
from pysyncobj.node import Node
from pysyncobj.version import VERSION

from stepward.server.logbook.errors import EngineUnfit

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from stepward.server.logbook.journal import StoreJournal
    from stepward.server.logbook.transport import FlushingTransport

_VERSION: Final = "0.3.17"
# What an entry is, by its first byte; pysyncobj's numbers.
REGULAR: Final = b"\x00"
NO_OP: Final = b"\x01"

# Seconds. Half a second at the median until another node leads; a leader without a majority gives up within one.
_ELECTION_MIN: Final = 0.3
_ELECTION_MAX: Final = 0.6
_APPEND_PERIOD: Final = 0.05
_LEADER_FALLBACK: Final = 1.0
# How much later each reading of the clock is. Small beside all of the above, and not so small that waiting takes long.
_READING: Final = 1e-4
# From this size on pysyncobj cuts a command into pieces, which is broken. Batches stay far below.
_CHUNKING_BYTES: Final = 16 << 20

_METHODS: Final = (
    "_SyncObj__doApplyCommand",
    "_SyncObj__tryLogCompaction",
    "_SyncObj__loadDumpFile",
    "_applyCommand",
    "_checkCommandsToApply",
    "_isLeader",
    "doTick",
    "raftCurrentTerm",
    "raftLastApplied",
)
_GLOBALS: Final = ("PIPE_NOTIFIER_ENABLED", "createJournal", "createPoller", "monotonicTime")
_FIELDS: Final = ("_SyncObj__raftElectionDeadline", "_SyncObj__raftLastApplied")


def check_version(version: str, library: Any, globals_: Any) -> None:
    """Refuse a pysyncobj that is not the one that was made safe.

    Raises:
        EngineUnfit: It has another version, or lacks a name that this module relies on.
    """
    missing = [name for name in _METHODS if not hasattr(library, name)]
    missing += [name for name in _GLOBALS if not hasattr(globals_, name)]
    if version != _VERSION or missing:
        raise EngineUnfit(version, missing)


class _Clock:
    """The monotonic clock that pysyncobj reads: it stands still within a tick, but for a little at each reading.

    The host's steady clock counts suspension, which CLOCK_MONOTONIC_RAW does not. And time that comes in as an argument
    can be simulated. pysyncobj sends to a peer that is too far behind until time has passed; hence the little.
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
check_version(VERSION, SyncObj, pysyncobj.syncobj)
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


class _Raft(SyncObj):  # type: ignore[misc]  # pysyncobj has no types
    """Applies by calling back, begins where the rows are, never compacts by itself."""

    def __init__(
        self,
        node_id: str,
        peers: Sequence[str],
        journal: StoreJournal,
        transport: FlushingTransport,
        apply: Callable[[int, bytes], None],
    ) -> None:
        self._apply = apply
        with _injected(journal):
            super().__init__(Node(node_id), [Node(peer) for peer in peers], _configuration(), transport=transport)
        missing = [name for name in _FIELDS if name not in vars(self)]
        if missing:
            raise EngineUnfit(VERSION, missing)
        # pysyncobj begins at 1 and would apply a compacted journal never.
        self._SyncObj__raftLastApplied = journal.applied
        if not peers:
            # There is nobody whose silence would have to be waited for.
            self._SyncObj__raftElectionDeadline = -math.inf

    def _SyncObj__doApplyCommand(self, command: bytes) -> None:
        self._apply(self.raftLastApplied + 1, command)

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
        appendEntriesPeriod=_APPEND_PERIOD,
        raftMinTimeout=_ELECTION_MIN,
        raftMaxTimeout=_ELECTION_MAX,
        leaderFallbackTimeout=_LEADER_FALLBACK,
        commandsWaitLeader=False,
        dynamicMembershipChange=False,
        useFork=False,
        fullDumpFile=None,
        journalFile=None,
    )


class Engine:
    """Raft for one replica. Moves only inside `tick` and `propose`, and calls `apply` only from there.

    Args:
        node_id: This node.
        peers: The other voters.
        journal: Opened on the replica's store.
        transport: Where messages leave.
        apply: Called with the index and the bytes of each committed entry, in order, once.
        now_ms: The moment of the start, on the steady clock.

    Raises:
        EngineUnfit: pysyncobj lacks a name that this module relies on.
    """

    def __init__(
        self,
        *,
        node_id: str,
        peers: Sequence[str],
        journal: StoreJournal,
        transport: FlushingTransport,
        apply: Callable[[int, bytes], None],
        now_ms: int,
    ) -> None:
        _clock.seconds = now_ms / 1_000
        self._journal = journal
        self._raft = _Raft(node_id, peers, journal, transport, apply)

    def tick(self, now_ms: int) -> None:
        """Let time pass: elections, commits, applies, messages."""
        _clock.seconds = now_ms / 1_000
        self._raft.doTick(0)

    def propose(self, command: bytes) -> None:
        """Append a command as leader and send it to the peers. It is applied in a tick, or never."""
        assert self.leads
        assert command[:1] == REGULAR
        self._raft._applyCommand(command, None)
        self._raft._checkCommandsToApply()
        assert self._journal[-1][0] is command, "what was proposed is not the journal's last entry"

    @property
    def leads(self) -> bool:
        """Whether this node believes to be the leader of its term."""
        return bool(self._raft._isLeader())

    @property
    def term(self) -> int:
        """The current term."""
        return int(self._raft.raftCurrentTerm)

    @property
    def settled(self) -> bool:
        """Whether an entry of this term is applied, and so everything that earlier leaders left behind."""
        return self._journal.term_of(self._journal.applied) == self.term

    def close(self) -> None:
        """End it. Nothing is written."""
        self._raft.destroy()
