"""What is due: the rules of the supervisor.

Level-triggered: a sweep looks at timer rows that are due, judges each from its step or session as it is now, and
holds nothing in memory. What it judges has changed in the same batch, or is set again.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

from msgspec.structs import replace

from stepward.server.core import (
    attempts,
    compensation,
    deadlines,
    epoch_rows,
    keys,
    leases,
    ledger,
    passes,
    patrol,
    pauses,
    remediation,
    remedies,
    retention,
    rows,
    schedules,
    sessions,
    spreads,
    states,
)
from stepward.server.core.batch import TimerAt
from stepward.server.core.commands import Swept
from stepward.server.core.parts import Remedy
from stepward.server.core.remedies import Facts, RemedyPolicy
from stepward.server.core.rows import CancelReason, Clock, Failure, JobState, Lingering, Part, StartMode, Trouble

if TYPE_CHECKING:
    from stepward.server.core.batch import Batch
    from stepward.server.core.commands import Sweep
    from stepward.server.core.rows import Session, Step

BEAT_INTERVAL_MS = 1_000
# Overdue timers are counted up to here for the beat; more is as bad.
_OVERDUE_COUNTED_MAX = 10_000


def sweep(batch: Batch, command: Sweep) -> Swept:
    """Judge what is due, at most so many subjects and so many rows, and write the beat when it is a second old."""
    subjects_max, writes_max = command.subjects_max, batch.limits.batch_writes_max
    # Walks over wide jobs are due at once again and again, on led time, and fill one batch after the other: what is
    # due on log time has some room behind them.
    others = len(_due(batch, Clock.LOG, subjects_max // 2))
    handled = _judge_due(batch, Clock.LED, subjects_max - others, writes_max)
    room = max(writes_max, batch.draft.writes + writes_max // 8)
    handled += _judge_due(batch, Clock.LOG, subjects_max - handled, room)
    purged = retention.purge_due(batch)
    ledger.purge_due(batch)
    overdue = sum(len(_due(batch, clock, _OVERDUE_COUNTED_MAX)) for clock in (Clock.LED, Clock.LOG))
    stuck = _beat(batch, handled, overdue)
    return Swept(
        handled=handled,
        overdue=overdue,
        unfinished=batch.unfinished or (overdue > 0 and handled >= command.subjects_max),
        next_due_led_ms=_next_due(batch, Clock.LED),
        next_due_log_ms=_next_due(batch, Clock.LOG),
        purged=purged,
        stuck=stuck,
    )


def _judge_due(batch: Batch, clock: Clock, subjects_max: int, writes_max: int) -> int:
    """Judge what is due on one clock, until the batch has more than so many row changes. How many were judged."""
    handled = 0
    for key in _due(batch, clock, subjects_max):
        if batch.draft.writes > writes_max:
            batch.unfinished = True
            break
        savepoint = batch.draft.savepoint()
        try:
            _judge(batch, key, subjects_max)
        except Exception as error:  # noqa: BLE001 - a rule of ours is wrong: one subject must not stop the others
            batch.draft.rollback(savepoint)
            batch.failures.append((key, error))
        handled += 1
    return handled


def _now_ms(batch: Batch, clock: Clock) -> int:
    return batch.moment.led_ms if clock is Clock.LED else batch.moment.log_ms


def _due(batch: Batch, clock: Clock, count_max: int) -> list[bytes]:
    """Timers that are due, the oldest first."""
    now_ms = _now_ms(batch, clock)
    found: list[bytes] = []
    for key in islice(batch.draft.keys(keys.timers(clock)), max(0, count_max)):
        if keys.parse_timer(key)[0] > now_ms:
            break
        found.append(key)
    return found


def _next_due(batch: Batch, clock: Clock) -> int | None:
    first = next(iter(batch.draft.keys(keys.timers(clock))), None)
    return None if first is None else keys.parse_timer(first)[0]


def _beat(batch: Batch, handled: int, overdue: int) -> tuple[str, ...]:
    """The supervisor's sign of life: once a second, which also moves the clocks while nothing else happens.

    Returns the jobs that its patrol found stuck.
    """
    moment = batch.moment
    before = batch.draft.read(keys.BEAT, rows.Beat) or rows.Beat(0, 0, 0, 0, 0, 0, 0)
    recent = before.epoch == moment.epoch and moment.wall_ms - before.wall_ms < BEAT_INTERVAL_MS
    if recent and moment.log_ms - before.log_ms < BEAT_INTERVAL_MS:
        return ()
    place, stuck = patrol.walk(batch, before.patrol)
    backlog = retention.backlog(batch)
    beat = rows.Beat(
        epoch=moment.epoch,
        beats=before.beats + 1,
        wall_ms=moment.wall_ms,
        led_ms=moment.led_ms,
        log_ms=moment.log_ms,
        overdue=overdue,
        remediations=before.remediations + handled,
        purge_backlog=backlog.jobs,
        purge_late_ms=backlog.late_ms,
        stuck=before.stuck + len(stuck),
        patrol=place,
    )
    batch.draft.put(keys.BEAT, beat)
    return stuck


def _judge(batch: Batch, key: bytes, assignments_max: int) -> None:
    """One timer that is due. It may be gone already, by what was judged before it in this batch."""
    if batch.draft.get(key) is None:
        return
    _, kind, subject = keys.parse_timer(key)
    if kind == keys.TIMER_SESSION:
        _judge_session(batch, subject.decode(), assignments_max)
        return
    if kind == keys.TIMER_PASS:
        passes.go_on(batch, subject.decode())
        return
    if kind == keys.TIMER_SPREAD:
        spreads.go_on(batch, *keys.parse_subject(subject))
        return
    if kind == keys.TIMER_DEADLINE:
        deadlines.passed(batch, subject.decode())
        return
    job_id, ordinal = keys.parse_subject(subject)
    step = batch.step(job_id, ordinal)
    assert step is not None
    _judge_step(batch, job_id, ordinal, step)
    assert batch.step(job_id, ordinal) != step, ("what is due must move", job_id, ordinal, step)


def _judge_step(batch: Batch, job_id: str, ordinal: int, step: Step) -> None:
    phase = states.phase(step.state)
    if step.state is phase.ready:
        _waited_too_long(batch, job_id, ordinal, step)
    elif step.state is phase.offered:
        _offer_unanswered(batch, job_id, ordinal, step)
    elif step.state is phase.running:
        _worked_too_long(batch, job_id, ordinal, step)
    elif step.state is phase.retry_wait:
        attempts.try_again(batch, job_id, ordinal, step)
    else:
        compensation.settle(batch, job_id, ordinal)


def _waited_too_long(batch: Batch, job_id: str, ordinal: int, step: Step) -> None:
    """Nobody took a ready step in time: its timer stands at the earliest of the bounds that tell how long that is."""
    phase = states.phase(step.state)
    progress = batch.progress(job_id)
    if compensation.starts_nothing(progress, phase):
        compensation.stop_early(batch, job_id, ordinal, step)
        return
    if progress.state is JobState.PAUSED:
        pauses.hold_back(batch, job_id, ordinal, step)
        return
    policy = batch.policy(job_id, ordinal, phase)
    no_start = schedules.no_start_from(policy, step)
    starts_no_more = no_start is not None and no_start.at_log_ms <= step.timer_at_ms
    trouble = no_start.what if no_start is not None and starts_no_more else Trouble.QUEUE_TIME
    remediation.out_of_time(batch, job_id, ordinal, step, trouble)


def _worked_too_long(batch: Batch, job_id: str, ordinal: int, step: Step) -> None:
    """A started attempt has reached the end of its time, unless it gave a sign of life since its timer was set.

    Signs of life do not move the timer, which would cost two rows each; it is set again here.
    """
    policy = batch.policy(job_id, ordinal, states.phase(step.state))
    said = batch.draft.read(keys.step_progress(job_id, ordinal), rows.StepProgress)
    opened = batch.draft.read(keys.EPOCH, epoch_rows.Epoch)
    bound = schedules.working(policy, step, heard_log_ms=schedules.heard_log_ms(said, opened))
    if bound.at_log_ms > batch.moment.log_ms:
        batch.move(job_id, ordinal, step, step.state, TimerAt(Clock.LOG, bound.at_log_ms))
        return
    failure = schedules.failure(policy, bound.what, batch.spec(job_id, ordinal).id)
    attempts.end(batch, job_id, ordinal, bound.what, failure)


def _offer_unanswered(batch: Batch, job_id: str, ordinal: int, step: Step) -> None:
    """An offer without word for a TTL, although its session lives.

    One that starts on accept has surely not started: it goes back, and the next offer has a new token. One that
    starts at once may have happened: it is sent again with the same token, and in the end withdrawn; then only the
    agent's word or the end of its session decides.
    """
    key = keys.assignment(step.session_id, step.token, job_id, ordinal)
    assignment = batch.draft.require(key, rows.Assignment)
    phase = states.phase(step.state)
    if assignment.start is StartMode.ON_ACCEPT:
        remediation.not_begun(batch, job_id, ordinal, Trouble.OFFER_UNANSWERED)
        return
    policy = batch.policy(job_id, ordinal, phase)
    if 0 < schedules.ends_log_ms(policy, step) <= batch.moment.log_ms:
        failure = schedules.failure(policy, Trouble.SCHEDULE_TO_CLOSE, batch.spec(job_id, ordinal).id)
        attempts.end(batch, job_id, ordinal, Trouble.SCHEDULE_TO_CLOSE, failure)
        return
    # That it is cancelled is said until it is heard.
    cancelled = assignment.cancel is not CancelReason.NONE
    facts = Facts(phase.part, resends_left=cancelled or assignment.resends < batch.limits.resends_max)
    decision = remedies.decide(Trouble.OFFER_UNANSWERED, RemedyPolicy(), facts)
    if decision.remedy is Remedy.RESEND:
        after, type_ = replace(assignment, resends=assignment.resends + 1), phase.offer_resent
    else:
        after, type_ = replace(assignment, cancel=CancelReason.STALE), phase.offer_withdrawn
    batch.draft.put(key, after)
    batch.move(job_id, ordinal, step, step.state, batch.led_in(batch.limits.accept_deadline_ms))
    batch.event(job_id, type_, ordinal=ordinal, token=step.token, session_id=step.session_id)


def _judge_session(batch: Batch, session_id: str, assignments_max: int) -> None:
    """A session's timer is due: it has been renewed since, or its lease is over."""
    session = batch.draft.require(keys.session(session_id), rows.Session)
    end_led_ms = leases.session_end_led_ms(
        renewed_led_ms=session.renewed_led_ms, ttl_ms=session.ttl_ms, kill_grace_ms=batch.limits.kill_grace_ms
    )
    if end_led_ms > batch.moment.led_ms and not session.ending:
        batch.draft.put(keys.session(session_id), sessions.arm(batch, session_id, session))
        return
    _end_session(batch, session_id, session, assignments_max)


def _end_session(batch: Batch, session_id: str, session: Session, assignments_max: int) -> None:
    """Take from a session what it holds, at most so much in one batch; the rest follows with the next sweep."""
    held = list(islice(batch.draft.keys(keys.assignments(session_id)), assignments_max))
    for key in held:
        if batch.draft.writes > batch.limits.batch_writes_max:
            break
        if batch.draft.get(key) is None:
            # What was lost before it has ended its job, and with it an offer that was still to be accepted.
            continue
        _, token, job_id, ordinal = keys.parse_assignment(key)
        _lose(batch, key, session_id, token, job_id, ordinal)
    if next(iter(batch.draft.keys(keys.assignments(session_id))), None) is None:
        sessions.remove(batch, session_id, session)
    else:
        batch.draft.put(keys.session(session_id), replace(session, ending=True, connected=False))
        batch.unfinished = True


def _lose(batch: Batch, key: bytes, session_id: str, token: int, job_id: str, ordinal: int) -> None:
    """One assignment of a session whose lease is over."""
    step = batch.step(job_id, ordinal)
    assignment = batch.draft.require(key, rows.Assignment)
    assert step is not None
    if step.token == token and step.session_id == session_id and step.state in states.HELD:
        if assignment.start is StartMode.ON_ACCEPT and step.state is states.phase(step.state).offered:
            remediation.not_begun(batch, job_id, ordinal, Trouble.LEASE_LOST)
            return
        failure = Failure("LEASE_LOST", f"session {session_id} was not heard from", batch.spec(job_id, ordinal).id)
        attempts.end(batch, job_id, ordinal, Trouble.LEASE_LOST, failure)
        return
    batch.draft.delete(key)
    kept = tuple(replace(a, lost=True) if _is(a, session_id, token) else a for a in step.lingering)
    fence_led_ms = step.fence_at_led_ms
    if assignment.part is not Part.VERIFY:
        fence_led_ms = max(fence_led_ms, attempts.fence_of(batch, session_id))
    batch.keep(job_id, ordinal, step, lingering=kept, fence_at_led_ms=fence_led_ms)
    attempts.look_again(batch, job_id, ordinal)


def _is(attempt: Lingering, session_id: str, token: int) -> bool:
    return attempt.session_id == session_id and attempt.token == token
