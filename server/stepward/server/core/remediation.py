"""What becomes of a step that met trouble: the facts are gathered, `remedies` is asked, and what it says is done.

Each remedy is carried out here, or where only one kind of trouble leads to it (`deadlines`, `patrol`, and what
`supervision` does with offers and sessions), and written down at the one place where it was decided.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, assert_never

from msgspec.structs import replace

from stepward.server.core import (
    advance,
    attempts,
    compensation,
    keys,
    ledger,
    remedies,
    rows,
    schedules,
    states,
    termination,
    verifying,
)
from stepward.server.core.batch import NO_TIMER
from stepward.server.core.parts import Remedy
from stepward.server.core.remedies import Facts, RemedyPolicy
from stepward.server.core.rows import NO_OUTPUT, Avoid, Effect, EventType, Failure, Part, Reassign, StepState, Trouble

if TYPE_CHECKING:
    from stepward.server.core.batch import Batch
    from stepward.server.core.remedies import Decision
    from stepward.server.core.rows import Step
    from stepward.server.core.states import Phase

# Remedies that make another attempt.
REPEATS: Final = frozenset({Remedy.RETRY, Remedy.REASSIGN})


def policy_of(batch: Batch, job_id: str, ordinal: int, part: Part) -> RemedyPolicy:
    """What the definition says of trouble with a part of a step."""
    spec = batch.spec(job_id, ordinal)
    repeatable = repeating_is_harmless(batch, job_id, ordinal, part)
    return RemedyPolicy(repeatable, spec.on_exhausted, spec.on_unknown, spec.approval)


def repeating_is_harmless(batch: Batch, job_id: str, ordinal: int, part: Part) -> bool:
    """Whether an attempt that may have happened may be followed by another."""
    if part is Part.VERIFY:
        return True
    spec = batch.spec(job_id, ordinal)
    effect = spec.undo.effect if part is Part.UNDO and spec.undo is not None else spec.effect
    return effect is Effect.IDEMPOTENT


def attempt_ended(
    batch: Batch,
    job_id: str,
    ordinal: int,
    step: Step,
    phase: Phase,
    trouble: Trouble,
    failure: Failure,
    *,
    asked: bool = False,
    retry_after_ms: int | None = None,
) -> None:
    """An attempt of a part of a step has ended without success: repeat it, ask about it, or give it up.

    `asked`: whoever could tell what became of it was asked before.
    """
    spec = batch.spec(job_id, ordinal)
    if is_poison(batch, step, trouble):
        trouble = Trouble.POISON
        text = f"{step.lease_losses} sessions were lost while they held this step; it is set aside"
        failure = Failure("POISON", text, spec.id, retryable=False)
    facts = Facts(
        phase.part,
        wanted=not compensation.is_unwanted(batch, job_id, phase),
        left=_is_left(batch, job_id, ordinal, step, phase, failure),
        final=not failure.retryable,
        askable=spec.verify is not None and phase.part is Part.ACTION and not asked,
        past_pivot=compensation.past_pivot(batch, job_id, despite=ordinal) is not None,
    )
    policy = policy_of(batch, job_id, ordinal, phase.part)
    decision = remedies.decide(trouble, policy, facts)
    if decision.remedy in REPEATS:
        wait_ms = attempts.wait_ms(batch, job_id, ordinal, step, phase, retry_after_ms)
        too_late = attempts.too_late(batch, job_id, ordinal, step, phase, wait_ms)
        if not too_late:
            record(batch, job_id, ordinal, decision, failure)
            step = _avoid_agent(batch, job_id, ordinal, step)
            attempts.wait_for_retry(batch, job_id, ordinal, step, phase, wait_ms)
            return
        failure = replace(failure, message=f"{failure.message}; {too_late}" if failure.message else too_late)
        decision = remedies.decide(trouble, policy, facts._replace(left=False))
    record(batch, job_id, ordinal, decision, failure)
    if decision.remedy is Remedy.VERIFY:
        verifying.ask(batch, job_id, ordinal, step, trouble, failure)
    else:
        _give_up(batch, job_id, ordinal, step, phase, decision, failure)


def record(batch: Batch, job_id: str, ordinal: int, decision: Decision, failure: Failure | None = None) -> None:
    """Write down what was decided, before it is done. `ordinal` -1: about a job.

    Nothing is decided about what nobody wants any more. That a question has no answer leads to another decision, which
    is the one that counts.
    """
    if decision.remedy is Remedy.NONE or decision.rule.name == remedies.NOT_TOLD:
        return
    proposed = decision.proposed is not Remedy.NONE
    remedy = decision.proposed if proposed else decision.remedy
    rule = decision.rule.name
    ledger.record(batch, job_id, ordinal, decision.trouble, remedy, rule=rule, failure=failure, proposed=proposed)


def _avoid_agent(batch: Batch, job_id: str, ordinal: int, step: Step) -> Step:
    """Let the next attempt go to another agent than the one that has just held the step, if the policy says so."""
    if batch.spec(job_id, ordinal).reassign is not Reassign.AVOID_SAME_AGENT:
        return step
    session = batch.draft.read(keys.session(step.session_id), rows.Session)
    return step if session is None else batch.keep(job_id, ordinal, step, avoid=Avoid(session.name))


def is_poison(batch: Batch, step: Step, trouble: Trouble) -> bool:
    """Whether too many sessions were lost while they held a step: more would use up the agents."""
    return trouble is Trouble.LEASE_LOST and step.lease_losses >= batch.limits.lease_losses_max


def _is_left(batch: Batch, job_id: str, ordinal: int, step: Step, phase: Phase, failure: Failure) -> bool:
    """Whether another attempt may be made, if there is time for it."""
    retry = batch.policy(job_id, ordinal, phase).retry
    if not failure.retryable or failure.kind in retry.non_retryable_kinds:
        return False
    if step.attempts >= retry.attempts_max or step.lease_losses >= batch.limits.lease_losses_max:
        return False
    return len(step.lingering) < batch.limits.lingering_max


def _give_up(
    batch: Batch, job_id: str, ordinal: int, step: Step, phase: Phase, decision: Decision, failure: Failure
) -> None:
    """No further attempt is made by itself."""
    match phase.part:
        case _ if decision.remedy is Remedy.NONE:
            attempts.unsettle(batch, job_id, ordinal, step)
        case Part.VERIFY:
            verifying.not_told(batch, job_id, ordinal, step, failure.told)
        case Part.UNDO if decision.trouble is Trouble.UNDO_UNKNOWN:
            compensation.undo_unknown(batch, job_id, ordinal, step, failure)
        case Part.UNDO:
            compensation.undo_failed(batch, job_id, ordinal, step, failure)
        case Part.ACTION:
            if decision.unknown:
                step = batch.move(job_id, ordinal, step, StepState.OUTCOME_UNKNOWN, NO_TIMER, failure=failure)
                batch.event(job_id, EventType.StepOutcomeUnknown, ordinal=ordinal, detail=failure.kind)
            if decision.remedy is Remedy.ESCALATE:
                compensation.escalate(batch, job_id, ordinal, step, failure, decision)
            else:
                carry_out(batch, job_id, ordinal, step, decision.remedy, failure)
        case never:
            assert_never(never)


def carry_out(batch: Batch, job_id: str, ordinal: int, step: Step, remedy: Remedy, failure: Failure) -> None:
    """Do what was decided, or what a person chose, about an action that is not tried again."""
    match remedy:
        case Remedy.COMPENSATE:
            step = _for_good(batch, job_id, ordinal, step, failure)
            compensation.step_failed(batch, job_id, ordinal, step)
        case Remedy.CONTINUE:
            _pass_over(batch, job_id, ordinal, step, failure)
        case Remedy.FAIL:
            _for_good(batch, job_id, ordinal, step, failure)
            step_id = batch.spec(job_id, ordinal).id
            termination.terminate(batch, job_id, replace(failure, step_id=step_id, retryable=False))
        case _:
            msg = f"{remedy.name} is nothing that ends the attempts of {job_id}/{ordinal}"
            raise AssertionError(msg)


def _for_good(batch: Batch, job_id: str, ordinal: int, step: Step, failure: Failure) -> Step:
    """A step has failed for good. One of which nobody knows whether it happened stays that."""
    if step.state is StepState.OUTCOME_UNKNOWN:
        return step
    step = batch.move(job_id, ordinal, step, StepState.FAILED, NO_TIMER, failure=failure)
    batch.event(job_id, EventType.StepFailed, ordinal=ordinal, detail=failure.told)
    return step


def _pass_over(batch: Batch, job_id: str, ordinal: int, step: Step, failure: Failure) -> None:
    """The job goes on without the step. It is undone with the rest if it may have happened."""
    advance.forget_progress(batch, job_id, ordinal)
    batch.draft.put(keys.output(job_id, ordinal), rows.Output(NO_OUTPUT, stand_in=True))
    batch.event(job_id, EventType.StepSkipped, ordinal=ordinal, detail=f"passed over by its policy: {failure.told}")
    at_once = step.state is not StepState.PENDING
    batch.move(job_id, ordinal, step, StepState.SKIPPED, NO_TIMER, failure=failure)
    advance.step_succeeded(batch, job_id, ordinal, tell_later=not at_once)


def not_begun(batch: Batch, job_id: str, ordinal: int, trouble: Trouble) -> None:
    """An offer that was to be accepted first was not: it surely has not started, and goes to another agent."""
    step = batch.require_step(job_id, ordinal)
    part = states.phase(step.state).part
    decision = remedies.decide(trouble, policy_of(batch, job_id, ordinal, part), Facts(part, never_started=True))
    assert decision.remedy is Remedy.REASSIGN, decision
    record(batch, job_id, ordinal, decision)
    _avoid_agent(batch, job_id, ordinal, step)
    attempts.never_started(batch, job_id, ordinal, cancelled=True)


def out_of_time(batch: Batch, job_id: str, ordinal: int, step: Step, trouble: Trouble) -> None:
    """A step that no agent holds has waited for as long as it may. That is no attempt, and is never retried."""
    phase = states.phase(step.state)
    if step.state is phase.ready:
        advance.unready(batch, job_id, ordinal, step)
    policy = batch.policy(job_id, ordinal, phase)
    failure = schedules.failure(policy, trouble, batch.spec(job_id, ordinal).id)
    if trouble is Trouble.RETRY_TIME and step.failure is not None:
        # Why it needed another attempt says more than that there was no time for one.
        text = f"not tried again within the {schedules.WORDS[trouble]} of {policy.retry.time_ms_max} ms"
        said = step.failure.message
        failure = replace(step.failure, message=f"{said}; {text}" if said else text, retryable=False)
    _without_attempt(batch, job_id, ordinal, step, trouble, failure)


def no_input(batch: Batch, job_id: str, ordinal: int, step: Step, failure: Failure) -> None:
    """The input of a step cannot be built, from what other steps gave."""
    _without_attempt(batch, job_id, ordinal, step, Trouble.INPUT, failure)


def _without_attempt(batch: Batch, job_id: str, ordinal: int, step: Step, trouble: Trouble, failure: Failure) -> None:
    """Trouble of a step that no agent holds: nothing has happened since the attempt before, if there was one."""
    phase = states.phase(step.state)
    facts = Facts(
        phase.part,
        at_work=False,
        final=True,
        past_pivot=compensation.past_pivot(batch, job_id, despite=ordinal) is not None,
    )
    decision = remedies.decide(trouble, policy_of(batch, job_id, ordinal, phase.part), facts)
    record(batch, job_id, ordinal, decision, failure)
    _give_up(batch, job_id, ordinal, step, phase, decision, failure)
