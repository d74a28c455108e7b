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

import zlib
from typing import TYPE_CHECKING, Any, Final

import msgspec
from pysyncobj.journal import Journal

from stepward.server.logbook.errors import JournalCorrupt
from stepward.server.store import facts

if TYPE_CHECKING:
    from stepward.server.store.interface import Store

Entry = tuple[bytes, int, int]  # command, index, term: pysyncobj's order

# Deleted at once, so that compaction never shows up as a pause.
_DELETED_MAX: Final = 256

_FIRST_INDEX: Final = 1
_NO_OP: Final = b"\x01"
_CHECKSUM_BYTES: Final = 4
_HEADER_BYTES: Final = 12


def found(store: Store) -> None:
    """Write the journal of a new cluster: the one entry on which all replicas agree without having talked."""
    store.put_entry(*foundation(_FIRST_INDEX, 0))
    store.put_fact(facts.TERM, msgspec.msgpack.encode((0, None)))
    store.put_fact(facts.APPLIED, facts.encode_applied(_FIRST_INDEX, 0))


def foundation(index: int, term: int) -> tuple[int, bytes]:
    """The one entry of a journal that stands on rows which hold everything up to it.

    Later entries are checked against its index and its term; its command is never applied, and never sent.
    """
    return index, _encode(_NO_OP, index, term)


class StoreJournal(Journal):  # type: ignore[misc]  # pysyncobj has no types
    """What pysyncobj calls a journal. Positions (`[position]`, `deleteEntriesFrom`) count from the first entry kept.

    All entries are also in memory, so their number and their bytes are bounded: what is applied may be deleted, and
    what is not yet applied is bounded by the one batch in flight. See `ReplicaLimits` for the bounds.

    Raises:
        JournalCorrupt: It cannot have been written by us.
    """

    def __init__(self, store: Store, *, entries_max: int, bytes_max: int) -> None:
        self._store = store
        self._entries_max = entries_max
        self._bytes_max = bytes_max
        self._entries: list[Entry] = []
        self._bytes = self._applied = self._term = 0
        self._vote: str | None = None
        self.reload()

    def reload(self) -> None:
        """Read everything anew: at the start, and when all rows of another node were installed.

        Raises:
            JournalCorrupt: It cannot have been written by us.
            StoreCorrupt: Which entry was applied last cannot be read.
        """
        self._entries = [_decode(index, value) for index, value in self._store.entries()]
        self._bytes = sum(len(entry[0]) for entry in self._entries)
        self._applied, applied_term = facts.read_applied(self._store)
        self._term, self._vote = _read_term(self._store)
        self._check(applied_term)

    def _check(self, applied_term: int) -> None:
        indices = [index for _, index, _ in self._entries]
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
        self._store.put_fact(facts.APPLIED, facts.encode_applied(index, self._entries[index - self._entries[0][1]][2]))

    def term_of(self, index: int) -> int | None:
        """The term of an entry; None if it is not in the journal."""
        position = index - self._entries[0][1]
        return self._entries[position][2] if 0 <= position < len(self._entries) else None

    def compact(self) -> None:
        """Delete what is applied and more than is worth keeping; a bounded number of entries at a time."""
        if len(self._entries) <= self._entries_max and self._bytes <= self._bytes_max:
            return
        # An eighth below the bounds, so that this happens now and then, not with every batch.
        entries_goal, bytes_goal = self._entries_max * 7 // 8, self._bytes_max * 7 // 8
        left, count = self._bytes, 0
        # pysyncobj checks what it sends next against the entry before it, so the one before the last applied stays.
        droppable = min(_DELETED_MAX, self._applied - self._entries[0][1] - 1)
        while count < droppable and (len(self._entries) - count > entries_goal or left > bytes_goal):
            left -= len(self._entries[count][0])
            count += 1
        if count:
            self._store.delete_entries(self._entries[0][1], self._entries[count - 1][1])
            del self._entries[:count]
            self._bytes = left

    # What pysyncobj uses, under the names that it gave.

    def add(self, command: bytes, idx: int, term: int) -> None:
        assert idx == self._entries[-1][1] + 1, (idx, self._entries[-1][1])
        self._store.put_entry(idx, _encode(command, idx, term))
        self._entries.append((command, idx, term))
        self._bytes += len(command)

    def deleteEntriesFrom(self, entryFrom: int) -> None:  # noqa: N803 - pysyncobj's names
        first = self._entries[entryFrom][1]
        # pysyncobj only logs this. Rows that were written cannot be taken back.
        assert first > self._applied, (first, self._applied)
        self._store.delete_entries(first, self._entries[-1][1])
        self._bytes -= sum(len(command) for command, _, _ in self._entries[entryFrom:])
        del self._entries[entryFrom:]

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


def _read_term(store: Store) -> tuple[int, str | None]:
    try:
        return msgspec.msgpack.decode(store.fact(facts.TERM) or b"", type=tuple[int, str | None])
    except msgspec.DecodeError as error:
        raise JournalCorrupt(f"term and vote of this node cannot be read: {error}") from error


def _encode(command: bytes, index: int, term: int) -> bytes:
    body = term.to_bytes(8, "big") + command
    return _checksum(body, index).to_bytes(_CHECKSUM_BYTES, "big") + body


def _decode(index: int, value: bytes) -> Entry:
    body = value[_CHECKSUM_BYTES:]
    if len(value) <= _HEADER_BYTES or int.from_bytes(value[:_CHECKSUM_BYTES], "big") != _checksum(body, index):
        raise JournalCorrupt(f"entry {index} of the journal is damaged; restore this node from a backup")
    return body[8:], index, int.from_bytes(body[:8], "big")


def _checksum(body: bytes, index: int) -> int:
    # The index is part of it: an entry under another one's key is as wrong as one with a flipped bit.
    return zlib.crc32(body, index & 0xFFFFFFFF)
