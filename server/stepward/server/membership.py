"""Which cluster a directory belongs to, and whether that is what its node is configured for."""

from __future__ import annotations

import time
import uuid
from typing import TYPE_CHECKING

from stepward.server import config
from stepward.server.logbook.identity import create_cluster, known_identity
from stepward.server.placement import NODE_ID
from stepward.server.store.errors import ServerError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from stepward.server.config import NodeConfig
    from stepward.server.logbook.identity import Identity


class NodeMismatch(ServerError):  # noqa: N818 - a state of directory and file, named as such
    """The directory belongs to another node, or to a cluster of other nodes, than the configuration says."""


class FoundingUnfinished(ServerError):  # noqa: N818 - a state of directories, named as such
    """The directories of one cluster do not belong together."""


def check_identity(identity: Identity, node: NodeConfig) -> None:
    """Compare what a directory says with what the configuration says.

    Raises:
        NodeMismatch: They do not say the same.
    """
    if identity.node_id != node.node_id and (node.nodes or node.node_id != config.DEFAULT_NODE_ID):
        raise NodeMismatch(
            f"{node.data} belongs to node {identity.node_id}, and this is configured as {node.node_id}; "
            "name its own directory, or the other id"
        )
    configured = tuple(sorted(node.nodes)) or (identity.node_id,)
    if configured != identity.members:
        raise NodeMismatch(
            f"{node.data} belongs to a cluster of {', '.join(identity.members)}, and {', '.join(configured)} "
            f"{'is' if len(configured) == 1 else 'are'} configured; name the address of each of its nodes, and no other"
        )


def found_directories(folder: Path, node_ids: Sequence[str]) -> str:
    """Make a directory in `folder` for each node of a new cluster; the cluster's id. Safe to repeat.

    When most of them know a cluster already, nothing is made: one that has lost its data then joins the others when it
    runs.

    Raises:
        ValueError: The ids are none, or twice the same.
        FoundingUnfinished: The directories know different clusters, or too few of them know theirs.
        ServerError: What stands in the way of a directory.
    """
    wrong = [node_id for node_id in node_ids if NODE_ID.fullmatch(node_id) is None]
    if wrong or len(set(node_ids)) < len(node_ids):
        msg = f"{','.join(node_ids)} are no ids of nodes: 1 to 32 of a to z, 0 to 9 and - each, and all different"
        raise ValueError(msg)
    known = {node_id: known_identity(folder / node_id) for node_id in node_ids if (folder / node_id).exists()}
    identities = [identity for identity in known.values() if identity is not None]
    clusters = {(identity.cluster_id, identity.members) for identity in identities}
    if len(clusters) > 1 or any(members != tuple(sorted(node_ids)) for _, members in clusters):
        raise FoundingUnfinished(
            f"the directories in {folder} do not belong to one cluster of {', '.join(node_ids)}; name another folder"
        )
    if identities and 2 * len(identities) > len(node_ids):
        return identities[0].cluster_id
    if identities:
        raise FoundingUnfinished(
            f"only {', '.join(sorted(identity.node_id for identity in identities))} of {', '.join(node_ids)} in "
            f"{folder} know their cluster, which is too few to go on; bring the others back, or remove them all"
        )
    cluster_id, wall_ms = str(uuid.uuid4()), time.time_ns() // 1_000_000
    for node_id in node_ids:
        create_cluster(folder / node_id, node_id, members=node_ids, cluster_id=cluster_id, wall_ms=wall_ms)
    return cluster_id
