"""`stepward cluster ...`: look at the nodes, make a cluster of them, and act on one."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

import click

from stepward.client.cli.cluster_status import Found, ask_all, status
from stepward.client.cli.exits import ExitCode
from stepward.client.cli.job_verbs import by_hand
from stepward.client.cli.session import Session, note, with_session
from stepward.client.errors import Unavailable

# The nodes ask each other, and write to their disks.
CREATE_TIMEOUT_S = 30.0


@click.group()
def cluster() -> None:
    """Look at the nodes, make a cluster of them, and act on one."""


cluster.add_command(status)


@cluster.command()
@with_session
def create(session: Session) -> ExitCode:
    """Make a cluster of the nodes that the file of the server names.

    All of them must run, with empty directories. Any one may be asked. Nothing is made when one cannot be reached.
    """
    with replace(session, timeout_s=max(session.timeout_s, CREATE_TIMEOUT_S)).client() as client:
        made = client.create_cluster()
    if session.as_table:
        nodes = ", ".join(f"{member.node_id} at {member.address}" for member in made.members)
        note(f"cluster {made.cluster_id} is made of {nodes}; see how they are with: stepward cluster status")
        click.echo(made.cluster_id)
    else:
        members = [{"node_id": member.node_id, "address": member.address} for member in made.members]
        session.print_form({"cluster_id": made.cluster_id, "members": members})
    return ExitCode.OK


@cluster.command("transfer-leader")
@click.argument("node_id", default="")
@with_session
def transfer_leader(session: Session, node_id: str) -> ExitCode:
    """Hand leadership to NODE_ID, or to the node that is most up to date, without an election.

    Do this before the node that leads is stopped: work goes on at once instead of after the loss was noticed.
    """
    with session.client() as client:
        # The first call of a connection takes longer, and that is not the transfer's.
        before = {shard.leader_id for shard in client.status().shards}
        began = time.monotonic()
        leads = client.transfer_leader(node_id)
        took_s = time.monotonic() - began
    if session.as_table and node_id and before == {leads.node_id}:
        note(f"{node_id} leads already, in term {leads.term}; nothing was changed")
    elif session.as_table:
        led = ", ".join(sorted(before - {""})) or "nobody"
        note(f"{leads.node_id} leads now, in term {leads.term}; before it was {led}. This took {took_s * 1000:.0f} ms")
    else:
        session.print_form({"node_id": leads.node_id, "term": leads.term, "took_ms": round(took_s * 1000)})
    return ExitCode.OK


@cluster.command()
@click.argument("node_id")
@click.option(
    "--gone", multiple=True, required=True, help="A node that will never come back with its data. Repeatable."
)
@click.option("--yes", is_flag=True, help="Do not ask.")
@by_hand(reason_required=True)
@with_session
def recover(session: Session, node_id: str, gone: tuple[str, ...], yes: bool, reason: str, actor: str) -> ExitCode:
    """Let NODE_ID take part, whose directory was lost while another node is gone for good.

    It would wait for ever to hear from that one what the two may have promised together. What only they had
    acknowledged is lost. When the other one can come back with its data, bring it back instead.
    """
    address = _address_of(node_id, ask_all(session))
    note(f"{node_id} will take part without having heard of {', '.join(gone)}.")
    note(f"Whatever only {' and '.join((node_id, *gone))} had on their disks is lost, though it was acknowledged:")
    note("jobs may be missing, steps may be carried out again. If one of them can come back with its data, stop here.")
    if not yes:
        click.prompt(f"Type {gone[0]} to go on", type=click.Choice([gone[0]]), show_choices=False, err=True)
    with replace(session, servers=(address,)).client() as client:
        warning = client.recover_node(gone, reason=reason, actor=actor)
    if session.as_table:
        note(f"{node_id} goes on without {', '.join(gone)}. {warning}".rstrip())
    else:
        session.print_form({"node_id": node_id, "gone": list(gone), "warning": warning})
    return ExitCode.OK


def _address_of(node_id: str, found: Sequence[Found]) -> str:
    """Where a node is, of those that answer.

    Raises:
        Unavailable: It does not answer, or nobody knows it.
    """
    for node in found:
        if node.node_id == node_id and node.status is not None:
            return node.address
    known = ", ".join(node.name for node in found)
    raise Unavailable(f"{node_id} does not answer; the nodes that are known are: {known}")
