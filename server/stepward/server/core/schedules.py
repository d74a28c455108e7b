"""Until when a step may wait and work: its bounds as instants of log time. The earliest one is the step's timer.

The same for an action and its undo: each has bounds of its own, from the moment at which it first became ready.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from stepward.server.core.rows import Failure, Part, StepSpec, Trouble, UndoSpec, VerifySpec

if TYPE_CHECKING:
    from stepward.server.core.epoch_rows import Epoch
    from stepward.server.core.rows import Step, StepProgress

# Where action, queue, timeouts and retries are written.
Policy: TypeAlias = StepSpec | UndoSpec | VerifySpec


def policy_of(spec: StepSpec, part: Part) -> Policy:
    """Where action, queue, timeouts and retries of a part of a step are written."""
    if part is Part.ACTION:
        return spec
    policy = spec.undo if part is Part.UNDO else spec.verify
    assert policy is not None, (spec.id, part)
    return policy


# What bounds are called in the public contract, by the trouble that it is to go beyond one.
WORDS: Final = {
    Trouble.SCHEDULE_TO_CLOSE: "schedule-to-close timeout",
    Trouble.START_TO_CLOSE: "start-to-close timeout",
    Trouble.HEARTBEAT: "heartbeat timeout",
    Trouble.QUEUE_TIME: "queue timeout",
    Trouble.RETRY_TIME: "time_max of its retries",
}


class Bound(NamedTuple):
    """The instant from which on something may not go on."""

    at_log_ms: int
    what: Trouble


def _over_all(policy: Policy, first_log_ms: int) -> list[Bound]:
    """The bound over all attempts and the waits between them, if there is one."""
    if not policy.schedule_to_close_ms:
        return []
    return [Bound(first_log_ms + policy.schedule_to_close_ms, Trouble.SCHEDULE_TO_CLOSE)]


def _starts(policy: Policy, first_log_ms: int) -> list[Bound]:
    """The bounds that an attempt must have started before. One may start at the very end of the time for retries."""
    bounds = _over_all(policy, first_log_ms)
    if policy.retry.time_ms_max:
        bounds.append(Bound(first_log_ms + policy.retry.time_ms_max + 1, Trouble.RETRY_TIME))
    return bounds


def waiting(policy: Policy, *, first_log_ms: int, ready_log_ms: int) -> Bound:
    """How long something may be ready without an attempt. On a tie the longer bound is told."""
    queue = Bound(ready_log_ms + policy.queue_ms, Trouble.QUEUE_TIME)
    bounds = _starts(policy, first_log_ms)
    return _earliest([*bounds, queue]) if bounds else queue


def working(policy: Policy, step: Step, *, heard_log_ms: int) -> Bound:
    """How long a started attempt may go on as things stand. `heard_log_ms` is its last sign of life; 0: none."""
    bounds = _over_all(policy, step.ready_log_ms)
    bounds.append(Bound(step.started_log_ms + policy.start_to_close_ms, Trouble.START_TO_CLOSE))
    if policy.heartbeat_ms:
        # What an earlier attempt said last is no sign of life of this one.
        bounds.append(Bound(max(step.started_log_ms, heard_log_ms) + policy.heartbeat_ms, Trouble.HEARTBEAT))
    return _earliest(bounds)


def heard_log_ms(said: StepProgress | None, opened: Epoch | None) -> int:
    """From when on silence counts: the last sign of life, or when somebody led again who could hear one; 0: always.

    Without that a server that was away for longer than the bound would end work whose signs of life met nobody.
    """
    return max(0 if said is None else said.heard_log_ms, 0 if opened is None else opened.log_ms)


def no_start_from(policy: Policy, step: Step) -> Bound | None:
    """From when on no attempt may start, if there is such a bound."""
    bounds = _starts(policy, step.ready_log_ms) if step.ready_log_ms >= 0 else []
    return _earliest(bounds) if bounds else None


def ends_log_ms(policy: Policy, step: Step) -> int:
    """When all attempts must be over; 0: no such bound, or not ready yet."""
    bounds = _over_all(policy, step.ready_log_ms) if step.ready_log_ms >= 0 else []
    return bounds[0].at_log_ms if bounds else 0


def _earliest(bounds: list[Bound]) -> Bound:
    """Of those at one instant the first."""
    return min(bounds, key=lambda bound: bound.at_log_ms)


def failure(policy: Policy, what: Trouble, step_id: str) -> Failure:
    """What a step says that has gone beyond a bound."""
    match what:
        case Trouble.START_TO_CLOSE:
            return Failure(
                "START_TO_CLOSE_TIMEOUT", f"no outcome within {policy.start_to_close_ms} ms of its start", step_id
            )
        case Trouble.HEARTBEAT:
            return Failure("HEARTBEAT_TIMEOUT", f"no sign of life for {policy.heartbeat_ms} ms", step_id)
        case Trouble.SCHEDULE_TO_CLOSE:
            text = f"no outcome within {policy.schedule_to_close_ms} ms of becoming ready, over all attempts"
            return Failure("SCHEDULE_TO_CLOSE_TIMEOUT", text, step_id, retryable=False)
        case Trouble.QUEUE_TIME | Trouble.RETRY_TIME:
            bound_ms = policy.queue_ms if what is Trouble.QUEUE_TIME else policy.retry.time_ms_max
        case _:
            msg = f"{what.name} is no bound of a step"
            raise AssertionError(msg)
    text = f"no agent on queue {policy.queue!r} took action {policy.action!r} within {bound_ms} ms"
    return Failure("QUEUE_TIMEOUT", text, step_id, retryable=False)
