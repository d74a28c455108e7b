"""What came of commands, in a few readable lines: answers, then what changed, by job and step."""

from __future__ import annotations

from typing import TYPE_CHECKING, assert_never

from stepward.server.core import keys, rows
from stepward.server.core.commands import (
    AttemptsReported,
    DefinitionApplied,
    IncidentResolved,
    JobCancelled,
    JobSubmitted,
    NoticesMarked,
    OpenSession,
    SessionOpened,
    SessionRenewed,
    SilenceWatched,
    StreamClosed,
    Swept,
    VerbDone,
)
from stepward.server.core.rejections import Rejection
from stepward.server.core.rows import CancelReason

if TYPE_CHECKING:
    from collections.abc import Mapping

    from stepward.server.core.commands import Answer, AnyCommand
    from stepward.server.core.reader import Reader
    from stepward.server.core.rows import Event, Row

# The job itself, among its steps.
JOB = -1


class Before:
    """The rows whose changes are told, as they were before a batch."""

    def __init__(self, reader: Reader) -> None:
        kinds = (keys.PROGRESS, keys.STEP, keys.SESSION, keys.ASSIGNMENT)
        self.rows = {key: reader.get(key) for kind in kinds for key in reader.scan(kind)}


def answered(command: AnyCommand, answer: Answer) -> list[str]:
    """An answer. A renewal that went through says nothing."""
    match answer:
        case Rejection():
            return refused(answer)
        case JobSubmitted(job_id=job_id, duplicate=duplicate, state=state):
            return [f"{job_id} is the first job of this key, {state.name}" if duplicate else f"submitted {job_id}"]
        case JobCancelled(job_id=job_id, already=already):
            return [f"{job_id} was cancelled or being undone before" if already else f"cancelling {job_id}"]
        case VerbDone(already=already):
            return ["there was nothing to do"] if already else ["done"]
        case DefinitionApplied(version=version, created=created):
            return [f"version {version}" if created else f"version {version}, as before"]
        case SessionOpened(generation=generation):
            assert isinstance(command, OpenSession)
            return [f"{command.session_id} is open, generation {generation}"]
        case SessionRenewed(send_held=send_held):
            return ["send what you hold"] if send_held else []
        case StreamClosed():
            return []
        case AttemptsReported(results=results):
            return [_reported(result.result, result.message) for result in results]
        case Swept(handled=handled, overdue=overdue, held=held, next_due_led_ms=led_ms, next_due_log_ms=log_ms):
            due = ", ".join(f"{clock} {at}" for clock, at in (("led", led_ms), ("log", log_ms)) if at is not None)
            return [
                f"swept {handled}"
                + (f", {overdue} overdue" if overdue else "")
                + (f", {held} held for {answer.look_again_in_ms} ms" if held else "")
                + (f", next at {due}" if due else "")
            ]
        case IncidentResolved(already=already):
            return ["it was resolved before"] if already else ["resolved"]
        case NoticesMarked(done=done):
            return [f"notices up to {done} are done"]
        case SilenceWatched(silent_ms=silent_ms):
            return [f"no beat for {silent_ms}"]
        case _:
            assert_never(answer)


def refused(answer: Answer) -> list[str]:
    """A rejection, or nothing."""
    return [f"rejected {answer.reason.name}: {answer.message}"] if isinstance(answer, Rejection) else []


def _reported(result: str, message: str) -> str:
    if result == "RECORDED":
        return message or "recorded"
    return f"rejected {result}: {message}"


def changed(before: Before, reader: Reader, changes: Mapping[bytes, Row | None]) -> list[str]:
    """What a batch changed: jobs and steps with their events, then what agents are told, then sessions."""
    told: list[str] = []
    subjects: dict[tuple[str, int], list[Event]] = {}
    for key, row in changes.items():
        if isinstance(row, rows.History):
            job_id = key[1:-9].decode()
            for event in row.events:
                subjects.setdefault((job_id, event.ordinal), []).append(event)
        elif key[:1] == keys.PROGRESS:
            subjects.setdefault((keys.progress_job_id(key), JOB), [])
        elif key[:1] == keys.STEP and row is not None:
            subjects.setdefault(keys.parse_subject(key[1:]), [])
    for (job_id, ordinal), events in sorted(subjects.items()):
        told += _subject(before, reader, job_id, ordinal, events)
    for key, row in sorted(changes.items()):
        if key[:1] == keys.ASSIGNMENT:
            told += _assignment(before, reader, key, row)
        elif key[:1] == keys.SESSION:
            told += _session(before, key, row)
    return told


def _subject(before: Before, reader: Reader, job_id: str, ordinal: int, events: list[Event]) -> list[str]:
    """A job or a step: its states before and after, and its events."""
    key = keys.progress(job_id) if ordinal == JOB else keys.step(job_id, ordinal)
    name = job_id if ordinal == JOB else f"{job_id} {step_id(reader, job_id, ordinal)}"
    state, state_before = _state(reader.get(key)), _state(before.rows.get(key))
    parts = [f"{state_before} -> {state}" if state_before else state] if state != state_before else []
    if state_before and not state:
        parts = [f"{state_before} -> removed"]
    parts += [_event(event) for event in events]
    return [f"{name}: {'; '.join(parts)}"] if parts else []


def _state(row: Row | None) -> str:
    match row:
        case rows.Progress(state=job_state):
            return job_state.name
        case rows.Step(state=step_state):
            return step_state.name
        case _:
            return ""


def _event(event: Event) -> str:
    """An event with those of its fields that say something."""
    fields = (
        f" {event.session_id}" if event.session_id else "",
        f" attempt={event.attempt}" if event.attempt else "",
        f" token={event.token}" if event.token else "",
        f" in {event.due_in_ms} ms" if event.due_in_ms else "",
        f" by {event.actor}" if event.actor else "",
        f" ({event.detail})" if event.detail else "",
    )
    return event.type.name + "".join(fields)


def step_id(reader: Reader, job_id: str, ordinal: int) -> str:
    """A step's id, by its position."""
    job = reader.get(keys.job(job_id))
    assert isinstance(job, rows.Job), job_id
    body = reader.get(keys.definition_body(job.definition_hash))
    assert isinstance(body, rows.DefinitionBody), job_id
    return body.steps[ordinal].id


def _assignment(before: Before, reader: Reader, key: bytes, row: Row | None) -> list[str]:
    """What is sent to an agent, and what it no longer holds. Offers are told as events."""
    agent, token, job_id, ordinal = keys.parse_assignment(key)
    what = f"{job_id} {step_id(reader, job_id, ordinal)} token={token}"
    was = before.rows.get(key)
    if row is None:
        return [f"{agent} gives back {what}"]
    assert isinstance(row, rows.Assignment)
    if row.cancel is not CancelReason.NONE and not (isinstance(was, rows.Assignment) and was.cancel is row.cancel):
        return [f"{agent} is told to stop {what} ({row.cancel.name})"]
    if isinstance(was, rows.Assignment) and row.resends > was.resends:
        return [f"{agent} is sent {what} again"]
    return []


def _session(before: Before, key: bytes, row: Row | None) -> list[str]:
    """What became of a session. Mere renewals say nothing."""
    agent, was = key[1:].decode(), before.rows.get(key)
    if row is None:
        return [f"{agent} is gone"]
    assert isinstance(row, rows.Session)
    if not isinstance(was, rows.Session):
        return []
    changes = (
        (was.connected, row.connected, "has no stream", "has a stream again"),
        (not was.draining, not row.draining, "is draining", "is no longer draining"),
        (not was.ending, not row.ending, "is lost", "is back"),
    )
    return [f"{agent} {on if after else off}" for earlier, after, off, on in changes if earlier != after]
