"""`stepward dev`: a server of one node on this machine, or several that are one cluster."""

from __future__ import annotations

import signal
import socket
from collections.abc import Callable
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import click

from stepward.client.cli.dev_cluster import HOST, PORT_STEP, DevCluster, addresses_from
from stepward.client.cli.dev_server import DevServer, DevServerError, check_installed
from stepward.client.cli.exits import ExitCode
from stepward.client.cli.inputs import read_duration
from stepward.client.cli.session import note, reported
from stepward.client.durations import parse_duration
from stepward.client.errors import StepwardError
from stepward.client.failover import DEFAULT_PORT

if TYPE_CHECKING:
    from types import FrameType

ASK_TIMEOUT_S = 1.0
# The server's bounds, kept here so that the option is blamed and not the server.
TTL_BOUNDS = ("1s", "1h")
# With several nodes a lease must outlive a change of leader.
TTL_LEAST_OF_SEVERAL = "8s"
TTL_DEFAULT, TTL_DEFAULT_OF_SEVERAL = "3s", "10s"
RETENTION_BOUNDS = ("1s", "3650d")
# Two nodes would stop when either does; more than five is nothing to try out.
NODES_ALLOWED = (1, 3, 5)


def _between(least: str, most: str) -> Callable[[click.Context, click.Parameter, str | None], timedelta | None]:
    """A click callback: a duration that the server takes."""

    def read(ctx: click.Context, param: click.Parameter, text: str | None) -> timedelta | None:
        duration = read_duration(ctx, param, text)
        if duration is not None and not parse_duration(least) <= duration <= parse_duration(most):
            raise click.BadParameter(f"{text} is out of bounds; it must be between {least} and {most}")
        return duration

    return read


def _read_nodes(_ctx: click.Context, _param: click.Parameter, count: int) -> int:
    if count not in NODES_ALLOWED:
        raise click.BadParameter(f"{count} is not among {', '.join(map(str, NODES_ALLOWED))}: of 2 none may be gone")
    return count


@click.command()
@click.option(
    "--nodes", type=int, callback=_read_nodes, default=1, show_default=True, help="How many nodes: 1, 3 or 5."
)
@click.option("--data", type=click.Path(file_okay=False, path_type=Path), help="Keep the data in this folder.")
@click.option(
    "--port",
    type=click.IntRange(0, 65_535),
    default=DEFAULT_PORT,
    show_default=True,
    help=f"0: any free one. Of several nodes each listens {PORT_STEP} ports above the one before.",
)
@click.option(
    "--ttl",
    callback=_between(*TTL_BOUNDS),
    help=f"How long a lost agent holds its lease.  [default: {TTL_DEFAULT}, of several nodes {TTL_DEFAULT_OF_SEVERAL}]",
)
@click.option(
    "--retention",
    callback=_between(*RETENTION_BOUNDS),
    default="7d",
    show_default=True,
    help="How long ended jobs are kept.",
)
@click.option("-v", "--verbose", is_flag=True, help="Show what the server logs.")
@click.pass_context
def dev(
    ctx: click.Context,
    nodes: int,
    data: Path | None,
    port: int,
    ttl: timedelta | None,
    retention: timedelta,
    verbose: bool,
) -> None:
    """Start a server on this machine, for trying things out: one node, or several that are one cluster.

    Without --data it forgets everything when it ends.
    """
    ttl = ttl or parse_duration(TTL_DEFAULT if nodes == 1 else TTL_DEFAULT_OF_SEVERAL)
    if nodes > 1 and ttl < parse_duration(TTL_LEAST_OF_SEVERAL):
        text = f"it must be at least {TTL_LEAST_OF_SEVERAL} with several nodes, to outlive a change of leader"
        raise click.BadParameter(text, param_hint="--ttl")
    with reported(ctx), ExitStack() as stack:
        check_installed()
        addresses = addresses_from(port, nodes) if nodes > 1 else [f"{HOST}:{port}"]
        for address in addresses:
            _check_port(int(address.rpartition(":")[2]))
        folder = data or Path(
            stack.enter_context(TemporaryDirectory(prefix="stepward-dev-", ignore_cleanup_errors=True))
        )
        options = ["--session-ttl-ms", str(_ms(ttl)), "--retention", f"{_ms(retention)}ms"]
        kept = f"{folder} (removed at the end; keep it with --data DIR)" if data is None else str(folder)
        signal.signal(signal.SIGTERM, _interrupt)
        if nodes > 1:
            ctx.exit(_serve_cluster(DevCluster(folder, addresses, options, verbose=verbose), kept))
        options = ["--data", str(folder), "--port", str(port), "--host", HOST, *options]
        ctx.exit(_serve(DevServer(["dev", *options], name="", verbose=verbose), kept))


def _ms(duration: timedelta) -> int:
    return duration // timedelta(milliseconds=1)


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    """SIGTERM ends us as Ctrl-C does: with the children."""
    raise KeyboardInterrupt


def _serve(server: DevServer, kept: str) -> ExitCode:
    """Run the server until somebody ends it."""
    ready = None
    try:
        ready = server.wait_until_ready()
        _print_banner(ready, kept)
        code = server.wait()
    except KeyboardInterrupt:
        server.terminate()
        if ready is None:
            # It serves nobody yet, and says nothing of use about an end that it did not expect.
            server.stop()
            raise
        note("ending the server; a second Ctrl-C kills it")
        complaint = server.stop()
        note(complaint or "the server has ended")
        return ExitCode.ERROR if complaint else ExitCode.OK
    finally:
        server.close()
    raise DevServerError(server.ended(code))


def _serve_cluster(cluster: DevCluster, kept: str) -> ExitCode:
    """Run the servers until somebody ends them."""
    begun = False
    try:
        cluster.start()
        begun = True
        cluster.print_banner(kept=kept)
        cluster.run()
    except KeyboardInterrupt:
        if not begun:
            raise
        return cluster.stop()
    finally:
        cluster.close()
    raise AssertionError("a cluster runs until it is interrupted")


def _print_banner(ready: dict[str, Any], kept: str) -> None:
    from stepward.client.cli.version import installed

    address = str(ready.get("address", ""))
    server = "" if address.endswith(f":{DEFAULT_PORT}") else f" --server {address}"
    click.echo(
        f"stepward {installed('stepward')}: a server of one node, for trying things out (pid {ready.get('pid')})"
    )
    click.echo(f"  address  {address}")
    click.echo(f"  data     {kept}")
    click.echo("What next, in another terminal:")
    click.echo(f"  stepward definition apply FILE{server}    # say what a job is made of")
    click.echo(f"  stepward agent run MODULE{server}         # start a process that does the work")
    click.echo(f"  stepward job run NAME -i key=value{server}")
    click.echo("Ctrl-C ends it.")


def _check_port(port: int) -> None:
    """Say in our words that a port is taken, before anything is started."""
    if port == 0:
        return
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError as error:
            raise DevServerError(
                f"cannot listen on {HOST}:{port}: {error.strerror}{_who(port)}; choose another with --port, 0 for any"
            ) from None


def _who(port: int) -> str:
    """Who has the port, if it is one of us."""
    from stepward.client.blocking_client import Client

    with Client(f"{HOST}:{port}", timeout_s=ASK_TIMEOUT_S) as client:
        try:
            status = client.status()
        except StepwardError:
            return ""
    return f" (a stepward server, pid {status.pid}, is running there already)"
