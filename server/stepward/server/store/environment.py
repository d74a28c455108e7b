"""One LMDB environment: how it is opened, who reads in it, and when it may be closed.

A store changes from one environment to another when all rows of a leader take the place of its own. Readers of the old
one go on with what they see; it is closed when the last of them is done.
"""

from __future__ import annotations

import ctypes
import os
import threading
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import lmdb

from stepward.server.store.errors import StoreCorrupt, StoreFailed

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

DATA_FILE: Final = "data.mdb"
LOCK_FILE: Final = "lock.mdb"
# Snapshots that may be open at once.
_READERS_MAX: Final = 512
# `madvise`: pages are unmapped, and stay in the page cache. Python only gives it for maps of its own.
_MADV_DONTNEED: Final = 4


class Environment:
    """An environment with its three spaces. Not for two processes at once: `DirectoryLock` sees to that.

    Args:
        directory: Holds its files, now; they may be moved while it is open.
        map_bytes: The most that it can ever grow to.
        durable: Whether a commit flushes.

    Raises:
        StoreCorrupt: What lies there is no data of a store.
        StoreFailed: The spaces could not be made.
    """

    def __init__(self, directory: Path, *, map_bytes: int, durable: bool) -> None:
        self._lock = threading.Lock()
        self._readers = 0
        self._retired = False
        try:
            self.lmdb: Any = lmdb.open(
                str(directory),
                map_size=map_bytes,
                max_dbs=3,
                max_readers=_READERS_MAX,
                # Payloads may be nobody else's business.
                mode=0o600,
                sync=durable,
                metasync=durable,
                # Read-ahead fetches pages that nobody asked for once the data is larger than memory.
                readahead=False,
            )
        except lmdb.Error as error:
            raise StoreCorrupt(f"the data in {directory} cannot be opened: {error}") from error
        try:
            with taking(directory):
                self.rows, self.facts, self.entries = map(self.lmdb.open_db, (b"rows", b"facts", b"entries"))
                if durable:
                    # Whoever was killed between writing and flushing left what is read now, and what a power cut would
                    # still take. Promises are made on it before anything else is written: so it is flushed here.
                    self.lmdb.sync(True)
        except StoreFailed:
            self.lmdb.close()
            raise
        self._maps = _maps_of(directory / DATA_FILE)

    def hold(self) -> None:
        """Somebody begins to read."""
        with self._lock:
            assert not self._retired, "a store is read that has changed to other data"
            self._readers += 1

    def release(self) -> None:
        """A reader is done."""
        with self._lock:
            self._readers -= 1
            is_last = self._retired and not self._readers
        if is_last:
            self.close()

    def retire(self) -> None:
        """Nobody begins to read any more; closes it with its last reader."""
        with self._lock:
            self._retired = True
            is_last = not self._readers
        if is_last:
            self.close()

    def close(self) -> None:
        """Close it at once, whoever reads. Ends the write transaction, too. Safe to repeat.

        On the thread on which a write transaction is open, or it waits for that one to end it.
        """
        with self._lock:
            # Where it was mapped is somebody else's memory soon.
            self._maps = []
        self.lmdb.close()

    def forget_pages(self) -> None:
        """Unmap what was read, so that a walk over everything does not count as memory of this process.

        The pages stay in the page cache, and come back with the next access, at a fraction of a microsecond each.
        """
        with self._lock:
            for address, length in self._maps:
                _LIBC.madvise(ctypes.c_void_p(address), ctypes.c_size_t(length), _MADV_DONTNEED)


_LIBC: Final = ctypes.CDLL(None)


def _maps_of(path: Path) -> list[tuple[int, int]]:
    """Where a file is mapped in this process: addresses and lengths. Nothing where the system does not say so."""
    maps = Path("/proc/self/maps")
    if not maps.exists():
        return []
    inode = str(path.stat().st_ino)
    fields = (line.split(maxsplit=5) for line in maps.read_text().splitlines())
    spans = [line[0].split("-") for line in fields if line[4] == inode and line[5].endswith(DATA_FILE)]
    return [(int(first, 16), int(last, 16) - int(first, 16)) for first, last in spans]


def disk_free_bytes(directory: Path) -> int:
    """How much may still be written there.

    Raises:
        StoreFailed: The directory is gone.
    """
    try:
        disk = os.statvfs(directory)
    except OSError as error:
        raise StoreFailed(
            f"{directory} cannot be reached ({error.strerror}); if it was moved or unmounted bring it back, then start "
            "again"
        ) from error
    return disk.f_bavail * disk.f_frsize


@contextmanager
def taking(directory: Path) -> Iterator[None]:
    """Turn what LMDB raises while it takes a write into ours."""
    try:
        yield
    except lmdb.Error as error:
        raise StoreFailed(
            f"the store in {directory} did not take a write ({error}); see that its disk works and has space, then "
            "start again"
        ) from error


def flush_names(folders: Iterable[Path]) -> None:
    """Make the names in these folders durable: LMDB flushes what is in its files, not that they are there."""
    for folder in folders:
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
