"""The command line, `stepward`.

Reading order: `exits` (exit codes), `session` (what every command shares), `inputs`, `json_form`, then one module a
group of commands; `following` and `views` show a job while it runs. Nothing heavy is imported before a command needs
it: `stepward --help` loads neither gRPC nor rich.
"""

from __future__ import annotations

import io
import sys

import click

from stepward.client.cli import (
    agent,
    cluster,
    definition,
    demo,
    dev,
    explain,
    incident,
    job,
    job_lists,
    job_verbs,
    ledger,
    server,
    version,
    watchdog,
)
from stepward.client.cli.exits import ExitCode
from stepward.client.cli.session import Session, choose, shared_options

__all__ = ["ExitCode", "main"]

EPILOG = """\b
Exit codes: 0 ok, 1 error, 2 usage, 3 not found, 4 conflict, 5 unavailable,
10 job failed or compensated, 11 job cancelled, 12 job escalated,
124 wait timed out, 130 interrupted. The watchdog has its own."""


def _print_version(ctx: click.Context, _param: click.Parameter, wanted: bool) -> None:
    if wanted:
        version.print_version()
        ctx.exit()


@click.group(epilog=EPILOG, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--version", is_flag=True, is_eager=True, expose_value=False, callback=_print_version, help="Show it, and end."
)
@shared_options
@click.pass_context
def main(
    ctx: click.Context,
    servers: tuple[str, ...],
    namespace: str | None,
    timeout: float | None,
    output: str | None,
    tls_ca: str | None,
    tls_cert: str | None,
    tls_key: str | None,
) -> None:
    """Run jobs of several steps so that each one either completes or is cleanly undone.

    First: `stepward dev` starts a server on this machine, and `stepward demo` shows what it does.

    The environment may name the server (STEPWARD_SERVER), the namespace (STEPWARD_NAMESPACE) and files for TLS
    (STEPWARD_TLS_CA, STEPWARD_TLS_CERT, STEPWARD_TLS_KEY).
    """
    _speak_utf8()
    ctx.obj = choose(
        Session.from_environment(),
        servers=servers,
        namespace=namespace,
        timeout_s=timeout,
        output=output,
        tls_ca=tls_ca,
        tls_cert=tls_cert,
        tls_key=tls_key,
    )


def _speak_utf8() -> None:
    """In a locale without UTF-8, write it to pipes and files all the same. A terminal shows what it can."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and stream.encoding.lower().replace("-", "") != "utf8":
            if stream.isatty():
                stream.reconfigure(errors="replace")
            else:
                stream.reconfigure(encoding="utf-8")


for command in (
    dev.dev,
    demo.demo,
    job.job,
    explain.explain,
    definition.definition,
    incident.incident,
    ledger.ledger,
    agent.agent,
    server.server,
    cluster.cluster,
    watchdog.watchdog,
    version.version,
):
    main.add_command(command)
for reading in (job_lists.list_, job_lists.count, job_lists.steps):
    job.job.add_command(reading)
for verb in job_verbs.VERBS:
    job.job.add_command(verb)
