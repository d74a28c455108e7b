"""A store on disk, in one LMDB environment.

LMDB writes pages aside, flushes them, and then flips one meta page: a commit is there whole or not at all, after a
power cut too, as long as both flushes happen (`sync` and `metasync`). Without the second the last commit was lost in
power-cut trials, without the first everything was.
"""

from __future__ import annotations

import os
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import lmdb

from stepward.server.store.errors import StoreAbsent, StoreCorrupt, StoreFailed, StoreFull
from stepward.server.store.interface import successor
from stepward.server.store.lock import DirectoryLock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

# Address space, not disk: the file grows with what is in it. It only has to be larger than any disk we meet.
MAP_BYTES_DEFAULT: Final = 64 << 30
# Snapshots that may be open at once.
_READERS_MAX: Final = 512
_DATA_FILE: Final = "data.mdb"
# What lies in a directory of ours, and what file systems put there.
_OUR_FILES: Final = frozenset({_DATA_FILE, "lock.mdb", "node.lock", "lost+found", "cluster"})
# Less free disk than this is refused at once, in words: a start writes, and a write that fails says less.
_FREE_BYTES_MIN: Final = 1 << 20


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
        elif not (directory / _DATA_FILE).exists():
            raise StoreAbsent(directory)
        free_bytes = _disk_free_bytes(directory)
        if free_bytes < _FREE_BYTES_MIN:
            raise StoreFull(directory, free_bytes, _FREE_BYTES_MIN)
        self._directory = directory
        self._durable = durable
        self._thread = threading.get_ident()
        self._write: Any = None
        self._dirty = False
        self._lock = DirectoryLock(directory)
        self._environment = self._open(map_bytes)
        try:
            with _taking(directory):
                rows, facts, self._entries = map(self._environment.open_db, (b"rows", b"facts", b"entries"))
        except StoreFailed:
            self.close()
            raise
        super().__init__(self._writing, rows, facts)
        if create and durable:
            _flush_names([directory, *(folder.parent for folder in made)])

    def _open(self, map_bytes: int) -> Any:
        try:
            return lmdb.open(
                str(self._directory),
                map_size=map_bytes,
                max_dbs=3,
                max_readers=_READERS_MAX,
                # Payloads may be nobody else's business.
                mode=0o600,
                sync=self._durable,
                metasync=self._durable,
                # Read-ahead fetches pages that nobody asked for once the data is larger than memory.
                readahead=False,
            )
        except lmdb.Error as error:
            self._lock.release()
            raise StoreCorrupt(f"the data in {self._directory} cannot be opened: {error}") from error

    @property
    def durable(self) -> bool:
        """See `interface.Store`."""
        return self._durable

    def apply(self, puts: Iterable[tuple[bytes, bytes]], deletes: Iterable[bytes]) -> None:
        """See `interface.Store`."""
        with _taking(self._directory):
            transaction = self._writing()
            self._dirty = True
            with transaction.cursor(self._rows) as cursor:
                cursor.putmulti(puts)
            for key in deletes:
                transaction.delete(key, db=self._rows)

    def put_fact(self, name: bytes, value: bytes) -> None:
        """See `interface.Store`."""
        with _taking(self._directory):
            self._writing().put(name, value, db=self._facts)
            self._dirty = True

    def put_entry(self, index: int, value: bytes) -> None:
        """See `interface.Store`."""
        with _taking(self._directory):
            placed = self._writing().put(index.to_bytes(8, "big"), value, db=self._entries, append=True)
            self._dirty = True
        assert placed, index

    def delete_entries(self, first: int, last: int) -> None:
        """See `interface.Store`."""
        with _taking(self._directory):
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
        with _taking(self._directory):
            transaction.commit()

    @contextmanager
    def snapshot(self) -> Iterator[_Reading]:
        """See `interface.Store`."""
        with self._environment.begin() as transaction:
            yield _Reading(lambda: transaction, self._rows, self._facts)

    def free_bytes(self) -> int:
        """See `interface.Store`. Pages that LMDB can use again are not counted.

        Raises:
            StoreFailed: The directory is gone.
        """
        info = self._environment.info()
        unmapped: int = info["map_size"] - (info["last_pgno"] + 1) * self._environment.stat()["psize"]
        return min(unmapped, _disk_free_bytes(self._directory))

    def close(self) -> None:
        """See `interface.Store`."""
        # Ends the write transaction, too.
        self._environment.close()
        self._lock.release()

    def _writing(self) -> Any:
        # Always the write transaction, for reads too: they must see what was written and not yet committed.
        if self._write is None:
            self._write = self._environment.begin(write=True)
        assert threading.get_ident() == self._thread, "a write transaction belongs to one thread"
        return self._write


def strangers(directory: Path) -> list[str]:
    """Names in a directory that no store put there, sorted; none when data of a store is among them."""
    names = {path.name for path in directory.iterdir()} if directory.is_dir() else set()
    return [] if _DATA_FILE in names else sorted(names - _OUR_FILES)


def has_data(directory: Path) -> bool:
    """Whether there is data of a store in a directory."""
    path = directory / _DATA_FILE
    return path.is_file() and path.stat().st_size > 0


def _disk_free_bytes(directory: Path) -> int:
    try:
        disk = os.statvfs(directory)
    except OSError as error:
        raise StoreFailed(
            f"{directory} cannot be reached ({error.strerror}); if it was moved or unmounted bring it back, then start "
            "again"
        ) from error
    return disk.f_bavail * disk.f_frsize


@contextmanager
def _taking(directory: Path) -> Iterator[None]:
    """Turn what LMDB raises while it takes a write into ours."""
    try:
        yield
    except lmdb.Error as error:
        raise StoreFailed(
            f"the store in {directory} did not take a write ({error}); see that its disk works and has space, then "
            "start again"
        ) from error


def _flush_names(folders: Iterable[Path]) -> None:
    """Make the names in these folders durable: LMDB flushes what is in its files, not that they are there."""
    for folder in folders:
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
