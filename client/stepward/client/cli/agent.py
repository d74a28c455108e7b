"""`stepward agent ...`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from stepward.client.cli.exits import ExitCode
from stepward.client.cli.inputs import read_duration_s
from stepward.client.cli.session import Session, ago, with_session

if TYPE_CHECKING:
    from stepward.client.values import Agent


@click.group()
def agent() -> None:
    """Run and look at agents: the processes that do the work."""


@agent.command()
@click.argument("target", metavar="MODULE[:ATTR]")
@click.option("--slots", type=click.IntRange(1, 10_000), help="How many steps it takes at once.")
@click.option("--queue", help="The queue that it serves.")
@click.option(
    "--drain-timeout", callback=read_duration_s, metavar="DURATION", help="How long it may finish what it has."
)
@click.option("--once", is_flag=True, help="Do not start it again when it ends by itself.")
@with_session
def run(
    session: Session, target: str, slots: int | None, queue: str | None, drain_timeout: float | None, once: bool
) -> int:
    """Run the agent in a Python module, and start it again when its process ends by itself.

    Ctrl-C lets it finish what it holds; what it cannot finish in time it hands back.
    """
    from stepward.agents.parent import WorkerOptions
    from stepward.agents.parent import run as run_agent
    from stepward.client.failover import parse_addresses

    try:
        addresses = parse_addresses(session.servers)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--server") from None
    options = WorkerOptions(slots=slots, queue=queue, drain_timeout_seconds=drain_timeout, once=once, tls=session.tls)
    return run_agent(target, addresses, options)


@agent.command(name="list")
@with_session
def list_(session: Session) -> ExitCode:
    """List the agents that have an open session."""
    with session.client() as client:
        agents = list(client.agents())
    session.print_items(
        [one.message for one in agents],
        ("NAME", "QUEUE", "ACTIONS", "SLOTS", "STATE", "HEARD", "SESSION"),
        lambda: [_row(one) for one in agents],
    )
    return ExitCode.OK


def _row(one: Agent) -> tuple[str, ...]:
    state = "draining" if one.draining else "connected" if one.connected else "lost"
    heard = f"{ago(one.renewed_at)} ago" if one.renewed_at else ""
    slots = f"{one.slots_taken}/{one.slots}"
    return (one.name, one.queue, ",".join(one.actions), slots, state, heard, one.session_id)
