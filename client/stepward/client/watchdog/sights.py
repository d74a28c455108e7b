"""What the watchdog saw when it asked one node, once.

A sight has the facts of the node's own replica. What a leader says of its own supervisor is kept apart and decides
nothing by itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from stepward.client import reading
from stepward.client.values import NodeState
from stepward.v1 import cluster_service_pb2

if TYPE_CHECKING:
    from datetime import datetime

    from stepward.client.values import Member, NodeStatus, ShardStatus


# What is read of one answer, whoever gave it: more than any cluster has.
SHARDS_MAX: Final = 256
MEMBERS_MAX: Final = 256
BREAKERS_MAX: Final = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """What a node counts and measures of supervision in its own replica. Older nodes tell none of it."""

    critical: bool = False
    warning: bool = False
    reason: str = ""
    beat_age_s: float | None = None
    """Since the newest beat was applied there, on the node's steady clock. None: none since it started."""
    beats: int = 0
    remediations: int = 0
    overdue: int = 0
    oldest_overdue_s: float = 0.0
    brake: str = ""
    """Why remediation is held back. Empty: it is not."""
    breakers: tuple[str, ...] = ()
    """Actions that are not offered because they fail."""
    incidents_open: int = 0
    epochs_lost: int = 0
    stays: bool = False
    supervisor_state: str = ""
    """Of the leader, as it sees itself; empty elsewhere."""

    @property
    def supervisor_unwell(self) -> bool:
        return self.supervisor_state not in ("", "RUNNING")


@dataclass(frozen=True, slots=True, kw_only=True)
class Replica:
    """One shard as one node has it."""

    shard: int = 0
    leads: bool = False
    leader_id: str = ""
    term: int = 0
    epoch: int = 0
    sequence: int = 0
    hash: str = ""
    contact_age_s: float | None = None
    """Since the node last heard of a leader. None: it leads, or never has."""
    beat_at: datetime | None = None
    """By the wall clock of the leader that wrote it."""
    overdue: int = 0
    told: Told | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Sight:
    """What came of asking one node. An `error` means that it has not answered, and says how."""

    address: str
    at_s: float
    """When it answered or was given up, on the watchdog's steady clock."""
    error: str = ""
    node_id: str = ""
    cluster_id: str = ""
    state: NodeState = NodeState.UNSPECIFIED
    state_reason: str = ""
    members: tuple[Member, ...] = ()
    replicas: tuple[Replica, ...] = ()

    @property
    def name(self) -> str:
        return self.node_id or self.address


def sight_of(address: str, at_s: float, status: NodeStatus) -> Sight:
    """What an answer says."""
    shards = zip(status.shards[:SHARDS_MAX], status.message.shards[:SHARDS_MAX], strict=True)
    return Sight(
        address=address,
        at_s=at_s,
        node_id=status.node_id,
        cluster_id=status.cluster_id,
        state=status.state,
        state_reason=status.state_reason,
        members=status.members[:MEMBERS_MAX],
        replicas=tuple(_replica(*both) for both in shards),
    )


def _replica(shard: ShardStatus, message: cluster_service_pb2.ShardStatus) -> Replica:
    contact, told = shard.leader_contact_age, _told(message)
    return Replica(
        shard=shard.shard,
        leads=shard.leader,
        leader_id=shard.leader_id,
        term=shard.term,
        epoch=shard.epoch,
        sequence=shard.sequence,
        hash=shard.hash,
        contact_age_s=None if contact is None else contact.total_seconds(),
        beat_at=shard.supervisor_beat_at,
        # What is overdue now counts more than what was at the beat.
        overdue=shard.overdue if told is None else told.overdue,
        told=told,
    )


def _told(message: cluster_service_pb2.ShardStatus) -> Told | None:
    """What a node tells of supervision; None: it is older than that."""
    if not message.HasField("supervision"):
        return None
    said = message.supervision
    breakers = (f"{one.namespace}/{one.action}: {one.reason}" for one in said.breakers[:BREAKERS_MAX])
    return Told(
        critical=said.health == cluster_service_pb2.SUPERVISION_HEALTH_CRITICAL,
        warning=said.health == cluster_service_pb2.SUPERVISION_HEALTH_WARNING,
        reason=said.reason,
        beat_age_s=_seconds(said, "beat_age"),
        beats=said.beats,
        remediations=said.remediations,
        overdue=said.overdue,
        oldest_overdue_s=_seconds(said, "oldest_overdue") or 0.0,
        brake=(said.brake.reason or "no reason given") if said.brake.on else "",
        breakers=tuple(breakers),
        incidents_open=said.incidents_open,
        epochs_lost=said.epochs_lost,
        stays=said.stays,
        supervisor_state=said.supervisor_state,
    )


def _seconds(owner: cluster_service_pb2.Supervision, name: str) -> float | None:
    duration = reading.span(owner, name)
    return None if duration is None else duration.total_seconds()
