"""Asking what became of an attempt of unknown outcome, before it is repeated, undone or shown to a person.

The question is a part of a step like its action and its undo: it has a policy and attempts of its own, while what the
action has used stands aside. Its answer, an object, decides:

    {"happened": true, "output": X}     the step has succeeded, with X
    {"happened": false}                 the attempt has failed, and nothing of it happened
    anything else, or no answer         what would follow if nobody had been asked
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from stepward.server.core import advance, attempts, compensation, json_text, leases, remediation, states
from stepward.server.core.batch import NO_TIMER
from stepward.server.core.rows import Aside, Effect, EventType, Failure, Payload, StepState, Trouble

if TYPE_CHECKING:
    from stepward.server.core.batch import Batch
    from stepward.server.core.rows import Step


class Verdict(msgspec.Struct, frozen=True):
    """An answer. `happened` None: it cannot tell."""

    happened: bool | None
    output: msgspec.Raw = msgspec.Raw(b"null")


_decode = msgspec.json.Decoder(Verdict).decode


def verdict(output: Payload) -> Verdict | None:
    """What an answer says, with the bytes of its output as they stand; None when it has another shape."""
    if output.encoding not in json_text.ENCODINGS:
        return None
    try:
        return _decode(output.data)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


def ask(batch: Batch, job_id: str, ordinal: int, step: Step, trouble: Trouble, failure: Failure | None) -> None:
    """Ask about an attempt, at once where another may act beside it, else when none can still act."""
    aside = Aside(step.state, step.attempts, step.lease_losses, step.ready_log_ms, trouble, failure)
    step = batch.keep(job_id, ordinal, step, attempts=0, lease_losses=0, ready_log_ms=-1, aside=aside)
    at_once = batch.spec(job_id, ordinal).effect is Effect.IDEMPOTENT
    if at_once or leases.is_clear(step, led_ms=batch.moment.led_ms):
        advance.make_ready(batch, job_id, ordinal, step, states.VERIFY)
    else:
        batch.move(job_id, ordinal, step, StepState.VERIFY_RETRY_WAIT, attempts.clear_at(batch, step))


def should_ask(batch: Batch, job_id: str, ordinal: int, step: Step) -> bool:
    """Whether somebody can be asked about a step that is to be undone, and that may or may not have happened."""
    asked_about = step.maybe_done and step.state is not StepState.SUCCEEDED
    return asked_about and batch.spec(job_id, ordinal).verify is not None


def ask_before_undo(batch: Batch, job_id: str, ordinal: int, step: Step) -> None:
    """Ask whether there is anything to undo."""
    ask(batch, job_id, ordinal, step, Trouble.ATTEMPT_UNKNOWN, step.failure)


def put_back(batch: Batch, job_id: str, ordinal: int, step: Step) -> Step:
    """Give a step back what its action has used; nothing changes when nobody is asked. The caller moves it on."""
    aside = step.aside
    if aside is None:
        return step
    return batch.keep(
        job_id,
        ordinal,
        step,
        attempts=aside.attempts,
        lease_losses=aside.lease_losses,
        ready_log_ms=aside.ready_log_ms,
        failure=aside.failure,
        aside=None,
    )


def answered(batch: Batch, job_id: str, ordinal: int, step: Step, output: Payload) -> None:
    """The question has an answer."""
    said = verdict(output)
    if said is None:
        not_told(batch, job_id, ordinal, step, "the answer is no object with a happened of true, false or null")
    elif said.happened is None:
        not_told(batch, job_id, ordinal, step, "it cannot be told")
    elif said.happened:
        _found_done(batch, job_id, ordinal, step, Payload(bytes(said.output)))
    else:
        _found_not_done(batch, job_id, ordinal, step)


def _found_done(batch: Batch, job_id: str, ordinal: int, step: Step, output: Payload) -> None:
    # Of a job that is stopping this may be what it waited for; then the walk comes to this step like to any other.
    before_undo = batch.progress(job_id).undoing
    step = put_back(batch, job_id, ordinal, step)
    batch.event(job_id, EventType.StepFoundDone, ordinal=ordinal, token=step.token)
    advance.succeed(batch, job_id, ordinal, step, output, attempts=step.attempts)
    step = batch.require_step(job_id, ordinal)
    if before_undo and not compensation.undo_it(batch, job_id, ordinal, step):
        compensation.undo_ended(batch, job_id, ordinal)


def _found_not_done(batch: Batch, job_id: str, ordinal: int, step: Step) -> None:
    aside = step.aside
    assert aside is not None
    # An attempt that can still act may do it after all.
    maybe_done = not leases.is_clear(step, led_ms=batch.moment.led_ms)
    step = put_back(batch, job_id, ordinal, step)
    step = batch.keep(job_id, ordinal, step, maybe_done=maybe_done)
    batch.event(job_id, EventType.StepFoundNotDone, ordinal=ordinal, token=step.token)
    if batch.progress(job_id).undoing:
        assert not maybe_done, (job_id, ordinal)
        kept = aside.state in (StepState.FAILED, StepState.SKIPPED)
        batch.move(job_id, ordinal, step, aside.state if kept else StepState.CANCELLED, NO_TIMER)
        compensation.undo_ended(batch, job_id, ordinal)
    elif advance.is_stopping(batch.progress(job_id)):
        attempts.unsettle(batch, job_id, ordinal, step)
    else:
        failure = aside.failure or Failure("UNKNOWN")
        trouble = Trouble.ATTEMPT_FAILED
        remediation.attempt_ended(batch, job_id, ordinal, step, states.FORWARD, trouble, failure, asked=True)


def not_told(batch: Batch, job_id: str, ordinal: int, step: Step, why: str) -> None:
    """Nobody could say: go on as if nobody had been asked."""
    aside = step.aside
    assert aside is not None
    step = put_back(batch, job_id, ordinal, step)
    batch.event(job_id, EventType.StepNotTold, ordinal=ordinal, token=step.token, detail=why)
    if batch.progress(job_id).undoing:
        if not compensation.undo_it(batch, job_id, ordinal, step):
            compensation.undo_ended(batch, job_id, ordinal)
    elif advance.is_stopping(batch.progress(job_id)):
        attempts.unsettle(batch, job_id, ordinal, step)
    else:
        failure = aside.failure or Failure("UNKNOWN")
        trouble = aside.trouble
        remediation.attempt_ended(batch, job_id, ordinal, step, states.FORWARD, trouble, failure, asked=True)
