"""The entry to the rules: committed rows, waiting commands and a moment give a batch.

Nothing is remembered between two decisions: what the leader holds in memory is a cache of rows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, assert_never

from msgspec import Struct

from stepward.server.core import (
    compensation,
    epochs,
    job_verbs,
    ledger,
    notices,
    offers,
    reports,
    resolving,
    sessions,
    step_verbs,
    submission,
    supervision,
)
from stepward.server.core.batch import Batch, Cause
from stepward.server.core.commands import (
    ApplyDefinition,
    CancelJob,
    CloseStream,
    DrainSession,
    MarkNotices,
    OpenSession,
    PauseJob,
    RenewSession,
    ReportAttempts,
    ResolveIncident,
    ResumeJob,
    RetryStep,
    SkipStep,
    SubmitJob,
    Sweep,
    TerminateJob,
    WatchSilence,
)
from stepward.server.core.draft import Draft
from stepward.server.core.parts import By
from stepward.server.core.rejections import Reason, Refused, Rejection

if TYPE_CHECKING:
    from collections.abc import Sequence
    from random import Random

    from stepward.server.core.commands import Answer, AnyCommand
    from stepward.server.core.limits import Limits
    from stepward.server.core.reader import Reader
    from stepward.server.core.rows import Row


class Moment(Struct, frozen=True):
    """Everything that a batch knows of time and place.

    `steady_ms` is the leader's own steady clock; it means something within one epoch of one process only.
    """

    sequence: int
    epoch: int
    incarnation: int
    led_ms: int
    log_ms: int
    wall_ms: int
    steady_ms: int

    @property
    def token(self) -> int:
        """The fencing token of every assignment of this batch.

        The incarnation of the cluster in the high bits, so that tokens grow over a restore, too; the sequence below.
        """
        return self.incarnation << 48 | self.sequence


class Decision(NamedTuple):
    """A batch before it has a hash. `answers` are in the order of the commands.

    `failures` are commands whose rule raised: each was rolled back and answered INTERNAL; the shell logs them.
    """

    changes: dict[bytes, Row | None]
    answers: list[Answer]
    failures: list[tuple[object, BaseException]]


def decide(reader: Reader, commands: Sequence[AnyCommand], moment: Moment, limits: Limits, rng: Random) -> Decision:
    """Decide a batch: each command under a savepoint of its own, in order, then the offers that they made possible.

    An offer goes into the batch of the outcome that made it possible, which saves a batch a step.
    """
    draft = Draft(reader)
    batch = Batch(draft, moment, limits, rng)
    answers: list[Answer] = []
    for command in commands:
        savepoint = draft.savepoint()
        batch.cause = _cause(command)
        try:
            answers.append(_decide_one(batch, command))
        except Refused as refused:
            draft.rollback(savepoint)
            answers.append(refused.rejection)
        except Exception as error:  # noqa: BLE001 - a rule of ours is wrong: the command must not poison the others
            draft.rollback(savepoint)
            batch.failures.append((command, error))
            answers.append(_internal(command))
    ledger.complete(batch)
    _offer(batch)
    for job_id in draft.touched():
        batch.touch(job_id)
    draft.write_history(sequence=moment.sequence, wall_ms=moment.wall_ms, led_ms=moment.led_ms, log_ms=moment.log_ms)
    return Decision(draft.changes(), answers, batch.failures)


def _cause(command: AnyCommand) -> Cause:
    """What leads to whatever a command changes."""
    match command:
        case Sweep():
            return Cause(By.SUPERVISOR)
        case CancelJob() | TerminateJob() | PauseJob() | ResumeJob() | RetryStep() | SkipStep() | ResolveIncident():
            return Cause(By.PERSON, command.actor, command.reason)
        case _:
            return Cause(By.REPORT)


def _decide_one(batch: Batch, command: AnyCommand) -> Answer:
    match command:
        case SubmitJob():
            return submission.submit_job(batch, command)
        case ReportAttempts():
            return reports.report_attempts(batch, command)
        case RenewSession():
            return sessions.renew_session(batch, command)
        case Sweep():
            return supervision.sweep(batch, command)
        case CancelJob():
            return compensation.cancel_job(batch, command)
        case TerminateJob():
            return job_verbs.terminate_job(batch, command)
        case PauseJob():
            return job_verbs.pause_job(batch, command)
        case ResumeJob():
            return job_verbs.resume_job(batch, command)
        case RetryStep():
            return step_verbs.retry_step(batch, command)
        case SkipStep():
            return step_verbs.skip_step(batch, command)
        case OpenSession():
            return sessions.open_session(batch, command)
        case CloseStream():
            return sessions.close_stream(batch, command)
        case DrainSession():
            return sessions.drain_session(batch, command)
        case ApplyDefinition():
            return submission.apply_definition(batch, command)
        case ResolveIncident():
            return resolving.resolve(batch, command)
        case MarkNotices():
            return notices.mark(batch, command)
        case WatchSilence():
            return epochs.watch_silence(batch, command)
        case _:
            assert_never(command)


def _offer(batch: Batch) -> None:
    savepoint = batch.draft.savepoint()
    try:
        offers.make_offers(batch)
    except Exception as error:  # noqa: BLE001 - a rule of ours is wrong: what the commands did must stand all the same
        batch.draft.rollback(savepoint)
        batch.failures.append(("make_offers", error))


def _internal(command: object) -> Rejection:
    return Rejection(
        Reason.INTERNAL,
        f"deciding {type(command).__name__} failed inside; nothing was changed. This is a bug: see the node's log",
    )
