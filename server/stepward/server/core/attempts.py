"""How an attempt ends when it does not succeed, and how another one comes about; `remediation` says which it is to be.

The rules are the same for the action of a step and for its undo; `states.Phase` tells them apart.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from stepward.server.core import (
    advance,
    breakers,
    compensation,
    keys,
    leases,
    policies,
    remediation,
    rows,
    schedules,
    states,
    verifying,
)
from stepward.server.core.batch import TimerAt
from stepward.server.core.remedies import FAILURES, TIMEOUTS
from stepward.server.core.rows import CancelReason, Clock, Effect, Failure, Lingering, Part, StepState, Trouble

if TYPE_CHECKING:
    from stepward.server.core.batch import Batch
    from stepward.server.core.rows import Step
    from stepward.server.core.states import Phase


def end(
    batch: Batch, job_id: str, ordinal: int, trouble: Trouble, failure: Failure, *, retry_after_ms: int | None = None
) -> None:
    """End the open attempt of a step and decide what follows."""
    step = batch.step(job_id, ordinal)
    assert step is not None
    assert step.state in states.HELD
    phase = states.phase(step.state)
    if not compensation.is_unwanted(batch, job_id, phase):
        breakers.ended(batch, job_id, ordinal, step, trouble, failure, asked_later=retry_after_ms is not None)
    step = _close(batch, job_id, ordinal, step, trouble, failure)
    remediation.attempt_ended(batch, job_id, ordinal, step, phase, trouble, failure, retry_after_ms=retry_after_ms)


def _close(batch: Batch, job_id: str, ordinal: int, step: Step, trouble: Trouble, failure: Failure) -> Step:
    """Count the attempt, take or keep its assignment, and remember whether it may have happened.

    Work that nobody confirmed stopped keeps its slot until the agent answers the cancel or its session ends.
    """
    phase = states.phase(step.state)
    # An on-offer handler that ended or was lost before it said that it had started was an attempt only if it reported.
    number = step.attempts + (step.state is phase.offered and trouble in FAILURES)
    lingering, fence_led_ms = step.lingering, step.fence_at_led_ms
    key = keys.assignment(step.session_id, step.token, job_id, ordinal)
    if trouble in TIMEOUTS:
        step = let_go(batch, job_id, ordinal, step, CancelReason.TIMEOUT)
        lingering = step.lingering
    else:
        batch.draft.delete(key)
    if trouble is Trouble.LEASE_LOST and phase.part is not Part.VERIFY:
        lingering = _linger(batch, step, Lingering(step.session_id, step.token, lost=True))
        fence_led_ms = max(fence_led_ms, fence_of(batch, step.session_id))
    type_ = phase.attempt_timed_out
    match trouble:
        case Trouble.ATTEMPT_FAILED | Trouble.ATTEMPT_BROKEN:
            type_ = phase.attempt_failed
        case Trouble.ATTEMPT_UNKNOWN:
            type_ = phase.attempt_unknown
        case Trouble.LEASE_LOST:
            type_ = phase.attempt_lost
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
        lease_losses=step.lease_losses + (trouble is Trouble.LEASE_LOST),
        maybe_done=step.maybe_done or trouble is not Trouble.ATTEMPT_FAILED,
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


def wait_ms(batch: Batch, job_id: str, ordinal: int, step: Step, phase: Phase, retry_after_ms: int | None) -> int:
    """How long to wait for the next attempt: what the agent asked for, or what the policy draws."""
    if retry_after_ms is not None:
        return min(retry_after_ms, batch.limits.duration_ms_max)
    # A lost offer used no attempt, yet it waits like the first one.
    retry = batch.policy(job_id, ordinal, phase).retry
    return policies.retry_delay_ms(max(1, step.attempts), retry, batch.rng)


def too_late(batch: Batch, job_id: str, ordinal: int, step: Step, phase: Phase, delay_ms: int) -> str:
    """Why it is of no use to wait so long for another attempt, as the end of a sentence; empty when it is of use."""
    bound = schedules.no_start_from(batch.policy(job_id, ordinal, phase), step)
    if bound is None or batch.moment.log_ms + delay_ms < bound.at_log_ms:
        return ""
    left_ms = max(0, bound.at_log_ms - batch.moment.log_ms)
    what = schedules.WORDS[bound.what]
    return f"not tried again: the wait would be {delay_ms} ms, and its {what} is over in {left_ms} ms"


def wait_for_retry(batch: Batch, job_id: str, ordinal: int, step: Step, phase: Phase, delay_ms: int) -> None:
    """Let a part of a step wait for its next attempt."""
    batch.move(job_id, ordinal, step, phase.retry_wait, batch.log_in(delay_ms))
    batch.event(job_id, phase.retry_scheduled, ordinal=ordinal, attempt=step.attempts + 1, due_in_ms=delay_ms)


def ready_again(batch: Batch, job_id: str, ordinal: int, step: Step) -> None:
    """Put a step back to where agents are given work from, if there is time left for an attempt."""
    phase = states.phase(step.state)
    bound = schedules.no_start_from(batch.policy(job_id, ordinal, phase), step)
    if bound is None or batch.moment.log_ms < bound.at_log_ms:
        advance.make_ready(batch, job_id, ordinal, step, phase)
    else:
        remediation.out_of_time(batch, job_id, ordinal, step, bound.what)


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
        delay_ms = min(wait_ms(batch, job_id, ordinal, step, phase, None), left_ms)
        wait_for_retry(batch, job_id, ordinal, step, phase, delay_ms)


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
    harmless = remediation.repeating_is_harmless(batch, job_id, ordinal, phase.part)
    if not (draining and harmless) or compensation.is_unwanted(batch, job_id, phase):
        end(batch, job_id, ordinal, Trouble.ATTEMPT_UNKNOWN, failure)
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
    elif _may_go_on(batch, job_id, ordinal, step):
        ready_again(batch, job_id, ordinal, step)
    else:
        batch.move(job_id, ordinal, step, step.state, clear_at(batch, step))


def _may_go_on(batch: Batch, job_id: str, ordinal: int, step: Step) -> bool:
    """Whether no earlier attempt of a step can still act where that would do harm.

    An undo may be repeated, but not beside an attempt that still acts: what it undoes could come back.
    """
    at_once = not states.phase(step.state).undo and batch.spec(job_id, ordinal).effect is Effect.IDEMPOTENT
    return at_once or leases.is_clear(step, led_ms=batch.moment.led_ms)


def would_give_up(batch: Batch, job_id: str, ordinal: int, step: Step) -> bool:
    """Whether a step whose wait is over would not be tried again, since no attempt of it may start any more."""
    phase = states.phase(step.state)
    if compensation.starts_nothing(batch.progress(job_id), phase) or not _may_go_on(batch, job_id, ordinal, step):
        return False
    bound = schedules.no_start_from(batch.policy(job_id, ordinal, phase), step)
    return bound is not None and batch.moment.log_ms >= bound.at_log_ms


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
