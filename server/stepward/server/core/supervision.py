"""What is due: the rules of the supervisor.

Level-triggered: a sweep looks at timer rows that are due, judges each from its step or session as it is now, and
holds nothing in memory. What it judges has changed in the same batch, or is set again.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from msgspec.structs import replace

from stepward.server.core import (
    advance,
    attempts,
    breakers,
    compensation,
    deadlines,
    epoch_rows,
    epochs,
    keys,
    ledger,
    old_timers,
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
from stepward.server.core.brake import Brake
from stepward.server.core.commands import Swept
from stepward.server.core.keys import Duty
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
# A queue of timers, as `keys.TIMER_QUEUES` has it.
Queue: TypeAlias = tuple[Clock, Duty]


def sweep(batch: Batch, command: Sweep) -> Swept:
    """Judge what is due, at most so many subjects and so many rows, and write the beat when it is a second old."""
    old_timers.take_over(batch)
    brake = Brake(batch)
    late_ms = _judge_queues(batch, brake, command.subjects_max)
    handled = len(late_ms)
    purged = retention.purge_due(batch)
    ledger.purge_due(batch)
    beat_is_due = _beat_is_due(batch)
    brake.write(with_beat=beat_is_due)
    due = _what_is_left(batch, brake, _OVERDUE_COUNTED_MAX if beat_is_due else batch.limits.sweep_subjects_max)
    if brake.taken and not beat_is_due:
        before = _last_beat(batch)
        batch.draft.put(keys.BEAT, replace(before, remediations=before.remediations + brake.taken))
    return Swept(
        handled=handled,
        overdue=due.overdue,
        unfinished=batch.unfinished or (due.overdue > due.held and handled >= command.subjects_max),
        next_due_led_ms=due.next_led_ms,
        next_due_log_ms=due.next_log_ms,
        purged=purged,
        stuck=_beat(batch, brake, due, max((command.late_ms_max, *late_ms))) if beat_is_due else (),
        held=due.held,
        look_again_in_ms=brake.look_again_in_ms if due.held else None,
        remedied=brake.taken,
        late_ms=tuple(late_ms),
    )


def _judge_queues(batch: Batch, brake: Brake, subjects_max: int) -> list[int]:
    """Go through the queues in their order. How late each subject was that was judged (ms).

    Walks over wide jobs are due at once again and again, and fill one batch after the other: each queue behind has some
    room kept, in subjects and in rows.
    """
    writes_max, writes_more = batch.limits.batch_writes_max, batch.limits.batch_writes_max // 8
    share = max(1, subjects_max // len(keys.TIMER_QUEUES))
    kept = {queue: len(_due(batch, queue, share)) for queue in keys.TIMER_QUEUES}
    late_ms: list[int] = []
    for queue in _in_turn(batch, brake, kept):
        if not kept.pop(queue) and not batch.draft.writes:
            continue
        room = subjects_max - len(late_ms) - sum(kept.values())
        late_ms += _judge_due(batch, queue, brake, room, writes_max)
        writes_max = max(writes_max, batch.draft.writes + writes_more)
    return late_ms


def _in_turn(batch: Batch, brake: Brake, due: dict[Queue, int]) -> list[Queue]:
    """The queues in their order; while the brake lets through less than is due, in the other one every second time.

    So what is to be remedied on one clock does not wait for all of the other's.
    """
    scarce = brake.left < sum(count for (_, duty), count in due.items() if duty is Duty.JUDGE)
    return list(reversed(due)) if scarce and batch.moment.sequence % 2 else list(due)


def _judge_due(batch: Batch, queue: Queue, brake: Brake, subjects_max: int, writes_max: int) -> list[int]:
    """Judge what is due in one queue, until the batch has more than so many row changes. How late each was (ms).

    What the brake has held was noticed in time, and counts as not late; nor could anybody notice what fell due on log
    time before this leadership began.
    """
    due, late_ms = _due(batch, queue, subjects_max), list[int]()
    opened = batch.draft.read(keys.EPOCH, epoch_rows.Epoch) if due and queue[0] is Clock.LOG else None
    since_ms = 0 if opened is None else opened.log_ms
    was_held = bool(due) and queue[1] is Duty.JUDGE and _last_beat(batch).held > 0
    if queue[1] is Duty.LEASE:
        # Those that are lost are looked at together, before anything is done about the first of them.
        brake.look(_lost_sessions(batch, due))
    for key in due:
        if queue[1] is Duty.JUDGE and not brake.lets_through:
            break
        if batch.draft.writes > writes_max:
            batch.unfinished = True
            break
        late_ms.append(0 if was_held else _now_ms(batch, queue[0]) - max(since_ms, keys.parse_timer(key)[0]))
        savepoint, taken = batch.draft.savepoint(), brake.savepoint()
        try:
            _judge(batch, key, brake)
        except Exception as error:  # noqa: BLE001 - a rule of ours is wrong: one subject must not stop the others
            batch.draft.rollback(savepoint)
            brake.rollback(taken)
            batch.failures.append((key, error))
    return late_ms


def _lost_sessions(batch: Batch, due: list[bytes]) -> list[Session]:
    """Those of the sessions whose timers are due that have not been renewed since."""
    read = (batch.draft.read(keys.session(keys.parse_timer(key)[2].decode()), rows.Session) for key in due)
    led_ms = batch.moment.led_ms
    return [session for session in read if session is not None and sessions.ends_led_ms(batch, session) <= led_ms]


def _judge_session(batch: Batch, session_id: str, brake: Brake) -> None:
    """A session's timer is due: it has been renewed since, or its lease is over, or what it held is being taken."""
    session = batch.draft.require(keys.session(session_id), rows.Session)
    if not session.ending and sessions.ends_led_ms(batch, session) > batch.moment.led_ms:
        batch.draft.put(keys.session(session_id), sessions.arm(batch, session_id, session))
        return
    if brake.is_locked:
        return
    if session.ending:
        ending: Session | None = session
    else:
        brake.count_lost()
        breakers.lost(batch, session_id)
        ending = sessions.begin_end(batch, session_id, session)
    if ending is not None and brake.lets_through:
        _end_session(batch, session_id, ending, brake)


def _now_ms(batch: Batch, clock: Clock) -> int:
    return batch.moment.led_ms if clock is Clock.LED else batch.moment.log_ms


def _due(batch: Batch, queue: Queue, count_max: int) -> list[bytes]:
    """Timers of a queue that are due, the oldest first."""
    now_ms = _now_ms(batch, queue[0])
    found: list[bytes] = []
    for key in islice(batch.draft.keys(keys.timers(*queue)), max(0, count_max)):
        if keys.parse_timer(key)[0] > now_ms:
            break
        found.append(key)
    return found


class _Left(NamedTuple):
    """What a sweep leaves: timers that are due, those of them that the brake holds, and what falls due next."""

    overdue: int
    held: int
    next_led_ms: int | None
    next_log_ms: int | None


def _what_is_left(batch: Batch, brake: Brake, counted_max: int) -> _Left:
    held_duties = (Duty.LEASE, Duty.JUDGE) if brake.is_locked else () if brake.lets_through else (Duty.JUDGE,)
    overdue = held = 0
    next_ms: dict[Clock, int | None] = {Clock.LED: None, Clock.LOG: None}
    for clock, duty in keys.TIMER_QUEUES:
        count, first_ms = _due_and_next(batch, (clock, duty), counted_max)
        overdue += count
        if duty in held_duties:
            held += count
        known_ms = next_ms[clock]
        if first_ms is not None:
            next_ms[clock] = first_ms if known_ms is None else min(known_ms, first_ms)
    return _Left(overdue, held, next_ms[Clock.LED], next_ms[Clock.LOG])


def _due_and_next(batch: Batch, queue: Queue, counted_max: int) -> tuple[int, int | None]:
    """How many timers of a queue are due, up to a bound, and the first instant to come at which one falls due."""
    now_ms, prefix, count = _now_ms(batch, queue[0]), keys.timers(*queue), 0
    for key in batch.draft.keys(prefix):
        at_ms = keys.parse_timer(key)[0]
        if at_ms > now_ms:
            return count, at_ms
        count += 1
        if count == counted_max:
            break
    else:
        return count, None
    behind = next(batch.draft.keys(prefix, after=keys.timers_from(*queue, now_ms + 1)), None)
    return count, None if behind is None else keys.parse_timer(behind)[0]


def _last_beat(batch: Batch) -> rows.Beat:
    return batch.draft.read(keys.BEAT, rows.Beat) or rows.Beat(0, 0, 0, 0, 0, 0, 0)


def _beat_is_due(batch: Batch) -> bool:
    """Whether the last beat is a second old, or another leader's."""
    moment, before = batch.moment, _last_beat(batch)
    recent = before.epoch == moment.epoch and moment.wall_ms - before.wall_ms < BEAT_INTERVAL_MS
    return not (recent and moment.log_ms - before.log_ms < BEAT_INTERVAL_MS)


def _beat(batch: Batch, brake: Brake, left: _Left, late_ms_max: int) -> tuple[str, ...]:
    """The supervisor's sign of life: once a second, which also moves the clocks while nothing else happens.

    Returns the jobs that its patrol found stuck.
    """
    moment, before = batch.moment, _last_beat(batch)
    breakers.forget(batch)
    place, stuck = patrol.walk(batch, before.patrol)
    backlog = retention.backlog(batch)
    beat = rows.Beat(
        epoch=moment.epoch,
        beats=before.beats + 1,
        wall_ms=moment.wall_ms,
        led_ms=moment.led_ms,
        log_ms=moment.log_ms,
        overdue=left.overdue,
        remediations=before.remediations + brake.taken,
        purge_backlog=backlog.jobs,
        purge_late_ms=backlog.late_ms,
        stuck=before.stuck + len(stuck),
        patrol=place,
        held=left.held,
        since_led_ms=epochs.beating_since_led_ms(batch, before),
        late_ms_max=max(late_ms_max, before.late_ms_max if before.epoch == moment.epoch else 0),
    )
    batch.draft.put(keys.BEAT, beat)
    if brake.is_locked:
        epochs.trust_again(batch, beat)
    return stuck


def _judge(batch: Batch, key: bytes, brake: Brake) -> None:
    """One timer that is due. It may be gone already, by what was judged before it in this batch."""
    if batch.draft.get(key) is None:
        return
    _, kind, subject = keys.parse_timer(key)
    if kind == keys.TIMER_SESSION:
        _judge_session(batch, subject.decode(), brake)
        return
    if kind == keys.TIMER_PASS:
        passes.go_on(batch, subject.decode())
        return
    if kind == keys.TIMER_SPREAD:
        spreads.go_on(batch, *keys.parse_subject(subject))
        return
    if kind == keys.TIMER_DEADLINE:
        job_id = subject.decode()
        if not advance.goes_forward(batch.progress(job_id)) or brake.take(job_id):
            deadlines.passed(batch, job_id)
        return
    job_id, ordinal = keys.parse_subject(subject)
    step = batch.step(job_id, ordinal)
    assert step is not None
    moved = _judge_step(batch, job_id, ordinal, step, brake)
    assert moved is (batch.step(job_id, ordinal) != step), ("what is due and not held must move", job_id, ordinal, step)


def _judge_step(batch: Batch, job_id: str, ordinal: int, step: Step, brake: Brake) -> bool:
    """Judge a step whose timer is due. False: it was to be remedied, and the brake holds that."""
    phase = states.phase(step.state)
    if step.state is phase.ready:
        return _waited_too_long(batch, job_id, ordinal, step, brake)
    if step.state is phase.offered:
        return _offer_unanswered(batch, job_id, ordinal, step, brake)
    if step.state is phase.running:
        return _worked_too_long(batch, job_id, ordinal, step, brake)
    if step.state is phase.retry_wait:
        return _waited_enough(batch, job_id, ordinal, step, brake)
    compensation.settle(batch, job_id, ordinal)
    return True


def _waited_enough(batch: Batch, job_id: str, ordinal: int, step: Step, brake: Brake) -> bool:
    """The wait of a step is over. It may have been so long that nothing may start any more, which is trouble."""
    if attempts.would_give_up(batch, job_id, ordinal, step) and not brake.take(job_id, ordinal):
        return _held(batch, job_id, ordinal, step)
    attempts.try_again(batch, job_id, ordinal, step)
    return True


def _held(batch: Batch, job_id: str, ordinal: int, step: Step) -> bool:
    """The brake holds what follows: let it stand with other trouble, whether it does so already or not (True).

    It must not stand before what merely goes on, and to set it again and again would be many rows for nothing.
    """
    if step.held:
        return False
    batch.move(job_id, ordinal, step, step.state, TimerAt(step.timer_clock, step.timer_at_ms), held=True)
    return True


def _waited_too_long(batch: Batch, job_id: str, ordinal: int, step: Step, brake: Brake) -> bool:
    """Nobody took a ready step in time: its timer stands at the earliest of the bounds that tell how long that is."""
    phase = states.phase(step.state)
    progress = batch.progress(job_id)
    if compensation.starts_nothing(progress, phase):
        compensation.stop_early(batch, job_id, ordinal, step)
        return True
    if progress.state is JobState.PAUSED:
        pauses.hold_back(batch, job_id, ordinal, step)
        return True
    if not brake.take(job_id, ordinal):
        return False
    policy = batch.policy(job_id, ordinal, phase)
    no_start = schedules.no_start_from(policy, step)
    starts_no_more = no_start is not None and no_start.at_log_ms <= step.timer_at_ms
    trouble = no_start.what if no_start is not None and starts_no_more else Trouble.QUEUE_TIME
    remediation.out_of_time(batch, job_id, ordinal, step, trouble)
    return True


def _worked_too_long(batch: Batch, job_id: str, ordinal: int, step: Step, brake: Brake) -> bool:
    """A started attempt has reached the end of its time, unless it gave a sign of life since its timer was set.

    Signs of life do not move the timer, which would cost two rows each; it is set again here.
    """
    policy = batch.policy(job_id, ordinal, states.phase(step.state))
    said = batch.draft.read(keys.step_progress(job_id, ordinal), rows.StepProgress)
    opened = batch.draft.read(keys.EPOCH, epoch_rows.Epoch)
    bound = schedules.working(policy, step, heard_log_ms=schedules.heard_log_ms(said, opened))
    if bound.at_log_ms > batch.moment.log_ms:
        batch.move(job_id, ordinal, step, step.state, TimerAt(Clock.LOG, bound.at_log_ms))
        return True
    if not brake.take(job_id, ordinal):
        return False
    failure = schedules.failure(policy, bound.what, batch.spec(job_id, ordinal).id)
    attempts.end(batch, job_id, ordinal, bound.what, failure)
    return True


def _offer_unanswered(batch: Batch, job_id: str, ordinal: int, step: Step, brake: Brake) -> bool:
    """An offer without word for a TTL, although its session lives.

    One that starts on accept has surely not started: it goes back, and the next offer has a new token. One that
    starts at once may have happened: it is sent again with the same token, and in the end withdrawn; then only the
    agent's word or the end of its session decides. Neither changes anything, so it takes no token and
    stands in the history alone.
    """
    key = keys.assignment(step.session_id, step.token, job_id, ordinal)
    assignment = batch.draft.require(key, rows.Assignment)
    phase = states.phase(step.state)
    policy = batch.policy(job_id, ordinal, phase)
    is_over = 0 < schedules.ends_log_ms(policy, step) <= batch.moment.log_ms
    if (is_over or assignment.start is StartMode.ON_ACCEPT) and not brake.take(job_id, ordinal):
        return _held(batch, job_id, ordinal, step)
    if assignment.start is StartMode.ON_ACCEPT:
        remediation.not_begun(batch, job_id, ordinal, Trouble.OFFER_UNANSWERED)
        return True
    if is_over:
        failure = schedules.failure(policy, Trouble.SCHEDULE_TO_CLOSE, batch.spec(job_id, ordinal).id)
        attempts.end(batch, job_id, ordinal, Trouble.SCHEDULE_TO_CLOSE, failure)
        return True
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
    return True


def _end_session(batch: Batch, session_id: str, session: Session, brake: Brake) -> None:
    """Take from a session what it holds, until a batch is full or the brake holds; the rest follows with later sweeps.

    An agent that is back meanwhile begins a new session; what it reports of the old one's work counts all the same.
    """
    slice_max = batch.limits.sweep_subjects_max
    found = list(islice(batch.draft.keys(keys.assignments(session_id)), slice_max + 1))
    for number, key in enumerate(found):
        if number == slice_max or batch.full:
            batch.unfinished = True
            return
        if batch.draft.get(key) is None:
            # What was lost before it has ended its job, and with it an offer that was still to be accepted.
            continue
        _, token, job_id, ordinal = keys.parse_assignment(key)
        if not _lose(batch, key, session_id, token, job_id, ordinal, brake):
            return
    sessions.remove(batch, session_id, session)


def _lose(batch: Batch, key: bytes, session_id: str, token: int, job_id: str, ordinal: int, brake: Brake) -> bool:
    """One assignment of a session whose lease is over. False: the brake holds it."""
    step = batch.step(job_id, ordinal)
    assignment = batch.draft.require(key, rows.Assignment)
    assert step is not None
    if step.token == token and step.session_id == session_id and step.state in states.HELD:
        never_started = assignment.start is StartMode.ON_ACCEPT and step.state is states.phase(step.state).offered
        if not brake.take(job_id, ordinal, lost=not never_started):
            return False
        if never_started:
            remediation.not_begun(batch, job_id, ordinal, Trouble.LEASE_LOST)
            return True
        failure = Failure("LEASE_LOST", f"session {session_id} was not heard from", batch.spec(job_id, ordinal).id)
        attempts.end(batch, job_id, ordinal, Trouble.LEASE_LOST, failure)
        return True
    batch.draft.delete(key)
    kept = tuple(replace(a, lost=True) if _is(a, session_id, token) else a for a in step.lingering)
    fence_led_ms = step.fence_at_led_ms
    if assignment.part is not Part.VERIFY:
        fence_led_ms = max(fence_led_ms, attempts.fence_of(batch, session_id))
    batch.keep(job_id, ordinal, step, lingering=kept, fence_at_led_ms=fence_led_ms)
    attempts.look_again(batch, job_id, ordinal)
    return True


def _is(attempt: Lingering, session_id: str, token: int) -> bool:
    return attempt.session_id == session_id and attempt.token == token
