"""`stepward job list`, `count` and `steps`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from stepward.client.cli.exits import ExitCode
from stepward.client.cli.inputs import read_labels, read_moment, read_states, read_step_states
from stepward.client.cli.session import Session, ago, note, with_session

if TYPE_CHECKING:
    from stepward.client.job_filter import WantedJobs
    from stepward.client.values import Job, JobCounts, Step

MOMENT_HELP = 'A duration back from now, such as "2h", or a time, such as 2026-11-30T12:00.'


def filter_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Which jobs: what `list` and `count` have in common."""
    for option in (
        click.option("--queue", default="", help="Only jobs with a step on this queue."),
        click.option("--until", callback=read_moment, metavar="WHEN", help=f"Submitted before. {MOMENT_HELP}"),
        click.option("--since", callback=read_moment, metavar="WHEN", help=f"Submitted since. {MOMENT_HELP}"),
        click.option("--label", "labels", multiple=True, metavar="KEY=VALUE", help="May be repeated; all must match."),
        click.option("--definition", default="", help="Only jobs of this definition."),
        click.option("--state", "states", multiple=True, callback=read_states, help="May be repeated, or a,b."),
    ):
        command = option(command)
    return command


@click.command(name="list")
@filter_options
@click.option("--limit", type=click.IntRange(1), default=50, show_default=True)
@click.option("--all", "all_", is_flag=True, help="No limit.")
@with_session
def list_(session: Session, limit: int, all_: bool, **said: Any) -> ExitCode:
    """List jobs, the newest first."""
    wanted = _wanted(**said)
    with session.client() as client:
        # One more than is shown tells whether there are more.
        taken = client.list(limit=None if all_ else limit + 1, **wanted)
        if all_:
            jobs: Iterator[Job] = taken if session.output == "jsonl" else iter(list(taken))
            more = False
        else:
            listed = list(taken)
            jobs, more = iter(listed[:limit]), len(listed) > limit
        session.print_items(
            (one.message for one in jobs),
            ("JOB", "DEFINITION", "STATE", "SUBMITTED", "TOOK", "WHY"),
            lambda: [_row(one) for one in jobs],
        )
    if more:
        note(f"there are more than {limit}; --limit or --all shows them, and stepward job count counts them")
    return ExitCode.OK


@click.command()
@filter_options
@with_session
def count(session: Session, **said: Any) -> ExitCode:
    """Count jobs by state."""
    with session.client() as client:
        counted = client.count(**_wanted(**said))
    if session.as_table:
        session.print_items((), ("STATE", "JOBS"), lambda: _count_rows(counted))
    else:
        session.print_message(counted.message)
    if counted.truncated:
        note("only the newest jobs were looked at, so there may be more; narrow it down, with --since for one")
    return ExitCode.OK


@click.command()
@click.argument("job_id")
@click.option("--state", "states", multiple=True, callback=read_step_states, help="May be repeated, or a,b.")
@click.option("--limit", type=click.IntRange(1), help="Default: no limit.")
@with_session
def steps(session: Session, job_id: str, states: list[str], limit: int | None) -> ExitCode:
    """List the steps of a job, in the order of its definition."""
    from stepward.client.cli.job import suggesting_jobs

    with session.client() as client, suggesting_jobs(client, job_id):
        taken = client.steps(job_id, states=states, limit=limit)
        listed = taken if session.output == "jsonl" else iter(list(taken))
        session.print_items(
            (one.message for one in listed),
            ("STEP", "STATE", "ATTEMPTS", "UPDATED", "WHY"),
            lambda: [_step_row(one) for one in listed],
        )
    return ExitCode.OK


def _wanted(
    *,
    states: list[str],
    definition: str,
    labels: tuple[str, ...],
    since: datetime | None,
    until: datetime | None,
    queue: str,
) -> WantedJobs:
    """What the options say."""
    if since is not None and until is not None and since >= until:
        raise click.UsageError(
            f"--since is {since.isoformat(timespec='seconds')}, which is not before --until, "
            f"{until.isoformat(timespec='seconds')}: no job can match"
        )
    return {
        "states": states,
        "definition": definition,
        "labels": read_labels(labels),
        "since": since,
        "until": until,
        "queue": queue,
    }


def _row(one: Job) -> tuple[str, ...]:
    submitted = f"{ago(one.submitted_at)} ago" if one.submitted_at else ""
    took = ago(one.submitted_at, one.ended_at) if one.ended_at else ""
    why = one.failure.text if one.failure else ""
    return (one.job_id, f"{one.definition_name} v{one.definition_version}", one.state, submitted, took, why)


def _count_rows(counted: JobCounts) -> list[tuple[str, str]]:
    rows = [(str(state), str(number)) for state, number in counted.by_state.items()]
    return [*rows, ("all", f"{counted.total}{' or more' if counted.truncated else ''}")]


def _step_row(one: Step) -> tuple[str, ...]:
    attempts = f"{one.attempts}/{one.attempts_max}" if one.attempts else ""
    updated = f"{ago(one.updated_at, datetime.now(UTC))} ago" if one.updated_at else ""
    return (one.step_id, one.state, attempts, updated, one.failure.text if one.failure else "")
