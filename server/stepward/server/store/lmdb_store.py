"""A store on disk, in one LMDB environment, with a log in front of it where one is wanted.

LMDB writes pages aside, flushes them, and then flips one meta page: a commit is there whole or not at all, after a
power cut too, as long as both flushes happen (`sync` and `metasync`). Without the second the last commit was lost in
power-cut trials, without the first everything was.

With a log a commit is a record there, and LMDB's write transaction stays open until a few MiB have come together, or
somebody asks for a snapshot, or the store is closed (`write_ahead`). What is read goes through that transaction.
"""

from __future__ import annotations

import os
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, assert_never

from stepward.server.store import facts as fact_names
from stepward.server.store.environment import (
    DATA_FILE,
    LOCK_FILE,
    Environment,
    disk_free_bytes,
    flush_names,
    taking,
)
from stepward.server.store.errors import ServerError, StoreAbsent, StoreCorrupt, StoreError, StoreFailed, StoreFull
from stepward.server.store.incoming import LmdbIncoming, is_leftover, remove_leftovers
from stepward.server.store.lmdb_reading import AHEAD, LmdbExport, LmdbReading
from stepward.server.store.lock import DirectoryLock
from stepward.server.store.write_ahead import (
    ID_BYTES,
    LOG_FILE,
    Apart,
    EntriesDeleted,
    EntryApplied,
    EntryPut,
    FactPut,
    RowsChanged,
    WriteAhead,
    read_log,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from pathlib import Path

    from stepward.server.store.interface import Incoming, RowsOfEntry
    from stepward.server.store.write_ahead import Change

# Address space, not disk: the file grows with what is in it. It only has to be larger than any disk we meet.
MAP_BYTES_DEFAULT: Final = 64 << 30
# What lies in a directory of ours, and what file systems put there.
_OUR_FILES: Final = frozenset({DATA_FILE, LOCK_FILE, LOG_FILE, "node.lock", "lost+found", "cluster"})
# What a node lets its log take. Larger means that data is written less often, and takes longer each time.
LOG_BYTES_DEFAULT: Final = 8 << 20
# Less free disk than this is refused at once, in words: a start writes, and a write that fails says less.
FREE_BYTES_MIN: Final = 1 << 20
# Changes that the log may be ahead of the data: each is a page or two in memory, and of work for the loop when they are
# written.
CHANGES_AHEAD_MAX: Final = 16_384
_PAGES_A_CHANGE: Final = 2
_PAGE_BYTES: Final = 4_096
# With less free space than this every commit goes to the data: so what a log would put off always finds room.
FREE_BYTES_LOG_MIN: Final = 256 << 20
# How the log stands in the facts: this, and its id.
_LOG_FORMAT: Final = b"\x01"


class LmdbStore(LmdbReading):
    """Rows, entries and facts in a directory that no other process has open.

    The write transaction belongs to the thread that made the store: begun on one thread and committed on another, it
    hangs the next one. `snapshot` may be called from any thread.

    Args:
        directory: Where the data lies.
        map_bytes: The most that the data can ever grow to.
        durable: False leaves out the flushes. For tests that show what they are for; a node refuses such a store.
        create: Make the directory and the data in it, if they are not there.
        log_bytes: The most that the log in front of the data may take. 0: every commit goes to the data. What an
            earlier log holds comes into the data in either case.
        rows_of_entry: Reads the rows of a journal entry, so that the log need not hold them beside it. None: it holds
            them, and one that leaves them out is refused.

    Raises:
        StoreAbsent: There is no data, and none was to be made.
        StoreInUse: Another process has it open.
        StoreFull: There is no room to begin.
        StoreCorrupt: What lies there cannot have been written by us, or lacks a part.
        ServerError: What `rows_of_entry` raises.
    """

    def __init__(
        self,
        directory: Path,
        *,
        map_bytes: int = MAP_BYTES_DEFAULT,
        durable: bool = True,
        create: bool = False,
        log_bytes: int = 0,
        rows_of_entry: RowsOfEntry | None = None,
    ) -> None:
        made = [folder for folder in (directory, *directory.parents) if not folder.exists()] if create else []
        if create:
            directory.mkdir(parents=True, exist_ok=True)
        elif not (directory / DATA_FILE).exists():
            raise StoreAbsent(directory)
        free_bytes = disk_free_bytes(directory)
        if free_bytes < FREE_BYTES_MIN:
            raise StoreFull(directory, free_bytes, FREE_BYTES_MIN)
        self._directory = directory
        self._durable = durable
        self._thread = threading.get_ident()
        self._write: Any = None
        # Whether something was written since the last commit that has to be durable, and whether what is written now
        # follows from an entry.
        self._dirty = self._applies = False
        self._map_bytes = map_bytes
        self._lock = DirectoryLock(directory)
        # Held while the environment is exchanged, and while a reader takes the one there is.
        self._exchange = threading.Lock()
        self._incoming: LmdbIncoming | None = None
        self._incoming_count = 0
        self._rows_of_entry = rows_of_entry
        self._log = WriteAhead(directory, bytes_max=log_bytes, durable=durable)
        # What was written since the last commit, for its record, and how much since the data was written.
        self._changes: list[Change] = []
        self._changes_ahead = 0
        # The commit that another thread has in hand.
        self._apart: Apart | None = None
        # Whether the data says that a log is ahead of it.
        self._names_log = False
        # Whether there was little room when somebody asked.
        self._is_tight = False
        self._failed = False
        try:
            remove_leftovers(directory)
            self._environment = Environment(directory, map_bytes=map_bytes, durable=durable)
        except (OSError, StoreError):
            self._lock.release()
            raise
        self._entries = self._environment.entries
        super().__init__(self._writing, self._environment.rows, self._environment.facts)
        try:
            self._take_over_log()
        except (OSError, ServerError):
            self._environment.close()
            self._lock.release()
            raise
        if create and durable:
            flush_names([directory, *(folder.parent for folder in made)])

    @property
    def durable(self) -> bool:
        """See `interface.Store`."""
        return self._durable

    def apply(self, puts: Iterable[tuple[bytes, bytes]], deletes: Iterable[bytes], *, entry: int | None = None) -> None:
        """See `interface.Store`."""
        rows = RowsChanged(list(puts), list(deletes))
        change = rows if entry is None or self._rows_of_entry is None else EntryApplied(entry)
        with taking(self._directory):
            transaction = self._changing(change, len(rows.puts) + len(rows.deletes))
            with transaction.cursor(self._rows) as cursor:
                cursor.putmulti(rows.puts)
            for key in rows.deletes:
                transaction.delete(key, db=self._rows)

    @contextmanager
    def applying(self) -> Iterator[None]:
        """See `interface.Store`."""
        self._applies = True
        try:
            yield
        finally:
            self._applies = False

    def put_fact(self, name: bytes, value: bytes) -> None:
        """See `interface.Store`."""
        with taking(self._directory):
            self._changing(FactPut(name, value), 1).put(name, value, db=self._facts)

    def put_entry(self, index: int, value: bytes) -> None:
        """See `interface.Store`."""
        with taking(self._directory):
            transaction = self._changing(EntryPut(index, value), 1)
            placed = transaction.put(index.to_bytes(8, "big"), value, db=self._entries, append=True)
        assert placed, index

    def delete_entries(self, first: int, last: int) -> None:
        """See `interface.Store`."""
        with taking(self._directory):
            transaction = self._changing(EntriesDeleted(first, last), last - first + 1, is_kept=False)
            for index in range(first, last + 1):
                transaction.delete(index.to_bytes(8, "big"), db=self._entries)

    def entries(self) -> Iterator[tuple[int, bytes]]:
        """See `interface.Store`."""
        for key, value in self._writing().cursor(self._entries):
            yield int.from_bytes(key, "big"), value

    def commit(self) -> None:
        """See `interface.Store`."""
        if self._apart is not None:
            self._settle()
            self._apart = None
        elif self._dirty:
            work = self._record()
            if work is None:
                self._write_data(then_logs=self._may_log())
            else:
                self._flush(work)

    def commit_apart(self) -> Callable[[], None] | None:
        """See `interface.Store`."""
        assert self._apart is None, "the commit before has not ended"
        work = self._record() if self._dirty else None
        if work is None:
            return None
        self._apart = Apart(lambda: self._flush(work))
        return self._apart.run

    @contextmanager
    def snapshot(self) -> Iterator[LmdbReading]:
        """See `interface.Store`."""
        self._expose()
        with self._reading() as (environment, transaction):
            yield LmdbReading(lambda: transaction, environment.rows, environment.facts)

    @contextmanager
    def export(self) -> Iterator[LmdbExport]:
        """See `interface.Store`."""
        self._expose()
        with self._reading() as (environment, transaction):
            yield LmdbExport(environment, transaction)

    def incoming(self, size_bytes: int = 0) -> LmdbIncoming:
        """See `interface.Store`."""
        assert self._incoming is None or self._incoming.discarded, "rows of another node come in already"
        self._incoming_count += 1
        self._incoming = LmdbIncoming(
            self._directory,
            self._incoming_count,
            size_bytes=size_bytes,
            map_bytes=self._map_bytes,
            durable=self._durable,
        )
        return self._incoming

    def install(
        self, incoming: Incoming, *, facts: Mapping[bytes, bytes], entries: Iterable[tuple[int, bytes]]
    ) -> None:
        """See `interface.Store`."""
        assert incoming is self._incoming, "rows that came in belong to the store that began them"
        assert isinstance(incoming, LmdbIncoming)
        assert threading.get_ident() == self._thread, "rows are installed on the thread of the store"
        assert not self._dirty, "something is written and not committed"
        self._settle()
        incoming.seal(facts, entries)
        try:
            incoming.take_place()
        except StoreFailed:
            self._failed = True
            raise
        self._incoming = None
        # The new data names no log; the old data, which a crash before the exchange leaves, still does.
        self._log.end()
        self._names_log, self._changes, self._changes_ahead = False, [], 0
        if self._write is not None:
            # It has written nothing, or what nobody needs any more; `_writing` begins one also for who only reads.
            self._write.abort()
            self._write = None
        with self._exchange:
            before, self._environment = self._environment, incoming.environment
            self._rows, self._facts = self._environment.rows, self._environment.facts
            self._entries = self._environment.entries
        before.retire()

    def free_bytes(self) -> int:
        """See `interface.Store`. Pages that LMDB can use again are not counted.

        Raises:
            StoreFailed: The directory is gone.
        """
        unfilled_bytes = self._unfilled_bytes()
        # A cluster at rest may not fill its log for hours, and others fill the disk meanwhile.
        self._is_tight = unfilled_bytes < FREE_BYTES_LOG_MIN
        ahead_bytes = self._changes_ahead * _PAGES_A_CHANGE * _PAGE_BYTES + self._log.end_bytes
        return max(0, unfilled_bytes - ahead_bytes - self._log.growth_bytes)

    def close(self) -> None:
        """See `interface.Store`."""
        if self._incoming is not None:
            self._incoming.let_go()
        try:
            if self._log.active and not (self._dirty or self._failed):
                # So whoever opens it next, an older version too, finds everything in the data.
                self._settle()
                self._write_data(then_logs=False)
        finally:
            self._log.close()
            # Ends the write transaction, too.
            self._environment.close()
            self._lock.release()

    def _flush(self, work: Callable[[], None]) -> None:
        """Wait for the disk: every write that makes something durable goes through here."""
        try:
            with taking(self._directory):
                work()
        except StoreFailed:
            self._failed = True
            raise

    def _settle(self) -> None:
        """Wait until the commit that another thread has in hand is durable."""
        if self._apart is not None:
            self._apart.run()

    def _changing(self, change: Change, count: int, *, is_kept: bool = True) -> Any:
        """Note a change, and give the transaction for it. `is_kept`: it has to survive, if it follows from no entry."""
        assert self._apart is None, "something is written before the commit before has ended"
        assert not self._failed, "something is written after the disk has failed"
        transaction = self._writing()
        # What waits needs room, so where there is little of it nothing is left to the next commit.
        waits = (self._applies or not is_kept) and self._log.active and not self._is_tight
        self._dirty = self._dirty or not waits
        if self._log.active:
            self._changes.append(change)
            self._changes_ahead += count
        return transaction

    def _record(self) -> Callable[[], None] | None:
        """What makes the changes since the last commit durable in the log; None: they go to the data."""
        if not self._log.active or self._is_tight or self._changes_ahead > CHANGES_AHEAD_MAX:
            return None
        work = self._log.record(self._changes)
        if work is not None:
            self._changes, self._dirty = [], False
        return work

    def _may_log(self) -> bool:
        self._is_tight = self._log.wanted and self._unfilled_bytes() < FREE_BYTES_LOG_MIN
        return self._log.wanted and not self._is_tight

    def _write_data(self, *, then_logs: bool) -> None:
        """Make everything that was written durable in the data, and begin a log behind it, or have none."""
        if then_logs:
            self._flush(self._log.prepare)
        transaction = self._writing()
        log_id = os.urandom(ID_BYTES)
        if then_logs or self._names_log:
            with taking(self._directory):
                self._name_log(transaction, log_id if then_logs else None)
        self._write, self._dirty, self._changes, self._changes_ahead = None, False, [], 0
        self._flush(transaction.commit)
        if then_logs:
            self._log.begin(log_id)
        elif self._names_log:
            self._log.remove()
        self._names_log = then_logs

    def _name_log(self, transaction: Any, log_id: bytes | None) -> None:
        """Say in the data which log is ahead of it, or that none is."""
        head = self.fact(fact_names.HEAD)
        if log_id is None:
            transaction.delete(fact_names.LOG, db=self._facts)
        else:
            transaction.put(fact_names.LOG, _LOG_FORMAT + log_id, db=self._facts)
        if head is not None:
            transaction.put(fact_names.HEAD, head if log_id is None else AHEAD + head, db=self._facts)

    def _take_over_log(self) -> None:
        """Bring what an earlier process committed to the log into the data."""
        stands = self.fact(fact_names.LOG)
        if stands is None:
            return
        self._names_log = True
        if len(stands) != len(_LOG_FORMAT) + ID_BYTES or not stands.startswith(_LOG_FORMAT):
            raise StoreCorrupt(f"the log of {self._directory} cannot be read; was it written by a newer version?")
        for changes in read_log(self._directory, stands.removeprefix(_LOG_FORMAT)):
            for change in changes:
                self._change(change)
        self._write_data(then_logs=False)

    def _change(self, change: Change) -> None:
        match change:
            case RowsChanged(puts, deletes):
                self.apply(puts, deletes)
            case FactPut(name, value):
                self.put_fact(name, value)
            case EntryPut(index, value):
                self.put_entry(index, value)
            case EntriesDeleted(first, last):
                self.delete_entries(first, last)
            case EntryApplied(index):
                self.apply(*self._rows_said(index))
            case _:
                assert_never(change)

    def _rows_said(self, index: int) -> tuple[Iterable[tuple[bytes, bytes]], Iterable[bytes]]:
        """What the entry says that stands where the log has been taken over to."""
        value = self._writing().get(index.to_bytes(8, "big"), db=self._entries)
        if value is None or self._rows_of_entry is None:
            why = "is missing" if value is None else "cannot be read by what has opened it"
            raise StoreCorrupt(f"the log of {self._directory} has applied entry {index}, which {why}")
        return self._rows_of_entry(index, value)

    def _expose(self) -> None:
        """Have the data hold what was committed, so that a transaction of a reader sees it."""
        is_behind = self._log.end_bytes or (self._changes and not self._dirty)
        if threading.get_ident() != self._thread or not is_behind:
            return
        assert not self._dirty, "something is written and not committed"
        self._settle()
        self._write_data(then_logs=self._may_log())

    def _unfilled_bytes(self) -> int:
        """What the disk and the map have left, but for what is written and not yet in the data."""
        environment = self._environment.lmdb
        info = environment.info()
        unmapped: int = info["map_size"] - (info["last_pgno"] + 1) * environment.stat()["psize"]
        return min(unmapped, disk_free_bytes(self._directory))

    @contextmanager
    def _reading(self) -> Iterator[tuple[Environment, Any]]:
        with self._exchange:
            environment = self._environment
            environment.hold()
        try:
            with environment.lmdb.begin() as transaction:
                yield environment, transaction
        finally:
            environment.release()

    def _writing(self) -> Any:
        # Always the write transaction, for reads too: they must see what was written and not yet committed.
        if self._write is None:
            self._write = self._environment.lmdb.begin(write=True)
        assert threading.get_ident() == self._thread, "a write transaction belongs to one thread"
        return self._write


def strangers(directory: Path) -> list[str]:
    """Names in a directory that no store put there, sorted; none when data of a store is among them."""
    names = {path.name for path in directory.iterdir()} if directory.is_dir() else set()
    return [] if DATA_FILE in names else sorted(name for name in names - _OUR_FILES if not is_leftover(name))


def has_data(directory: Path) -> bool:
    """Whether there is data of a store in a directory."""
    path = directory / DATA_FILE
    return path.is_file() and path.stat().st_size > 0
