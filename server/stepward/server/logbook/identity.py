"""Who a node is: drawn once, when its cluster is made, and kept beside its rows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

if TYPE_CHECKING:
    from pathlib import Path

    from stepward.server.store.interface import Store


class Identity(Struct, frozen=True):
    """Which cluster this is, which node of it, and how often the cluster was restored (`incarnation`, from 1)."""

    cluster_id: str
    node_id: str
    incarnation: int


def create_cluster(directory: Path, node_id: str) -> Identity:
    """Make a cluster of one node in `directory`, which is made if it is not there.

    Raises:
        ClusterExists: The directory already knows a cluster.
        StoreInUse: A node is running on it.
    """
    raise NotImplementedError


def open_identity(store: Store) -> Identity:
    """Who the node is whose rows these are.

    Raises:
        ClusterAbsent: No cluster was ever made here.
    """
    raise NotImplementedError
