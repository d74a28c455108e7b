"""Rows of another node on their way in, on disk: an environment of its own beside that of the store.

It is filled in commits of a few MiB, so memory does not grow with the rows. What it holds counts for nothing until the
store changes over to it, by renaming its files over its own: a crash before leaves the old data, a crash after it the
new, and what was left unfinished is removed at the next start.
"""

from __future__ import annotations

import shutil
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import lmdb

from stepward.server.store.environment import DATA_FILE, LOCK_FILE, Environment, disk_free_bytes, flush_names
from stepward.server.store.errors import IncomingFailed, StoreError, StoreFailed

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

# Folders of rows that came, or were coming. Each has a name of its own, since LMDB forbids that one process opens the
# same place twice, and the place from which the files were renamed counts as open until they are closed.
_FOLDER: Final = "incoming-"
# Written before it is made durable: small, so that neither memory nor a flush is large.
_COMMIT_BYTES: Final = 4 << 20
# What must stay free on the disk beside the rows that come: the store itself must go on writing.
FREE_BYTES_LEFT_MIN: Final = 64 << 20


def is_leftover(name: str) -> bool:
    """Whether a name in a directory is that of rows that came in."""
    return name.startswith(_FOLDER)


def remove_leftovers(directory: Path) -> None:
    """Remove what an earlier process did not finish."""
    for folder in directory.glob(f"{_FOLDER}*"):
        shutil.rmtree(folder)


class LmdbIncoming:
    """See `interface.Incoming`.

    Args:
        directory: Of the store.
        number: Of this one in this process.
        size_bytes: How much is expected, at least.
        map_bytes: The most that it can ever grow to.
        durable: Whether a commit flushes.

    Raises:
        IncomingFailed: There is no room for it.
    """

    def __init__(self, directory: Path, number: int, *, size_bytes: int, map_bytes: int, durable: bool) -> None:
        self._directory = directory
        self._folder = directory / f"{_FOLDER}{number}"
        self._write: Any = None
        self._write_thread = 0
        self._written_bytes = 0
        self._last_key = b""
        self._failed = False
        self.discarded = False
        self._check_room(size_bytes)
        try:
            self._folder.mkdir(mode=0o700)
            self.environment = Environment(self._folder, map_bytes=map_bytes, durable=durable)
        except (OSError, StoreError) as error:
            shutil.rmtree(self._folder, ignore_errors=True)
            raise IncomingFailed(f"rows of another node cannot be put into {self._folder} ({error})") from error

    @property
    def complete(self) -> bool:
        """Whether all that was put is there."""
        return self._write is None and not self._failed

    def put(self, rows: Sequence[tuple[bytes, bytes]]) -> None:
        """See `interface.Incoming`."""
        for key, _ in rows:
            assert self._last_key < key, "rows come in the order of their keys"
            self._last_key = key
        with self._taking():
            if self._write is None:
                self._write = self.environment.lmdb.begin(write=True)
                self._write_thread = threading.get_ident()
            with self._write.cursor(self.environment.rows) as cursor:
                # Behind all others, so pages are filled to the brim and each is written once.
                consumed, _ = cursor.putmulti(rows, append=True)
        assert consumed == len(rows), (consumed, len(rows))
        self._written_bytes += sum(len(key) + len(value) for key, value in rows)
        if self._written_bytes >= _COMMIT_BYTES:
            self.commit()
            self._check_room(0)

    def commit(self) -> None:
        """See `interface.Incoming`."""
        if self._write is not None:
            transaction, self._write, self._written_bytes = self._write, None, 0
            with self._taking():
                transaction.commit()

    def discard(self) -> None:
        """See `interface.Incoming`."""
        if self.discarded:
            return
        self.discarded = True
        # A transaction that is open ends with it.
        self.environment.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def let_go(self) -> None:
        """Discard it, or, when another thread writes, leave it to the next start: that thread may never come back."""
        if self._write is None or self._write_thread == threading.get_ident():
            self.discard()

    def seal(self, facts: Mapping[bytes, bytes], entries: Iterable[tuple[int, bytes]]) -> None:
        """Put facts and entries beside the rows, and make all of it durable.

        Raises:
            IncomingFailed: The disk did not take it.
        """
        assert self.complete, "rows were put and not committed"
        assert not self.discarded, "rows were thrown away"
        with self._taking():
            self._write = self.environment.lmdb.begin(write=True)
            for name, value in facts.items():
                self._write.put(name, value, db=self.environment.facts)
            for index, value in entries:
                self._write.put(index.to_bytes(8, "big"), value, db=self.environment.entries, append=True)
        self.commit()

    def take_place(self) -> None:
        """Rename the files over those of the store: from here on they are its own.

        The first of the two renames decides. A lock file says nothing once nobody has it open, so it may be that of the
        old data after a crash; while both environments are open each keeps its own.

        Raises:
            StoreFailed: Nobody knows which of the two a restart would find; the process must end.
        """
        try:
            (self._folder / DATA_FILE).replace(self._directory / DATA_FILE)
            (self._folder / LOCK_FILE).replace(self._directory / LOCK_FILE)
            # Until here a power cut may bring the old data back.
            flush_names([self._directory, self._folder])
            self._folder.rmdir()
        except OSError as error:
            raise StoreFailed(
                f"the rows of another node could not take the place of those in {self._directory} ({error}); see that "
                "its disk works, then start again"
            ) from error

    def _check_room(self, size_bytes: int) -> None:
        free_bytes = disk_free_bytes(self._directory)
        needed_bytes = size_bytes + FREE_BYTES_LEFT_MIN
        if free_bytes < needed_bytes:
            raise IncomingFailed(
                f"the disk of {self._directory} has no room for the rows of another node: {free_bytes} bytes are free "
                f"and {needed_bytes} are needed; free some space there, it is tried again"
            )

    @contextmanager
    def _taking(self) -> Iterator[None]:
        try:
            yield
        except lmdb.Error as error:
            self._failed = True
            if self._write is not None:
                # Here and now: it belongs to this thread, and whoever throws the rest away may be on another.
                self._write.abort()
                self._write = None
            raise IncomingFailed(f"rows of another node were not taken by {self._folder} ({error})") from error
