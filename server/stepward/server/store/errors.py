"""What the world may do to a node: the root of all exceptions of the server, and those of the store.

ServerError
├── StoreError
│   ├── StoreAbsent      there is no data in this directory
│   ├── StoreInUse       another process has this directory open
│   ├── StoreFull        there is no room on the disk to begin
│   ├── StoreFailed      the disk or the map did not take what was written
│   ├── IncomingFailed   the rows of another node found no room
│   └── StoreCorrupt     what is stored cannot have been written by us
└── LogbookError         and what is below it: see `logbook.errors`
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


class ServerError(Exception):
    """Root of the exceptions of the server."""


class StoreError(ServerError):
    """The rows cannot be reached."""


class StoreAbsent(StoreError):  # noqa: N818 - a state of the directory, named as such
    """There is no data in this directory."""

    def __init__(self, directory: Path) -> None:
        super().__init__(
            f"{directory} holds no data of a node; make a cluster there first, or name the directory that has it"
        )
        self.directory = directory


class StoreInUse(StoreError):  # noqa: N818 - a state of the directory, named as such
    """Another process has this directory open. `pid` is None when it did not say who it is."""

    def __init__(self, directory: Path, pid: int | None) -> None:
        holder = "another process" if pid is None else f"process {pid}"
        super().__init__(f"{directory} is in use by {holder}; end it first, or give this node a directory of its own")
        self.directory = directory
        self.pid = pid


class StoreFull(StoreError):  # noqa: N818 - a state of the disk, named as such
    """There is no room on the disk to begin. Nothing was touched."""

    def __init__(self, directory: Path, free_bytes: int, free_bytes_min: int) -> None:
        super().__init__(
            f"the disk of {directory} is full: {free_bytes} bytes are free and at least {free_bytes_min} are needed to "
            "start; free some space there, then start again"
        )
        self.directory = directory
        self.free_bytes = free_bytes


class StoreFailed(StoreError):  # noqa: N818 - what happened, named as such
    """The disk or the map did not take what was written. Nobody knows how much of it is there; the process must end."""


class IncomingFailed(StoreError):  # noqa: N818 - what happened, named as such
    """The rows of another node could not be put beside ours. Ours are as they were; it may be tried again."""


class StoreCorrupt(StoreError):  # noqa: N818 - a state of the data, named as such
    """What is stored cannot have been written by us. The files are left as they are."""
