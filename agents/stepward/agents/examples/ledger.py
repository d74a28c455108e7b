"""A service's record: every call that came in and how it was answered, one JSON line each.

A call is answered only when its line is on the disk, so the record never knows less than a caller does. Calls that come
in while the disk is busy share the next flush.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import msgspec
from msgspec import Struct

from stepward.agents.examples.bookings import Answer, Call

if TYPE_CHECKING:
    from io import FileIO

EntryT = TypeVar("EntryT", bound=Struct)


class Entry(Struct, frozen=True, kw_only=True):
    """One line of the travel service's record."""

    at_ms: int
    """Wall clock of the service."""
    call: Call
    answer: Answer


def read(path: Path) -> list[Entry]:
    """All entries of a travel service's record; see `read_as`."""
    return read_as(path, Entry)


def read_as(path: Path, kind: type[EntryT]) -> list[EntryT]:
    """All entries of a record, in the order in which they took effect.

    A last line without an end was being written when its process died: its call was never answered.

    Raises:
        msgspec.DecodeError: A whole line is not an entry.
    """
    lines = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
    decoder = msgspec.json.Decoder(kind)
    return [decoder.decode(line) for line in lines]


class Ledger:
    """The record, open for writing by one process.

    A torn last line of an earlier process is cut off first, or the next line would continue it.
    """

    def __init__(self, path: Path) -> None:
        self._file: FileIO = path.open("ab", buffering=0)
        whole = path.read_bytes().rfind(b"\n") + 1
        self._file.truncate(whole)
        self._waiting: list[tuple[bytes, asyncio.Future[None]]] = []
        self._writer: asyncio.Task[None] | None = None

    async def append(self, entry: Struct) -> None:
        """Write a line and return when it is on the disk.

        Raises:
            OSError: It could not be written.
        """
        line = msgspec.json.encode(entry) + b"\n"
        written: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((line, written))
        if self._writer is None:
            self._writer = asyncio.create_task(self._write_all())
        await written

    async def _write_all(self) -> None:
        while self._waiting:
            group, self._waiting = self._waiting, []
            try:
                await asyncio.to_thread(self._flush, b"".join(line for line, _ in group))
            except OSError as error:
                _settle([written for _, written in group], error)
            else:
                _settle([written for _, written in group], None)
        self._writer = None

    def _flush(self, lines: bytes) -> None:
        left = memoryview(lines)
        while left:
            left = left[self._file.write(left) :]
        os.fsync(self._file.fileno())

    def close(self) -> None:
        self._file.close()


def _settle(waiting: list[asyncio.Future[None]], error: OSError | None) -> None:
    """Tell those who still wait; a caller that has gone away waits no more."""
    for written in waiting:
        if written.done():
            continue
        if error is None:
            written.set_result(None)
        else:
            written.set_exception(error)
