"""`stepward incident list`, `show` and `resolve`: what waits for a person."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from stepward.client.cli.exits import ExitCode
from stepward.client.cli.inputs import read_document, read_labels, read_member, read_moment
from stepward.client.cli.job_verbs import STEP_OUTPUT_HELP, UNDONE_HELP, user_name
from stepward.client.cli.session import Session, ago, note, with_session

if TYPE_CHECKING:
    from stepward.client.blocking_client import Client
    from stepward.client.incident_values import Incident, IncidentPreview, ResolvedIncidents, WantedIncidents

MOMENT_HELP = 'A duration back from now, such as "2h", or a time, such as 2026-11-30T12:00.'
# What a person may decide, as options; the contract has the same words.
RESOLUTIONS = ("retry", "skip", "compensate", "fail", "approve")
# Incidents that a question shows before it is answered.
SHOWN_MAX = 5


@click.group()
def incident() -> None:
    """See what waits for a person, and decide about it."""


def filter_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Which incidents: what `list` and `resolve` have in common."""
    for option in (
        click.option("--proposed", is_flag=True, help="Only those with a remedy that waits for approval."),
        click.option("--until", callback=read_moment, metavar="WHEN", help=f"Opened before. {MOMENT_HELP}"),
        click.option("--since", callback=read_moment, metavar="WHEN", help=f"Opened since. {MOMENT_HELP}"),
        click.option("--label", "labels", multiple=True, metavar="KEY=VALUE", help="May be repeated; all must match."),
        click.option("--trouble", callback=read_member("trouble"), metavar="NAME", help="Only of this trouble."),
        click.option("--job", default="", metavar="JOB", help="Only of this job."),
        click.option("--step", default="", metavar="STEP", help="Only of steps of this id."),
        click.option("--definition", default="", help="Only of jobs of this definition."),
    ):
        command = option(command)
    return command


@incident.command(name="list")
@filter_options
@click.option(
    "--state", type=click.Choice(["open", "resolved", "all"], case_sensitive=False), default="open", show_default=True
)
@click.option("--limit", type=click.IntRange(1), default=50, show_default=True)
@click.option("--all", "all_", is_flag=True, help="No limit.")
@with_session
def list_(session: Session, state: str, limit: int, all_: bool, **said: Any) -> ExitCode:
    """List incidents, the newest first."""
    with session.client() as client:
        # One more than is shown tells whether there are more.
        taken = client.incidents(state=state.upper(), limit=None if all_ else limit + 1, **_wanted(**said))
        if all_:
            found: Iterator[Incident] = taken if session.output == "jsonl" else iter(list(taken))
            more = False
        else:
            listed = list(taken)
            found, more = iter(listed[:limit]), len(listed) > limit
        session.print_items(
            (one.message for one in found),
            ("INCIDENT", "STATE", "AGE", "JOB", "STEP", "TROUBLE", "WHY"),
            lambda: [_row(one) for one in found],
        )
    if more:
        note(f"there are more than {limit}; --limit or --all shows them")
    return ExitCode.OK


@incident.command()
@click.argument("incident_id", metavar="INCIDENT")
@with_session
def show(session: Session, incident_id: str) -> ExitCode:
    """Show one incident, and what can be done about it."""
    with session.client() as client:
        found = client.incident(incident_id)
    if session.as_table:
        click.echo("\n".join(_lines(found, session)))
    else:
        session.print_message(found.message)
    return ExitCode.OK


class Deed(NamedTuple):
    """What is to be done about incidents, and why."""

    resolution: str
    output: Any
    undone: bool
    reason: str
    actor: str


@incident.command()
@click.argument("incident_ids", nargs=-1, metavar="[INCIDENT]...")
@click.option("--retry", is_flag=True, help="Try the step, or its undo, again.")
@click.option("--skip", is_flag=True, help="Pass over the step, or over its undo.")
@click.option("--compensate", is_flag=True, help="Count the step as failed, and undo its job.")
@click.option("--fail", is_flag=True, help="End the job as it is, and undo nothing more.")
@click.option("--approve", is_flag=True, help="Do what was proposed.")
@click.option("--step-output", metavar="JSON", help=STEP_OUTPUT_HELP)
@click.option("--undone/--not-undone", default=False, help=UNDONE_HELP)
@click.option("--reason", required=True, help="Why, for the history and the ledger.")
@click.option("--actor", default=user_name, help="Who decides, for both. Default: you.")
@filter_options
@click.option("--all", "all_", is_flag=True, help="All that are open; more options narrow it.")
@click.option("--preview", is_flag=True, help="Only tell how many are meant, and show some.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask before many are resolved.")
@with_session
def resolve(
    session: Session,
    incident_ids: tuple[str, ...],
    step_output: str | None,
    undone: bool,
    reason: str,
    actor: str,
    all_: bool,
    preview: bool,
    yes: bool,
    **said: Any,
) -> ExitCode:
    """Decide about incidents: those that are named, or all open ones that the options mean.

    Before many are resolved it is told how many those are, and asked whether they are meant. What is opened between the
    answer and the deed is not touched.
    """
    chosen = [name for name in RESOLUTIONS if said.pop(name)]
    wanted = _wanted(**said)
    filtered = all_ or any(wanted.values())
    deed = _deed(chosen, step_output, undone=undone, reason=reason, actor=actor)
    if bool(incident_ids) is filtered:
        raise click.UsageError(
            "say which incidents are meant: by their names, or by --all, --definition, --step, --job, --trouble, "
            "--label, --since, --until or --proposed, and not by both"
        )
    with session.client() as client:
        if incident_ids:
            return _tell(session, [_resolve_named(client, incident_ids, deed)])
        looked = client.preview_incidents(**wanted)
        if preview or not looked.matched:
            return _show_preview(session, looked)
        if not yes:
            _ask(looked, deed)
        return _tell(session, _resolve_matching(client, looked, deed, wanted))


def _deed(names: list[str], step_output: str | None, *, undone: bool, reason: str, actor: str) -> Deed:
    if len(names) != 1:
        said = " and ".join(f"--{name}" for name in names) or "nothing"
        choices = ", ".join(f"--{name}" for name in RESOLUTIONS)
        raise click.UsageError(
            f"{said} {'were' if names else 'was'} said; say what is to be done by exactly one of {choices}"
        )
    (chosen,) = names
    if chosen != "skip" and (undone or step_output is not None):
        raise click.UsageError("--step-output and --undone belong to --skip")
    output = None if step_output is None else read_document(step_output, "--step-output")
    return Deed(chosen.upper(), output, undone, reason, actor)


def _resolve_named(client: Client, incident_ids: tuple[str, ...], deed: Deed) -> ResolvedIncidents:
    return client.resolve_incidents(
        incident_ids, deed.resolution, output=deed.output, undone=deed.undone, reason=deed.reason, actor=deed.actor
    )


def _resolve_matching(
    client: Client, looked: IncidentPreview, deed: Deed, wanted: WantedIncidents
) -> list[ResolvedIncidents]:
    """Call until none is left that was not reached. What was refused stays open, and is meant no more."""
    done: list[ResolvedIncidents] = []
    expected = looked.matched
    while expected:
        answer = client.resolve_matching(
            deed.resolution,
            expected=expected,
            as_of=looked.as_of,
            output=deed.output,
            undone=deed.undone,
            reason=deed.reason,
            actor=deed.actor,
            **wanted,
        )
        done.append(answer)
        if answer.refused:
            # Those would be met again, and refused again.
            break
        expected = answer.left
    return done


def _ask(looked: IncidentPreview, deed: Deed) -> None:
    """Show what is meant, and ask. Where nobody can answer it has to be said beforehand."""
    for one in looked.first[:SHOWN_MAX]:
        note("  ".join(cell for cell in _row(one) if cell))
    if looked.matched > SHOWN_MAX:
        note(f"... and {looked.matched - SHOWN_MAX} more")
    text = f"{deed.resolution} {looked.matched} open incident{'s' if looked.matched > 1 else ''}?"
    if not sys.stdin.isatty():
        raise click.UsageError(f"{text} Nobody can be asked here: repeat it with --yes, or look first with --preview")
    click.confirm(text, abort=True, err=True)


def _show_preview(session: Session, looked: IncidentPreview) -> ExitCode:
    session.print_items(
        (one.message for one in looked.first),
        ("INCIDENT", "STATE", "AGE", "JOB", "STEP", "TROUBLE", "WHY"),
        lambda: [_row(one) for one in looked.first],
    )
    shown = f", of which {len(looked.first)} are shown" if looked.matched > len(looked.first) else ""
    note(f"{looked.matched} open incidents are meant{shown}; nothing was done")
    return ExitCode.OK


def _tell(session: Session, done: list[ResolvedIncidents]) -> ExitCode:
    """What became of them. Not all were resolved: a conflict."""
    resolved, already = sum(one.resolved for one in done), sum(one.already for one in done)
    refused, left = sum(one.refused for one in done), done[-1].left
    if session.as_table:
        for refusal in (refusal for one in done for refusal in one.refusals):
            note(f"{refusal.incident_id}: {refusal.reason}: {refusal.message}")
        counts = {"resolved before": already, "refused": refused, "not reached": left}
        note(", ".join([f"{resolved} resolved", *(f"{count} {what}" for what, count in counts.items() if count)]))
    else:
        for one in done:
            session.print_message(one.message)
    return ExitCode.CONFLICT if refused or left else ExitCode.OK


def _wanted(
    *,
    definition: str,
    step: str,
    job: str,
    trouble: str | None,
    labels: tuple[str, ...],
    since: datetime | None,
    until: datetime | None,
    proposed: bool,
) -> WantedIncidents:
    """What the options say."""
    return {
        "definition": definition,
        "step": step,
        "job": job,
        "trouble": trouble or "",
        "labels": read_labels(labels),
        "since": since,
        "until": until,
        "proposed": proposed,
    }


def _row(one: Incident) -> tuple[str, ...]:
    age = ago(one.opened_at, None if one.open else one.resolved_at)
    why = one.failure.text if one.failure else ""
    if one.proposed != "UNSPECIFIED" and one.open:
        why = f"{one.proposed} waits for approval; {why}" if why else f"{one.proposed} waits for approval"
    return (one.incident_id, one.state, age, one.job_id, one.step_id or "(job)", one.trouble, why)


def _lines(one: Incident, session: Session) -> list[str]:
    """All of an incident for a person."""
    where = f"step {one.step_id} of job {one.job_id}" if one.step_id else f"job {one.job_id}, as a whole"
    lines = [
        f"incident   {one.incident_id}  {one.state}",
        f"about      {where}",
        f"definition {one.definition_name} v{one.definition_version}",
        f"trouble    {one.trouble}",
    ]
    if one.failure:
        lines.append(f"why        {one.failure.text}")
    if one.opened_at:
        lines.append(f"opened     {one.opened_at.isoformat(timespec='seconds')}, {ago(one.opened_at)} ago")
    if one.open:
        return [*lines, *_choices(one, session)]
    who = f"{one.by}{f', {one.actor}' if one.actor else ''}"
    reason = f": {one.reason}" if one.reason else ""
    at = f" at {one.resolved_at.isoformat(timespec='seconds')}" if one.resolved_at else ""
    return [*lines, f"resolved   {one.how} by {who}{at}{reason}"]


def _choices(one: Incident, session: Session) -> list[str]:
    """What can be done about an open one, as commands."""
    undo = one.trouble in ("UNDO_FAILED", "UNDO_UNKNOWN")
    if one.trouble == "JOB_DEADLINE":
        names = ["retry", "skip", "fail"]
    elif not one.step_id:
        names = ["compensate", "fail"]
    else:
        names = ["retry", "skip", "fail"] if undo else ["retry", "skip", "compensate", "fail"]
    if one.proposed != "UNSPECIFIED":
        names.insert(0, "approve")
        names_told = [f"proposed   {one.proposed}; it waits for approval"]
    else:
        names_told = []
    options = " | ".join(f"--{name}" for name in names)
    command = f"stepward incident resolve {one.incident_id} ({options}) --reason TEXT{session.again()}"
    look = f"stepward job show {one.job_id}{session.again()}"
    return [*names_told, f"resolve    {command}", f"look       {look}"]
