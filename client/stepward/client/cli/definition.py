"""`stepward definition ...`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from stepward.client.cli.exits import ExitCode
from stepward.client.cli.session import Session, ago, note, with_session
from stepward.client.errors import DefinitionNotFound, InvalidDefinition, Unavailable

if TYPE_CHECKING:
    from stepward.client.blocking_client import Client
    from stepward.client.definition_file import DefinitionFile
    from stepward.client.values import DefinitionVersion


@click.group()
def definition() -> None:
    """Store and read definitions: what a job is made of."""


@definition.command()
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
@with_session
def apply(session: Session, files: tuple[str, ...]) -> ExitCode:
    """Store definitions from YAML or JSON files; an equal one stays as it is."""
    from stepward.client.definition_file import read

    read_files = [read(file) for file in files]
    with session.client() as client:
        for file in read_files:
            try:
                apply_file(session, client, file, to_stderr=False)
            except InvalidDefinition as error:
                complain(file, error)
                return ExitCode.ERROR
    return ExitCode.OK


def apply_file(session: Session, client: Client, file: DefinitionFile, *, to_stderr: bool) -> DefinitionVersion:
    """Store one definition and say so."""
    applied = client.apply_definition(file.definition)
    version = applied.version
    text = f"definition {version.name} version {version.version} {'stored' if applied.created else 'unchanged'}"
    if to_stderr:
        note(text)
    elif session.as_table:
        click.echo(text)
    else:
        session.print_message(version.message)
    return version


def complain(file: DefinitionFile, error: InvalidDefinition) -> None:
    """Print what the server refused, each with its place in the file."""
    for violation in error.violations:
        note(file.complaint(violation))
    # With one complaint the message says the same again, and without its place.
    if len(error.violations) != 1:
        note(f"error: {error.message}")


@definition.command()
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
@with_session
def validate(session: Session, files: tuple[str, ...]) -> ExitCode:
    """Check definitions and change nothing. The form is checked here, the meaning by a server."""
    from stepward.client.definition_file import read

    read_files = [read(file) for file in files]
    with session.client() as client:
        try:
            found = [(file, client.validate_definition(file.definition)) for file in read_files]
        except Unavailable:
            note("the form of all files is right; their meaning needs a server")
            raise
    for file, violations in found:
        for violation in violations:
            if session.as_table:
                click.echo(file.complaint(violation))
            else:
                line, column = file.locate(violation.field) or (0, 0)
                session.print_form(
                    {"file": file.name, "line": line, "column": column, **violation._asdict()},
                )
        if not violations and session.as_table:
            click.echo(f"{file.name}: fine")
    return ExitCode.ERROR if any(violations for _, violations in found) else ExitCode.OK


@definition.command()
@click.argument("name")
@click.option("--version", type=click.IntRange(0), default=0, help="Default: the newest.")
@with_session
def get(session: Session, name: str, version: int) -> ExitCode:
    """Print a definition, as a file that can be applied again."""
    from stepward.client.cli.definition_text import as_yaml

    with session.client() as client:
        try:
            found = client.get_definition(name, version=version)
        except DefinitionNotFound:
            suggest_definitions(client, name)
            raise
    if session.as_table:
        note(f"definition {found.name} version {found.version}, hash {found.hash}")
        click.echo(as_yaml(found.definition), nl=False)
    else:
        session.print_message(found.message)
    return ExitCode.OK


@definition.command(name="list")
@with_session
def list_(session: Session) -> ExitCode:
    """List the newest version of each definition."""
    with session.client() as client:
        versions = list(client.list_definitions())
    session.print_items(
        [version.message for version in versions],
        ("NAME", "VERSION", "STEPS", "STORED", "HASH"),
        lambda: [_row(version) for version in versions],
    )
    return ExitCode.OK


def suggest_definitions(client: Client, name: str) -> None:
    """Name definitions that may have been meant."""
    from stepward.client.yaml_nodes import suggestion

    names = [version.name for version in client.list_definitions()]
    if names:
        note(f'no definition "{name}"{suggestion(name, names)}')
    else:
        note("no definition is stored yet; store one with: stepward definition apply FILE")


def _row(version: DefinitionVersion) -> tuple[str, ...]:
    stored = f"{ago(version.created_at)} ago" if version.created_at else ""
    return (version.name, str(version.version), str(len(version.definition.steps)), stored, version.hash[:12])
