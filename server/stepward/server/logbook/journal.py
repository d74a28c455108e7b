"""The engine's journal, in the store of the rows.

Entries, term and vote change in the same transaction as the rows and the head, so one flush makes "applied up to
here" and "appended up to there" durable together, and neither can be newer than the other.

There is no dump file. What pysyncobj would keep in one, the last applied entry, stands beside the head and moves in
its transaction; the rows themselves are the snapshot. So compaction only deletes entries that the rows hold already,
a crash in the middle of it changes nothing, and there is no second file that could be missing, torn or newer than the
journal. What is checked instead, when the journal is opened: it has no holes, and the last applied entry is in it. A
cluster of one needs no more. With peers a follower may be so far behind that its next entry was deleted; it fetches the
rows, and its journal then begins anew with the last entry that they hold (`foundation`).
"""

from __future__ import annotations

import hashlib
import zlib
from bisect import bisect_right
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec
from pysyncobj.journal import Journal

from stepward.server.logbook import batch as batches
from stepward.server.logbook.errors import JournalCorrupt
from stepward.server.logbook.frames import NO_OP, REGULAR
from stepward.server.store import facts

if TYPE_CHECKING:
    from stepward.server.store.interface import Store


class Entry(NamedTuple):
    """An entry; the first three in pysyncobj's order. `decided_at_ms`: see `StoreJournal.decided_at_ms`."""

    command: bytes
    index: int  # type: ignore[assignment]  # hides tuple.index, which nobody needs here
    term: int
    decided_at_ms: int | None


# Deleted at once, so that compaction never shows up as a pause.
_DELETED_MAX: Final = 256

_FIRST_INDEX: Final = 1
# checksum, term, decided at, boot of that clock; then the command.
_CHECKSUM_BYTES: Final = 4
_BOOT_BYTES: Final = 8
_HEADER_BYTES: Final = _CHECKSUM_BYTES + 8 + 8 + _BOOT_BYTES
# Of an entry of which nobody knows when it was decided.
_NO_BOOT: Final = bytes(_BOOT_BYTES)


def found(store: Store) -> None:
    """Write the journal of a new cluster: the one entry on which all replicas agree without having talked."""
    store.put_entry(*foundation(_FIRST_INDEX, 0))
    store.put_fact(facts.TERM, msgspec.msgpack.encode((0, None)))
    store.put_fact(facts.APPLIED, facts.encode_applied(_FIRST_INDEX, 0))


def foundation(index: int, term: int) -> tuple[int, bytes]:
    """The one entry of a journal that stands on rows which hold everything up to it.

    Later entries are checked against its index and its term; its command is never applied, and never sent.
    """
    return index, _encode(Entry(NO_OP, index, term, None), _NO_BOOT)


def rows_of_entry(index: int, value: bytes) -> tuple[list[tuple[bytes, bytes]], list[bytes]]:
    """Puts and deletes of the batch in an entry, for a store whose log leaves them to the entry.

    Raises:
        JournalCorrupt: The entry is damaged, or no batch.
        BatchUnreadable: The batch is none that this software knows.
    """
    command = _decode(index, value, _NO_BOOT).command
    if not command.startswith(REGULAR):
        raise JournalCorrupt(f"entry {index} of the journal was applied to rows, but is no batch")
    batch, _ = batches.read(index, memoryview(command)[len(REGULAR) :])
    return batch.puts, batch.deletes


class StoreJournal(Journal):  # type: ignore[misc]  # pysyncobj has no types
    """What pysyncobj calls a journal. Positions (`[position]`, `deleteEntriesFrom`) count from the first entry kept.

    All entries are also in memory, so their number and their bytes are bounded: what is applied may be deleted, and
    what is not yet applied is bounded by the one batch in flight. While something is pinned, the larger bounds count.
    Of what every voter holds only the last few stay. See `ReplicaLimits`. `boot_id` names the boot to whose steady
    clock `now_ms` belongs; it is set before each move.

    Raises:
        JournalCorrupt: It cannot have been written by us.
    """

    def __init__(
        self,
        store: Store,
        *,
        entries_max: int,
        bytes_max: int,
        pinned_entries_max: int,
        pinned_bytes_max: int,
        held_entries_max: int,
        boot_id: str,
    ) -> None:
        self.store = self._store = store
        self.now_ms = 0
        self._boot = hashlib.sha256(boot_id.encode()).digest()[:_BOOT_BYTES]
        self._entries_max = entries_max
        self._bytes_max = bytes_max
        self._pinned_entries_max = pinned_entries_max
        self._pinned_bytes_max = pinned_bytes_max
        self._held_entries_max = held_entries_max
        # By name: the first entry that someone still needs.
        self._pins: dict[str, int] = {}
        self._entries: list[Entry] = []
        # By position: bytes of all commands up to and with that entry, counted from some beginning that only moves when
        # everything is read anew.
        self._ends: list[int] = []
        self._applied = self._term = 0
        # Every voter holds everything up to here, as far as this node has heard since it started.
        self._held = 0
        self._vote: str | None = None
        self.reload()

    def reload(self) -> None:
        """Read everything anew: at the start, and when all rows of another node were installed.

        Raises:
            JournalCorrupt: It cannot have been written by us.
            StoreCorrupt: Which entry was applied last cannot be read.
        """
        self._entries = [_decode(index, value, self._boot) for index, value in self._store.entries()]
        self._ends = list(accumulate(len(entry.command) for entry in self._entries))
        self._applied, applied_term = facts.read_applied(self._store)
        self._term, self._vote = _read_term(self._store)
        self._check(applied_term)

    def _check(self, applied_term: int) -> None:
        indices = [entry.index for entry in self._entries]
        if not indices or indices != list(range(indices[0], indices[0] + len(indices))):
            raise JournalCorrupt(f"the journal holds {len(indices)} entries, but they are not one behind the other")
        if not indices[0] <= self._applied <= indices[-1]:
            raise JournalCorrupt(
                f"entry {self._applied} was applied last, but the journal goes from {indices[0]} to {indices[-1]}"
            )
        if self.term_of(self._applied) != applied_term:
            raise JournalCorrupt(
                f"entry {self._applied} was applied with term {applied_term}, but in the journal it has term "
                f"{self.term_of(self._applied)}"
            )

    # What the replica uses.

    @property
    def applied(self) -> int:
        """The index of the last entry applied."""
        return self._applied

    def mark_applied(self, index: int) -> None:
        """Note that the rows hold everything up to `index`, in the transaction that wrote them."""
        assert index == self._applied + 1, (index, self._applied)
        self._applied = index
        # The term, too: who installs these rows has no other way to know it.
        self._store.put_fact(facts.APPLIED, facts.encode_applied(index, self._entries[index - self.first_index].term))

    def pin(self, name: str, index: int) -> None:
        """Keep the entries from `index` on although the rows hold them, within the bounds for that.

        Someone fetches the rows, and will need what came behind them. `name` is his, and unpins.
        """
        self._pins[name] = index

    def unpin(self, name: str) -> None:
        """He has what he needs, or has gone."""
        self._pins.pop(name, None)

    def note_held(self, index: int) -> None:
        """Every voter holds everything up to `index`, durably. It stays true: who loses all needs all rows anyway."""
        self._held = max(self._held, index)

    def compact(self) -> None:
        """Delete what is applied and more than is worth keeping; a bounded number of entries at a time."""
        # pysyncobj checks what it sends next against the entry before it, so the one before the last applied stays.
        deletable = self._applied - self.first_index - 1
        count = min(_DELETED_MAX, deletable, max(self._beyond_bounds(deletable), self._needless()))
        if count > 0:
            self._store.delete_entries(self.first_index, self._entries[count - 1].index)
            del self._entries[:count], self._ends[:count]

    def _beyond_bounds(self, deletable: int) -> int:
        """How many entries to delete because there are too many, or too large ones, whoever may need them."""
        entries_max, bytes_max = self._entries_max, self._bytes_max
        if len(self._entries) <= entries_max and self._bytes <= bytes_max:
            return 0
        if self._pins:
            if len(self._entries) <= self._pinned_entries_max and self._bytes <= self._pinned_bytes_max:
                deletable = min(deletable, self._unpinned)
            else:
                # He takes too long, and has to begin anew.
                entries_max, bytes_max = self._pinned_entries_max, self._pinned_bytes_max
        entries_goal, bytes_goal = _goal(entries_max), _goal(bytes_max)
        left, count = self._bytes, 0
        deletable = min(_DELETED_MAX, deletable)
        while count < deletable and (len(self._entries) - count > entries_goal or left > bytes_goal):
            left -= len(self._entries[count].command)
            count += 1
        return count

    def _needless(self) -> int:
        """How many entries to delete because every voter holds them and what follows: all but the last of them."""
        held = self._held - self.first_index
        if held <= self._held_entries_max:
            return 0
        return min(held - _goal(self._held_entries_max), self._unpinned)

    @property
    def _unpinned(self) -> int:
        """How many entries nobody has pinned."""
        return min(self._pins.values(), default=self.last_index) - self.first_index

    # What the engine uses.

    @property
    def first_index(self) -> int:
        """The first entry that is kept."""
        return self._entries[0].index

    @property
    def last_index(self) -> int:
        """The last entry."""
        return self._entries[-1].index

    @property
    def last(self) -> tuple[int, int]:
        """Index and term of the last entry."""
        return self._entries[-1].index, self._entries[-1].term

    def term_of(self, index: int) -> int | None:
        """The term of an entry; None if it is not in the journal."""
        position = index - self.first_index
        return self._entries[position].term if 0 <= position < len(self._entries) else None

    def decided_at_ms(self, index: int) -> int | None:
        """When an entry was decided, on the steady clock of this node, or a little later.

        None when it is not in the journal, or when nobody knows: it was decided before this machine was booted, or came
        from one who did not know.
        """
        position = index - self.first_index
        return self._entries[position].decided_at_ms if 0 <= position < len(self._entries) else None

    def between(self, first: int, end: int) -> list[Entry]:
        """The entries from `first` on and before `end`, which are in the journal."""
        return self._entries[first - self.first_index : end - self.first_index]

    def bytes_between(self, first: int, end: int) -> int:
        """How many bytes the commands from `first` on and before `end` have, as far as they are in the journal."""
        first = max(first, self.first_index)
        if first >= end:
            return 0
        return self._ends[end - 1 - self.first_index] - self._bytes_before(first - self.first_index)

    def last_fitting(self, first: int, bytes_max: int, entries_max: int) -> int:
        """The last entry that fits when everything from `first` on is taken: at least that one if any bytes may be.

        `first` - 1 when none does.
        """
        if bytes_max <= 0 or first > self.last_index:
            return first - 1
        position = first - self.first_index
        end = bisect_right(self._ends, self._bytes_before(position) + bytes_max, lo=position)
        return first - 1 + min(max(end - position, 1), entries_max)

    @property
    def _bytes(self) -> int:
        return self._ends[-1] - self._bytes_before(0)

    def _bytes_before(self, position: int) -> int:
        return self._ends[position] - len(self._entries[position].command)

    # What pysyncobj uses, under the names that it gave.

    def add(self, *entry: Any) -> None:
        """Called with an `Entry` of another leader, or with command, index and term of one that is decided now."""
        if len(entry) == len(Entry._fields):
            added = Entry(*entry)
        else:
            command, index, term = entry
            added = Entry(command, index, term, self.now_ms)
        assert added.index == self.last_index + 1, (added.index, self.last_index)
        self._store.put_entry(added.index, _encode(added, self._boot))
        self._entries.append(added)
        self._ends.append(self._ends[-1] + len(added.command))

    def deleteEntriesFrom(self, entryFrom: int) -> None:  # noqa: N803 - pysyncobj's names
        first = self._entries[entryFrom].index
        # pysyncobj only logs this. Rows that were written cannot be taken back.
        assert first > self._applied, (first, self._applied)
        self._store.delete_entries(first, self.last_index)
        del self._entries[entryFrom:], self._ends[entryFrom:]

    def deleteEntriesTo(self, entryTo: int) -> None:  # noqa: N803 - pysyncobj's names
        raise AssertionError(f"pysyncobj compacts the journal up to position {entryTo}, which is `compact`'s business")

    def clear(self) -> None:
        raise AssertionError("pysyncobj empties the journal, which would lose what was acknowledged")

    def __getitem__(self, item: Any) -> Any:
        return self._entries[item]

    def __len__(self) -> int:
        return len(self._entries)

    def setRaftCommitIndex(self, raftCommitIndex: int) -> None:  # noqa: N803 - pysyncobj's names
        """Not stored: see `getRaftCommitIndex`."""

    def getRaftCommitIndex(self) -> int:
        """At start, what the rows hold. A stored index may be ahead of them, and was trusted blindly."""
        return self._applied

    def setCurrentTerm(self, term: int, votedForNodeId: str | None) -> None:  # noqa: N803 - pysyncobj's names
        assert term >= self._term, (term, self._term)
        self._term, self._vote = term, votedForNodeId
        self._store.put_fact(facts.TERM, msgspec.msgpack.encode((term, votedForNodeId)))

    def getCurrentTerm(self) -> int:
        return self._term

    def getVotedForNodeId(self) -> str | None:
        return self._vote

    def _destroy(self) -> None:
        """The store belongs to the replica."""


def _goal(bound: int) -> int:
    """An eighth below a bound, so that there is something to delete now and then, not with every batch."""
    return bound * 7 // 8


def _read_term(store: Store) -> tuple[int, str | None]:
    try:
        return msgspec.msgpack.decode(store.fact(facts.TERM) or b"", type=tuple[int, str | None])
    except msgspec.DecodeError as error:
        raise JournalCorrupt(f"term and vote of this node cannot be read: {error}") from error


def _encode(entry: Entry, boot: bytes) -> bytes:
    decided_at_ms, boot = (0, _NO_BOOT) if entry.decided_at_ms is None else (entry.decided_at_ms, boot)
    stamp = decided_at_ms.to_bytes(8, "big", signed=True) + boot
    body = entry.term.to_bytes(8, "big") + stamp + entry.command
    return _checksum(body, entry.index).to_bytes(_CHECKSUM_BYTES, "big") + body


def _decode(index: int, value: bytes, boot: bytes) -> Entry:
    body = value[_CHECKSUM_BYTES:]
    if len(value) <= _HEADER_BYTES or int.from_bytes(value[:_CHECKSUM_BYTES], "big") != _checksum(body, index):
        raise JournalCorrupt(f"entry {index} of the journal is damaged; restore this node from a backup")
    decided_at_ms = int.from_bytes(body[8:16], "big", signed=True) if body[16 : 16 + _BOOT_BYTES] == boot else None
    return Entry(body[16 + _BOOT_BYTES :], index, int.from_bytes(body[:8], "big"), decided_at_ms)


def _checksum(body: bytes, index: int) -> int:
    # The index is part of it: an entry under another one's key is as wrong as one with a flipped bit.
    return zlib.crc32(body, index & 0xFFFFFFFF)
