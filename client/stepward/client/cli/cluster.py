"""`stepward cluster ...`."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import click

from stepward.client.cli.exits import ExitCode
from stepward.client.cli.session import Session, ago, note, print_table, with_session
from stepward.client.errors import Unavailable

if TYPE_CHECKING:
    from collections.abc import Mapping

    from stepward.client.values import JobState, NodeStatus, ShardStatus

# A node that does not answer is soon told from one that does: the others are still to be asked.
STATUS_TIMEOUT_S = 3.0


@click.group()
def cluster() -> None:
    """Look at the nodes."""


@cluster.command()
@with_session
def status(session: Session) -> ExitCode:
    """Ask every node that is named by --server how it is."""
    from stepward.client.failover import parse_addresses

    try:
        addresses = parse_addresses(session.servers)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--server") from None
    found: list[tuple[str, NodeStatus]] = []
    for address in addresses:
        with replace(session, servers=(address,)).client(timeout_s_max=STATUS_TIMEOUT_S) as client:
            try:
                found.append((address, client.status()))
            except Unavailable as error:
                note(f"error: {error}")
    if session.as_table:
        _print_tables(found)
    else:
        session.print_items([node.message for _, node in found], (), list)
    return ExitCode.OK if len(found) == len(addresses) else ExitCode.UNAVAILABLE


def _print_tables(found: list[tuple[str, NodeStatus]]) -> None:
    if not found:
        return
    print_table(
        ("ADDRESS", "NODE", "CLUSTER", "VERSION", "PID", "UP"),
        [
            (address, node.node_id, node.cluster_id, node.version, str(node.pid), ago(node.started_at))
            for address, node in found
        ],
    )
    click.echo()
    print_table(
        ("NODE", "SHARD", "ROLE", "LEADER", "EPOCH", "SEQUENCE", "HASH", "BEAT", "OVERDUE", "JOBS"),
        [_shard_row(node.node_id, shard) for _, node in found for shard in node.shards],
    )


def _shard_row(node_id: str, shard: ShardStatus) -> tuple[str, ...]:
    role = "leader" if shard.leader else "follower"
    beat = f"{ago(shard.supervisor_beat_at)} ago" if shard.supervisor_beat_at else "never"
    numbers = (str(shard.epoch), str(shard.sequence), shard.hash[:12])
    leader = shard.leader_id or "nobody"
    return (node_id, str(shard.shard), role, leader, *numbers, beat, str(shard.overdue), _counts(shard.jobs))


def _counts(jobs: Mapping[JobState, int]) -> str:
    return ", ".join(f"{count} {state}" for state, count in jobs.items() if count) or "none"
