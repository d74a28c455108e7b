"""What a command works with: the client, and where and how to print.

Data goes to stdout, everything else to stderr. Without a terminal there is no colour, and nothing is ever cut off.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Self, TextIO, TypeVar

import click

from stepward.client.cli.exits import ExitCode, code_of
from stepward.client.cli.inputs import read_duration_s
from stepward.client.errors import CommitUnknown, StepwardError, TlsFilesWrong, Unreachable
from stepward.client.failover import DEFAULT_ADDRESSES

if TYPE_CHECKING:
    from google.protobuf.message import Message

    from stepward.client.blocking_client import Client
    from stepward.client.tls import TlsFiles

F = TypeVar("F", bound=Callable[..., Any])

# How soon a command says that there is no server. Long enough for one that was started a moment ago.
FIRST_CONTACT_S = 2.0
TIMEOUT_S = 10.0
TIMEOUT_S_MAX = 86_400.0
# Of so many addresses it is found out whether certificates are the reason that nobody answers.
DIAGNOSED_MAX = 3
_TLS_SETTINGS = "--tls-ca, --tls-cert and --tls-key, or STEPWARD_TLS_CA, STEPWARD_TLS_CERT and STEPWARD_TLS_KEY"


class Output(StrEnum):
    """How data is printed."""

    TABLE = "table"
    JSON = "json"
    JSONL = "jsonl"


@dataclass(frozen=True)
class Session:
    """The choices that all commands share."""

    servers: tuple[str, ...] = (DEFAULT_ADDRESSES,)
    namespace: str = "default"
    output: Output = Output.TABLE
    timeout_s: float = TIMEOUT_S
    """How long one call may take."""
    tls_ca: str | None = None
    tls_cert: str | None = None
    tls_key: str | None = None

    @classmethod
    def from_environment(cls) -> Self:
        """What is chosen when no option says otherwise."""
        get = os.environ.get
        return cls(
            servers=(get("STEPWARD_SERVER") or DEFAULT_ADDRESSES,),
            namespace=get("STEPWARD_NAMESPACE") or "default",
            tls_ca=get("STEPWARD_TLS_CA") or None,
            tls_cert=get("STEPWARD_TLS_CERT") or None,
            tls_key=get("STEPWARD_TLS_KEY") or None,
        )

    @property
    def tls(self) -> TlsFiles | None:
        """Files for TLS; None: plain text."""
        if not (self.tls_ca or self.tls_cert or self.tls_key):
            return None
        if not self.tls_ca:
            raise click.BadParameter(
                "a certificate and a key say who you are; --tls-ca says whom you trust, and is missing"
            )
        from stepward.client.tls import TlsFiles

        return TlsFiles(self.tls_ca, self.tls_cert, self.tls_key)

    @property
    def as_table(self) -> bool:
        return self.output is Output.TABLE

    def client(self, *, timeout_s_max: float = TIMEOUT_S_MAX) -> Client:
        """A client for this cluster. Loads gRPC."""
        # Its core writes about broken connections to stderr, where ours say the same in words.
        os.environ.setdefault("GRPC_VERBOSITY", "NONE")
        from stepward.client.blocking_client import Client
        from stepward.client.failover import Patience

        timeout_s = min(self.timeout_s, timeout_s_max)
        patience = Patience(timeout_s=timeout_s, first_contact_s=min(FIRST_CONTACT_S, timeout_s))
        try:
            return Client(self.servers, namespace=self.namespace, patience=patience, tls=self.tls)
        except TlsFilesWrong as error:
            raise click.BadParameter(str(error), param_hint="--tls-ca, --tls-cert, --tls-key") from None
        except ValueError as error:
            raise click.BadParameter(str(error), param_hint="--server") from None

    def why_refused(self, address: str) -> str:
        """Why a node does not answer that certificates are the reason of, and what to do; empty: they are not.

        Makes a connection of its own.
        """
        from stepward.client.tls import why_refused

        why = why_refused(address, self.tls)
        return f"{why}; see {_TLS_SETTINGS}" if why else ""

    def again(self) -> str:
        """The options that lead another command to the same cluster."""
        options = "" if self.servers == (DEFAULT_ADDRESSES,) else f" --server {','.join(self.servers)}"
        options += "" if self.namespace == "default" else f" --namespace {self.namespace}"
        files = (("--tls-ca", self.tls_ca), ("--tls-cert", self.tls_cert), ("--tls-key", self.tls_key))
        return options + "".join(f" {name} {path}" for name, path in files if path)

    def print_items(
        self, messages: Iterable[Message], columns: Sequence[str], rows: Callable[[], Iterable[Sequence[str]]]
    ) -> None:
        """Print a list: as rows, as one JSON array, or as one JSON document a line."""
        from stepward.client.cli.json_form import compact, json_form, pretty

        match self.output:
            case Output.TABLE:
                print_table(columns, rows())
            case Output.JSON:
                click.echo(pretty([json_form(message) for message in messages]))
            case Output.JSONL:
                for message in messages:
                    click.echo(compact(json_form(message)))

    def print_form(self, form: Any) -> None:
        """Print one JSON document. Not for tables."""
        from stepward.client.cli.json_form import compact, pretty

        click.echo(pretty(form) if self.output is Output.JSON else compact(form))

    def print_message(self, message: Message) -> None:
        """Print one message as a JSON document. Not for tables."""
        from stepward.client.cli.json_form import json_form

        self.print_form(json_form(message))


def note(text: str) -> None:
    """Say something that is not data."""
    click.echo(text, err=True)


def has_colour(stream: TextIO) -> bool:
    """Whether somebody looks at it and wants colour (https://no-color.org)."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def print_table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print aligned columns."""
    cells = [tuple(columns), *(tuple(_one_line(cell) for cell in row) for row in rows)]
    widths = [max(len(row[place]) for row in cells) for place in range(len(columns))]
    for number, row in enumerate(cells):
        line = "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        bold = number == 0 and has_colour(sys.stdout)
        click.echo(click.style(line, bold=True) if bold else line)


def ago(instant: datetime | None, now: datetime | None = None) -> str:
    """How long ago, for a table; JSON has the instant."""
    from stepward.client.tree import seconds

    if instant is None:
        return ""
    return seconds(((now or datetime.now(UTC)) - instant).total_seconds())


def shared_options(command: F) -> F:
    """The options that every command takes, before or behind its name."""
    options = (
        click.option(
            "--server",
            "servers",
            multiple=True,
            metavar="HOST:PORT",
            help="A node of the cluster; several, or separated by commas, are tried in turn.",
        ),
        click.option("--namespace", metavar="NAME", help="Where jobs and definitions live."),
        click.option(
            "--timeout", callback=read_timeout_s, metavar="DURATION", help="How long a call may take.  [default: 10s]"
        ),
        click.option(
            "-o", "--output", type=click.Choice([output.value for output in Output]), help="How to print data."
        ),
        click.option("--tls-ca", metavar="FILE", help="Speak TLS, and trust nodes that these authorities have signed."),
        click.option("--tls-cert", metavar="FILE", help="Certificate that says who you are."),
        click.option("--tls-key", metavar="FILE", help="Its key."),
    )
    for option in reversed(options):
        command = option(command)
    return command


def with_session(function: Callable[..., int]) -> Callable[..., Any]:
    """Give a command its session; options behind the command's name go before those in front of it."""

    def command(
        ctx: click.Context,
        /,
        servers: tuple[str, ...],
        namespace: str | None,
        timeout: float | None,
        output: str | None,
        tls_ca: str | None,
        tls_cert: str | None,
        tls_key: str | None,
        **arguments: Any,
    ) -> None:
        session = ctx.find_object(Session) or Session()
        chosen = choose(
            session,
            servers=servers,
            namespace=namespace,
            timeout_s=timeout,
            output=output,
            tls_ca=tls_ca,
            tls_cert=tls_cert,
            tls_key=tls_key,
        )
        with reported(ctx, chosen):
            ctx.exit(function(chosen, **arguments))

    # The wrapper takes over name, help and the options that are given already.
    functools.update_wrapper(command, function)
    return shared_options(click.pass_context(command))


@contextmanager
def reported(ctx: click.Context, session: Session | None = None) -> Iterator[None]:
    """End the command with a message and an exit code when something did not work.

    With a session it is also found out whether certificates are the reason that nobody answers.
    """
    try:
        yield
    except StepwardError as error:
        note(f"error: {error}{_to_do(error)}{_certificates(error, session)}")
        ctx.exit(code_of(error))
    except KeyboardInterrupt:
        note("interrupted")
        ctx.exit(ExitCode.INTERRUPTED)


def _to_do(error: StepwardError) -> str:
    """What an error of the library cannot say, since it does not know about the command line."""
    key = error.metadata.get("idempotency_key")
    if key and isinstance(error, CommitUnknown | Unreachable):
        return f"\nit may have been stored; repeat the command with --key {key} to get the same job"
    return ""


def _certificates(error: StepwardError, session: Session | None) -> str:
    """What is wrong with certificates, when nobody answered: gRPC does not say it."""
    if session is None or not isinstance(error, Unreachable):
        return ""
    from stepward.client.failover import parse_addresses

    addresses = parse_addresses(session.servers)[:DIAGNOSED_MAX]
    found = [(address, session.why_refused(address)) for address in addresses]
    return "".join(f"\n{address}: {why}" for address, why in found if why)


def read_timeout_s(ctx: click.Context, param: click.Parameter, text: str | None) -> float | None:
    """A click callback: a duration within reason."""
    timeout_s = read_duration_s(ctx, param, text)
    if timeout_s is not None and not 0 < timeout_s <= TIMEOUT_S_MAX:
        raise click.BadParameter(f"it must be above 0 and at most {TIMEOUT_S_MAX / 3600:.0f}h")
    return timeout_s


def choose(
    session: Session,
    *,
    servers: Sequence[str],
    namespace: str | None,
    timeout_s: float | None,
    output: str | None,
    tls_ca: str | None,
    tls_cert: str | None,
    tls_key: str | None,
) -> Session:
    """The session with what was chosen anew."""
    return replace(
        session,
        servers=tuple(servers) or session.servers,
        namespace=namespace or session.namespace,
        timeout_s=timeout_s or session.timeout_s,
        output=Output(output) if output else session.output,
        tls_ca=tls_ca or session.tls_ca,
        tls_cert=tls_cert or session.tls_cert,
        tls_key=tls_key or session.tls_key,
    )


def _one_line(cell: str) -> str:
    return " ".join(cell.split())
