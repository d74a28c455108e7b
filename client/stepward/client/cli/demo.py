"""`stepward demo`. What it does is in `stepward.client.demo`."""

from __future__ import annotations

from pathlib import Path

import click

from stepward.client.cli.session import reported


@click.command()
@click.option("--fast", is_flag=True, help="Do not wait for eyes to follow.")
@click.option(
    "--docs",
    type=click.Path(file_okay=False, path_type=Path),
    help="Also write what was shown into this folder, as pages.",
)
@click.option("--keep", is_flag=True, help="Keep the data of the demo when it ends.")
@click.pass_context
def demo(ctx: click.Context, fast: bool, docs: Path | None, keep: bool) -> None:
    """Show on this machine what stepward does when things go wrong."""
    from stepward.client.demo import main

    with reported(ctx):
        ctx.exit(main(fast=fast, docs=docs, keep=keep))
