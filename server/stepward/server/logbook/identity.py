"""Who a node is: drawn once, when its cluster is made or when it joins one, and kept beside its rows.

Making a cluster is explicit. A node that found an empty directory and made itself a cluster would forget, after its
disk was replaced, that it had ever voted or acknowledged anything. So one that begins with an empty directory in a
cluster that exists joins it in quarantine: it counts for nothing until it has learnt what it may have forgotten.
"""

from __future__ import annotations

import os
import time
import uuid
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import msgspec
from msgspec import Struct, structs

from stepward.server.logbook import batch, journal, quarantine
from stepward.server.logbook.errors import ClusterAbsent, ClusterExists, DataLost, DataNewer, DirectoryTaken
from stepward.server.store import facts
from stepward.server.store.errors import StoreCorrupt
from stepward.server.store.lmdb_store import LmdbStore, has_data, strangers

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from stepward.server.store.interface import Store

_FIRST_INCARNATION: Final = 1
# Names the cluster beside its data, so that a directory which has lost that is not taken for a new one.
_MARK: Final = "cluster"


# The format of a directory. A release that writes what an earlier one could not read raises it.
FORMAT: Final = 1


class Identity(Struct, array_like=True, frozen=True, forbid_unknown_fields=True, tag=FORMAT):
    """Which cluster this is, which node of it, and how often each of them has begun.

    `incarnation`, from 1, is the cluster's: raised when it is restored. `members` are the ids of all nodes, with this
    one, in order. `node_incarnation` is the node's: 1 when it was founded with its cluster, and higher than any before
    when it has begun again with an empty directory.
    """

    cluster_id: str
    node_id: str
    incarnation: int
    members: tuple[str, ...] = ()
    node_incarnation: int = _FIRST_INCARNATION

    def __post_init__(self) -> None:
        # A cluster of one need not say of whom it consists.
        members = tuple(sorted(set(self.members))) or (self.node_id,)
        if self.node_id not in members:
            msg = f"node {self.node_id} is not among the nodes of its cluster: {', '.join(members)}"
            raise ValueError(msg)
        structs.force_setattr(self, "members", members)

    @property
    def peers(self) -> tuple[str, ...]:
        """The other nodes."""
        return tuple(member for member in self.members if member != self.node_id)


_decode: Final = msgspec.msgpack.Decoder(Identity).decode


def create_cluster(
    directory: Path,
    node_id: str,
    *,
    members: Sequence[str] = (),
    cluster_id: str | None = None,
    wall_ms: int | None = None,
) -> Identity:
    """Make a node of a new cluster in `directory`, which is made if it is not there.

    Every member is given the same `members`, `cluster_id` and `wall_ms`. Without them it is a cluster of this node
    alone, under an id that is drawn now.

    Raises:
        ClusterExists: The directory already knows a cluster.
        DataLost: It knew one, and the data is gone.
        StoreInUse: A node is running on it.
    """
    with _empty_store(directory) as store:
        identity = found_cluster(
            store,
            node_id,
            members=members,
            cluster_id=cluster_id,
            wall_ms=time.time_ns() // 1_000_000 if wall_ms is None else wall_ms,
        )
    _write_mark(directory, identity.cluster_id)
    return identity


def join_directory(directory: Path, identity: Identity) -> None:
    """Make a node that joins a cluster in `directory`, which is made if it is not there.

    Raises:
        ClusterExists: The directory already knows a cluster.
        DataLost: It knew one, and the data is gone.
        StoreInUse: A node is running on it.
    """
    with _empty_store(directory) as store:
        join_cluster(store, identity)
    _write_mark(directory, identity.cluster_id)


@contextmanager
def _empty_store(directory: Path) -> Iterator[Store]:
    mark = directory / _MARK
    marked = mark.read_text().strip() if mark.exists() else ""
    if marked and not has_data(directory):
        raise DataLost(directory, marked)
    store = LmdbStore(directory, create=True, rows_of_entry=journal.rows_of_entry)
    try:
        if marked and store.fact(facts.IDENTITY) is None:
            raise DataLost(directory, marked)
        yield store
    finally:
        store.close()


def _write_mark(directory: Path, cluster_id: str) -> None:
    """Name the cluster beside its data, durably."""
    with (directory / _MARK).open("w") as file:
        file.write(f"{cluster_id}\n")
        file.flush()
        os.fsync(file.fileno())
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def ensure_cluster(directory: Path, node_id: str) -> None:
    """Make a cluster of one node in `directory`, unless it knows one already.

    What a crash left while one was made is gone on with: it holds no cluster, since that is one commit.

    Raises:
        DirectoryTaken: The directory holds something else, and no data of a node.
        DataLost: It has held a cluster, and the data is gone.
        StoreInUse: A node is running on it.
    """
    if known_identity(directory) is None:
        create_cluster(directory, node_id)


def known_identity(directory: Path) -> Identity | None:
    """Who the node of a directory is; None when it may become one. Makes a mark that a crash prevented.

    Raises:
        DirectoryTaken: The directory holds something else, and no data of a node.
        DataLost: It has held a cluster, and the data is gone.
        StoreInUse: A node is running on it.
    """
    others = strangers(directory)
    if others:
        raise DirectoryTaken(directory, others[0])
    mark = directory / _MARK
    marked = mark.read_text().strip() if mark.exists() else ""
    if not has_data(directory):
        if marked:
            raise DataLost(directory, marked)
        return None
    store = LmdbStore(directory, rows_of_entry=journal.rows_of_entry)
    try:
        identity = None if store.fact(facts.IDENTITY) is None else open_identity(store)
    finally:
        store.close()
    if identity is None and marked:
        raise DataLost(directory, marked)
    if identity is not None and not marked:
        _write_mark(directory, identity.cluster_id)
    return identity


def found_cluster(
    store: Store, node_id: str, *, wall_ms: int, members: Sequence[str] = (), cluster_id: str | None = None
) -> Identity:
    """Make a node of a new cluster in an empty store. All of it is one commit, so a crash leaves all or nothing.

    Members that are given the same `wall_ms`, `members` and `cluster_id` begin with equal heads.

    Raises:
        ClusterExists: The store already knows a cluster.
    """
    identity = Identity(cluster_id or str(uuid.uuid4()), node_id, _FIRST_INCARNATION, tuple(members))
    _begin(store, identity, wall_ms=wall_ms)
    store.commit()
    return identity


def join_cluster(store: Store, identity: Identity) -> None:
    """Make a node that joins a cluster which exists, in an empty store, in quarantine. All of it is one commit.

    It begins before the first batch; the rows come by the logbook, or all at once from the node that leads.

    Raises:
        ClusterExists: The store already knows a cluster.
    """
    # Nothing of a head before the first batch but its hash is ever compared, and only the cluster's id makes that.
    _begin(store, identity, wall_ms=0)
    quarantine.begin(store)
    store.commit()


def _begin(store: Store, identity: Identity, *, wall_ms: int) -> None:
    if store.fact(facts.IDENTITY) is not None:
        raise ClusterExists(open_identity(store).cluster_id)
    genesis = batch.genesis(identity.cluster_id, incarnation=identity.incarnation, wall_ms=wall_ms)
    store.put_fact(facts.IDENTITY, msgspec.msgpack.encode(identity))
    store.put_fact(facts.HEAD, facts.encode_head(genesis))
    journal.found(store)


def open_identity(store: Store) -> Identity:
    """Who the node is whose rows these are.

    Raises:
        ClusterAbsent: No cluster was ever made here.
        DataNewer: A newer version has written it.
        StoreCorrupt: What stands there is no identity.
    """
    value = store.fact(facts.IDENTITY)
    if value is None:
        raise ClusterAbsent
    if (found := _format(value)) > FORMAT:
        raise DataNewer(found, FORMAT)
    try:
        return _decode(value)
    except msgspec.DecodeError as error:
        raise StoreCorrupt(f"the identity of this node cannot be read: {error}") from error


def _format(value: bytes) -> int:
    """The format that an identity says it has; 0 when it is none."""
    try:
        said = msgspec.msgpack.decode(value)
    except msgspec.DecodeError:
        return 0
    return said[0] if isinstance(said, list) and said and isinstance(said[0], int) else 0
