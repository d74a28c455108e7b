"""How an attempt ends when it does not succeed, and what the policy makes of it.

The rules are the same for the action of a step and for its undo; `states.Phase` tells them apart.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, assert_never

from msgspec.structs import replace

from stepward.server.core import advance, compensation, keys, leases, policies, rows, schedules, states, verifying
from stepward.server.core.batch import NO_TIMER, TimerAt
from stepward.server.core.rows import (
    CancelReason,
    Clock,
    Effect,
    End,
    EventType,
    Failure,
    Lingering,
    OnUnknown,
    Part,
    StepState,
)
from stepward.server.core.schedules import What

if TYPE_CHECKING:
    from stepward.server.core.batch import Batch
    from stepward.server.core.rows import Step
    from stepward.server.core.states import Phase


def end(
    batch: Batch, job_id: str, ordinal: int, how: End, failure: Failure, *, retry_after_ms: int | None = None
) -> None:
    """End the open attempt of a step and decide what follows."""
    step = batch.step(job_id, ordinal)
    assert step is not None
    assert step.state in states.HELD
    phase = states.phase(step.state)
    step = _close(batch, job_id, ordinal, step, how, failure)
    if compensation.is_unwanted(batch, job_id, phase):
        unsettle(batch, job_id, ordinal, step)
    elif verifying.may_tell(batch, job_id, ordinal, step, how):
        verifying.ask(batch, job_id, ordinal, step, how, failure)
    else:
        follow(batch, job_id, ordinal, step, phase, how, failure, retry_after_ms=retry_after_ms)


def follow(
    batch: Batch,
    job_id: str,
    ordinal: int,
    step: Step,
    phase: Phase,
    how: End,
    failure: Failure,
    *,
    retry_after_ms: int | None = None,
) -> None:
    """Do what the policy of a part of a step says when an attempt of it has ended like this: repeat it, or give up."""
    if _may_retry(batch, job_id, ordinal, step, phase, how, failure):
        wait_ms = _wait_ms(batch, job_id, ordinal, step, phase, retry_after_ms)
        too_late = _too_late(batch, job_id, ordinal, step, phase, wait_ms)
        if not too_late:
            _wait_for_retry(batch, job_id, ordinal, step, phase, wait_ms)
            return
        failure = replace(failure, message=f"{failure.message}; {too_late}" if failure.message else too_late)
    _give_up(batch, job_id, ordinal, step, phase, how, failure)


def _close(batch: Batch, job_id: str, ordinal: int, step: Step, how: End, failure: Failure) -> Step:
    """Count the attempt, take or keep its assignment, and remember whether it may have happened.

    Work that nobody confirmed stopped keeps its slot until the agent answers the cancel or its session ends.
    """
    phase = states.phase(step.state)
    # An on-offer handler that ended or was lost before it said that it had started was an attempt only if it reported.
    number = step.attempts + (step.state is phase.offered and how in (End.FAILED, End.BROKEN, End.UNKNOWN))
    lingering, fence_led_ms = step.lingering, step.fence_at_led_ms
    key = keys.assignment(step.session_id, step.token, job_id, ordinal)
    if how is End.TIMED_OUT:
        step = let_go(batch, job_id, ordinal, step, CancelReason.TIMEOUT)
        lingering = step.lingering
    else:
        batch.draft.delete(key)
    if how is End.LOST and phase.part is not Part.VERIFY:
        lingering = _linger(batch, step, Lingering(step.session_id, step.token, lost=True))
        fence_led_ms = max(fence_led_ms, fence_of(batch, step.session_id))
    type_ = {
        End.FAILED: phase.attempt_failed,
        End.BROKEN: phase.attempt_failed,
        End.TIMED_OUT: phase.attempt_timed_out,
        End.LOST: phase.attempt_lost,
        End.UNKNOWN: phase.attempt_unknown,
    }[how]
    batch.event(
        job_id,
        type_,
        ordinal=ordinal,
        attempt=number,
        token=step.token,
        session_id=step.session_id,
        detail=failure.told,
    )
    return batch.keep(
        job_id,
        ordinal,
        step,
        attempts=number,
        lease_losses=step.lease_losses + (how is End.LOST),
        maybe_done=step.maybe_done or how is not End.FAILED,
        failure=failure,
        lingering=lingering,
        fence_at_led_ms=fence_led_ms,
    )


def let_go(batch: Batch, job_id: str, ordinal: int, step: Step, why: CancelReason) -> Step:
    """Tell the agent that holds a step to stop, and wait no longer for the end of the attempt: it may have happened.

    It keeps its slot until the agent is heard of or its session ends.
    """
    key = keys.assignment(step.session_id, step.token, job_id, ordinal)
    assignment = batch.draft.require(key, rows.Assignment)
    batch.draft.put(key, replace(assignment, cancel=why, resends=0))
    asks = assignment.part is Part.VERIFY
    lingering = _linger(batch, step, Lingering(step.session_id, step.token, asks=asks))
    return batch.keep(job_id, ordinal, step, lingering=lingering, maybe_done=True)


def fence_of(batch: Batch, session_id: str) -> int:
    """The led time until which an attempt of a session that ends now may still act, by the TTL that it was granted."""
    session = batch.draft.require(keys.session(session_id), rows.Session)
    return leases.fence_led_ms(
        led_ms=batch.moment.led_ms, ttl_ms=session.ttl_ms, kill_grace_ms=batch.limits.kill_grace_ms
    )


def _linger(batch: Batch, step: Step, attempt: Lingering) -> tuple[Lingering, ...]:
    """Remember an attempt that is not confirmed stopped. Beyond the bound one that has been heard of is forgotten.

    One that may still act never is; a step with too many of those is not tried again.
    """
    kept = list(step.lingering)
    closed = next((known for known in kept if known.closed), None)
    if len(kept) >= batch.limits.lingering_max and closed is not None:
        kept.remove(closed)
    return (*kept, attempt)


def _may_retry(batch: Batch, job_id: str, ordinal: int, step: Step, phase: Phase, how: End, failure: Failure) -> bool:
    retry = batch.policy(job_id, ordinal, phase).retry
    if not failure.retryable or failure.kind in retry.non_retryable_kinds:
        return False
    if step.attempts >= retry.attempts_max or step.lease_losses >= batch.limits.lease_losses_max:
        return False
    if len(step.lingering) >= batch.limits.lingering_max:
        return False
    return how is End.FAILED or _repeating_is_harmless(batch, job_id, ordinal, phase)


def _repeating_is_harmless(batch: Batch, job_id: str, ordinal: int, phase: Phase) -> bool:
    """Whether an attempt that may have happened may be followed by another."""
    spec = batch.spec(job_id, ordinal)
    if phase.part is Part.VERIFY:
        return True
    effect = spec.undo.effect if phase.undo and spec.undo is not None else spec.effect
    return effect is Effect.IDEMPOTENT


def _wait_ms(batch: Batch, job_id: str, ordinal: int, step: Step, phase: Phase, retry_after_ms: int | None) -> int:
    """How long to wait for the next attempt: what the agent asked for, or what the policy draws."""
    if retry_after_ms is not None:
        return min(retry_after_ms, batch.limits.duration_ms_max)
    # A lost offer used no attempt, yet it waits like the first one.
    retry = batch.policy(job_id, ordinal, phase).retry
    return policies.retry_delay_ms(max(1, step.attempts), retry, batch.rng)


def _too_late(batch: Batch, job_id: str, ordinal: int, step: Step, phase: Phase, wait_ms: int) -> str:
    """Why it is of no use to wait so long for another attempt, as the end of a sentence; empty when it is of use."""
    bound = schedules.no_start_from(batch.policy(job_id, ordinal, phase), step)
    if bound is None or batch.moment.log_ms + wait_ms < bound.at_log_ms:
        return ""
    left_ms = max(0, bound.at_log_ms - batch.moment.log_ms)
    return f"not tried again: the wait would be {wait_ms} ms, and its {bound.what.value} is over in {left_ms} ms"


def _wait_for_retry(batch: Batch, job_id: str, ordinal: int, step: Step, phase: Phase, wait_ms: int) -> None:
    batch.move(job_id, ordinal, step, phase.retry_wait, batch.log_in(wait_ms))
    batch.event(job_id, phase.retry_scheduled, ordinal=ordinal, attempt=step.attempts + 1, due_in_ms=wait_ms)


def is_poison(batch: Batch, step: Step, how: End) -> bool:
    """Whether too many sessions were lost while they held a step: more would use up the agents."""
    return how is End.LOST and step.lease_losses >= batch.limits.lease_losses_max


def _give_up(batch: Batch, job_id: str, ordinal: int, step: Step, phase: Phase, how: End, failure: Failure) -> None:
    """No further attempt: undo the job, or ask a person."""
    poison = is_poison(batch, step, how)
    if poison:
        text = f"{step.lease_losses} sessions were lost while they held this step; it is set aside"
        failure = Failure("POISON", text, batch.spec(job_id, ordinal).id, retryable=False)
    unknown = how in (End.LOST, End.UNKNOWN) or _nobody_knows(how, failure)
    harmless = _repeating_is_harmless(batch, job_id, ordinal, phase)
    match phase.part:
        case Part.VERIFY:
            verifying.not_told(batch, job_id, ordinal, step, failure.told)
        case Part.UNDO if unknown and not harmless:
            compensation.undo_unknown(batch, job_id, ordinal, step, failure)
        case Part.UNDO:
            compensation.undo_failed(batch, job_id, ordinal, step, failure)
        case Part.ACTION if poison:
            compensation.escalate(batch, job_id, ordinal, step, failure)
        case Part.ACTION if unknown and not (harmless and how in (End.TIMED_OUT, End.BROKEN)):
            _outcome_unknown(batch, job_id, ordinal, step, failure)
        case Part.ACTION:
            _fail(batch, job_id, ordinal, step, failure)
        case never:
            assert_never(never)


def _outcome_unknown(batch: Batch, job_id: str, ordinal: int, step: Step, failure: Failure) -> None:
    unknown = batch.move(job_id, ordinal, step, StepState.OUTCOME_UNKNOWN, NO_TIMER, failure=failure)
    batch.event(job_id, EventType.StepOutcomeUnknown, ordinal=ordinal, detail=failure.kind)
    if batch.spec(job_id, ordinal).on_unknown is OnUnknown.COMPENSATE:
        compensation.step_failed(batch, job_id, ordinal, unknown)
    else:
        compensation.escalate(batch, job_id, ordinal, unknown, failure)


def _nobody_knows(how: End, failure: Failure) -> bool:
    """Whether a last attempt may or may not have happened. A failure that is final because of what it gave is known."""
    return how is End.TIMED_OUT or (how is End.BROKEN and failure.retryable)


def _fail(batch: Batch, job_id: str, ordinal: int, step: Step, failure: Failure) -> None:
    failed = batch.move(job_id, ordinal, step, StepState.FAILED, NO_TIMER, failure=failure)
    batch.event(job_id, EventType.StepFailed, ordinal=ordinal, detail=failure.told)
    compensation.step_failed(batch, job_id, ordinal, failed)


def out_of_time(batch: Batch, job_id: str, ordinal: int, step: Step, what: What) -> None:
    """A step that no agent holds has waited for as long as it may. That is no attempt, and is never retried."""
    phase = states.phase(step.state)
    if step.state is phase.ready:
        advance.unready(batch, job_id, ordinal, step)
    policy = batch.policy(job_id, ordinal, phase)
    failure = schedules.failure(policy, what, batch.spec(job_id, ordinal).id)
    if what is What.RETRY_TIME and step.failure is not None:
        # Why it needed another attempt says more than that there was no time for one.
        text = f"not tried again within the {what.value} of {policy.retry.time_ms_max} ms"
        said = step.failure.message
        failure = replace(step.failure, message=f"{said}; {text}" if said else text, retryable=False)
    # Nothing has happened since the attempt before, of which it was known that another could follow.
    _give_up(batch, job_id, ordinal, step, phase, End.FAILED, failure)


def ready_again(batch: Batch, job_id: str, ordinal: int, step: Step) -> None:
    """Put a step back to where agents are given work from, if there is time left for an attempt."""
    phase = states.phase(step.state)
    bound = schedules.no_start_from(batch.policy(job_id, ordinal, phase), step)
    if bound is None or batch.moment.log_ms < bound.at_log_ms:
        advance.make_ready(batch, job_id, ordinal, step, phase)
    else:
        out_of_time(batch, job_id, ordinal, step, bound.what)


def unsettle(batch: Batch, job_id: str, ordinal: int, step: Step) -> None:
    """The job is being undone already: the attempt's end only decides whether this step is undone, too."""
    step = verifying.put_back(batch, job_id, ordinal, step)
    state = StepState.OUTCOME_UNKNOWN if step.maybe_done else StepState.CANCELLED
    # The timer marks the step as not yet settled; `settle` takes it away or sets it to the fence.
    batch.move(job_id, ordinal, step, state, batch.led_in(0))
    compensation.settle(batch, job_id, ordinal)


def never_started(batch: Batch, job_id: str, ordinal: int, *, cancelled: bool) -> None:
    """An agent says that an attempt has not started and never will: no attempt is used, and it has not happened."""
    step = batch.step(job_id, ordinal)
    assert step is not None
    phase = states.phase(step.state)
    batch.draft.delete(keys.assignment(step.session_id, step.token, job_id, ordinal))
    used = step.attempts - (step.state is phase.running)
    step = batch.keep(job_id, ordinal, step, attempts=used)
    batch.event(job_id, phase.handed_back, ordinal=ordinal, token=step.token, session_id=step.session_id)
    if compensation.is_unwanted(batch, job_id, phase):
        unsettle(batch, job_id, ordinal, step)
        return
    session = batch.draft.read(keys.session(step.session_id), rows.Session)
    bound = schedules.no_start_from(batch.policy(job_id, ordinal, phase), step)
    left_ms = batch.limits.duration_ms_max if bound is None else bound.at_log_ms - batch.moment.log_ms
    if cancelled or session is None or session.draining or left_ms <= 0:
        ready_again(batch, job_id, ordinal, step)
    else:
        # An agent that refuses while it goes on taking work would be offered the same step again and again.
        wait_ms = min(_wait_ms(batch, job_id, ordinal, step, phase, None), left_ms)
        _wait_for_retry(batch, job_id, ordinal, step, phase, wait_ms)


def stopped(batch: Batch, job_id: str, ordinal: int, *, draining: bool) -> None:
    """An agent says that an attempt was stopped before its end: it may have happened.

    A drain uses no attempt and waits for nothing: the step was not at fault. Only a session that drains is believed,
    or an agent that stops everything would be given the same step for ever.
    """
    step = batch.step(job_id, ordinal)
    assert step is not None
    phase = states.phase(step.state)
    session = batch.draft.read(keys.session(step.session_id), rows.Session)
    draining = draining and session is not None and session.draining
    kind = "INTERRUPTED" if draining else "STOPPED"
    failure = Failure(kind, "the agent stopped the attempt before its end", batch.spec(job_id, ordinal).id)
    harmless = _repeating_is_harmless(batch, job_id, ordinal, phase)
    if not (draining and harmless) or compensation.is_unwanted(batch, job_id, phase):
        end(batch, job_id, ordinal, End.UNKNOWN, failure)
        return
    batch.draft.delete(keys.assignment(step.session_id, step.token, job_id, ordinal))
    batch.event(
        job_id, phase.attempt_stopped, ordinal=ordinal, token=step.token, session_id=step.session_id, detail=kind
    )
    used = step.attempts - (step.state is phase.running)
    step = batch.keep(job_id, ordinal, step, attempts=used, maybe_done=True, failure=failure)
    ready_again(batch, job_id, ordinal, step)


def try_again(batch: Batch, job_id: str, ordinal: int, step: Step) -> None:
    """The wait of a step is over: make it ready, once no earlier attempt can still act where that would do harm."""
    if compensation.starts_nothing(batch.progress(job_id), states.phase(step.state)):
        compensation.stop_early(batch, job_id, ordinal, step)
        return
    # An undo may be repeated, but not beside an attempt that still acts: what it undoes could come back.
    at_once = not states.phase(step.state).undo and batch.spec(job_id, ordinal).effect is Effect.IDEMPOTENT
    if at_once or leases.is_clear(step, led_ms=batch.moment.led_ms):
        ready_again(batch, job_id, ordinal, step)
        return
    batch.move(job_id, ordinal, step, step.state, clear_at(batch, step))


def look_again(batch: Batch, job_id: str, ordinal: int) -> None:
    """An earlier attempt of a step cannot act any more: what waited for that goes on now."""
    step = batch.step(job_id, ordinal)
    assert step is not None
    waits = step.state is states.phase(step.state).retry_wait and step.timer_clock is Clock.LED
    if waits and leases.is_clear(step, led_ms=batch.moment.led_ms):
        try_again(batch, job_id, ordinal, step)
    else:
        compensation.settle(batch, job_id, ordinal)


def clear_at(batch: Batch, step: Step) -> TimerAt:
    """When to look again whether an earlier attempt can still act: at the fence, or a TTL from now for a live session.

    An agent's confirmation or the end of its session makes us look sooner (`look_again`).
    """
    fence_led_ms = step.fence_at_led_ms
    if any(leases.may_act(attempt) for attempt in step.lingering):
        fence_led_ms = max(fence_led_ms, batch.moment.led_ms + batch.limits.session_ttl_ms)
    return TimerAt(Clock.LED, max(fence_led_ms, batch.moment.led_ms))
