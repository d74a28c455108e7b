"""What a person does to a job by hand: `stepward job cancel`, `terminate`, `pause`, `resume`, `retry` and `skip`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from stepward.client.cli.exits import ExitCode
from stepward.client.cli.inputs import read_document
from stepward.client.cli.job import suggesting_jobs
from stepward.client.cli.session import Session, note, with_session

if TYPE_CHECKING:
    from stepward.client.values import Job, OperatorAnswer

STEP_OUTPUT_HELP = "What stands in place of the step's output: JSON, or @FILE (@- for stdin). Default: null."
UNDONE_HELP = "Of an undo: whether the step was undone by other means. Default: what it did remains done."


def user_name() -> str:
    """Who acts, as this machine calls him; nothing when it does not know."""
    import getpass

    try:
        return getpass.getuser()
    except (OSError, KeyError):
        # Neither the environment nor the system has a name for this user, as in some containers.
        return ""


def by_hand(*, reason_required: bool = False) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """What all verbs have in common: why, and who."""
    given: dict[str, Any] = {"required": True} if reason_required else {"default": ""}
    reason = click.option("--reason", help="Why, for the history.", **given)

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        command = click.option("--actor", default=user_name, help="Who acts, for the history. Default: you.")(command)
        return reason(command)

    return decorate


@click.command()
@click.argument("job_id")
@by_hand()
@with_session
def cancel(session: Session, job_id: str, reason: str, actor: str) -> ExitCode:
    """Ask for the end of a job: what was done, or may have been done, is undone."""
    with session.client() as client, suggesting_jobs(client, job_id):
        cancelled = client.cancel(job_id, reason, actor=actor)
    if session.as_table and cancelled.state.final:
        note(f"job {job_id} is {cancelled.state}: it was cancelled, and has ended")
    else:
        _tell(session, cancelled, _state_and_watch(session, cancelled))
    return ExitCode.OK


@click.command()
@click.argument("job_id")
@by_hand(reason_required=True)
@with_session
def terminate(session: Session, job_id: str, reason: str, actor: str) -> ExitCode:
    """End a job at once and undo nothing more. What was done remains done, and is listed."""
    from stepward.client.tree import remainder_lines

    with session.client() as client, suggesting_jobs(client, job_id):
        answer = client.terminate(job_id, reason=reason, actor=actor)
    before = " before" if answer.already else ""
    lines = [f"job {job_id} is {answer.job.state}: it was terminated{before}"]
    _tell(session, answer.job, "\n".join([*lines, *remainder_lines(answer.job)]))
    return ExitCode.OK


@click.command()
@click.argument("job_id")
@by_hand()
@with_session
def pause(session: Session, job_id: str, reason: str, actor: str) -> ExitCode:
    """Hold a job: nothing new of it starts, and what runs goes on to its end.

    A step that fails for good, a cancel or a deadline undo the job all the same.
    """
    with session.client() as client, suggesting_jobs(client, job_id):
        answer = client.pause(job_id, reason=reason, actor=actor)
    text = f"job {job_id} is {answer.job.state}{_already(answer)}"
    _tell(session, answer.job, f"{text}; let it go on with: stepward job resume {job_id}{session.again()}")
    return ExitCode.OK


@click.command()
@click.argument("job_id")
@by_hand()
@with_session
def resume(session: Session, job_id: str, reason: str, actor: str) -> ExitCode:
    """Let a paused job go on."""
    with session.client() as client, suggesting_jobs(client, job_id):
        answer = client.resume(job_id, reason=reason, actor=actor)
    _tell(session, answer.job, _state_and_watch(session, answer.job, _already(answer, "was not paused")))
    return ExitCode.OK


@click.command()
@click.argument("job_id")
@click.argument("step_id")
@by_hand()
@with_session
def retry(session: Session, job_id: str, step_id: str, reason: str, actor: str) -> ExitCode:
    """Try a step again, or its undo: one that waits for a person, or for its next attempt."""
    with session.client() as client, suggesting_jobs(client, job_id):
        answer = client.retry_step(job_id, step_id, reason=reason, actor=actor)
    what = "is being tried already" if answer.already else "is tried again"
    _tell(session, answer.job, f"step {step_id} {what}; {_state_and_watch(session, answer.job)}")
    return ExitCode.OK


@click.command()
@click.argument("job_id")
@click.argument("step_id")
@click.option("--step-output", metavar="JSON", help=STEP_OUTPUT_HELP)
@click.option("--undone/--not-undone", default=False, help=UNDONE_HELP)
@by_hand()
@with_session
def skip(
    session: Session, job_id: str, step_id: str, step_output: str | None, undone: bool, reason: str, actor: str
) -> ExitCode:
    """Pass over a step, so that those which need it go on; or over its undo, once that has begun."""
    output = None if step_output is None else read_document(step_output, "--step-output")
    with session.client() as client, suggesting_jobs(client, job_id):
        answer = client.skip_step(job_id, step_id, output=output, undone=undone, reason=reason, actor=actor)
    what = "was passed over before" if answer.already else "is passed over"
    if answer.already and output is not None:
        what += ", and keeps the output of that time; the one that was given now is not taken"
    _tell(session, answer.job, f"step {step_id} {what}; {_state_and_watch(session, answer.job)}")
    return ExitCode.OK


VERBS = (cancel, terminate, pause, resume, retry, skip)


def _already(answer: OperatorAnswer, text: str = "was so before") -> str:
    return f" ({text})" if answer.already else ""


def _state_and_watch(session: Session, found: Job, said: str = "") -> str:
    """How the job is now, and how to see what becomes of it."""
    state = f"job {found.job_id} is {found.state}{said}"
    if found.state.final:
        return state
    return f"{state}; follow it with: stepward job watch {found.job_id}{session.again()}"


def _tell(session: Session, found: Job, text: str) -> None:
    """What was done, in words for a person, or the job for a program."""
    if session.as_table:
        note(text)
    else:
        session.print_message(found.message)
