"""Who a node is: drawn once, when its cluster is made, and kept beside its rows.

Making a cluster is explicit. A node that found an empty directory and made itself a cluster would forget, after its
disk was replaced, that it had ever voted or acknowledged anything.
"""

from __future__ import annotations

import contextlib
import time
import uuid
from typing import TYPE_CHECKING, Final

import msgspec
from msgspec import Struct

from stepward.server.logbook import batch, journal
from stepward.server.logbook.errors import ClusterAbsent, ClusterExists, DirectoryTaken
from stepward.server.store import facts
from stepward.server.store.errors import StoreCorrupt
from stepward.server.store.lmdb_store import LmdbStore, strangers

if TYPE_CHECKING:
    from pathlib import Path

    from stepward.server.store.interface import Store

_FIRST_INCARNATION: Final = 1


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
        StoreInUse: A node is running on it.
    """
    store = LmdbStore(directory, create=True)
    try:
        return found_cluster(store, node_id, wall_ms=time.time_ns() // 1_000_000)
    finally:
        store.close()


def ensure_cluster(directory: Path, node_id: str) -> None:
    """Make a cluster of one node in `directory`, unless it knows one already.

    What a crash left while one was made is gone on with: it holds no cluster, since that is one commit.

    Raises:
        DirectoryTaken: The directory holds something else, and no data of a node.
        StoreInUse: A node is running on it.
    """
    others = strangers(directory)
    if others:
        raise DirectoryTaken(directory, others[0])
    with contextlib.suppress(ClusterExists):
        create_cluster(directory, node_id)


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
