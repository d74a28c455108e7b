"""One process at a time has a data directory open."""

from __future__ import annotations

import fcntl
import os
from typing import TYPE_CHECKING

from stepward.server.store.errors import StoreInUse

if TYPE_CHECKING:
    from pathlib import Path


class DirectoryLock:
    """Held from making it until `release`, or until the process ends.

    The kernel lets go of it however the process ends, so a file that was left behind locks nobody out.

    Raises:
        StoreInUse: Somebody has it; also this process, if it opened the directory before.
    """

    def __init__(self, directory: Path) -> None:
        self._descriptor: int | None = os.open(directory / "node.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(self._descriptor, 20, 0)
            self.release()
            raise StoreInUse(directory, int(holder) if holder.isdigit() else None) from None
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, str(os.getpid()).encode(), 0)

    def release(self) -> None:
        """Let the next one in. Safe to repeat."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
