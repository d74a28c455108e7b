"""`stepward demo`. What it does is in `stepward.client.demo`."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryFile

import click

from stepward.client.cli.session import reported

# As in `stepward.client.demo.plays`, which would load the client.
PLAYS = ("trip", "machines", "orders")


@click.command()
@click.argument("play", type=click.Choice(PLAYS), default=PLAYS[0])
@click.option("--fast", is_flag=True, help="Do not wait for eyes to follow.")
@click.option(
    "--docs",
    type=click.Path(file_okay=False, path_type=Path),
    help="Also write what was shown into this folder, as pages.",
)
@click.option("--keep", is_flag=True, help="Keep the data of the demo when it ends.")
@click.option("--nodes", type=click.Choice(["1", "3", "5"]), default="1", help="Show trips on so many nodes.")
@click.option("--kill-leader", is_flag=True, help="Kill the node that leads in the middle. Needs several.")
@click.pass_context
def demo(
    ctx: click.Context, play: str, fast: bool, docs: Path | None, keep: bool, nodes: str, kill_leader: bool
) -> None:
    """Show on this machine what stepward does when things go wrong.

    \b
    trip      books a trip: one completes, one is undone, one loses its agent
    machines  provisions a machine: long work that goes on, and an undo that needs a person
    orders    fulfils an order: a payment whose silence may hide a charge

    With --nodes 3 --kill-leader: trips that go on while the node that leads is killed.
    """  # noqa: D301 - click takes the character, not its escape
    from stepward.client.demo import main, main_of_nodes

    several = nodes != "1"
    if kill_leader and not several:
        raise click.UsageError("--kill-leader needs other nodes that can lead: add --nodes 3")
    if several and (play != PLAYS[0] or docs is not None):
        raise click.UsageError(f"on several nodes only {PLAYS[0]} is shown, and no page is written")
    if several:
        with reported(ctx):
            ctx.exit(main_of_nodes(int(nodes), kill_leader=kill_leader, fast=fast, keep=keep))
    if docs is not None:
        _check_folder(docs)
    with reported(ctx):
        ctx.exit(main(play, fast=fast, docs=docs, keep=keep))


def _check_folder(docs: Path) -> None:
    """Make the folder for the pages now: that it cannot be written should not be learnt when the demo is over."""
    try:
        docs.mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=docs):
            pass
    except OSError as error:
        raise click.BadParameter(f"nothing can be written into {docs}: {error.strerror}", param_hint="--docs") from None
