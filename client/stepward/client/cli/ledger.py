"""`stepward ledger`: what was done about trouble, by whom, and why."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from stepward.client.cli.exits import ExitCode
from stepward.client.cli.incident import MOMENT_HELP
from stepward.client.cli.inputs import read_member, read_moment
from stepward.client.cli.session import Session, note, with_session

if TYPE_CHECKING:
    from stepward.client.incident_values import LedgerEntry, WantedEntries


@click.command()
@click.option("--job", default="", metavar="JOB", help="Only of this job.")
@click.option("--definition", default="", help="Only of jobs of this definition.")
@click.option("--trouble", callback=read_member("trouble"), metavar="NAME", help="Only of this trouble.")
@click.option("--remedy", callback=read_member("remedy"), metavar="NAME", help="Only this remedy.")
@click.option("--by", callback=read_member("by"), metavar="WHO", help="Only by: supervisor, report, person.")
@click.option("--epoch", type=click.IntRange(1), help="Only of this leadership.")
@click.option("--since", callback=read_moment, metavar="WHEN", help=f"Only from then on. {MOMENT_HELP}")
@click.option("--until", callback=read_moment, metavar="WHEN", help=f"Only before. {MOMENT_HELP}")
@click.option("--oldest-first", is_flag=True, help="Default: the newest first.")
@click.option("--limit", type=click.IntRange(1), default=50, show_default=True)
@click.option("--all", "all_", is_flag=True, help="No limit.")
@with_session
def ledger(session: Session, oldest_first: bool, limit: int, all_: bool, epoch: int | None, **said: Any) -> ExitCode:
    """List remedies: every decision about trouble, with its evidence."""
    wanted: WantedEntries = {"epoch": epoch or 0, **said}  # type: ignore[typeddict-item]  # named as the options are
    with session.client() as client:
        # One more than is shown tells whether there are more.
        taken = client.ledger(oldest_first=oldest_first, limit=None if all_ else limit + 1, **wanted)
        if all_:
            found: Iterator[LedgerEntry] = taken if session.output == "jsonl" else iter(list(taken))
            more = False
        else:
            listed = list(taken)
            found, more = iter(listed[:limit]), len(listed) > limit
        session.print_items(
            (one.message for one in found),
            ("AT", "JOB", "STEP", "TROUBLE", "REMEDY", "BY", "STEP WAS", "LATE", "WHY"),
            lambda: [_row(one) for one in found],
        )
    if more:
        note(f"there are more than {limit}; --limit or --all shows them")
    return ExitCode.OK


def _row(one: LedgerEntry) -> tuple[str, ...]:
    at = one.at.strftime("%Y-%m-%d %H:%M:%S") if one.at else ""
    step = one.step_id if one.part in ("", "action") else f"{one.step_id} ({one.part})"
    remedy = f"{one.remedy} (proposed)" if one.proposed else str(one.remedy)
    by = f"{one.by} {one.actor}".rstrip()
    was = f"{one.step_before} -> {one.step_after}" if one.step_id else f"{one.job_before} -> {one.job_after}"
    late = f"{one.overdue.total_seconds():.1f}s" if one.overdue is not None else ""
    return (at, one.job_id, step or "(job)", one.trouble, remedy, by, was, late, _why(one))


def _why(one: LedgerEntry) -> str:
    """A person's reason; else the rule, and what the attempt said."""
    if one.reason:
        return one.reason
    return f"{one.rule}: {one.failure}" if one.rule and one.failure else one.rule or one.failure
