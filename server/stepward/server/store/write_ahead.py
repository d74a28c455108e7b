"""A log in front of the data: what was committed since the data was last written, in a file that is only appended to.

A commit of LMDB writes every page that it touches, and flushes twice. A record of the log holds the changes alone, and
one flush makes it durable; the pages are written when a few MiB have come together, each of them once.

The log has an id, drawn anew whenever the data was written, which stands in the data and changes with it. A record
counts only under that id, in its place in the sequence, with the right digest over both and its content. So what lies
in the file from before means nothing from the moment on at which the data holds it, the file is used again from its
beginning, and what a crash has torn is no record. There is no moment at which a record is in neither of the two.
"""

from __future__ import annotations

import hashlib
import os
import struct
import threading
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

import msgspec
from msgspec import Struct

from stepward.server.store.environment import flush_names
from stepward.server.store.errors import StoreCorrupt, StoreFailed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

LOG_FILE: Final = "data.wal"
ID_BYTES: Final = 16
# How far the file grows at once, with zeros: a flush of what lies within its size writes nothing of the file system.
_PIECE_BYTES: Final = 256 << 10
_PAGE_BYTES: Final = 4_096
_DIGEST_BYTES: Final = 16
# The id, the place in the sequence, how long the content is, and the digest.
_HEADER: Final = struct.Struct(f">{ID_BYTES}sQI{_DIGEST_BYTES}s")
_FIRST: Final = 1


class RowsChanged(Struct, array_like=True, frozen=True, tag=1):
    """Rows that were put, and after them deleted."""

    puts: Sequence[tuple[bytes, bytes]]
    deletes: Sequence[bytes]


class FactPut(Struct, array_like=True, frozen=True, tag=2):
    """A small value that was put."""

    name: bytes
    value: bytes


class EntryPut(Struct, array_like=True, frozen=True, tag=3):
    """A journal entry that was put."""

    index: int
    value: bytes


class EntriesDeleted(Struct, array_like=True, frozen=True, tag=4):
    """Journal entries that were deleted, the last one with them."""

    first: int
    last: int


class EntryApplied(Struct, array_like=True, frozen=True, tag=5):
    """The rows that an entry says, which was put before and stands in the log or in the data."""

    index: int


Change = RowsChanged | FactPut | EntryPut | EntriesDeleted | EntryApplied

_encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder(list[Change]).decode


class Apart:
    """The slow part of one commit. Whoever asks second waits for the first."""

    def __init__(self, work: Callable[[], None]) -> None:
        self._work = work
        self._lock = threading.Lock()
        self._is_begun = self._is_done = False
        self._error: StoreFailed | None = None

    def run(self) -> None:
        """Do it, unless that was done. On any thread, safe to repeat.

        Raises:
            StoreFailed: The disk did not take it, now or the first time. It is never tried again: what became of pages
                that a flush could not write nobody knows.
        """
        with self._lock:
            if not self._is_begun:
                self._is_begun = True
                try:
                    self._work()
                except StoreFailed as error:
                    self._error = error
                    raise
                self._is_done = True
            elif not self._is_done:
                # Who was first may have been nobody who could tell of it.
                raise self._error or StoreFailed(
                    "an earlier write did not reach the disk; see that it works, then start again"
                )


class WriteAhead:
    """The log of one store. Belongs to its thread, but for the work that `record` gives.

    Args:
        directory: Where the file lies.
        bytes_max: The most that it ever grows to. 0: there is no log.
        durable: False leaves out the flushes.
    """

    def __init__(self, directory: Path, *, bytes_max: int, durable: bool) -> None:
        self._directory = directory
        self._path = directory / LOG_FILE
        self._bytes_max = bytes_max
        self._durable = durable
        self._descriptor: int | None = None
        # How far the file has grown, durably.
        self._size_bytes = 0
        self._id = b""
        self._next = _FIRST
        self._end_bytes = 0

    @property
    def wanted(self) -> bool:
        """Whether the store was opened with one."""
        return self._bytes_max > 0

    @property
    def active(self) -> bool:
        """Whether records can be written now."""
        return bool(self._id)

    @property
    def end_bytes(self) -> int:
        """How many bytes of records the data lacks."""
        return self._end_bytes

    @property
    def growth_bytes(self) -> int:
        """How much the file may still grow."""
        return max(0, self._bytes_max - self._size_bytes) if self.wanted else 0

    def prepare(self) -> None:
        """Make the file and its name durable. Called before the data says that there is a log. Safe to repeat.

        Raises:
            StoreFailed: The disk did not take it.
        """
        if self._descriptor is not None:
            return
        try:
            self._descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            self._size_bytes = os.fstat(self._descriptor).st_size
            if self._durable:
                # Its size, too: an earlier process may have been killed before it had flushed that.
                os.fsync(self._descriptor)
                flush_names([self._directory])
        except OSError as error:
            raise self._failed(error) from error

    def begin(self, log_id: bytes) -> None:
        """Begin anew under this id, which stands in the data durably; so does all that was written before."""
        assert self._descriptor is not None, "the file is made first"
        assert len(log_id) == ID_BYTES, log_id
        self._id, self._next, self._end_bytes = log_id, _FIRST, 0

    def end(self) -> None:
        """Write no more records: the data holds everything, or other data has taken its place."""
        self._id, self._end_bytes = b"", 0

    def record(self, changes: Sequence[Change]) -> Callable[[], None] | None:
        """What writes and flushes the next record, on any thread, before another is asked for; None: it does not fit.

        The work raises StoreFailed when the disk did not take it; then nothing may be written any more.
        """
        assert self.active, "the data names no log"
        content = _encode(changes)
        begin, end = self._end_bytes, self._end_bytes + _HEADER.size + len(content)
        if end > self._bytes_max:
            return None
        header = _header(self._id, self._next, content)
        self._next += 1
        self._end_bytes = end
        return partial(self._write, begin, header + content)

    def remove(self) -> None:
        """Remove the file: the data names no log. Should a crash bring it back, it means nothing.

        Raises:
            StoreFailed: The disk did not take it.
        """
        self.close()
        self._size_bytes = 0
        try:
            self._path.unlink(missing_ok=True)
        except OSError as error:
            raise self._failed(error) from error

    def close(self) -> None:
        """Let go of the file. Safe to repeat."""
        self.end()
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _write(self, begin: int, record: bytes) -> None:
        assert self._descriptor is not None, "the log is open"
        try:
            if begin + len(record) > self._size_bytes:
                self._grow(begin + len(record))
            _write_at(self._descriptor, begin, record)
            if self._durable:
                os.fdatasync(self._descriptor)
        except OSError as error:
            raise self._failed(error) from error

    def _grow(self, needed_bytes: int) -> None:
        """Fill the file with zeros up to a piece's end: where nothing was ever written a flush has more to do."""
        assert self._descriptor is not None, "the log is open"
        size_bytes = min(-(-needed_bytes // _PIECE_BYTES) * _PIECE_BYTES, max(self._bytes_max, needed_bytes))
        # A page at a time: what is written at once the system may keep as one, and count whole when a part changes.
        for begin in range(self._size_bytes, size_bytes, _PAGE_BYTES):
            _write_at(self._descriptor, begin, bytes(min(_PAGE_BYTES, size_bytes - begin)))
        if self._durable:
            os.fsync(self._descriptor)
        self._size_bytes = size_bytes

    def _failed(self, error: OSError) -> StoreFailed:
        return StoreFailed(
            f"{self._path} did not take a write ({error.strerror}); see that its disk works and has space, then start "
            "again"
        )


def read_log(directory: Path, log_id: bytes) -> Iterator[list[Change]]:
    """The changes of each record under this id, in order, up to the first that is not whole.

    That one was being written when the process or the machine ended, and nobody was told of it: a record is begun when
    the one before it is durable. So there can be none behind it.

    Raises:
        StoreCorrupt: The file is not there, or there is one behind it, or one that this version cannot read.
    """
    path = directory / LOG_FILE
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        raise StoreCorrupt(
            f"{path} is missing, which holds what was written last; bring it back beside the data, or give this node "
            "an empty directory"
        ) from None
    begin, number = 0, _FIRST
    while (record := _record_at(content, begin, log_id)) is not None and record[0] == number:
        try:
            yield _decode(record[1])
        except msgspec.DecodeError as error:
            raise StoreCorrupt(
                f"record {number} of {path} cannot be read ({error}); was it written by a newer version?"
            ) from error
        begin, number = begin + _HEADER.size + len(record[1]), number + 1
    behind = content.find(log_id, begin)
    while behind >= 0:
        if _record_at(content, behind, log_id) is not None:
            raise StoreCorrupt(
                f"record {number} of {path} is damaged, at byte {begin}, and others follow it; restore this node from "
                "a backup, or give it an empty directory"
            )
        behind = content.find(log_id, behind + 1)


def _record_at(content: bytes, begin: int, log_id: bytes) -> tuple[int, bytes] | None:
    """Place in the sequence and content of the record at a byte; None when none is whole there."""
    if len(content) - begin < _HEADER.size:
        return None
    found_id, number, length, _ = _HEADER.unpack_from(content, begin)
    first = begin + _HEADER.size
    if found_id != log_id or length > len(content) - first:
        return None
    body = content[first : first + length]
    return (number, body) if content[begin:first] == _header(log_id, number, body) else None


def _header(log_id: bytes, number: int, content: bytes) -> bytes:
    digest = hashlib.blake2b(content, digest_size=_DIGEST_BYTES, key=log_id + number.to_bytes(8, "big")).digest()
    return _HEADER.pack(log_id, number, len(content), digest)


def _write_at(descriptor: int, begin: int, content: bytes) -> None:
    view = memoryview(content)
    while view:
        written = os.pwrite(descriptor, view, begin)
        view, begin = view[written:], begin + written
