"""What `show` tells of jobs, steps, offers and slots: rows as their readers see them."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

from stepward.server.core import brake, breakers, keys, rows, views
from stepward.server.core.rows import Clock
from tests.scenarios import results
from tests.scenarios.blocks import TranscriptError

if TYPE_CHECKING:
    from stepward.server.core.rows import Failure, Payload
    from tests.scenarios.blocks import Line
    from tests.scenarios.transcript import Transcript

HISTORY_MAX = 1_000


def show(transcript: Transcript, line: Line) -> list[str]:
    """What is asked for."""
    what = line.word()
    match what:
        case "job":
            return _job(transcript, transcript.job(line))
        case "history":
            return _history(transcript, transcript.job(line))
        case "step":
            return _step(transcript, transcript.job(line), line.word())
        case "offer":
            return _offer(transcript, transcript.job(line), line.word())
        case "slots":
            return _slots(transcript, line.word())
        case "brake":
            return _brake(transcript)
        case "breakers":
            return _breakers(transcript)
        case _:
            msg = f"nobody can show {what!r}: {line.text}"
            raise TranscriptError(msg)


def _job(transcript: Transcript, job_id: str) -> list[str]:
    view = views.job_view(transcript.world.reader, job_id, transcript.world.limits, with_steps=True)
    if view is None:
        return [f"there is no {job_id}"]
    told = [f"{job_id}: {view.progress.state.name}"]
    told += [f"  output {_payload(view.output)}"] if view.output is not None else []
    told += [f"  failure {_failure(view.failure)}"] if view.failure is not None else []
    told += [f"  deadline at log {view.progress.deadline_log_ms}"] if view.progress.deadline_log_ms else []
    told += [f"  undone {', '.join(view.left.undone)}"] if view.left.undone else []
    told += [
        f"  {each.step_id} {'may remain' if each.may_be_done else 'remains'} done: {each.reason}"
        for each in view.left.remainders
    ]
    return told + [
        f"  {spec.id}: {'PENDING' if step is None else step.state.name}"
        for spec, step in zip(view.body.steps, view.steps, strict=True)
    ]


def _brake(transcript: Transcript) -> list[str]:
    world = transcript.world
    stands = brake.standing(world.reader, led_ms=world.now_ms, limits=world.limits)
    used = f"{stands.used} of {world.limits.remediations_burst_max} used"
    if stands.on is None:
        return [f"the brake is off, {used}"]
    return [f"the brake is on for {stands.on.ends_in_ms} ms, {used}: {stands.on.reason}"]


def _breakers(transcript: Transcript) -> list[str]:
    world = transcript.world
    told = [
        f"{one.action} on {one.queue} of {one.namespace}: "
        + (f"open for {one.probes_in_ms} ms" if one.probes_in_ms else "half open")
        + f" ({one.reason})"
        for one in breakers.standing(world.reader, led_ms=world.now_ms)
    ]
    return told or [f"all breakers are closed, {world.reader.count(keys.BREAKER)} count"]


def _failure(failure: Failure) -> str:
    message = f": {failure.message}" if failure.message else ""
    step = f" at {failure.step_id}" if failure.step_id else ""
    return f"{failure.kind}{step}{message}"


def _payload(payload: Payload) -> str:
    return payload.data.decode(errors="backslashreplace") + (f" ({payload.encoding})" if payload.encoding else "")


def _history(transcript: Transcript, job_id: str) -> list[str]:
    found = views.history(transcript.world.reader, job_id, after_sequence=0)
    return [
        f"{sequence} at {history.log_ms}: {event.type.name}"
        + (f" {transcript.step_id(job_id, event.ordinal)}" if event.ordinal != results.JOB else "")
        for sequence, history in islice(found, HISTORY_MAX)
        for event in history.events
    ]


def _step(transcript: Transcript, job_id: str, step_id: str) -> list[str]:
    """The row of a step, without what is as it always is."""
    step, due_for, ends_log_ms = transcript.step(job_id, step_id), "", 0
    world = transcript.world
    body = views.definition_of(world.reader, job_id)
    if body is not None:
        view = views.step_view(world.reader, job_id, body, world.ordinal(job_id, step_id), world.limits)
        due_for, ends_log_ms = view.due_for, view.schedule_ends_log_ms
    facts = {
        "attempts": step.attempts,
        "lease_losses": step.lease_losses,
        "token": step.token,
        "agent": step.session_id,
        "generation": step.generation if step.generation > 1 else 0,
        "fence_at": step.fence_at_led_ms,
        "lingering": ",".join(f"{each.session_id}/{each.token}" for each in step.lingering),
        "failure": step.failure.kind if step.failure is not None else "",
    }
    told = [f"{name}={value}" for name, value in facts.items() if value]
    told += ["may have happened"] if step.maybe_done else []
    due = f"due at {step.timer_clock.name.lower()} {step.timer_at_ms}" + (f" ({due_for})" if due_for else "")
    told += [due] if step.timer_clock is not Clock.NONE else []
    told += [f"all attempts end at log {ends_log_ms}"] if ends_log_ms else []
    return [" ".join((f"{job_id} {step_id}: {step.state.name}", *told))]


def _offer(transcript: Transcript, job_id: str, step_id: str) -> list[str]:
    """What the agent that holds a step was told."""
    reader, step = transcript.world.reader, transcript.step(job_id, step_id)
    key = keys.assignment(step.session_id, step.token, job_id, transcript.world.ordinal(job_id, step_id))
    assignment = reader.get(key)
    view = None
    if isinstance(assignment, rows.Assignment):
        view = views.offer_view(reader, key, assignment, transcript.world.limits)
    if view is None:
        return [f"nobody holds {job_id} {step_id}"]
    told = [
        f"{step.session_id}: {view.action} attempt={view.attempt_number} token={view.attempt.token} {view.start.name}",
        f"  key {view.idempotency_key}",
        f"  input {_payload(view.input)}",
    ]
    return told + ([f"  last progress {_payload(view.last_progress)}"] if view.last_progress is not None else [])


def _slots(transcript: Transcript, agent: str) -> list[str]:
    reader = transcript.world.reader
    session = reader.get(keys.session(agent))
    if not isinstance(session, rows.Session):
        return [f"there is no {agent}"]
    held = [keys.parse_assignment(key) for key in reader.scan(keys.assignments(agent))]
    told = [f"  {job} {transcript.step_id(job, ordinal)} token={token}" for _, token, job, ordinal in held]
    return [f"{agent}: {session.slots - len(held)} of {session.slots} slots free", *told]
