"""What `stepward cluster status` tells of supervision, for a person."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING

from stepward.client.supervision import SupervisionHealth

if TYPE_CHECKING:
    from stepward.client.supervision import Brake, Breaker, Supervision
    from stepward.client.values import NodeStatus, ShardStatus


def troubles(statuses: Sequence[NodeStatus]) -> Iterator[str]:
    """What nodes say of supervision, each by its own rows and clock; what several say alike is told once."""
    said: dict[tuple[SupervisionHealth, str], list[str]] = {}
    for status in statuses:
        for shard in status.shards:
            seen = shard.supervision
            if seen is not None and seen.health in (SupervisionHealth.WARNING, SupervisionHealth.CRITICAL):
                said.setdefault((seen.health, seen.reason), []).append(status.node_id)
    for (health, reason), node_ids in said.items():
        yield f"supervision is {health} for {', '.join(node_ids)}: {reason}"


def role(shard: ShardStatus) -> str:
    """What a node is; of one that leads without a supervisor at work, how that one is."""
    if shard.leader:
        return "leader"
    state = shard.supervision.supervisor_state if shard.supervision is not None else ""
    return f"leader, supervisor {state}" if state else "follower"


def seconds_ago(age: timedelta) -> str:
    """An age in a table."""
    return f"{_seconds(age)} ago"


def lines(seen: Supervision | None) -> Iterator[str]:
    """More of it than fits into a row: what is due and overdue, what waits for a person, what is held back."""
    if seen is None:
        return
    late = seen.detection_latency_max
    yield (
        f"supervision: {seen.remediations} remedied, {seen.due} due, {_overdue(seen)}, "
        f"{seen.incidents_open} {'incident' if seen.incidents_open == 1 else 'incidents'} open"
        + (f", noticed at most {_seconds(late)} late" if late is not None else "")
    )
    if seen.epochs_lost or seen.stays:
        stays = "; leadership stays, nothing is remedied" if seen.stays else ""
        yield f"leaderships of the last minute that lost their supervisor: {seen.epochs_lost}{stays}"
    if seen.brake is not None and seen.brake.on:
        yield _brake(seen.brake)
    for breaker in seen.breakers:
        yield _breaker(breaker)


def _overdue(seen: Supervision) -> str:
    if not seen.overdue:
        return "0 overdue"
    kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(seen.overdue_by_kind.items()))
    oldest = f", the oldest for {_seconds(seen.oldest_overdue)}" if seen.oldest_overdue is not None else ""
    return f"{seen.overdue} overdue ({kinds}{oldest})"


def _brake(brake: Brake) -> str:
    ends = f", at most {_seconds(brake.ends_in)} more" if brake.ends_in is not None else ""
    used = f", {brake.used} of {brake.per_minute} a minute used" if brake.per_minute else ""
    return f"brake: {brake.held} held back{ends}{used}: {brake.reason}"


def _breaker(breaker: Breaker) -> str:
    probes = f", tried again in {_seconds(breaker.probes_in)}" if breaker.probes_in is not None else ""
    where = f"{breaker.namespace}/{breaker.queue}/{breaker.action}"
    return f"breaker {breaker.state}: {where}{probes}: {breaker.reason}"


def _seconds(span: timedelta) -> str:
    from stepward.client.tree import seconds

    return seconds(span.total_seconds())
