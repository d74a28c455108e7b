"""`stepward explain`: why a job does not move, as a tree, with what unblocks it."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

import click

from stepward.client.cli.exits import ExitCode
from stepward.client.cli.job import suggesting_jobs
from stepward.client.cli.session import Session, with_session

if TYPE_CHECKING:
    from collections.abc import Iterator

    from stepward.client.explanation_values import Explanation, WaitReason

_INDENT = "  "


@click.command()
@click.argument("job_id", metavar="JOB")
@with_session
def explain(session: Session, job_id: str) -> ExitCode:
    """Say why a job does not move, and what unblocks it.

    A tree: below each reason stands what is behind it, and behind "->" what to do.
    """
    with session.client() as client, suggesting_jobs(client, job_id):
        found = client.explain(job_id)
    if session.as_table:
        for line in lines(found, datetime.now(UTC)):
            click.echo(line)
    else:
        session.print_message(found.message)
    return ExitCode.OK


def lines(found: Explanation, now: datetime) -> Iterator[str]:
    """An explanation as text."""
    yield f"job {found.job_id}  {found.state}"
    if not found.reasons:
        yield _INDENT + found.summary
    for reason in found.reasons:
        yield from _reason(reason, now, 1)


def _reason(reason: WaitReason, now: datetime, depth: int) -> Iterator[str]:
    who = ", ".join(reason.step_ids)
    more = reason.steps_total - len(reason.step_ids)
    who += f" and {more} more" if more > 0 else ""
    when = f" ({_when(reason.at, now)})" if reason.at is not None else ""
    yield f"{_INDENT * depth}{f'{who}: ' if who else ''}{reason.text}{when}"
    for cause in reason.causes:
        yield from _reason(cause, now, depth + 1)
    if reason.fix:
        yield f"{_INDENT * (depth + 1)}-> {reason.fix}"


def _when(at: datetime, now: datetime) -> str:
    from stepward.client.tree import seconds

    left_s = (at - now).total_seconds()
    return f"for {seconds(left_s)} at most" if left_s > 0 else f"over since {seconds(-left_s)}"
