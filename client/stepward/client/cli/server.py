"""`stepward server ...`: a node of a cluster, as its file says.

The client never imports the server: the process becomes it, so that a service manager sees the node itself.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import click

from stepward.client.cli.dev_server import check_installed
from stepward.client.cli.session import reported

DEFAULT_FILE = Path("stepward.toml")


@click.group()
def server() -> None:
    """Run a node of a cluster, as its file says."""


def _as_server(word: str) -> Callable[[click.Context, Path, tuple[str, ...]], None]:
    """A command that becomes the server's own of the same name."""

    def become(ctx: click.Context, file: Path, options: tuple[str, ...]) -> None:
        with reported(ctx):
            check_installed()
        # Without a file everything may stand in the environment.
        given = ("--config", str(file)) if file.exists() or file != DEFAULT_FILE else ()
        sys.stdout.flush()
        os.execv(sys.executable, [sys.executable, "-m", "stepward.server", word, *given, *options])

    return become


_SETTINGS = {"ignore_unknown_options": True}
_FILE = click.Path(path_type=Path)


@server.command(context_settings=_SETTINGS)
@click.argument("file", type=_FILE, default=DEFAULT_FILE)
@click.argument("options", nargs=-1, type=click.UNPROCESSED)
@click.pass_context
def run(ctx: click.Context, file: Path, options: tuple[str, ...]) -> None:
    """Run the node that FILE describes, until it is asked to stop.

    FILE is stepward.toml if none is named; variables of the environment (STEPWARD_NODE_ID, STEPWARD_DATA,
    STEPWARD_NODES and others) count more. Logs go to stderr, and one line of JSON to stdout when the node is ready.
    OPTIONS, such as --log-level debug, are those of: python -m stepward.server run --help
    """
    _as_server("run")(ctx, file, options)


@server.command(context_settings=_SETTINGS)
@click.argument("file", type=_FILE, default=DEFAULT_FILE)
@click.argument("options", nargs=-1, type=click.UNPROCESSED)
@click.pass_context
def check(ctx: click.Context, file: Path, options: tuple[str, ...]) -> None:
    """Say what is wrong with FILE, all of it: the line, the field, the value and the bound."""
    _as_server("check")(ctx, file, options)
