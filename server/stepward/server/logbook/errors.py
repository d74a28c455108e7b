"""What may go wrong with a logbook. All of these but one end the node; none of them touches its files.

ServerError                  see `store.errors`
└── LogbookError
    ├── ClusterExists        there is a cluster in this directory already
    ├── ClusterAbsent        no cluster was ever made here
    ├── DirectoryTaken       the directory holds something else
    ├── DataLost             the directory has held a cluster, and its data is gone
    ├── DataNewer            a newer version has written this directory
    ├── JournalCorrupt       the journal cannot have been written by us
    ├── BatchUnreadable      an entry is no batch that this software knows
    ├── FrameUnreadable      a message of a peer is none that this software knows; ends its stream, not the node
    ├── Diverged             a batch does not continue the chain
    ├── EngineUnfit          another pysyncobj than the one that was made safe
    ├── AssertionsOff        Python was started with -O
    └── ReplicaStopped       an earlier step raised
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from stepward.server.store.errors import ServerError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from stepward.server.core.rows import Head
    from stepward.server.logbook.batch import Batch


class LogbookError(ServerError):
    """The logbook cannot go on."""


class ClusterExists(LogbookError):  # noqa: N818 - a state of the directory, named as such
    """There is a cluster in this directory already."""

    def __init__(self, cluster_id: str) -> None:
        super().__init__(f"cluster {cluster_id} lives here already; start its node, or choose an empty directory")
        self.cluster_id = cluster_id


class ClusterAbsent(LogbookError):  # noqa: N818 - a state of the directory, named as such
    """No cluster was ever made here."""

    def __init__(self) -> None:
        super().__init__("no cluster was ever made in this directory; make one there first")


class DirectoryTaken(LogbookError):  # noqa: N818 - a state of the directory, named as such
    """The directory holds something else; nobody's files are mixed with ours."""

    def __init__(self, directory: Path, name: str) -> None:
        super().__init__(f"{directory} holds files that are not a node's, such as {name!r}; choose an empty directory")
        self.directory = directory
        self.name = name


class DataLost(LogbookError):  # noqa: N818 - a state of the directory, named as such
    """The directory has held a cluster, and its data is gone. A new one there would forget what was acknowledged."""

    def __init__(self, directory: Path, cluster_id: str) -> None:
        super().__init__(
            f"{directory} has held cluster {cluster_id}, and its data is gone; bring data.mdb back, or choose another "
            "directory for a new cluster, or remove the whole directory of a node whose cluster goes on without it"
        )
        self.directory = directory
        self.cluster_id = cluster_id


class JournalCorrupt(LogbookError):  # noqa: N818 - a state of the data, named as such
    """The journal cannot have been written by us."""


class DataNewer(LogbookError):  # noqa: N818 - a state of the directory, named as such
    """A newer version has written this directory. Nothing was touched."""

    def __init__(self, found: int, known: int) -> None:
        super().__init__(
            f"the data has format {found}, and this version reads up to {known}: a newer version has written it; "
            "start that one again"
        )
        self.found = found


class BatchUnreadable(LogbookError):  # noqa: N818 - a state of the data, named as such
    """An entry is no batch that this software knows."""

    def __init__(self, index: int, reason: str) -> None:
        super().__init__(
            f"entry {index} is not a batch this version can read ({reason}); was it written by a newer one?"
        )
        self.index = index


class FrameUnreadable(LogbookError):  # noqa: N818 - a state of the message, named as such
    """A message of a peer is none that this software knows. Nothing of it has happened; its stream is to be closed."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"a message of a peer cannot be read: {reason}")
        self.reason = reason


class Diverged(LogbookError):  # noqa: N818 - what happened, named as such
    """A batch does not continue the chain, which a correct run never meets."""

    def __init__(self, index: int, head: Head, batch: Batch) -> None:
        super().__init__(
            f"entry {index} holds batch {batch.sequence} on parent {batch.parent.hex()[:16]}, but the head is batch "
            f"{head.sequence} with hash {head.hash.hex()[:16]}; this replica has stopped and kept its files"
        )
        self.index = index
        self.head = head
        self.batch = batch


class EngineUnfit(LogbookError):  # noqa: N818 - a state of the installation, named as such
    """Another pysyncobj than the one that was made safe. `missing` are names that are relied on and not there."""

    def __init__(self, version: str, missing: Sequence[str]) -> None:
        lacks = f" without {', '.join(missing)}" if missing else ""
        super().__init__(f"pysyncobj is {version}{lacks}; install exactly the version that stepward asks for")
        self.version = version
        self.missing = tuple(missing)


class AssertionsOff(LogbookError):  # noqa: N818 - a state of the process, named as such
    """Python was started with -O, which removes the checks that stop a wrong node."""

    def __init__(self) -> None:
        super().__init__("Python runs without assertions, which stop a wrong node; start it without -O")


class ReplicaStopped(LogbookError):  # noqa: N818 - what happened, named as such
    """An earlier step raised; what is in memory may be ahead of what is on disk, so the process has to end."""

    def __init__(self) -> None:
        super().__init__("an earlier step of this replica failed; the process has to end and start again")
