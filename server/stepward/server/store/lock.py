"""One process at a time has a data directory open."""

from __future__ import annotations

import fcntl
import os
from typing import TYPE_CHECKING, Final

from stepward.server.store.errors import StoreInUse

if TYPE_CHECKING:
    from pathlib import Path


_FILE: Final = "node.lock"


class DirectoryLock:
    """Held from making it until `release`, or until the process ends.

    The kernel lets go of it however the process ends, so a file that was left behind locks nobody out.

    Raises:
        StoreInUse: Somebody has it; also this process, if it opened the directory before.
    """

    def __init__(self, directory: Path) -> None:
        self._descriptor: int | None = os.open(directory / _FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            _take(directory, self._descriptor, fcntl.LOCK_EX)
        except StoreInUse:
            self.release()
            raise
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, str(os.getpid()).encode(), 0)

    def release(self) -> None:
        """Let the next one in. Safe to repeat."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def refuse_held(directory: Path) -> None:
    """Look whether somebody has the directory, without having it, or making anything there.

    Raises:
        StoreInUse: Somebody has.
    """
    try:
        descriptor = os.open(directory / _FILE, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        _take(directory, descriptor, fcntl.LOCK_SH)
    finally:
        os.close(descriptor)


def _take(directory: Path, descriptor: int, kind: int) -> None:
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.pread(descriptor, 20, 0)
        raise StoreInUse(directory, int(holder) if holder.isdigit() else None) from None
