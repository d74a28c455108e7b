"""`stepward cluster status`: asks every node, and judges what they say together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from stepward.client.cli import cluster_advice, supervision_status
from stepward.client.cli.exits import ExitCode
from stepward.client.cli.session import Output, Session, ago, note, print_table, with_session
from stepward.client.errors import SAID, StepwardError, Unreachable

if TYPE_CHECKING:
    from collections.abc import Mapping

    from stepward.client.values import JobState, NodeStatus, ShardStatus

# A node that does not answer is soon told from one that does.
STATUS_TIMEOUT_S = 3.0
# Nodes that are asked at the same time: more than any cluster has.
ASKED_MAX = 16
# The leader writes a beat every second. After so long without one nobody looks after the jobs.
BEAT_AGE_S_MAX = 8.0
# Below it a node refuses new work.
FREE_BYTES_MIN = 96 * 1024 * 1024
COLUMNS = (
    "NODE",
    "ADDRESS",
    "STATE",
    "ROLE",
    "TERM",
    "SEQUENCE",
    "HASH",
    "LAG",
    "FREE",
    "BEAT",
    "SUPERVISION",
    "UP",
    "PID",
    "VERSION",
)


@dataclass(frozen=True)
class Found:
    """What came of asking one node. `node_id` of one that did not answer is known when another one named it.

    Ages count up to `answered_at` (None: now): what is shown may have waited for another node, that did not answer.
    """

    address: str
    node_id: str = ""
    status: NodeStatus | None = None
    error: str = ""
    answered_at: datetime | None = None

    @property
    def name(self) -> str:
        return self.node_id or self.address


@click.command()
@with_session
def status(session: Session) -> ExitCode:
    """Ask every node how it is: those named by --server, and those that they name.

    Ends with 0 when all is well, 1 when something is wrong, 5 when no node answered.
    """
    found = ask_all(session)
    troubles = list(judge(found, datetime.now(UTC)))
    if session.as_table:
        _print_table(found)
    else:
        _print_forms(session, found)
    for trouble in troubles:
        note(f"trouble: {trouble}")
    for step in cluster_advice.advise(found, session.again()):
        note(f"to do: {step}")
    if not any(node.status for node in found):
        return ExitCode.UNAVAILABLE
    return ExitCode.ERROR if troubles else ExitCode.OK


def ask_all(session: Session) -> list[Found]:
    """Ask the nodes of the session and those that they name, each once, in the order of their ids."""
    from stepward.client.failover import parse_addresses

    try:
        addresses = parse_addresses(session.servers)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--server") from None
    found = _ask(session, [("", address) for address in addresses])
    named = {member.node_id: member.address for node in found if node.status for member in node.status.members}
    answered = {node.node_id for node in found if node.status}
    others = [(node_id, address) for node_id, address in named.items() if node_id not in answered]
    # One that was named by --server and did not answer may be one of these, and is told under its id.
    asked_again = {address for _, address in others}
    found = [node for node in found if node.status or node.address not in asked_again]
    return sorted([*found, *_ask(session, others)], key=lambda node: (node.node_id == "", node.name))


def _ask(session: Session, nodes: Sequence[tuple[str, str]]) -> list[Found]:
    with ThreadPoolExecutor(ASKED_MAX) as pool:
        return list(pool.map(lambda node: _ask_one(session, *node), nodes))


def _ask_one(session: Session, node_id: str, address: str) -> Found:
    with replace(session, servers=(address,)).client(timeout_s_max=STATUS_TIMEOUT_S) as client:
        try:
            answer = client.status()
        except StepwardError as error:
            said = error.metadata.get(SAID) or str(error)
            # Of certificates gRPC says no more than that the connection was closed.
            why = session.why_refused(address) if isinstance(error, Unreachable) else ""
            return Found(address, node_id, error=why or said)
    return Found(address, answer.node_id, answer, answered_at=datetime.now(UTC))


def judge(found: Sequence[Found], now: datetime) -> Iterator[str]:
    """What is wrong with a cluster, as its nodes tell it, for a person."""
    statuses = [node.status for node in found if node.status is not None]
    for node in found:
        if node.status is None:
            yield f"{node.name} does not answer: {node.error}"
            if (free_bytes := _free_bytes_known(node.node_id, statuses)) is not None and free_bytes < FREE_BYTES_MIN:
                yield f"{node.name} has only {_bytes(free_bytes)} of free disk, as the leader knows it"
        else:
            yield from _node_troubles(node.status)
    yield from cluster_advice.refusals(statuses)
    clusters = sorted({status.cluster_id for status in statuses if status.cluster_id})
    if len(clusters) > 1:
        yield f"the nodes belong to different clusters: {', '.join(clusters)}"
    elif clusters:
        yield from supervision_status.troubles(statuses)
        yield from _shard_troubles([shard for status in statuses for shard in status.shards])
        yield from _silence(found, now)


def _free_bytes_known(node_id: str, statuses: Sequence[NodeStatus]) -> int | None:
    """What the leader knows of another node's disk, of those that answer; None: nothing."""
    followers = (one for status in statuses for shard in status.shards if shard.leader for one in shard.followers)
    return next((one.free_bytes for one in followers if one.node_id == node_id), None)


def _node_troubles(status: NodeStatus) -> Iterator[str]:
    if status.state not in ("SERVING", "UNSPECIFIED"):
        yield f"{status.node_id} is {status.state}{status.state_reason and f': {status.state_reason}'}"
    elif status.state_reason:
        yield f"{status.node_id}: {status.state_reason}"
    for shard in status.shards:
        if 0 < shard.free_bytes < FREE_BYTES_MIN:
            yield f"{status.node_id} has only {_bytes(shard.free_bytes)} of free disk"


def _shard_troubles(shards: Sequence[ShardStatus]) -> Iterator[str]:
    if not any(shard.leader for shard in shards):
        leader_ids = sorted({shard.leader_id for shard in shards if shard.leader_id})
        yield f"{' or '.join(leader_ids)} leads, and no supervisor is at work there" if leader_ids else "nobody leads"
    leading = [shard.term for shard in shards if shard.leader]
    if len(leading) != len(set(leading)):
        yield "two nodes lead in the same term; this must never happen: stop the cluster and keep its files"
    hashes: dict[int, set[str]] = {}
    for shard in shards:
        hashes.setdefault(shard.sequence, set()).add(shard.hash)
    for sequence, different in sorted(hashes.items()):
        if len(different) > 1:
            shown = ", ".join(sorted(one[:12] for one in different))
            yield f"nodes hold different rows at sequence {sequence}: {shown}"


def _silence(found: Sequence[Found], now: datetime) -> Iterator[str]:
    """Supervision that has stopped, by wall clocks: of older nodes, since newer ones judge that themselves."""
    told = [(node, shard) for node in found if node.status is not None for shard in node.status.shards]
    if any(shard.supervision is not None for _, shard in told):
        return
    beats = [
        ((node.answered_at or now) - shard.supervisor_beat_at, shard.supervisor_beat_at)
        for node, shard in told
        if shard.supervisor_beat_at is not None
    ]
    if beats and min(beats)[0].total_seconds() > BEAT_AGE_S_MAX:
        age, beat_at = min(beats)
        yield f"nobody supervises the jobs: the last beat was {ago(beat_at, beat_at + age)} ago"


def _print_table(found: Sequence[Found]) -> None:
    if not found:
        return
    newest = max((shard.sequence for node in found if node.status for shard in node.status.shards), default=0)
    statuses = [node.status for node in found if node.status]
    print_table(COLUMNS, [_row(node, newest, statuses) for node in found])
    for cluster_id in sorted({node.status.cluster_id for node in found if node.status and node.status.cluster_id}):
        click.echo(f"\ncluster {cluster_id}, jobs: {_jobs(found)}")
    shards = [shard for node in found if node.status for shard in node.status.shards]
    for line in supervision_status.lines(max(shards, key=lambda shard: shard.sequence).supervision if shards else None):
        click.echo(line)


def _row(node: Found, newest: int, statuses: Sequence[NodeStatus]) -> tuple[str, ...]:
    if node.status is None:
        known = _free_bytes_known(node.node_id, statuses)
        free = "" if known is None else _bytes(known)
        return (node.node_id or "?", node.address, "UNREACHABLE", *[""] * 5, free, *[""] * (len(COLUMNS) - 9))
    status = node.status
    process = (ago(status.started_at, node.answered_at), str(status.pid), status.version)
    if not status.shards:
        return (node.name, node.address, str(status.state), *[""] * 8, *process)
    shard = status.shards[0]
    role = supervision_status.role(shard)
    seen = shard.supervision.health if shard.supervision is not None else ""
    state = f"{status.state}, fetching rows" if shard.fetching_rows else str(status.state)
    head = (str(shard.term), str(shard.sequence), shard.hash[:12], str(newest - shard.sequence))
    return (node.name, node.address, state, role, *head, _bytes(shard.free_bytes), _beat(node, shard), seen, *process)


def _beat(node: Found, shard: ShardStatus) -> str:
    """How long ago the last beat came, by the node's own clock where it says so: its verdict is made of that."""
    if shard.supervision is not None and shard.supervision.beat_age is not None:
        return supervision_status.seconds_ago(shard.supervision.beat_age)
    return f"{ago(shard.supervisor_beat_at, node.answered_at)} ago" if shard.supervisor_beat_at else "never"


def _jobs(found: Sequence[Found]) -> str:
    """As the node with the newest rows counts them."""
    shards = [shard for node in found if node.status for shard in node.status.shards]
    jobs: Mapping[JobState, int] = max(shards, key=lambda shard: shard.sequence).jobs if shards else {}
    return ", ".join(f"{count} {state}" for state, count in jobs.items() if count) or "none"


def _bytes(count: int) -> str:
    return f"{count / 2**30:.1f}GiB" if count >= 2**30 else f"{count / 2**20:.0f}MiB"


def _print_forms(session: Session, found: Sequence[Found]) -> None:
    from stepward.client.cli.json_form import compact, pretty

    forms = [_form(node) for node in found]
    if session.output is Output.JSON:
        click.echo(pretty(forms))
        return
    for form in forms:
        click.echo(compact(form))


def _form(node: Found) -> dict[str, Any]:
    from stepward.client.cli.json_form import json_form

    if node.status is None:
        return {"node_id": node.node_id, "address": node.address, "error": node.error}
    return {**json_form(node.status.message), "address": node.address, "error": ""}
