"""Lines of a transcript as commands of the core."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from stepward.server.core import keys, rows
from stepward.server.core.canonical import definition_hash, submission_fingerprint
from stepward.server.core.commands import (
    Accepted,
    ApplyDefinition,
    AttemptRef,
    AttemptReport,
    CancelJob,
    CloseStream,
    Declined,
    DrainSession,
    Failed,
    OpenSession,
    PauseJob,
    ProgressMade,
    RenewSession,
    ReportAttempts,
    ResumeJob,
    RetryStep,
    SkipStep,
    Started,
    Stopped,
    SubmitJob,
    Succeeded,
    Sweep,
    TerminateJob,
    Unknown,
)
from stepward.server.core.definition import compile_definition
from stepward.server.core.definition_source import (
    DefinitionSource,
    RetrySource,
    StepSource,
    TimeoutsSource,
    UndoSource,
    VerifySource,
)
from stepward.server.core.rows import (
    Approval,
    DefinitionBody,
    Effect,
    OnDeadline,
    OnExhausted,
    OnUnknown,
    Payload,
    Reassign,
    StartMode,
)
from stepward.server.core.sessions import held_digest
from tests.core.world import actions_of
from tests.scenarios.blocks import Line, TranscriptError

if TYPE_CHECKING:
    from enum import IntEnum

    from stepward.server.core.commands import AnyCommand, AttemptEvent
    from stepward.server.core.limits import Limits
    from stepward.server.core.rejections import Violation
    from tests.scenarios.transcript import Transcript

NAMESPACE = "default"
E = TypeVar("E", bound="IntEnum")


def order(transcript: Transcript, verb: str, line: Line) -> AnyCommand:
    """The command of a line."""
    match verb:
        case "submit":
            return _submit(transcript, line)
        case "session":
            return _session(transcript, line)
        case "report":
            return _report(transcript, line)
        case "cancel":
            return CancelJob(transcript.job(line), line.take("reason", ""), line.take("actor", ""))
        case "terminate":
            return TerminateJob(transcript.job(line), line.take("reason"), line.take("actor", ""))
        case "pause":
            return PauseJob(transcript.job(line), line.take("reason", ""), line.take("actor", ""))
        case "resume":
            return ResumeJob(transcript.job(line), line.take("reason", ""), line.take("actor", ""))
        case "retry":
            return RetryStep(transcript.job(line), line.take("step"), line.take("reason", ""), line.take("actor", ""))
        case "skip":
            return _skip(transcript, line)
        case "sweep":
            return Sweep(line.number("subjects", transcript.world.limits.sweep_subjects_max))
        case _:
            msg = f"there is no command {verb!r}: {line.text}"
            raise TranscriptError(msg)


def define(line: Line, limits: Limits) -> ApplyDefinition | tuple[Violation, ...]:
    """A definition, or the rules that it breaks."""
    steps = tuple(_step(inner) for inner in line.inner)
    source = DefinitionSource(
        line.word(),
        steps,
        line.take("output", ""),
        deadline_ms=_maybe(line, "deadline"),
        on_deadline=_member(line, "on_deadline", OnDeadline),
    )
    body = compile_definition(source, limits, b"")
    return body if isinstance(body, tuple) else ApplyDefinition(NAMESPACE, definition_hash(body), body)


def _step(line: Line) -> StepSource:
    retry = RetrySource(
        attempts_max=line.number("attempts", 0),
        initial_ms=line.number("initial", 1_000),
        factor=float(line.take("factor", "2")),
        cap_ms=line.number("cap", 60_000),
        non_retryable_kinds=line.names("kinds"),
        time_ms_max=_maybe(line, "time_max"),
    )
    timeouts = TimeoutsSource(
        start_to_close_ms=_maybe(line, "start_to_close"),
        queue_ms=_maybe(line, "queue_timeout"),
        heartbeat_ms=_maybe(line, "heartbeat"),
        schedule_to_close_ms=_maybe(line, "schedule_to_close"),
    )
    undo, undo_effect = line.take("undo", ""), _member(line, "undo_effect", Effect)
    verify, verify_queue = line.take("verify", ""), line.take("verify_queue", "")
    step = StepSource(
        id=line.word(),
        action=line.take("action", ""),
        queue=line.take("queue", ""),
        needs=line.names("needs"),
        input=line.take("input", ""),
        retry=retry,
        timeouts=timeouts,
        effect=_member(line, "effect", Effect),
        start=_member(line, "start", StartMode),
        undo=UndoSource(undo, retry, timeouts, effect=undo_effect) if undo else None,
        verify=VerifySource(verify, retry, timeouts, verify_queue) if verify else None,
        on_unknown=_member(line, "on_unknown", OnUnknown),
        on_exhausted=_member(line, "on_exhausted", OnExhausted),
        reassign=_member(line, "reassign", Reassign),
        approval=_member(line, "approval", Approval),
    )
    line.done()
    return step


def _maybe(line: Line, name: str) -> int | None:
    """A field that is a number, or None when it is left out."""
    return line.number(name) if name in line.fields else None


def _member(line: Line, name: str, type_: type[E]) -> int:
    """A field that names a member of an enum; 0 when it is left out."""
    value = line.take(name, "")
    return type_[value.upper()] if value else 0


def _submit(transcript: Transcript, line: Line) -> SubmitJob:
    transcript.job_id = line.word()
    namespace, name, version = line.take("namespace", NAMESPACE), line.take("definition"), line.number("version", 0)
    given, deadline_ms = Payload(line.take("input", "{}").encode()), line.number("deadline", 0)
    fingerprint = submission_fingerprint(
        namespace=namespace,
        definition_name=name,
        definition_version=version,
        input=given,
        labels={},
        deadline_ms=deadline_ms,
        limits=transcript.world.limits,
    )
    key, caller = line.take("key", ""), line.take("caller", "")
    return SubmitJob(transcript.job_id, namespace, name, version, given, key, {}, caller, fingerprint, deadline_ms)


def _session(transcript: Transcript, line: Line) -> AnyCommand:
    what, agent = line.word(), line.word()
    match what:
        case "open":
            actions = line.names("actions")
            known = line.number("calls", -1)
            return OpenSession(
                session_id=agent,
                namespace=line.take("namespace", NAMESPACE),
                queue=line.take("queue", "default"),
                actions=_all_actions(transcript) if actions == ("*",) else actions,
                slots=line.number("slots", 1),
                name=agent,
                library="transcript",
                node_id="n1",
                known_generation=max(known, 0),
                goes_on=known >= 0,
            )
        case "renew":
            return _renew(transcript, agent, line)
        case "close":
            return CloseStream(agent, _generation(transcript, agent, line))
        case "drain":
            return DrainSession(agent, _generation(transcript, agent, line))
        case _:
            msg = f"a session can open, renew, close and drain: {line.text}"
            raise TranscriptError(msg)


def _all_actions(transcript: Transcript) -> tuple[str, ...]:
    """Every action that any definition names, those of this block too."""
    reader = transcript.world.reader
    bodies = [reader.get(key) for key in reader.scan(keys.DEFINITION_BODY)]
    bodies += [command.body for command in transcript.waiting if isinstance(command, ApplyDefinition)]
    return tuple(sorted({action for body in bodies if isinstance(body, DefinitionBody) for action in actions_of(body)}))


def _generation(transcript: Transcript, agent: str, line: Line | None) -> int:
    session = transcript.world.reader.get(keys.session(agent))
    newest = session.generation if isinstance(session, rows.Session) else 1
    return newest if line is None else line.number("generation", newest)


def heartbeat(transcript: Transcript, agent: str) -> RenewSession:
    """A renewal of an agent that holds all that the rows say."""
    return RenewSession(agent, _generation(transcript, agent, None), held_digest(_held(transcript, agent)))


def _renew(transcript: Transcript, agent: str, line: Line) -> RenewSession:
    generation, holding = _generation(transcript, agent, line), line.names("holding")
    on_stream = line.take("by", "stream") == "stream"
    match holding:
        case ():
            return RenewSession(agent, generation, held_digest(_held(transcript, agent)), on_stream=on_stream)
        case ("all",):
            held = _held(transcript, agent)
        case ("none",):
            held = ()
        case _:
            held = tuple(_attempt(name) for name in holding)
    return RenewSession(agent, generation, held_digest(held), held, on_stream=on_stream)


def _attempt(name: str) -> AttemptRef:
    job_id, step_id, token = name.split("/")
    return AttemptRef(job_id, step_id, int(token))


def _held(transcript: Transcript, agent: str) -> tuple[AttemptRef, ...]:
    reader = transcript.world.reader
    found = [keys.parse_assignment(key) for key in reader.scan(keys.assignments(agent))]
    return tuple(AttemptRef(job_id, transcript.step_id(job_id, ordinal), token) for _, token, job_id, ordinal in found)


def _skip(transcript: Transcript, line: Line) -> SkipStep:
    return SkipStep(
        job_id=transcript.job(line),
        step_id=line.take("step"),
        output=Payload(line.take("output", "null").encode()),
        undone=line.take("undone", "no") == "yes",
        reason=line.take("reason", ""),
        actor=line.take("actor", ""),
    )


def _report(transcript: Transcript, line: Line) -> ReportAttempts:
    job_id, step_id = transcript.job(line), line.take("step")
    step = transcript.step(job_id, step_id)
    agent = line.take("agent", step.session_id)
    attempt = AttemptRef(job_id, step_id, line.number("token", step.token))
    return ReportAttempts(agent, _generation(transcript, agent, line), (AttemptReport(attempt, _event(line)),))


def _event(line: Line) -> AttemptEvent:
    outcome = line.take("outcome")
    match outcome:
        case "accepted":
            return Accepted()
        case "started":
            return Started()
        case "success":
            return Succeeded(Payload(line.take("output", "null").encode()))
        case "failure" | "fatal":
            after = line.number("retry_after", -1)
            retry_after_ms = None if after < 0 else after
            kind, message = line.take("kind", "Broken"), line.take("message", "")
            return Failed(kind, message, retryable=outcome == "failure", retry_after_ms=retry_after_ms)
        case "unknown":
            return Unknown(line.take("kind", "NoAnswer"), line.take("message", ""))
        case "refused" | "handed_back":
            return Declined(handed_back=outcome == "handed_back")
        case "stopped" | "drained":
            return Stopped(draining=outcome == "drained")
        case "progress":
            return ProgressMade(Payload(line.take("details", "null").encode()))
        case "alive":
            return ProgressMade(None)
        case _:
            msg = f"there is no outcome {outcome!r}: {line.text}"
            raise TranscriptError(msg)
