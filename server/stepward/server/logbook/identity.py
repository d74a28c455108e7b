"""Who a node is: drawn once, when its cluster is made, and kept beside its rows.

Making a cluster is explicit. A node that found an empty directory and made itself a cluster would forget, after its
disk was replaced, that it had ever voted or acknowledged anything.
"""

from __future__ import annotations

import os
import time
import uuid
from typing import TYPE_CHECKING, Final

import msgspec
from msgspec import Struct

from stepward.server.logbook import batch, journal
from stepward.server.logbook.errors import ClusterAbsent, ClusterExists, DataLost, DirectoryTaken
from stepward.server.store import facts
from stepward.server.store.errors import StoreCorrupt
from stepward.server.store.lmdb_store import LmdbStore, has_data, strangers

if TYPE_CHECKING:
    from pathlib import Path

    from stepward.server.store.interface import Store

_FIRST_INCARNATION: Final = 1
# Names the cluster beside its data, so that a directory which has lost that is not taken for a new one.
_MARK: Final = "cluster"


class Identity(Struct, array_like=True, frozen=True, forbid_unknown_fields=True, tag=1):
    """Which cluster this is, which node of it, and how often the cluster was restored (`incarnation`, from 1)."""

    cluster_id: str
    node_id: str
    incarnation: int


_decode: Final = msgspec.msgpack.Decoder(Identity).decode


def create_cluster(directory: Path, node_id: str) -> Identity:
    """Make a cluster of one node in `directory`, which is made if it is not there.

    Raises:
        ClusterExists: The directory already knows a cluster.
        DataLost: It knew one, and the data is gone.
        StoreInUse: A node is running on it.
    """
    mark = directory / _MARK
    marked = mark.read_text().strip() if mark.exists() else ""
    if marked and not has_data(directory):
        raise DataLost(directory, marked)
    store = LmdbStore(directory, create=True)
    try:
        if marked and store.fact(facts.IDENTITY) is None:
            raise DataLost(directory, marked)
        identity = found_cluster(store, node_id, wall_ms=time.time_ns() // 1_000_000)
    finally:
        store.close()
    _write_mark(directory, identity.cluster_id)
    return identity


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
    others = strangers(directory)
    if others:
        raise DirectoryTaken(directory, others[0])
    try:
        create_cluster(directory, node_id)
    except ClusterExists as exists:
        if not (directory / _MARK).exists():
            _write_mark(directory, exists.cluster_id)


def found_cluster(store: Store, node_id: str, *, wall_ms: int) -> Identity:
    """Make a cluster of one node in an empty store. All of it is one commit, so a crash leaves all or nothing.

    Raises:
        ClusterExists: The store already knows a cluster.
    """
    if store.fact(facts.IDENTITY) is not None:
        raise ClusterExists(open_identity(store).cluster_id)
    identity = Identity(str(uuid.uuid4()), node_id, _FIRST_INCARNATION)
    genesis = batch.genesis(identity.cluster_id, incarnation=identity.incarnation, wall_ms=wall_ms)
    store.put_fact(facts.IDENTITY, msgspec.msgpack.encode(identity))
    store.put_fact(facts.HEAD, facts.encode_head(genesis))
    journal.found(store)
    store.commit()
    return identity


def open_identity(store: Store) -> Identity:
    """Who the node is whose rows these are.

    Raises:
        ClusterAbsent: No cluster was ever made here.
        StoreCorrupt: What stands there is no identity.
    """
    value = store.fact(facts.IDENTITY)
    if value is None:
        raise ClusterAbsent
    try:
        return _decode(value)
    except msgspec.DecodeError as error:
        raise StoreCorrupt(f"the identity of this node cannot be read: {error}") from error
