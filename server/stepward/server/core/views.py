"""What readers see: jobs, offers, agents and histories put together from rows. Pure, and the same on every node.

Payloads are stored once and referred to, so an offer's input is built here each time it is needed, from the job's
input and the outputs of earlier steps.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from msgspec import Struct

from stepward.server.core import epoch_rows, keys, leases, rows, schedules, states
from stepward.server.core.commands import AttemptRef
from stepward.server.core.inputs import idempotency_key, job_output, step_input, undo_input, verify_input
from stepward.server.core.remainders import TOLD_IN, LeftBehind, left_behind
from stepward.server.core.rows import Assignment, CancelReason, Clock, JobState, Part, Payload, Trouble

if TYPE_CHECKING:
    from collections.abc import Iterator

    from stepward.server.core.inputs import Rows
    from stepward.server.core.limits import Limits
    from stepward.server.core.reader import Reader
    from stepward.server.core.rows import DefinitionBody, Failure, Head, History, Job, Progress, Session, Step, StepSpec
    from stepward.server.core.schedules import Policy

R = TypeVar("R", bound=rows.Row)

# Who builds the input of which part of a step.
_BUILDERS = {Part.ACTION: step_input, Part.UNDO: undo_input, Part.VERIFY: verify_input}


class StepView(Struct, frozen=True):
    """One step of one job. `step` is None while it waits for the steps that it needs."""

    spec: StepSpec
    step: Step | None
    attempts_max: int
    output: Payload | None = None
    progress: Payload | None = None
    due_for: str = ""
    lease_ends_led_ms: int = 0
    schedule_ends_log_ms: int = 0


class JobView(Struct, frozen=True):
    """One job. `steps` are rows of steps by position, and empty when they were not asked for; `step_view` shows one."""

    job_id: str
    job: Job
    body: DefinitionBody
    progress: Progress
    output: Payload | None
    failure: Failure | None
    left: LeftBehind = LeftBehind()
    steps: tuple[Step | None, ...] = ()

    @property
    def remaining(self) -> tuple[str, ...]:
        """Ids of the steps that remain done, or may."""
        return tuple(remainder.step_id for remainder in self.left.remainders)


class OfferView(Struct, frozen=True):
    """Everything that an agent is told about an assignment. `cancel` NONE: it is an offer, else a cancel."""

    attempt: AttemptRef
    action: str
    input: Payload
    attempt_number: int
    idempotency_key: str
    start: rows.StartMode
    start_to_close_ms: int
    heartbeat_ms: int
    idempotent: bool
    part: Part
    definition_name: str
    last_progress: Payload | None
    cancel: CancelReason


class AgentView(Struct, frozen=True):
    """One open session and what it holds."""

    session_id: str
    session: Session
    held: tuple[AttemptRef, ...]
    lease_ends_led_ms: int


def _read(reader: Rows, key: bytes, type_: type[R]) -> R | None:
    row = reader.get(key)
    assert row is None or isinstance(row, type_), (key, row)
    return row


def _require(reader: Rows, key: bytes, type_: type[R]) -> R:
    row = _read(reader, key, type_)
    assert row is not None, key
    return row


def job_view(reader: Rows, job_id: str, limits: Limits, *, with_steps: bool) -> JobView | None:
    """One job as the rows have it, with its output, or None if there is no such job."""
    job = _read(reader, keys.job(job_id), rows.Job)
    return None if job is None else _job_view(reader, job_id, job, limits, with_steps=with_steps, with_output=True)


def _job_view(reader: Rows, job_id: str, job: Job, limits: Limits, *, with_steps: bool, with_output: bool) -> JobView:
    """A job put together from no more rows than it takes: a definition may have thousands of steps."""
    progress = _require(reader, keys.progress(job_id), rows.Progress)
    body = _require(reader, keys.definition_body(job.definition_hash), rows.DefinitionBody)
    output, failure = None, progress.failure
    if with_output and progress.state is JobState.COMPLETED:
        output, failure = job_output(reader, job_id, job, body, limits)
    steps: list[Step | None] = []
    if with_steps or progress.state in TOLD_IN:
        steps = [_read(reader, keys.step(job_id, ordinal), rows.Step) for ordinal in range(len(body.steps))]
    left = LeftBehind()
    if progress.state in TOLD_IN:
        left = left_behind(zip(body.steps, steps, strict=True), progress, limits)
    return JobView(job_id, job, body, progress, output, failure, left, tuple(steps) if with_steps else ())


def definition_of(reader: Rows, job_id: str) -> DefinitionBody | None:
    """The snapshot of its definition that a job keeps, or None if there is no such job."""
    job = _read(reader, keys.job(job_id), rows.Job)
    return None if job is None else _require(reader, keys.definition_body(job.definition_hash), rows.DefinitionBody)


def step_view(reader: Rows, job_id: str, body: DefinitionBody, ordinal: int, limits: Limits) -> StepView:
    """One step of a job, with its output and its progress."""
    step = _read(reader, keys.step(job_id, ordinal), rows.Step)
    return _step_view(reader, job_id, ordinal, body.steps[ordinal], step, limits)


def _step_view(reader: Rows, job_id: str, ordinal: int, spec: StepSpec, step: Step | None, limits: Limits) -> StepView:
    if step is None:
        return StepView(spec, None, spec.retry.attempts_max)
    output = _read(reader, keys.output(job_id, ordinal), rows.Output)
    progress = _read(reader, keys.step_progress(job_id, ordinal), rows.StepProgress)
    policy = schedules.policy_of(spec, _part_of(spec, step))
    ends_led_ms = 0
    if step.state in states.HELD:
        session = _read(reader, keys.session(step.session_id), rows.Session)
        ends_led_ms = 0 if session is None else lease_ends_led_ms(session, limits)
    return StepView(
        spec,
        step,
        policy.retry.attempts_max,
        None if output is None else output.payload,
        None if progress is None else progress.payload,
        _due_for(reader, step, policy, progress),
        ends_led_ms,
        schedules.ends_log_ms(policy, step),
    )


def _due_for(reader: Rows, step: Step, policy: Policy, progress: rows.StepProgress | None) -> str:
    """What the timer of a step is for, in the words of the public contract."""
    phase = states.phase(step.state)
    match step.timer_clock:
        case Clock.NONE:
            return ""
        case Clock.LED:
            return "accept deadline" if step.state is phase.offered else "fence"
    if step.state is phase.running:
        heard_log_ms = schedules.heard_log_ms(progress, _read(reader, keys.EPOCH, epoch_rows.Epoch))
        return schedules.WORDS[schedules.working(policy, step, heard_log_ms=heard_log_ms).what]
    if step.state is phase.retry_wait:
        return "retry"
    ends_log_ms = schedules.ends_log_ms(policy, step)
    return schedules.WORDS[Trouble.SCHEDULE_TO_CLOSE if step.timer_at_ms == ends_log_ms else Trouble.QUEUE_TIME]


def lease_ends_led_ms(session: Session, limits: Limits) -> int:
    """When a session would be given up if nothing were heard from it again (led time)."""
    return leases.session_end_led_ms(
        renewed_led_ms=session.renewed_led_ms, ttl_ms=session.ttl_ms, kill_grace_ms=limits.kill_grace_ms
    )


def wall_ms(head: Head, clock: Clock, at_ms: int) -> int:
    """An instant of led or log time as wall time, as it looks from the newest batch."""
    now_ms = head.led_ms if clock is Clock.LED else head.log_ms
    return head.wall_ms + at_ms - now_ms


def listed_job(reader: Rows, job_id: str, job: Job, limits: Limits) -> tuple[JobView, int]:
    """A job of a list, without steps and output, and how many rows of steps were read for it."""
    view = _job_view(reader, job_id, job, limits, with_steps=False, with_output=False)
    return view, len(view.body.steps) if view.progress.state in TOLD_IN else 0


def history(reader: Reader, job_id: str, *, after_sequence: int) -> Iterator[tuple[int, History]]:
    """What happened to a job behind a batch, one entry a batch, the oldest first, with their sequences. Lazily."""
    prefix = keys.histories(job_id)
    for key in reader.scan(prefix, after=keys.history(job_id, after_sequence) if after_sequence else b""):
        yield int.from_bytes(key[len(prefix) :], "big"), _require(reader, key, rows.History)


def _part_of(spec: StepSpec, step: Step) -> Part:
    """The part of a step that its attempts and bounds belong to."""
    part = states.phase(step.state).part
    return Part.ACTION if part is Part.UNDO and spec.undo is None else part


def _is_idempotent(spec: StepSpec, part: Part) -> bool:
    """Whether a handler does no harm when it goes on beside another."""
    if part is Part.UNDO and spec.undo is not None:
        return spec.undo.effect is rows.Effect.IDEMPOTENT
    return part is Part.VERIFY or spec.effect is rows.Effect.IDEMPOTENT


def offer_view(reader: Rows, key: bytes, assignment: Assignment, limits: Limits) -> OfferView | None:
    """What to tell an agent about an assignment row. None when a newer attempt has made an offer of it pointless."""
    _, token, job_id, ordinal = keys.parse_assignment(key)
    job = _require(reader, keys.job(job_id), rows.Job)
    body = _require(reader, keys.definition_body(job.definition_hash), rows.DefinitionBody)
    step = _require(reader, keys.step(job_id, ordinal), rows.Step)
    spec = body.steps[ordinal]
    cancelled = assignment.cancel is not CancelReason.NONE
    if not cancelled and step.token != token:
        return None
    policy, part = schedules.policy_of(spec, assignment.part), assignment.part
    payload = Payload()
    if not cancelled:
        payload = _BUILDERS[part](reader, job_id, job, body, ordinal, limits)
    progress = None
    if part is not Part.VERIFY:
        progress = _read(reader, keys.step_progress(job_id, ordinal), rows.StepProgress)
    offered = step.state is states.phase(step.state).offered
    return OfferView(
        attempt=AttemptRef(job_id, spec.id, token),
        action=policy.action,
        input=payload,
        attempt_number=step.attempts + offered,
        idempotency_key=idempotency_key(job_id, body, ordinal, step.generation)
        + ("/undo" if part is Part.UNDO else ""),
        start=assignment.start,
        start_to_close_ms=policy.start_to_close_ms,
        heartbeat_ms=policy.heartbeat_ms,
        idempotent=_is_idempotent(spec, part),
        part=part,
        definition_name=job.definition_name,
        last_progress=None if progress is None else progress.payload,
        cancel=assignment.cancel,
    )


def agents(reader: Reader, *, namespace: str, after_session_id: str, limits: Limits) -> Iterator[AgentView]:
    """Open sessions of a namespace behind a session id, by session id. Lazily."""
    after = keys.session(after_session_id) if after_session_id else b""
    for key in reader.scan(keys.SESSION, after=after):
        session = _require(reader, key, rows.Session)
        if session.namespace == namespace:
            session_id = key[1:].decode()
            held = tuple(attempt_ref(reader, held_key) for held_key in list(reader.scan(keys.assignments(session_id))))
            yield AgentView(session_id, session, held, lease_ends_led_ms(session, limits))


def attempt_ref(reader: Rows, key: bytes) -> AttemptRef:
    """The name of an assignment, from its key."""
    _, token, job_id, ordinal = keys.parse_assignment(key)
    job = _require(reader, keys.job(job_id), rows.Job)
    body = _require(reader, keys.definition_body(job.definition_hash), rows.DefinitionBody)
    return AttemptRef(job_id, body.steps[ordinal].id, token)
