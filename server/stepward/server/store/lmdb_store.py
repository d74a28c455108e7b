"""A store on disk, in one LMDB environment.

LMDB writes pages aside, flushes them, and then flips one meta page: a commit is there whole or not at all, after a
power cut too, as long as both flushes happen (`sync` and `metasync`). Without the second the last commit was lost in
power-cut trials, without the first everything was.
"""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from stepward.server.store import facts as fact_names
from stepward.server.store.environment import (
    DATA_FILE,
    LOCK_FILE,
    Environment,
    disk_free_bytes,
    flush_names,
    taking,
)
from stepward.server.store.errors import StoreAbsent, StoreError, StoreFull
from stepward.server.store.incoming import LmdbIncoming, is_leftover, remove_leftovers
from stepward.server.store.interface import successor
from stepward.server.store.lock import DirectoryLock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from pathlib import Path

    from stepward.server.store.interface import Incoming

# Address space, not disk: the file grows with what is in it. It only has to be larger than any disk we meet.
MAP_BYTES_DEFAULT: Final = 64 << 30
# What lies in a directory of ours, and what file systems put there.
_OUR_FILES: Final = frozenset({DATA_FILE, LOCK_FILE, "node.lock", "lost+found", "cluster"})
# Less free disk than this is refused at once, in words: a start writes, and a write that fails says less.
FREE_BYTES_MIN: Final = 1 << 20
# Rows that were walked over for another node and are still mapped, at most.
_EXPORTED_BYTES_MAPPED_MAX: Final = 16 << 20


class _Reading:
    """Reading through whatever transaction is the one at the moment."""

    def __init__(self, transaction: Callable[[], Any], rows: Any, facts: Any) -> None:
        self._transaction = transaction
        self._rows = rows
        self._facts = facts

    def get(self, key: bytes) -> bytes | None:
        """See `interface.Rows`."""
        value: bytes | None = self._transaction().get(key, db=self._rows)
        return value

    def scan(self, prefix: bytes, *, after: bytes = b"", before: bytes = b"", reverse: bool = False) -> Iterator[bytes]:
        """See `interface.Rows`."""
        cursor = self._transaction().cursor(self._rows)
        if reverse:
            return _backward(cursor, prefix, after, before)
        return _forward(cursor, prefix, after, before)

    def count(self, prefix: bytes) -> int:
        """See `interface.Rows`."""
        return sum(1 for _ in self.scan(prefix))

    def fact(self, name: bytes) -> bytes | None:
        """See `interface.Rows`."""
        value: bytes | None = self._transaction().get(name, db=self._facts)
        return value


def _forward(cursor: Any, prefix: bytes, after: bytes, before: bytes) -> Iterator[bytes]:
    found = cursor.set_range(max(prefix, after))
    if found and after and cursor.key() == after:
        found = cursor.next()
    if not found:
        return
    for key in cursor.iternext(keys=True, values=False):
        if not key.startswith(prefix) or (before and key >= before):
            return
        yield key


def _backward(cursor: Any, prefix: bytes, after: bytes, before: bytes) -> Iterator[bytes]:
    end = successor(prefix)
    if before and (end is None or before < end):
        end = before
    found = cursor.prev() if end is not None and cursor.set_range(end) else cursor.last()
    if not found:
        return
    for key in cursor.iterprev(keys=True, values=False):
        if not key.startswith(prefix) or (after and key <= after):
            return
        yield key


class _Export:
    """See `interface.Export`."""

    def __init__(self, environment: Environment, transaction: Any) -> None:
        self._environment = environment
        self._transaction = transaction
        stand = _Reading(lambda: transaction, environment.rows, environment.facts)
        self.head = fact_names.raw_head(stand)
        self.applied_index, self.applied_term = fact_names.read_applied(stand)
        stat = transaction.stat(environment.rows)
        self.rows: int = stat["entries"]
        # Without the pages that wait to be used again: they are not sent.
        self.size_bytes: int = (stat["branch_pages"] + stat["leaf_pages"] + stat["overflow_pages"]) * stat["psize"]

    def chunks(self, bytes_max: int) -> Iterator[list[tuple[bytes, bytes]]]:
        """See `interface.Export`."""
        chunk: list[tuple[bytes, bytes]] = []
        chunk_bytes = mapped_bytes = 0
        for row in self._transaction.cursor(self._environment.rows):
            chunk.append(row)
            chunk_bytes += len(row[0]) + len(row[1])
            if chunk_bytes >= bytes_max:
                yield chunk
                mapped_bytes += chunk_bytes
                chunk, chunk_bytes = [], 0
                if mapped_bytes >= _EXPORTED_BYTES_MAPPED_MAX:
                    self._environment.forget_pages()
                    mapped_bytes = 0
        if chunk:
            yield chunk
        self._environment.forget_pages()


class LmdbStore(_Reading):
    """Rows, entries and facts in a directory that no other process has open.

    The write transaction belongs to the thread that made the store: begun on one thread and committed on another, it
    hangs the next one. `snapshot` may be called from any thread.

    Args:
        directory: Where the data lies.
        map_bytes: The most that the data can ever grow to.
        durable: False leaves out the flushes. For tests that show what they are for; a node refuses such a store.
        create: Make the directory and the data in it, if they are not there.

    Raises:
        StoreAbsent: There is no data, and none was to be made.
        StoreInUse: Another process has it open.
        StoreFull: There is no room to begin.
    """

    def __init__(
        self, directory: Path, *, map_bytes: int = MAP_BYTES_DEFAULT, durable: bool = True, create: bool = False
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
        self._dirty = False
        self._map_bytes = map_bytes
        self._lock = DirectoryLock(directory)
        # Held while the environment is exchanged, and while a reader takes the one there is.
        self._exchange = threading.Lock()
        self._incoming: LmdbIncoming | None = None
        self._incoming_count = 0
        try:
            remove_leftovers(directory)
            self._environment = Environment(directory, map_bytes=map_bytes, durable=durable)
        except (OSError, StoreError):
            self._lock.release()
            raise
        self._entries = self._environment.entries
        super().__init__(self._writing, self._environment.rows, self._environment.facts)
        if create and durable:
            flush_names([directory, *(folder.parent for folder in made)])

    @property
    def durable(self) -> bool:
        """See `interface.Store`."""
        return self._durable

    def apply(self, puts: Iterable[tuple[bytes, bytes]], deletes: Iterable[bytes]) -> None:
        """See `interface.Store`."""
        with taking(self._directory):
            transaction = self._writing()
            self._dirty = True
            with transaction.cursor(self._rows) as cursor:
                cursor.putmulti(puts)
            for key in deletes:
                transaction.delete(key, db=self._rows)

    def put_fact(self, name: bytes, value: bytes) -> None:
        """See `interface.Store`."""
        with taking(self._directory):
            self._writing().put(name, value, db=self._facts)
            self._dirty = True

    def put_entry(self, index: int, value: bytes) -> None:
        """See `interface.Store`."""
        with taking(self._directory):
            placed = self._writing().put(index.to_bytes(8, "big"), value, db=self._entries, append=True)
            self._dirty = True
        assert placed, index

    def delete_entries(self, first: int, last: int) -> None:
        """See `interface.Store`."""
        with taking(self._directory):
            transaction = self._writing()
            self._dirty = True
            for index in range(first, last + 1):
                transaction.delete(index.to_bytes(8, "big"), db=self._entries)

    def entries(self) -> Iterator[tuple[int, bytes]]:
        """See `interface.Store`."""
        for key, value in self._writing().cursor(self._entries):
            yield int.from_bytes(key, "big"), value

    def commit(self) -> None:
        """See `interface.Store`."""
        if not self._dirty:
            return
        transaction, self._write, self._dirty = self._writing(), None, False
        with taking(self._directory):
            transaction.commit()

    @contextmanager
    def snapshot(self) -> Iterator[_Reading]:
        """See `interface.Store`."""
        with self._reading() as (environment, transaction):
            yield _Reading(lambda: transaction, environment.rows, environment.facts)

    @contextmanager
    def export(self) -> Iterator[_Export]:
        """See `interface.Store`."""
        with self._reading() as (environment, transaction):
            yield _Export(environment, transaction)

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
        incoming.seal(facts, entries)
        incoming.take_place()
        self._incoming = None
        if self._write is not None:
            # It has written nothing; `_writing` begins one also for who only reads.
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
        environment = self._environment.lmdb
        info = environment.info()
        unmapped: int = info["map_size"] - (info["last_pgno"] + 1) * environment.stat()["psize"]
        return min(unmapped, disk_free_bytes(self._directory))

    def close(self) -> None:
        """See `interface.Store`."""
        if self._incoming is not None:
            self._incoming.let_go()
        # Ends the write transaction, too.
        self._environment.close()
        self._lock.release()

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
