"""What agents report of attempts, and what it comes to.

A report counts only if it names the newest token of its step, from the session that holds it, while the attempt is
open. Any other report changes nothing: a repeated one is answered as the first was, a late one is refused and kept as
an observation, since compensation may need to know.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, assert_never

from msgspec.structs import replace

from stepward.server.core import (
    advance,
    attempts,
    breakers,
    compensation,
    json_text,
    keys,
    rows,
    schedules,
    states,
    verifying,
)
from stepward.server.core.batch import NO_TIMER, TimerAt
from stepward.server.core.commands import (
    Accepted,
    AttemptRef,
    AttemptReport,
    AttemptsReported,
    Declined,
    Failed,
    ProgressMade,
    ReportResult,
    Started,
    Stopped,
    Succeeded,
    Unknown,
)
from stepward.server.core.rows import (
    CancelReason,
    Clock,
    EventType,
    Failure,
    JobState,
    Part,
    StartMode,
    StepState,
    Trouble,
)

if TYPE_CHECKING:
    from stepward.server.core.batch import Batch
    from stepward.server.core.commands import AttemptEvent, ReportAttempts
    from stepward.server.core.limits import Limits
    from stepward.server.core.rows import Assignment, Step

RECORDED = "RECORDED"
STALE_TOKEN = "STALE_TOKEN"
CANCELLED = "CANCELLED"
NOT_FOUND = "NOT_FOUND"
TOO_LARGE = "TOO_LARGE"
INTERNAL = "INTERNAL"


def report_attempts(batch: Batch, command: ReportAttempts) -> AttemptsReported:
    """Record a batch of reports, each on its own: one that breaks a rule of ours does not take the others with it."""
    results: list[ReportResult] = []
    for report in command.reports:
        if batch.full and not isinstance(report.event, ProgressMade):
            results.append(ReportResult(report.attempt, INTERNAL, "too much came at once for one batch; report again"))
            continue
        savepoint = batch.draft.savepoint()
        try:
            result, message = _report(batch, command.session_id, report)
        except Exception as error:  # noqa: BLE001 - a rule of ours is wrong: it must not poison the other reports
            batch.draft.rollback(savepoint)
            batch.failures.append((report, error))
            result, message = INTERNAL, "an internal error; report again, or the lease or a timeout decides"
        if not isinstance(report.event, ProgressMade):
            results.append(ReportResult(report.attempt, result, message))
    return AttemptsReported(tuple(results))


def _report(batch: Batch, session_id: str, report: AttemptReport) -> tuple[str, str]:
    ref = report.attempt
    job = batch.draft.read(keys.job(ref.job_id), rows.Job)
    if job is None:
        return NOT_FOUND, f"there is no job {ref.job_id}"
    ordinal = batch.places(ref.job_id).by_id.get(ref.step_id)
    step = None if ordinal is None else batch.step(ref.job_id, ordinal)
    if ordinal is None or step is None:
        return NOT_FOUND, f"job {ref.job_id} has not begun a step {ref.step_id!r}"
    if any(attempt.token == ref.token and attempt.session_id == session_id for attempt in step.lingering):
        return _late(batch, session_id, report, ordinal, step)
    if step.token != ref.token or step.session_id != session_id:
        return _stale(batch, report, ordinal, step)
    if step.state not in states.HELD:
        return _after_its_end(report.event, step)
    key = keys.assignment(session_id, ref.token, ref.job_id, ordinal)
    assignment = batch.draft.require(key, rows.Assignment)
    return _current(batch, ref.job_id, ordinal, step, assignment, report.event)


def _after_its_end(event: AttemptEvent, step: Step) -> tuple[str, str]:
    """The attempt of the newest token has ended, by a report that was recorded or by an offer that was taken back.

    Never RECORDED for an accept: that would let a handler start without a lease.
    """
    if not isinstance(event, Accepted):
        return RECORDED, "recorded before"
    if step.state is StepState.CANCELLED:
        return CANCELLED, "the job is ending without this step; do not start"
    if step.state is StepState.SKIPPED:
        return CANCELLED, "a person passed over this step; do not start"
    return STALE_TOKEN, "this offer was taken back: it was not accepted in time; do not start"


def _stale(batch: Batch, report: AttemptReport, ordinal: int, step: Step) -> tuple[str, str]:
    """Refuse a report of an attempt that has been replaced, or that another session held.

    An attempt of a session that has ended may be reported by the newer session of the same process: its token stands
    among the lost ones, and what it says is kept.
    """
    for attempt in step.lingering:
        if attempt.token == report.attempt.token and attempt.lost:
            return _late(batch, attempt.session_id, report, ordinal, step)
    if report.attempt.token == step.token:
        return STALE_TOKEN, f"token {step.token} of this step belongs to another session"
    return STALE_TOKEN, f"token {report.attempt.token} is not the newest of this step, which is {step.token}"


def _late(batch: Batch, session_id: str, report: AttemptReport, ordinal: int, step: Step) -> tuple[str, str]:
    """An attempt that had ended for us is heard of after all: refuse it, keep what it says, and stop waiting for it."""
    ref, event = report.attempt, report.event
    if isinstance(event, Accepted | Started | ProgressMade):
        return STALE_TOKEN, "this attempt has ended; stop it"
    if any(attempt.token == ref.token and attempt.closed for attempt in step.lingering):
        return STALE_TOKEN, "this attempt had ended, and was heard of before"
    kept = tuple(replace(known, closed=True) if known.token == ref.token else known for known in step.lingering)
    fence_led_ms = step.fence_at_led_ms if any(known.lost and not (known.closed or known.asks) for known in kept) else 0
    batch.draft.delete(keys.assignment(session_id, ref.token, ref.job_id, ordinal))
    batch.keep(ref.job_id, ordinal, step, lingering=kept, fence_at_led_ms=fence_led_ms)
    if isinstance(event, Declined | Stopped):
        type_, detail = EventType.StepAttemptConfirmedStopped, ""
    else:
        type_, detail = EventType.StaleReportObserved, _describe(event)
    batch.event(ref.job_id, type_, ordinal=ordinal, token=ref.token, session_id=session_id, detail=detail)
    attempts.look_again(batch, ref.job_id, ordinal)
    return STALE_TOKEN, f"this attempt had ended; its report was kept as an observation ({detail or 'stopped'})"


def forgotten(batch: Batch, key: bytes) -> None:
    """An agent does not hold an attempt that had started: what became of it will never be known."""
    session_id, token, job_id, ordinal = keys.parse_assignment(key)
    step = batch.step(job_id, ordinal)
    assert step is not None
    step_id = batch.spec(job_id, ordinal).id
    if step.token == token and step.session_id == session_id and step.state in states.HELD:
        failure = Failure("NOT_HELD", f"session {session_id} does not hold the attempt any more", step_id)
        attempts.end(batch, job_id, ordinal, Trouble.ATTEMPT_UNKNOWN, failure)
    else:
        stopped = AttemptReport(AttemptRef(job_id, step_id, token), Stopped(draining=False))
        _late(batch, session_id, stopped, ordinal, step)


def _describe(event: AttemptEvent) -> str:
    match event:
        case Succeeded():
            return "success"
        case Failed(kind=kind, message=message) | Unknown(kind=kind, message=message):
            return f"{type(event).__name__.lower()} {Failure(kind, message).told}"
        case _:
            return type(event).__name__.lower()


def _current(
    batch: Batch, job_id: str, ordinal: int, step: Step, assignment: Assignment, event: AttemptEvent
) -> tuple[str, str]:
    """A report of the attempt that is open."""
    match event:
        case Accepted():
            return _accepted(batch, job_id, ordinal, step, assignment)
        case Started():
            started(batch, job_id, ordinal, step)
        case Succeeded(output=output):
            return _succeeded(batch, job_id, ordinal, step, output)
        case Failed():
            failure = _failure(batch, job_id, ordinal, event.kind, event.message, retryable=event.retryable)
            trouble = Trouble.ATTEMPT_BROKEN if event.may_have_happened else Trouble.ATTEMPT_FAILED
            attempts.end(batch, job_id, ordinal, trouble, failure, retry_after_ms=event.retry_after_ms)
        case Unknown(kind=kind, message=message):
            failure = _failure(batch, job_id, ordinal, kind, message, retryable=True)
            attempts.end(batch, job_id, ordinal, Trouble.ATTEMPT_UNKNOWN, failure)
        case Declined(handed_back=handed_back):
            if handed_back:
                _note_want_of_room(batch, step)
            attempts.never_started(batch, job_id, ordinal, cancelled=assignment.cancel is not CancelReason.NONE)
        case Stopped(draining=draining):
            attempts.stopped(batch, job_id, ordinal, draining=draining)
        case ProgressMade(details=details):
            _progressed(batch, job_id, ordinal, step, details)
        case _:
            assert_never(event)
    return RECORDED, ""


def _progressed(batch: Batch, job_id: str, ordinal: int, step: Step, details: rows.Payload | None) -> None:
    """A sign of life, perhaps with something that the next attempt may go on from. It moves no timer."""
    phase = states.phase(step.state)
    if phase.part is Part.VERIFY:
        # What the action said is what its next attempt may go on from.
        details = None
    key = keys.step_progress(job_id, ordinal)
    before = batch.draft.read(key, rows.StepProgress)
    if details is None and not batch.policy(job_id, ordinal, phase).heartbeat_ms:
        return
    kept = details if details is not None or before is None else before.payload
    batch.draft.put(key, rows.StepProgress(kept, batch.moment.log_ms))
    if details is not None:
        batch.touch(job_id)


def _note_want_of_room(batch: Batch, step: Step) -> None:
    """An agent hands work back: if it does not drain, it has no room, whatever its slots say; wait until it has."""
    session = batch.draft.read(keys.session(step.session_id), rows.Session)
    if session is not None and not session.draining and not session.full:
        batch.draft.put(keys.session(step.session_id), replace(session, full=True))


def _failure(batch: Batch, job_id: str, ordinal: int, kind: str, message: str, *, retryable: bool) -> Failure:
    return Failure(kind, message, batch.spec(job_id, ordinal).id, retryable)


def _accepted(batch: Batch, job_id: str, ordinal: int, step: Step, assignment: Assignment) -> tuple[str, str]:
    """An agent asks whether it may start."""
    phase = states.phase(step.state)
    # A job that is stopping may not have come to this step yet.
    progress = batch.progress(job_id)
    unwanted = compensation.starts_nothing(progress, phase) or assignment.cancel is not CancelReason.NONE
    if unwanted and step.state is phase.offered:
        attempts.never_started(batch, job_id, ordinal, cancelled=True)
        return CANCELLED, "the job is ending without this step; do not start"
    if progress.state is JobState.PAUSED and step.state is phase.offered and assignment.start is StartMode.ON_ACCEPT:
        attempts.never_started(batch, job_id, ordinal, cancelled=True)
        return CANCELLED, "the job is paused; do not start"
    bound = schedules.no_start_from(batch.policy(job_id, ordinal, phase), step)
    if step.state is phase.offered and bound is not None and bound.at_log_ms <= batch.moment.log_ms:
        attempts.never_started(batch, job_id, ordinal, cancelled=True)
        return (
            CANCELLED,
            f"no attempt of this step may start any more: the {schedules.WORDS[bound.what]} is over; do not start",
        )
    if assignment.start is StartMode.ON_ACCEPT:
        started(batch, job_id, ordinal, step)
    return RECORDED, ""


def started(batch: Batch, job_id: str, ordinal: int, step: Step) -> None:
    """An offer becomes a lease. Only now an attempt is used."""
    phase = states.phase(step.state)
    if step.state is not phase.offered:
        return
    number = step.attempts + 1
    log_ms = batch.moment.log_ms
    step = batch.keep(job_id, ordinal, step, started_log_ms=log_ms)
    bound = schedules.working(batch.policy(job_id, ordinal, phase), step, heard_log_ms=0)
    batch.move(job_id, ordinal, step, phase.running, TimerAt(Clock.LOG, bound.at_log_ms), attempts=number)
    batch.event(
        job_id,
        phase.started,
        ordinal=ordinal,
        attempt=number,
        token=step.token,
        session_id=step.session_id,
        due_in_ms=max(0, bound.at_log_ms - log_ms),
    )


def _unfit(output: rows.Payload, limits: Limits) -> tuple[str, str]:
    """Why an output cannot be kept: kind and sentence of the failure; empty when it can. Undone as what happened."""
    size, bound = len(output.data), limits.payload_bytes_max
    if size > bound:
        text = f"the output has {size} bytes; at most {bound} can be kept: store it elsewhere and return a reference"
        return "RESULT_TOO_LARGE", text
    if output.data and output.encoding in json_text.ENCODINGS:
        fault = json_text.json_check(output.data, limits.json_depth_max)
        if fault is not None:
            return "INVALID_OUTPUT", f"the output is said to be JSON, but {fault}; name its encoding, or return JSON"
    return "", ""


def _succeeded(batch: Batch, job_id: str, ordinal: int, step: Step, output: rows.Payload) -> tuple[str, str]:
    kind, text = _unfit(output, batch.limits)
    if kind:
        failure = _failure(batch, job_id, ordinal, kind, text, retryable=False)
        attempts.end(batch, job_id, ordinal, Trouble.ATTEMPT_BROKEN, failure)
        return TOO_LARGE if kind == "RESULT_TOO_LARGE" else RECORDED, text
    phase = states.phase(step.state)
    number = step.attempts + (step.state is phase.offered)
    batch.draft.delete(keys.assignment(step.session_id, step.token, job_id, ordinal))
    breakers.succeeded(batch, job_id, ordinal, step)
    match phase.part:
        case Part.VERIFY:
            verifying.answered(batch, job_id, ordinal, step, output)
        case Part.UNDO:
            batch.event(job_id, EventType.UndoSucceeded, ordinal=ordinal, attempt=number, token=step.token)
            advance.forget_progress(batch, job_id, ordinal)
            batch.move(job_id, ordinal, step, StepState.COMPENSATED, NO_TIMER, attempts=number, maybe_done=False)
            compensation.undo_ended(batch, job_id, ordinal)
        case Part.ACTION:
            batch.event(job_id, EventType.StepSucceeded, ordinal=ordinal, attempt=number, token=step.token)
            advance.succeed(batch, job_id, ordinal, step, output, attempts=number)
        case never:
            assert_never(never)
    return RECORDED, ""
