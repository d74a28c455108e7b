"""Sessions of agents: opened, renewed, drained, and ended when their lease is over."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from msgspec.structs import replace

from stepward.server.core import keys, leases, reports, rows, states
from stepward.server.core.commands import AttemptRef, SessionOpened, SessionRenewed, StreamClosed
from stepward.server.core.rejections import Reason, Refused, Rejection, refuse
from stepward.server.core.rows import CancelReason, StartMode

if TYPE_CHECKING:
    from collections.abc import Iterable

    from stepward.server.core.batch import Batch
    from stepward.server.core.commands import CloseStream, DrainSession, OpenSession, RenewSession
    from stepward.server.core.rows import Session


def open_session(batch: Batch, command: OpenSession) -> SessionOpened:
    """Open a session, or bind a newer stream of it to the node that asks.

    A hello is a sign of life. It cannot wake a session whose lease is over: what it held is being given to others. Nor
    is a session that was welcomed before made anew under its name: its agent would take the new one for the old.
    An agent without streaming that knows the newest generation keeps it.
    """
    key = keys.session(command.session_id)
    before = batch.draft.read(key, rows.Session)
    if before.ending if before is not None else command.known_generation > 0:
        raise _ended(command.session_id)
    if before is None:
        _require_room(batch)
    ttl_ms = batch.limits.session_ttl_ms if before is None else before.ttl_ms
    generation = 1 if before is None else before.generation + 1
    if before is not None and command.goes_on and command.known_generation == before.generation:
        generation = before.generation
    moment = batch.moment
    session = rows.Session(
        namespace=command.namespace,
        queue=command.queue,
        actions=command.actions,
        slots=command.slots,
        name=command.name,
        library=command.library,
        node_id=command.node_id,
        generation=generation,
        ttl_ms=ttl_ms,
        renewed_led_ms=moment.led_ms,
        renewed_wall_ms=moment.wall_ms,
        renewed_steady_ms=moment.steady_ms,
        renewed_epoch=moment.epoch,
        timer_at_led_ms=0 if before is None else before.timer_at_led_ms,
        draining=before is not None and before.draining,
    )
    if before is None:
        session = arm(batch, command.session_id, session)
    batch.draft.put(key, session)
    return SessionOpened(session.generation, ttl_ms)


def _require_room(batch: Batch) -> None:
    """Refuse one more session when there are as many as may be; those that are open go on, and may be resumed."""
    most = batch.limits.sessions_max
    if batch.draft.count(keys.SESSION) >= most:
        text = f"{most} sessions are open, which is the most; come back when some have ended"
        raise Refused(Rejection(Reason.OVERLOADED, text, retry_after_ms=batch.limits.session_ttl_ms))


def arm(batch: Batch, session_id: str, session: Session) -> Session:
    """Set the session's one timer to when it may be ended as things stand.

    Renewals do not move the timer; when it falls due and the session has been renewed since, it is set again.
    """
    if session.timer_at_led_ms:
        batch.draft.remove(keys.session_timer(session.timer_at_led_ms, session_id))
    end_led_ms = ends_led_ms(batch, session)
    batch.draft.put(keys.session_timer(end_led_ms, session_id), rows.Timer())
    return replace(session, timer_at_led_ms=end_led_ms)


def ends_led_ms(batch: Batch, session: Session) -> int:
    """When a session may be ended as things stand."""
    return leases.session_end_led_ms(
        renewed_led_ms=session.renewed_led_ms, ttl_ms=session.ttl_ms, kill_grace_ms=batch.limits.kill_grace_ms
    )


def renew_session(batch: Batch, command: RenewSession) -> SessionRenewed:
    """Hear a heartbeat; record it when the recorded one has some age, so that most heartbeats cost no batch."""
    session = _current(batch, command.session_id, command.generation)
    moment = batch.moment
    age_ms = moment.led_ms - session.renewed_led_ms
    due = age_ms >= leases.record_age_ms(session.ttl_ms) or not leases.may_acknowledge(
        session, epoch=moment.epoch, steady_ms=moment.steady_ms
    )
    has_room = command.busy_slots < session.slots
    listens = session.connected or command.on_stream
    if due or listens is not session.connected or (session.full and has_room):
        renewed = replace(
            session,
            connected=listens,
            full=session.full and not has_room,
            renewed_led_ms=moment.led_ms,
            renewed_wall_ms=moment.wall_ms,
            renewed_steady_ms=moment.steady_ms,
            renewed_epoch=moment.epoch,
        )
        batch.draft.put(keys.session(command.session_id), renewed)
    held = _open_assignments(batch, command.session_id)
    if command.held is None:
        return SessionRenewed(send_held=held_digest(held) != command.held_digest)
    theirs = set(command.held)
    for ref, key in held.items():
        if batch.draft.get(key) is None:
            # What the agent has lost has ended its job, and with it an offer that was still to be accepted.
            continue
        if ref in theirs:
            _held_by_both(batch, key)
        elif command.on_stream:
            _not_held(batch, key, recorded_led_ms=session.renewed_led_ms)
    return SessionRenewed(send_held=False, unknown=tuple(sorted(theirs - held.keys())))


def held_digest(held: Iterable[AttemptRef]) -> int:
    """Digest of a set of assignments, as the public contract defines it."""
    lines = sorted(f"{ref.job_id}/{ref.step_id}/{ref.token}" for ref in held)
    return int.from_bytes(hashlib.sha256("\n".join(lines).encode()).digest()[:8], "big")


def _open_assignments(batch: Batch, session_id: str) -> dict[AttemptRef, bytes]:
    """What the rows say that a session holds, with the keys."""
    found: dict[AttemptRef, bytes] = {}
    for key in batch.draft.keys(keys.assignments(session_id)):
        _, token, job_id, ordinal = keys.parse_assignment(key)
        found[AttemptRef(job_id, batch.spec(job_id, ordinal).id, token)] = key
    return found


def _held_by_both(batch: Batch, key: bytes) -> None:
    """A renewal that shows an offer held, which starts at once, is as good as a report that it has started."""
    assignment = batch.draft.require(key, rows.Assignment)
    _, token, job_id, ordinal = keys.parse_assignment(key)
    step = batch.step(job_id, ordinal)
    assert step is not None
    if step.token == token and assignment.start is StartMode.ON_OFFER and assignment.cancel is CancelReason.NONE:
        reports.started(batch, job_id, ordinal, step)


def _not_held(batch: Batch, key: bytes, *, recorded_led_ms: int) -> None:
    """The agent's whole list lacks an assignment.

    One that is younger than the last recorded renewal may still be on its way. An older offer is sent again: agents
    drop duplicates by (job, step, token). What had started was held until its outcome was acknowledged, so if it is not
    held any more, nobody will ever report it.
    """
    assignment = batch.draft.require(key, rows.Assignment)
    if assignment.offered_led_ms >= recorded_led_ms:
        return
    _, _, job_id, ordinal = keys.parse_assignment(key)
    step = batch.step(job_id, ordinal)
    assert step is not None
    if step.state is states.phase(step.state).offered:
        batch.draft.put(key, assignment)
    else:
        reports.forgotten(batch, key)


def close_stream(batch: Batch, command: CloseStream) -> StreamClosed:
    """Offer nothing more until there is a newer stream. The lease goes on."""
    session = batch.draft.read(keys.session(command.session_id), rows.Session)
    if session is not None and session.generation == command.generation and session.connected:
        batch.draft.put(keys.session(command.session_id), replace(session, connected=False))
        _end_if_done(batch, command.session_id)
    return StreamClosed()


def drain_session(batch: Batch, command: DrainSession) -> StreamClosed:
    """Offer nothing more at all."""
    session = _current(batch, command.session_id, command.generation)
    if not session.draining:
        batch.draft.put(keys.session(command.session_id), replace(session, draining=True))
    return StreamClosed()


def _end_if_done(batch: Batch, session_id: str) -> None:
    """End a drained session whose stream is closed and that holds nothing: nothing can come of it any more."""
    session = batch.draft.require(keys.session(session_id), rows.Session)
    if session.draining and next(iter(batch.draft.keys(keys.assignments(session_id))), None) is None:
        remove(batch, session_id, session)


def begin_end(batch: Batch, session_id: str, session: Session) -> Session | None:
    """The lease of a session is over: it cannot be renewed, and what it holds is to be taken from it. None: nothing."""
    if next(iter(batch.draft.keys(keys.assignments(session_id))), None) is None:
        remove(batch, session_id, session)
        return None
    batch.draft.remove(keys.session_timer(session.timer_at_led_ms, session_id))
    batch.draft.put(keys.session_timer(session.timer_at_led_ms, session_id, ending=True), rows.Timer())
    session = replace(session, ending=True, connected=False)
    batch.draft.put(keys.session(session_id), session)
    return session


def remove(batch: Batch, session_id: str, session: Session) -> None:
    """Delete a session that holds nothing."""
    batch.draft.remove(keys.session_timer(session.timer_at_led_ms, session_id, ending=session.ending))
    batch.draft.delete(keys.session(session_id))


def _current(batch: Batch, session_id: str, generation: int) -> Session:
    """The session, unless its lease is over or a newer stream holds it."""
    session = batch.draft.read(keys.session(session_id), rows.Session)
    if session is None or session.ending:
        raise _ended(session_id)
    if session.generation != generation:
        raise refuse(
            Reason.SESSION_ENDED,
            f"session {session_id} has a newer stream, of generation {session.generation}; this one has {generation}",
            session_id=session_id,
        )
    return session


def _ended(session_id: str) -> Refused:
    return refuse(
        Reason.SESSION_ENDED,
        f"session {session_id} is not open: its lease is over; say hello with a new session id",
        session_id=session_id,
    )
