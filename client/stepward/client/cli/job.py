"""`stepward job ...`."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from stepward.client.cli.exits import ExitCode, code_of, code_of_state
from stepward.client.cli.inputs import INPUT_HELP, read_duration, read_duration_s, read_input, read_labels
from stepward.client.cli.session import Session, note, with_session
from stepward.client.errors import (
    DefinitionNotFound,
    InvalidDefinition,
    JobNotFound,
    StepwardError,
    Unreachable,
    WaitTimedOut,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from stepward.client.blocking_client import Client
    from stepward.client.values import HistoryEvent, Job, SubmittedJob

# Among how many of the newest jobs an id that does not exist is compared.
SUGGESTED_FROM = 200

DEADLINE_HELP = "From the submission to the end of the job. Default: the definition's."


@click.group()
def job() -> None:
    """Run and watch jobs, and act on them by hand."""


def submission_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """What `run` and `submit` have in common."""
    for option in (
        click.option("--version", type=click.IntRange(0), default=0, help="Of the definition. Default: the newest."),
        click.option("--deadline", callback=read_duration, metavar="DURATION", help=DEADLINE_HELP),
        click.option("--label", "labels", multiple=True, metavar="KEY=VALUE", help="May be repeated."),
        click.option("--key", help="Idempotency key: the same key and input give the same job."),
        click.option("-i", "--input", "inputs", multiple=True, metavar="INPUT", help=INPUT_HELP),
        click.argument("definition"),
    ):
        command = option(command)
    return command


@job.command()
@submission_options
@click.option("--wait-max", callback=read_duration_s, metavar="DURATION", help='Such as "30s". Default: for ever.')
@with_session
def run(session: Session, definition: str, wait_max: float | None, **said: Any) -> ExitCode:
    """Run a job and show it until it has ended. Its output goes to stdout.

    DEFINITION is the name of a stored definition, or a YAML or JSON file, which is stored first.
    """
    from stepward.client.cli.following import follow
    from stepward.client.cli.views import choose_view

    with session.client() as client:
        submitted = _submit(session, client, definition, **said)
        if submitted.duplicate:
            note(f"job {submitted.job_id} has this key already; showing it")
        with _goes_on(session, submitted.job_id):
            ended = follow(session, client, submitted.job_id, choose_view(session, sys.stderr), wait_max_s=wait_max)
        _print_result(session, ended)
    _say_what_can_be_done(session, ended)
    return code_of_state(ended.state)


@job.command()
@submission_options
@with_session
def submit(session: Session, definition: str, **said: Any) -> ExitCode:
    """Start a job and print its id.

    DEFINITION is the name of a stored definition, or a YAML or JSON file, which is stored first.
    """
    from stepward.client.cli.json_form import json_form

    with session.client() as client:
        submitted = _submit(session, client, definition, **said)
    if session.as_table:
        if submitted.duplicate:
            note("this key is known: here is its first job")
        click.echo(submitted.job_id)
    else:
        session.print_form({**json_form(submitted.message), "idempotency_key": submitted.idempotency_key})
    return ExitCode.OK


@job.command()
@click.argument("job_id")
@with_session
def get(session: Session, job_id: str) -> ExitCode:
    """Show a job and its steps; of very many steps those that matter now, and how many the others are."""
    with session.client() as client, suggesting_jobs(client, job_id):
        found = client.get(job_id)
        if found.steps_total > len(found.steps):
            found = _with_moving_steps(client, found)
        agents = {agent.session_id: agent for agent in client.agents(namespace=found.namespace)}
    if session.as_table:
        from stepward.client.tree import STEPS_LISTED_MAX, STEPS_SHOWN_MAX, plain, render_tree

        few = found.steps_total <= STEPS_LISTED_MAX
        shown_max = STEPS_LISTED_MAX if few else STEPS_SHOWN_MAX
        click.echo(plain(render_tree(found, datetime.now(UTC), agents, steps_shown_max=shown_max)))
        if not few:
            note(f"all steps, or those in some states: stepward job steps {job_id} --state STATE{session.again()}")
        _say_what_can_be_done(session, found)
    else:
        session.print_message(found.message)
    return ExitCode.OK


job.add_command(get, "show")


def _with_moving_steps(client: Client, found: Job) -> Job:
    """A job with the steps that matter now, wherever they stand among those that did not fit into the answer."""
    from stepward.client.tree import AT_REST, STEPS_SHOWN_MAX

    moving = [state for state in found.step_counts if state not in AT_REST]
    told = {step.step_id: step for step in found.steps}
    if moving:
        told |= {step.step_id: step for step in client.steps(found.job_id, states=moving, limit=STEPS_SHOWN_MAX)}
    return replace(found, steps=tuple(told.values()))


@job.command()
@click.argument("job_id")
@click.option("--wait-max", callback=read_duration_s, metavar="DURATION", help='Such as "30s". Default: for ever.')
@with_session
def watch(session: Session, job_id: str, wait_max: float | None) -> ExitCode:
    """Follow a job until it has ended; the exit code says how."""
    from stepward.client.cli.following import follow
    from stepward.client.cli.views import choose_view

    with session.client() as client, suggesting_jobs(client, job_id), _goes_on(session, job_id):
        ended = follow(session, client, job_id, choose_view(session, sys.stdout), wait_max_s=wait_max)
    _say_what_can_be_done(session, ended)
    return code_of_state(ended.state)


@job.command()
@click.argument("job_id")
@with_session
def history(session: Session, job_id: str) -> ExitCode:
    """Show what happened to a job, oldest first."""
    with session.client() as client, suggesting_jobs(client, job_id):
        events = list(client.history(job_id))
    session.print_items(
        [event.message for event in events],
        ("TIME", "EVENT", "STEP", "ATTEMPT", "TOKEN", "BY", "DETAIL"),
        lambda: [_event_row(event) for event in events],
    )
    return ExitCode.OK


def _submit(
    session: Session,
    client: Client,
    definition: str,
    *,
    inputs: tuple[str, ...],
    key: str | None,
    labels: tuple[str, ...],
    version: int,
    deadline: timedelta | None,
) -> SubmittedJob:
    """Submit a job of a stored definition, or of a file."""
    job_input, job_labels = read_input(inputs), read_labels(labels)
    name = _apply_if_file(session, client, definition)
    _find_server(client)
    try:
        return client.submit(
            name, job_input, version=version, idempotency_key=key, labels=job_labels, deadline=deadline
        )
    except DefinitionNotFound:
        from stepward.client.cli.definition import suggest_definitions

        suggest_definitions(client, name, version)
        raise


def _find_server(client: Client) -> None:
    """Ask something harmless first: a job for which no server was found cannot have been stored."""
    if client.addresses.ever_answered:
        return
    try:
        client.status()
    except Unreachable:
        raise
    except StepwardError:
        # Whatever it says, somebody is there.
        pass


def _apply_if_file(session: Session, client: Client, definition: str) -> str:
    """The name of the definition; a file is stored first."""
    if not definition.endswith((".yaml", ".yml", ".json")) and "/" not in definition:
        return definition
    from stepward.client.cli.definition import apply_file, complain
    from stepward.client.definition_file import read

    file = read(Path(definition))
    try:
        return apply_file(session, client, file, to_stderr=True).name
    except InvalidDefinition as error:
        complain(file, error)
        raise click.exceptions.Exit(code_of(error)) from None


def _print_result(session: Session, ended: Job) -> None:
    """The output of the job, as it was given; or with -o the whole job."""
    if not session.as_table:
        session.print_message(ended.message)
    elif ended.output_payload is not None:
        click.echo(ended.output_payload.data.decode() if ended.output_payload.is_json else ended.output_payload.data)


def _say_what_can_be_done(session: Session, found: Job) -> None:
    """A job that waits for a person should tell that person what to type."""
    from stepward.client.values import JobState

    again = session.again()
    if found.state is JobState.PAUSED:
        note(f"let it go on with: stepward job resume {found.job_id}{again}")
    if found.state is not JobState.ESCALATED:
        return
    waiting = [step for step in found.steps if step.state.waits_for_person]
    for step in waiting[:1]:
        undo = "the undo of " if step.state.undo else ""
        note(f"try {undo}step {step.step_id} again with: stepward job retry {found.job_id} {step.step_id}{again}")
        note(f"or pass over it with: stepward job skip {found.job_id} {step.step_id}{again}")
    if any(step.state.undo for step in waiting):
        note(f"or leave what is not undone with: stepward job terminate {found.job_id} --reason WHY{again}")
    else:
        note(f"{'or ' if waiting else ''}undo it with: stepward job cancel {found.job_id}{again}")


@contextmanager
def _goes_on(session: Session, job_id: str) -> Iterator[None]:
    """Whoever stops looking should know that the job does not stop."""
    try:
        yield
    except (KeyboardInterrupt, WaitTimedOut):
        again = session.again()
        note(f"job {job_id} goes on; watch it with: stepward job watch {job_id}{again}")
        note(f"or undo and end it with: stepward job cancel {job_id}{again}")
        raise


@contextmanager
def suggesting_jobs(client: Client, job_id: str) -> Iterator[None]:
    """Name jobs that may have been meant when there is none of this id."""
    try:
        yield
    except JobNotFound:
        from difflib import get_close_matches

        ids = [one.job_id for one in islice(client.list(limit=SUGGESTED_FROM), SUGGESTED_FROM)]
        close = [one for one in ids if one.startswith(job_id) or one.endswith(job_id)]
        close = close or get_close_matches(job_id, ids, n=3, cutoff=0.8)
        if close:
            note(f"did you mean {', '.join(close[:3])}?")
        raise


def _event_row(event: HistoryEvent) -> tuple[str, ...]:
    at = event.at.strftime("%Y-%m-%d %H:%M:%S.%f")[:-3] if event.at else ""
    attempt = str(event.attempt) if event.attempt else ""
    token = str(event.token) if event.token else ""
    return (at, event.type, event.step_id, attempt, token, event.actor, event.detail)
