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
@click.pass_context
def demo(ctx: click.Context, play: str, fast: bool, docs: Path | None, keep: bool) -> None:
    """Show on this machine what stepward does when things go wrong.

    \b
    trip      books a trip: one completes, one is undone, one loses its agent
    machines  provisions a machine: long work that goes on, and an undo that needs a person
    orders    fulfils an order: a payment whose silence may hide a charge
    """  # noqa: D301 - click takes the character, not its escape
    from stepward.client.demo import main

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
