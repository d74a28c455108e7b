"""Between the contract's messages and the core's values. Payload bytes pass untouched.

Nothing here decides or checks; `validate` comes before. Messages are built in one go from their parts, since a copy of
a message costs as much as building it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, assert_never

from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

from stepward.server.core import commands, rows, views
from stepward.server.core.limits import cut
from stepward.server.core.rows import Clock
from stepward.v1 import agent_service_pb2, common_pb2, job_pb2

if TYPE_CHECKING:
    from collections.abc import Iterable

    from stepward.server.core.commands import AttemptEvent, AttemptReport, AttemptsReported
    from stepward.server.core.limits import Limits
    from stepward.server.core.remainders import Remainder
    from stepward.server.core.rows import DefinitionBody, Head
    from stepward.server.core.views import AgentView, JobView, OfferView, StepView

DEFAULT_NAMESPACE: Final = "default"
DEFAULT_QUEUE: Final = "default"
ENCODING_CHARS_MAX: Final = 128
_REPORT_RESULTS: Final = {
    name.removeprefix("REPORT_RESULT_"): number for name, number in agent_service_pb2.ReportResult.items()
}
KIND_WITHOUT_NAME: Final = "UNKNOWN"


def timestamp(wall_ms: int) -> Timestamp:
    """An instant of the wall clock."""
    return Timestamp(seconds=wall_ms // 1_000, nanos=wall_ms % 1_000 * 1_000_000)


def duration(ms: int) -> Duration:
    """A duration that is not negative."""
    return Duration(seconds=ms // 1_000, nanos=ms % 1_000 * 1_000_000)


def duration_ms(message: Duration) -> int:
    """A duration in whole milliseconds."""
    return message.seconds * 1_000 + message.nanos // 1_000_000


def payload(value: rows.Payload) -> common_pb2.Payload:
    """A payload, outwards."""
    return common_pb2.Payload(data=value.data, encoding=value.encoding)


def failure(value: rows.Failure) -> common_pb2.Failure:
    """Why something did not succeed, outwards."""
    return common_pb2.Failure(kind=value.kind, message=value.message, step_id=value.step_id, retryable=value.retryable)


def job(view: JobView, head: Head) -> job_pb2.Job:
    """A job without its steps, outwards. `job_steps` adds those that fit; `head` turns timers into instants."""
    row, progress = view.job, view.progress
    message = job_pb2.Job(
        job_id=view.job_id,
        namespace=row.namespace,
        definition_name=row.definition_name,
        definition_version=row.definition_version,
        state=int(progress.state),  # type: ignore[arg-type]  # the numbers are the contract's, held to it by a test
        input=payload(row.input),
        labels=row.labels,
        submitted_at=timestamp(row.submitted_wall_ms),
        updated_at=timestamp(progress.updated_wall_ms),
        revision=progress.revision,
        cancel_requested=progress.cancel_requested,
        remaining=view.remaining,
        idempotency_key=row.idempotency_key,
        steps_total=len(view.body.steps),
        undone=view.left.undone,
        remainders=[_remainder(remainder) for remainder in view.left.remainders],
    )
    if progress.ended_wall_ms:
        message.ended_at.CopyFrom(timestamp(progress.ended_wall_ms))
    if view.output is not None:
        message.output.CopyFrom(payload(view.output))
    if view.failure is not None:
        message.failure.CopyFrom(failure(view.failure))
    if progress.deadline_log_ms:
        message.deadline_at.CopyFrom(timestamp(views.wall_ms(head, Clock.LOG, progress.deadline_log_ms)))
    return message


def ended_job(view: JobView) -> job_pb2.Job:
    """What a caller who waited for the end is told: id, state, output and failure."""
    progress = view.progress
    return job_pb2.Job(
        job_id=view.job_id,
        namespace=view.job.namespace,
        definition_name=view.job.definition_name,
        definition_version=view.job.definition_version,
        state=int(progress.state),  # type: ignore[arg-type]  # the numbers are the contract's, held to it by a test
        output=None if view.output is None else payload(view.output),
        failure=None if view.failure is None else failure(view.failure),
        revision=progress.revision,
        cancel_requested=progress.cancel_requested,
        remaining=view.remaining,
        undone=view.left.undone,
        remainders=[_remainder(remainder) for remainder in view.left.remainders],
    )


def _remainder(value: Remainder) -> job_pb2.Remainder:
    return job_pb2.Remainder(step_id=value.step_id, may_be_done=value.may_be_done, reason=value.reason)


def step(body: DefinitionBody, step: StepView, head: Head) -> job_pb2.JobStep:
    """One step of a job, outwards. `head` turns timers into instants."""
    spec, row = step.spec, step.step
    message = job_pb2.JobStep(
        step_id=spec.id,
        state=int(rows.StepState.PENDING if row is None else row.state),  # type: ignore[arg-type]  # as above
        action=spec.action,
        queue=spec.queue,
        needs=[body.steps[ordinal].id for ordinal in spec.needs],
        attempts_max=step.attempts_max,
        has_undo=spec.undo is not None,
        due_for=step.due_for,
    )
    if step.output is not None:
        message.output.CopyFrom(payload(step.output))
    if step.progress is not None:
        message.progress.CopyFrom(payload(step.progress))
    if step.lease_ends_led_ms:
        message.lease_ends_at.CopyFrom(timestamp(views.wall_ms(head, Clock.LED, step.lease_ends_led_ms)))
    if row is None:
        return message
    message.attempts = row.attempts
    message.generation = row.generation
    message.lease_losses = row.lease_losses
    message.token = row.token
    message.session_id = row.session_id
    message.maybe_done = row.maybe_done
    message.updated_at.CopyFrom(timestamp(row.updated_wall_ms))
    if row.failure is not None:
        message.failure.CopyFrom(failure(row.failure))
    if step.schedule_ends_log_ms:
        message.schedule_ends_at.CopyFrom(timestamp(views.wall_ms(head, Clock.LOG, step.schedule_ends_log_ms)))
    if row.timer_clock is not Clock.NONE:
        message.due_at.CopyFrom(timestamp(views.wall_ms(head, row.timer_clock, row.timer_at_ms)))
    return message


def attempt_ref(ref: commands.AttemptRef) -> agent_service_pb2.AttemptRef:
    """An assignment's name, outwards."""
    return agent_service_pb2.AttemptRef(job_id=ref.job_id, step_id=ref.step_id, token=ref.token)


def held(refs: Iterable[agent_service_pb2.AttemptRef]) -> tuple[commands.AttemptRef, ...]:
    """What an agent says that it holds."""
    return tuple(commands.AttemptRef(ref.job_id, ref.step_id, ref.token) for ref in refs)


def offer(view: OfferView) -> agent_service_pb2.Offer:
    """An offer, outwards."""
    return agent_service_pb2.Offer(
        attempt=attempt_ref(view.attempt),
        action=view.action,
        input=payload(view.input),
        attempt_number=view.attempt_number,
        idempotency_key=view.idempotency_key,
        start=int(view.start),  # type: ignore[arg-type]  # the numbers are the contract's, held to it by a test
        start_to_close=duration(view.start_to_close_ms),
        idempotent=view.idempotent,
        undo=view.part is rows.Part.UNDO,
        verify=view.part is rows.Part.VERIFY,
        definition_name=view.definition_name,
        last_progress=None if view.last_progress is None else payload(view.last_progress),
        heartbeat_timeout=duration(view.heartbeat_ms) if view.heartbeat_ms else None,
    )


def cancel(view: OfferView) -> agent_service_pb2.Cancel:
    """A cancel, outwards."""
    return agent_service_pb2.Cancel(
        attempt=attempt_ref(view.attempt),
        reason=int(view.cancel),  # type: ignore[arg-type]  # the numbers are the contract's, held to it by a test
    )


def stale(ref: commands.AttemptRef) -> agent_service_pb2.Cancel:
    """A cancel of something that no row knows, outwards."""
    return agent_service_pb2.Cancel(attempt=attempt_ref(ref), reason=agent_service_pb2.CancelReason.CANCEL_REASON_STALE)


def agent(view: AgentView, head: Head) -> agent_service_pb2.Agent:
    """An open session, outwards."""
    session = view.session
    return agent_service_pb2.Agent(
        session_id=view.session_id,
        name=session.name,
        queue=session.queue,
        actions=session.actions,
        slots=session.slots,
        slots_taken=len(view.held),
        generation=session.generation,
        draining=session.draining,
        connected=session.connected,
        renewed_at=timestamp(session.renewed_wall_ms),
        lease_ends_at=timestamp(views.wall_ms(head, Clock.LED, view.lease_ends_led_ms)),
        ttl=duration(session.ttl_ms),
        held=[attempt_ref(ref) for ref in view.held],
    )


def report_answers(answer: AttemptsReported) -> agent_service_pb2.ReportAnswers:
    """What reports came to, outwards."""
    return agent_service_pb2.ReportAnswers(
        answers=[
            agent_service_pb2.ReportAnswer(
                attempt=attempt_ref(one.attempt), result=_REPORT_RESULTS[one.result], message=one.message
            )
            for one in answer.results
        ]
    )


def reports(message: agent_service_pb2.Report, limits: Limits) -> Iterable[AttemptReport]:
    """Reports, inwards. One without an event, of a newer protocol, is passed over."""
    for attempt in message.attempts:
        event = _event(attempt, limits)
        if event is not None:
            ref = attempt.attempt
            yield commands.AttemptReport(commands.AttemptRef(ref.job_id, ref.step_id, ref.token), event)


def _event(attempt: agent_service_pb2.AttemptReport, limits: Limits) -> AttemptEvent | None:
    """What became of an attempt, inwards. What it says is cut to its bounds, not refused: the outcome matters more."""
    match attempt.WhichOneof("event"):
        case "succeeded":
            return commands.Succeeded(_payload(attempt.succeeded.output))
        case "failed":
            failed = attempt.failed
            wait_ms = None
            if failed.HasField("retry_after"):
                wait_ms = min(max(duration_ms(failed.retry_after), 0), limits.duration_ms_max)
            kind, said = _kind(failed.kind, limits), cut(failed.message, limits.failure_message_bytes_max)
            return commands.Failed(kind, said, failed.retryable, wait_ms, failed.may_have_happened)
        case "unknown":
            unknown = attempt.unknown
            said = cut(unknown.message, limits.failure_message_bytes_max)
            return commands.Unknown(_kind(unknown.kind, limits), said)
        case "started":
            return commands.Started()
        case "accepted":
            return commands.Accepted()
        case "refused":
            return commands.Declined(attempt.refused.handed_back)
        case "stopped":
            return commands.Stopped(attempt.stopped.draining)
        case "progress":
            return _progress(attempt.progress, limits)
        case None:
            return None
        case never:
            assert_never(never)


def _progress(progress: agent_service_pb2.Progress, limits: Limits) -> AttemptEvent:
    """A sign of life. Details that are too large are dropped: they are a hint, and what was said before stays."""
    if not progress.HasField("details") or len(progress.details.data) > limits.progress_bytes_max:
        return commands.ProgressMade(None)
    return commands.ProgressMade(_payload(progress.details))


def _payload(message: common_pb2.Payload) -> rows.Payload:
    """A payload of an agent. Its size is the core's to judge; a name of its encoding that is too long names nothing."""
    return rows.Payload(message.data, message.encoding[:ENCODING_CHARS_MAX])


def _kind(kind: str, limits: Limits) -> str:
    return kind[: limits.failure_kind_chars_max] or KIND_WITHOUT_NAME
