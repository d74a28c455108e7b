"""`stepward watchdog`: tells from outside when supervision has stopped."""

from __future__ import annotations

import json
import os
import shlex
import signal
from collections import Counter
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from stepward.client.cli.exits import ExitCode
from stepward.client.cli.inputs import read_duration_s
from stepward.client.cli.session import Session, note, with_session
from stepward.client.errors import TlsFilesWrong
from stepward.client.failover import parse_addresses

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from stepward.client.watchdog.dog import Watchdog
    from stepward.client.watchdog.settings import Settings
    from stepward.client.watchdog.verdicts import Change, Verdict

# Beside the servers' port and that of the examples' service.
LISTEN: Final = "127.0.0.1:7656"
SECRET_BYTES_MAX: Final = 4_096


class _Command(click.Command):
    """A command whose mistakes do not look like a verdict: 2 is critical here, so what is wrong with it ends with 3."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:  # type: ignore[explicit-override]  # `override` is of 3.12
        """As click does."""
        try:
            return super().parse_args(ctx, args)
        except click.UsageError as error:
            raise _Mistake(error.format_message(), ctx=error.ctx or ctx) from None

    def invoke(self, ctx: click.Context) -> Any:  # type: ignore[explicit-override]  # `override` is of 3.12
        """As click does."""
        try:
            return super().invoke(ctx)
        except click.UsageError as error:
            raise _Mistake(error.format_message(), ctx=error.ctx or ctx) from None


class _Mistake(click.UsageError):
    """What is wrong with the command line."""

    exit_code = 3


def _read_bounded_s(least_s: float, most_s: float) -> Callable[..., float | None]:
    """A click callback: a duration between bounds."""

    def read(ctx: click.Context, param: click.Parameter, text: str | None) -> float | None:
        duration_s = read_duration_s(ctx, param, text)
        if duration_s is not None and not least_s <= duration_s <= most_s:
            raise click.BadParameter(f"it must be between {least_s:g}s and {most_s:g}s")
        return duration_s

    return read


def _read_url(_ctx: click.Context, _param: click.Parameter, text: str | None) -> str:
    from stepward.client.watchdog.posting import check_url

    try:
        return check_url(text) if text else ""
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


@click.command(cls=_Command)
@click.option("--nodes", multiple=True, metavar="HOST:PORT,...", help="Every node of the cluster.  [default: --server]")
@click.option("--once", is_flag=True, help="Look once, say what is, and end with 0, 1, 2 or 3.")
@click.option(
    "--interval",
    metavar="DURATION",
    default="1s",
    callback=_read_bounded_s(0.2, 60),
    help="From one look to the next.  [default: 1s]",
)
@click.option(
    "--listen",
    metavar="HOST:PORT",
    default=LISTEN,
    help=f"Where /metrics, /healthz and /verdict are.  [default: {LISTEN}]",
)
@click.option(
    "--on-change",
    metavar="COMMAND",
    default="",
    help="Run when another level is told; STEPWARD_WATCHDOG_LEVEL and others say which.",
)
@click.option("--webhook", metavar="URL", callback=_read_url, help="Called when another level is told.")
@click.option(
    "--webhook-secret-file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="What calls of the webhook are signed with.",
)
@click.option("--dead-man", metavar="URL", callback=_read_url, help="Called again and again, only while all is well.")
@click.option(
    "--dead-man-interval",
    metavar="DURATION",
    default="10s",
    callback=_read_bounded_s(1, 3_600),
    help="How often.  [default: 10s]",
)
@click.option(
    "--canary-interval",
    metavar="DURATION",
    default="15s",
    callback=_read_bounded_s(1, 3_600),
    help="How often a job is sent through everything.  [default: 15s]",
)
@click.option("--no-canary", is_flag=True, help="Send none: it writes to the cluster.")
@with_session
def watchdog(session: Session, **options: Any) -> int:
    """Tell when nobody supervises the jobs any more, from a process of its own.

    It asks every node, judges by what their replicas hold and not by what the leader says of itself, and sends a canary
    job through everything. Name all nodes.

    With --once it ends with 0 when all is well, 1 for a warning, 2 when supervision is critical, 3 when it cannot tell;
    3 as well when the command line is wrong. Otherwise it runs until it is stopped, and prints a line at each change;
    70 means that it has found itself hanging.
    """
    settings = _settings(session, options)
    # Its core writes about broken connections to stderr, where ours say the same in words.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    import asyncio

    from stepward.client.watchdog.dog import Watchdog

    def on_change(change: Change) -> None:
        if not options["once"]:
            _print_change(session, change)

    async def run() -> int:
        try:
            dog = Watchdog(settings, log=_log, on_change=on_change)
        except TlsFilesWrong as error:
            raise click.BadParameter(str(error), param_hint="--tls-ca, --tls-cert, --tls-key") from None
        except OSError as error:
            host, port = settings.listen or ("", 0)
            text = f"{host}:{port} cannot be listened on ({error.strerror}); choose another"
            raise click.BadParameter(text, param_hint="--listen") from None
        if options["once"]:
            verdict = await dog.once()
            _print_verdict(session, verdict)
            return verdict.level.value
        return await _watch(session, dog)

    return asyncio.run(run())


async def _watch(session: Session, dog: Watchdog) -> int:
    """Run until a signal says that it is enough."""
    import asyncio

    running = asyncio.create_task(dog.run())
    heard: list[int] = []

    def end(number: int) -> None:
        heard.append(number)
        running.cancel()

    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, end, number)
    _print_ready(session, dog)
    with suppress(asyncio.CancelledError):
        await running
    if not heard:
        # It was cancelled by nobody that we know of.
        return ExitCode.ERROR
    return ExitCode.INTERRUPTED if heard[0] == signal.SIGINT else ExitCode.OK


def _settings(session: Session, options: dict[str, Any]) -> Settings:
    """What the options say.

    Raises:
        click.UsageError: It makes no sense.
    """
    from stepward.client.watchdog.settings import NODES_MAX, Settings

    named = options["nodes"] or session.servers
    try:
        addresses = parse_addresses(named)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--nodes") from None
    for address in _twice(named):
        # No reason not to watch the others; and no news, in the form of a verdict, about the cluster.
        note(f"warning: --nodes names {address} more than once, where another node may be meant; it is watched once")
    if len(addresses) > NODES_MAX:
        raise click.BadParameter(f"{len(addresses)} nodes are named; at most {NODES_MAX} can be", param_hint="--nodes")
    try:
        command = tuple(shlex.split(options["on_change"]))
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--on-change") from None
    return Settings(
        addresses=addresses,
        tls=session.tls,
        interval_s=options["interval"],
        canary_interval_s=0.0 if options["no_canary"] else options["canary_interval"],
        listen=None if options["once"] else _listen(options["listen"]),
        command=command,
        environment=dict(os.environ),
        webhook=options["webhook"],
        webhook_secret=_secret(options["webhook_secret_file"], options["webhook"]),
        dead_man=options["dead_man"],
        dead_man_interval_s=options["dead_man_interval"],
    )


def _twice(named: Sequence[str]) -> list[str]:
    """The addresses that are named more than once."""
    times = Counter(address for text in named for part in text.split(",") for address in _parsed(part))
    return [address for address, count in times.items() if count > 1]


def _parsed(part: str) -> tuple[str, ...]:
    return parse_addresses(part) if part.strip() else ()


def _listen(text: str) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    if not colon or not host or not port.isascii() or not port.isdigit() or int(port) > 65_535:
        raise click.BadParameter(f"{text!r} is not host:port; port 0 is any free one", param_hint="--listen")
    return host.strip("[]"), int(port)


def _secret(path: Path | None, webhook: str) -> bytes:
    if path is None:
        return b""
    hint = "--webhook-secret-file"
    if not webhook:
        raise click.BadParameter("there is nothing to sign: --webhook is missing", param_hint=hint)
    try:
        secret = path.read_bytes().rstrip(b"\r\n")
    except OSError as error:
        raise click.BadParameter(f"{path} cannot be read: {error.strerror}", param_hint=hint) from None
    if not 0 < len(secret) <= SECRET_BYTES_MAX:
        text = f"{path} holds {len(secret)} bytes; a secret has between 1 and {SECRET_BYTES_MAX}"
        raise click.BadParameter(text, param_hint=hint)
    return secret


def _log(event: str, **fields: Any) -> None:
    """One line of JSON on stderr, as the servers log."""
    at = datetime.now(UTC).isoformat(timespec="milliseconds")
    note(json.dumps({"event": event, "at": at, **fields}))


def _print_ready(session: Session, dog: Watchdog) -> None:
    http = dog.pages.address if dog.pages is not None else ""
    nodes = list(dog.settings.addresses)
    if session.as_table:
        note(f"watching {', '.join(nodes)}; http://{http}/verdict says how it is")
    else:
        click.echo(json.dumps({"event": "ready", "address": http, "http": http, "nodes": nodes, "pid": os.getpid()}))


def _print_change(session: Session, change: Change) -> None:
    if session.as_table:
        at = datetime.fromtimestamp(change.at_wall_s, UTC).isoformat(timespec="seconds")
        _print_lines(f"{at} {change.level.name}", change.verdict)
        return
    from stepward.client.watchdog.telling import body_of

    click.echo(json.dumps(body_of(change)))


def _print_verdict(session: Session, verdict: Verdict) -> None:
    if session.as_table:
        _print_lines(verdict.level.name, verdict)
        return
    from stepward.client.watchdog.telling import form_of

    session.print_form(form_of(verdict))


def _print_lines(head: str, verdict: Verdict) -> None:
    """The level and the gravest reason in one line, which is all that some read; the others below."""
    said = [reason.text for reason in verdict.reasons]
    click.echo(f"{head}: {said[0] if said else 'supervision is well'}")
    for reason in verdict.reasons[1:]:
        click.echo(f"  {reason.level.name}: {reason.text}")
