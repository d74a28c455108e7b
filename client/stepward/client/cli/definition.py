"""`stepward definition ...`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import click

from stepward.client.cli.exits import ExitCode
from stepward.client.cli.session import Session, ago, note, with_session
from stepward.client.durations import format_duration
from stepward.client.errors import DefinitionFileError, DefinitionNotFound, InvalidDefinition, Unavailable

if TYPE_CHECKING:
    from collections.abc import Iterable

    from stepward.client.blocking_client import Client
    from stepward.client.definition_file import DefinitionFile
    from stepward.client.errors import FileProblem, Violation
    from stepward.client.values import CheckedDefinition, DefinitionVersion, DetectionLatency

# Steps that one line names.
NAMED_MAX: Final = 8


@click.group()
def definition() -> None:
    """Store and read definitions: what a job is made of."""


@definition.command()
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
@with_session
def apply(session: Session, files: tuple[str, ...]) -> ExitCode:
    """Store definitions from YAML or JSON files; an equal one stays as it is."""
    read_files, problems = read_all(files)
    if problems:
        # None is stored: whoever applies several at once wants them to fit together.
        for problem in problems:
            note(problem.text)
        return ExitCode.ERROR
    with session.client() as client:
        for file in read_files:
            try:
                apply_file(session, client, file, to_stderr=False)
            except InvalidDefinition as error:
                complain(file, error)
                return ExitCode.ERROR
    return ExitCode.OK


def read_all(files: tuple[str, ...]) -> tuple[list[DefinitionFile], list[FileProblem]]:
    """The files whose form is right, and what is wrong with the others."""
    from stepward.client.definition_file import read

    found: list[DefinitionFile] = []
    problems: list[FileProblem] = []
    for file in files:
        try:
            found.append(read(file))
        except DefinitionFileError as error:
            problems += error.problems
    return found, problems


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
        note(file.problem(violation).text)
    # With one complaint the message says the same again, and without its place.
    if len(error.violations) != 1:
        note(f"error: {error.message}")


@definition.command()
@click.argument("files", nargs=-1, required=True, metavar="FILE...")
@with_session
def validate(session: Session, files: tuple[str, ...]) -> ExitCode:
    """Check definitions and change nothing. The form is checked here, the meaning by a server.

    Everything that is wrong is told, with line and column, and what will hardly be meant as a warning. Of what is fine:
    how soon each kind of trouble is noticed. A file whose form is wrong is not sent to the server.
    """
    read_files, problems = read_all(files)
    for problem in problems:
        _print_problem(session, problem)
    unread = list(dict.fromkeys(problem.path for problem in problems))
    if unread:
        note(f"not yet looked at by a server, which may find more: {', '.join(unread)}")
    verdicts = _verdicts(session, read_files)
    for file, checked in verdicts:
        _print_verdict(session, file, checked)
    return ExitCode.ERROR if problems or any(checked.violations for _, checked in verdicts) else ExitCode.OK


def _verdicts(session: Session, files: list[DefinitionFile]) -> list[tuple[DefinitionFile, CheckedDefinition]]:
    """What a server says about the files; without files it is not asked."""
    if not files:
        return []
    with session.client() as client:
        try:
            return [(file, client.check_definition(file.definition)) for file in files]
        except Unavailable:
            note(f"the form is right, the meaning needs a server: {', '.join(file.name for file in files)}")
            raise


def _print_verdict(session: Session, file: DefinitionFile, checked: CheckedDefinition) -> None:
    for violation in checked.violations:
        _print_problem(session, file.problem(violation), violation)
    for warning in checked.warnings:
        described = warning._replace(description=f"warning: {warning.description}")
        _print_problem(session, file.problem(described), warning, severity="warning")
    if not checked.violations and session.as_table:
        click.echo(f"{file.name}: fine")
        for line in detection_lines(checked.detections):
            click.echo(line)
    elif not checked.violations:
        for one in checked.detections:
            session.print_form(_detection_form(file, one))


def detection_lines(detections: Iterable[DetectionLatency]) -> list[str]:
    """How soon trouble is noticed: each promise once, behind those of whom it holds."""
    whose: dict[str, dict[str, None]] = {}
    for one in detections:
        name = "the job" if not one.step_id else one.step_id if one.part == "action" else f"{one.step_id} ({one.part})"
        whose.setdefault(one.text, {})[name] = None
    lines = []
    for text, names in whose.items():
        shown = list(names)[:NAMED_MAX]
        more = f" and {len(names) - len(shown)} more" if len(names) > len(shown) else ""
        lines.append(f"  {', '.join(shown)}{more}: {text}")
    return lines


def _detection_form(file: DefinitionFile, one: DetectionLatency) -> dict[str, Any]:
    within = format_duration(one.within)
    place = {"file": file.name, "step": one.step_id, "part": one.part}
    return {**place, "trouble": one.trouble, "within": within, "description": one.text}


def _print_problem(
    session: Session, problem: FileProblem, violation: Violation | None = None, *, severity: str = "error"
) -> None:
    """As a compiler does, or as a JSON document. Only what a server says has a field."""
    if session.as_table:
        click.echo(problem.text)
        return
    field, description = violation or ("", problem.description)
    place = {"file": problem.path, "line": problem.line, "column": problem.column}
    session.print_form({**place, "field": field, "severity": severity, "description": description})


@definition.command()
@click.argument("name")
@click.option("--version", type=click.IntRange(0), default=0, help="Default: the newest.")
@with_session
def get(session: Session, name: str, version: int) -> ExitCode:
    """Print a definition, as a file that can be applied again."""
    from stepward.client.definition_text import as_yaml

    with session.client() as client:
        try:
            found = client.get_definition(name, version=version)
        except DefinitionNotFound:
            suggest_definitions(client, name, version)
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


def suggest_definitions(client: Client, name: str, version: int = 0) -> None:
    """Name definitions that may have been meant, or the newest version of this one."""
    from stepward.client.yaml_nodes import suggestion

    newest = {stored.name: stored.version for stored in client.list_definitions()}
    names = list(newest)
    if name in newest:
        note(f'definition "{name}" has no version {version}; its newest is {newest[name]}')
    elif names:
        note(f'no definition "{name}"{suggestion(name, names)}')
    else:
        note("no definition is stored yet; store one with: stepward definition apply FILE")


def _row(version: DefinitionVersion) -> tuple[str, ...]:
    stored = f"{ago(version.created_at)} ago" if version.created_at else ""
    return (version.name, str(version.version), str(len(version.definition.steps)), stored, version.hash[:12])
