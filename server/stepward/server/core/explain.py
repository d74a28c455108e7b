"""Why a job does not move, as a tree of reasons with what unblocks each: pure, from rows and a moment.

Every state of every part of a step has its reason; a test holds this against the table of states. Of a job with many
steps so many are looked at as a bound says, and steps that wait for the same thing are one reason.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, NamedTuple, assert_never

from msgspec.structs import replace

from stepward.server.core import (
    advance,
    brake,
    breakers,
    compensation,
    crews,
    keys,
    leases,
    pauses,
    rows,
    schedules,
    states,
    views,
)
from stepward.server.core.epoch_rows import Epoch
from stepward.server.core.explaining import Circumstances, Explanation, Reason, ReasonKind
from stepward.server.core.ledger_rows import Incident
from stepward.server.core.parts import Remedy
from stepward.server.core.rows import JOB_STATES_FINAL, CancelReason, Clock, JobState, StepState
from stepward.server.core.states import Mover

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from stepward.server.core.limits import Limits
    from stepward.server.core.reader import Reader
    from stepward.server.core.rows import DefinitionBody, Head, Job, Progress, Step, StepSpec

K = ReasonKind


class Case(NamedTuple):
    """What an explanation is made from."""

    reader: Reader
    head: Head
    limits: Limits
    job_id: str
    job: Job
    progress: Progress
    body: DefinitionBody
    crews: crews.Crews

    def now_ms(self, clock: Clock) -> int:
        """The instant of the newest batch on a clock."""
        return self.head.led_ms if clock is Clock.LED else self.head.log_ms


def explain(
    reader: Reader, job_id: str, *, head: Head, limits: Limits, circumstances: Circumstances
) -> Explanation | None:
    """Why a job does not move, or None if there is no such job."""
    case = case_of(reader, job_id, head=head, limits=limits)
    if case is None:
        return None
    state = case.progress.state
    if state in JOB_STATES_FINAL:
        reasons: tuple[Reason, ...] = (_ended(case),)
    else:
        reasons = (*_circumstances(case, circumstances), *_of_job(case), *_of_steps(case))
    return Explanation(job_id, state, _summary(state, reasons), reasons)


def case_of(reader: Reader, job_id: str, *, head: Head, limits: Limits) -> Case | None:
    """What an explanation is made from, or None if there is no such job."""
    job, progress = reader.get(keys.job(job_id)), reader.get(keys.progress(job_id))
    if not isinstance(job, rows.Job) or not isinstance(progress, rows.Progress):
        return None
    body = reader.get(keys.definition_body(job.definition_hash))
    assert isinstance(body, rows.DefinitionBody), job_id
    return Case(reader, head, limits, job_id, job, progress, body, crews.Crews(reader, head.led_ms, limits))


def _summary(state: JobState, reasons: tuple[Reason, ...]) -> str:
    if not reasons:
        return f"the job is {state.name} and waits for nothing that its rows show; ask again"
    more = f", and {len(reasons) - 1} more" if len(reasons) > 1 else ""
    return f"{reasons[0].text}{more}"


def _circumstances(case: Case, known: Circumstances) -> Iterator[Reason]:
    """What holds up every job."""
    if known.no_leader:
        yield Reason(K.NO_LEADER, known.no_leader, "start the nodes that are missing: stepward cluster status")
    if known.disk_low:
        yield Reason(K.DISK_LOW, known.disk_low, "make room on the disk of the node that leads")
    fix = "look at the log of the node that leads: stepward cluster status"
    opened = case.reader.get(keys.EPOCH)
    if isinstance(opened, Epoch) and opened.stays:
        text = (
            "several supervisors in a row were lost: what has gone wrong is not remedied until one can be trusted again"
        )
        yield Reason(K.SUPERVISION, text, fix)
    beat = case.reader.get(keys.BEAT)
    silent_ms = case.head.log_ms - beat.log_ms if isinstance(beat, rows.Beat) else 0
    if silent_ms >= case.limits.explain_beat_age_ms:
        text = f"the supervisor has given no sign of life for {silent_ms} ms: nothing that is due is acted on"
        yield Reason(K.SUPERVISION, text, fix)


def _ended(case: Case) -> Reason:
    failure = case.progress.failure
    why = f": {failure.told}" if failure is not None and case.progress.state is not JobState.COMPLETED else ""
    fix = f"stepward job show {case.job_id}" if case.progress.state is JobState.FAILED else ""
    return Reason(K.ENDED, f"the job has ended {case.progress.state.name}{why}", fix)


def _of_job(case: Case) -> Iterator[Reason]:
    """What holds up the job as a whole."""
    progress, job_id = case.progress, case.job_id
    if progress.state is JobState.PAUSED:
        fix = f"stepward job resume {job_id}"
        yield Reason(K.PAUSED, "the job is paused: what is ready is held back, what runs goes on", fix)
    if progress.state is JobState.ESCALATED and not progress.waiting:
        told = progress.failure.told if progress.failure is not None else "nothing will ever move it"
        yield Reason(K.STUCK, told, f'stepward job cancel {job_id}, or stepward job terminate {job_id} --reason "..."')
    if case.reader.get(keys.job_pass(job_id)) is not None or _first(case.reader, keys.spreads(job_id)) is not None:
        yield Reason(K.UNDER_WAY, "the server goes through the steps of the job, some in each batch")
    if advance.is_stopping(progress):
        yield Reason(
            K.SETTLING,
            f"the job is to be undone, once no attempt can act any more: {progress.settling} steps may still",
            evidence={"settling": str(progress.settling)},
        )


def _first(reader: Reader, prefix: bytes) -> bytes | None:
    return next(reader.scan(prefix), None)


def _of_steps(case: Case) -> list[Reason]:
    """The reasons of the steps that have begun, those that wait for the same thing together."""
    looked = list(islice(case.reader.scan(keys.steps(case.job_id)), case.limits.explain_steps_max + 1))
    found: dict[tuple[object, ...], Reason] = {}
    for key in looked[: case.limits.explain_steps_max]:
        ordinal = keys.parse_subject(key[1:])[1]
        step = case.reader.get(key)
        assert isinstance(step, rows.Step), key
        reason = of_step(case, ordinal, step)
        if reason is not None:
            _add(found, reason, case.body.steps[ordinal].id, case.limits)
    reasons = sorted(found.values(), key=_urgency)[: case.limits.explain_reasons_max]
    if len(looked) > case.limits.explain_steps_max:
        text = f"only the first {case.limits.explain_steps_max} steps that have begun were looked at"
        return [*reasons, Reason(K.UNDER_WAY, text, f"stepward job steps {case.job_id}")]
    pending = len(case.body.steps) - len(looked)
    if pending > 0 and advance.goes_forward(case.progress):
        reasons.append(_needs(case, pending))
    return reasons


# What a person must see first.
_ORDER = (K.PERSON, K.NO_AGENT, K.BREAKER, K.OVERDUE, K.AGENTS_BUSY, K.FENCE, K.RETRY_WAIT, K.OFFERED, K.AT_WORK)


def _urgency(reason: Reason) -> int:
    return _ORDER.index(reason.kind) if reason.kind in _ORDER else len(_ORDER)


def _add(found: dict[tuple[object, ...], Reason], reason: Reason, step_id: str, limits: Limits) -> None:
    """Put a reason with those that say the same of other steps."""
    same = (reason.kind, reason.text, reason.fix)
    known = found.get(same)
    if known is None:
        found[same] = replace(reason, steps=(step_id,), steps_total=1)
    elif len(known.steps) < limits.explain_names_max:
        found[same] = replace(known, steps=(*known.steps, step_id), steps_total=known.steps_total + 1)
    else:
        found[same] = replace(known, steps_total=known.steps_total + 1)


def _needs(case: Case, pending: int) -> Reason:
    """Steps that have no row yet: they wait for those that they need."""
    first, names = "", []
    for ordinal, spec in enumerate(islice(case.body.steps, case.limits.explain_steps_max)):
        if case.reader.get(keys.step(case.job_id, ordinal)) is None:
            names.append(spec.id)
            first = first or _needs_of(case, spec)
            if len(names) == case.limits.explain_names_max:
                break
    what = "step waits" if pending == 1 else "steps wait"
    return Reason(K.NEEDS, f"{pending} {what} for others{first}", steps=tuple(names), steps_total=pending)


def _needs_of(case: Case, spec: StepSpec) -> str:
    """Which needs of a step are still open, in words."""
    open_ = [case.body.steps[need].id for need in islice(spec.needs, 1_000) if not _has_succeeded(case, need)]
    shown = ", ".join(open_[: case.limits.explain_names_max])
    return f": {spec.id} needs {shown}" if open_ else ""


def _has_succeeded(case: Case, ordinal: int) -> bool:
    step = case.reader.get(keys.step(case.job_id, ordinal))
    return isinstance(step, rows.Step) and step.state in (StepState.SUCCEEDED, StepState.SKIPPED)


def of_step(case: Case, ordinal: int, step: Step) -> Reason | None:
    """Why a step that has begun does not move; None: it has nothing to wait for."""
    phase = states.phase(step.state)
    if step.state is phase.ready:
        return _ready(case, ordinal, step)
    if step.state is phase.offered:
        return _offered(case, ordinal, step)
    if step.state is phase.running:
        return _running(case, ordinal, step)
    if step.state is phase.retry_wait:
        return _waiting(case, step)
    match states.MOVERS[step.state]:
        case Mover.PERSON:
            return _person(case, ordinal, step)
        case Mover.NEEDS:
            return Reason(K.NEEDS, "waits for the steps that it needs")
        case Mover.TIMER | Mover.DEPENDENTS | Mover.NOTHING:
            return _at_rest(case, ordinal, step)
        case never:
            assert_never(never)


_PART_WORDS = {rows.Part.ACTION: "", rows.Part.UNDO: "its undo ", rows.Part.VERIFY: "the question what became of it "}


def _with_timer(case: Case, step: Step, reason: Reason) -> Reason:
    """When a reason ends by itself at the latest; and why it has not, if that has passed."""
    if step.timer_clock is Clock.NONE:
        return reason
    reason = replace(reason, clock=step.timer_clock, at_ms=step.timer_at_ms)
    if step.timer_at_ms > case.now_ms(step.timer_clock):
        return reason
    held = brake.standing(case.reader, led_ms=case.head.led_ms, limits=case.limits).on
    if held is not None and states.duty(step) is keys.Duty.JUDGE:
        text = f"its time is over, but the brake holds what the supervisor would do: {held.reason}"
        cause = Reason(K.BRAKE, text, clock=Clock.LED, at_ms=case.head.led_ms + held.ends_in_ms)
    else:
        text = "its time is over, and the supervisor has not acted on it yet"
        cause = Reason(K.OVERDUE, text, "if this stays so, supervision is unwell: stepward cluster status")
    return replace(reason, causes=(*reason.causes, cause))


def _ready(case: Case, ordinal: int, step: Step) -> Reason:
    """Nobody has been offered it: whom it waits for."""
    policy = schedules.policy_of(case.body.steps[ordinal], states.phase(step.state).part)
    if pauses.is_held_back(step) or case.progress.state is JobState.PAUSED:
        return Reason(K.PAUSED, "is ready, and held back while the job is paused", f"stepward job resume {case.job_id}")
    place = (case.job.namespace, policy.queue, policy.action)
    opened = breakers.of_action(case.reader, *place, led_ms=case.head.led_ms)
    if opened is not None:
        state = f"open for {opened.probes_in_ms} ms more" if opened.probes_in_ms else "half open, one probe at a time"
        text = f"the breaker of action {policy.action!r} is {state}: {opened.reason}"
        fix = "mend what the action calls; the breaker closes by itself when its probes end well"
        return replace(Reason(K.BREAKER, text, fix), clock=Clock.LED, at_ms=case.head.led_ms + opened.probes_in_ms)
    return _with_timer(case, step, case.crews.why_not_taken(*place))


def _offered(case: Case, ordinal: int, step: Step) -> Reason:
    """An agent was told, and has not said a word."""
    key = keys.assignment(step.session_id, step.token, case.job_id, ordinal)
    assignment = case.reader.get(key)
    part = _PART_WORDS[states.phase(step.state).part]
    agent = case.crews.name_of(step.session_id)
    if isinstance(assignment, rows.Assignment) and assignment.cancel is not CancelReason.NONE:
        text = f"{part}was offered to agent {agent} and is being taken back; the agent has not answered"
    else:
        text = f"{part}is offered to agent {agent}, which has not said that it has started"
    return _with_timer(case, step, _of_agent(case, step, Reason(K.OFFERED, text)))


def _running(case: Case, ordinal: int, step: Step) -> Reason:
    part = _PART_WORDS[states.phase(step.state).part]
    agent = case.crews.name_of(step.session_id)
    text = f"{part}is at work on agent {agent}, attempt {step.attempts}"
    said = case.reader.get(keys.step_progress(case.job_id, ordinal))
    policy = schedules.policy_of(case.body.steps[ordinal], states.phase(step.state).part)
    opened = case.reader.get(keys.EPOCH)
    heard_log_ms = schedules.heard_log_ms(
        said if isinstance(said, rows.StepProgress) else None, opened if isinstance(opened, Epoch) else None
    )
    bound = schedules.working(policy, step, heard_log_ms=heard_log_ms)
    # Signs of life do not move the timer, so it may stand at an instant that means nothing any more.
    step = replace(step, timer_clock=Clock.LOG, timer_at_ms=bound.at_log_ms)
    return _with_timer(case, step, _of_agent(case, step, Reason(K.AT_WORK, text)))


def _of_agent(case: Case, step: Step, reason: Reason) -> Reason:
    """What is to be said of the agent that holds a step."""
    evidence = {"session_id": step.session_id, "token": str(step.token)}
    session = case.reader.get(keys.session(step.session_id))
    if not isinstance(session, rows.Session) or leases.heard_lately(session, led_ms=case.head.led_ms):
        return replace(reason, evidence=evidence)
    ends_led_ms = views.lease_ends_led_ms(session, case.limits)
    silent_ms = case.head.led_ms - session.renewed_led_ms
    text = f"nothing was heard from the agent for {silent_ms} ms; its lease ends, and the step is given to another"
    cause = Reason(K.FENCE, text, clock=Clock.LED, at_ms=ends_led_ms)
    return replace(reason, evidence=evidence, causes=(cause,))


def _waiting(case: Case, step: Step) -> Reason:
    """It is tried again: after a wait, or when no earlier attempt can act."""
    part = _PART_WORDS[states.phase(step.state).part]
    if step.timer_clock is Clock.LED:
        return _with_timer(case, step, _fence(case, step, f"{part}begins when no earlier attempt can act any more"))
    why = f", after {step.failure.told}" if step.failure is not None else ""
    attempt = step.attempts + 1
    return _with_timer(case, step, Reason(K.RETRY_WAIT, f"{part}waits for attempt {attempt}{why}"))


def _fence(case: Case, step: Step, text: str) -> Reason:
    """An attempt that has ended for us may still act: whose, and until when."""
    acting = [attempt for attempt in step.lingering if leases.may_act(attempt)]
    causes = tuple(
        Reason(K.FENCE, f"agent {case.crews.name_of(attempt.session_id)} was told to stop and has not answered")
        for attempt in acting[: case.limits.explain_names_max]
    )
    return Reason(K.FENCE, text, clock=Clock.LED, at_ms=step.fence_at_led_ms, causes=causes)


def _person(case: Case, ordinal: int, step: Step) -> Reason:
    """Only a person moves it on."""
    step_id = case.body.steps[ordinal].id
    what = {
        StepState.ESCALATED: "waits for a person",
        StepState.UNDO_FAILED: "could not be undone, and waits for a person",
        StepState.UNDO_OUTCOME_UNKNOWN: "may be undone or not, and waits for a person",
    }[step.state]
    why = f": {step.failure.told}" if step.failure is not None else ""
    return Reason(K.PERSON, f"{what}{why}", _decide(case, step_id, step), evidence={"attempts": str(step.attempts)})


def _decide(case: Case, step_id: str, step: Step) -> str:
    """What a person types. Steps that wait since before there were incidents have none."""
    if not step.incident:
        return f"stepward job retry {case.job_id} {step_id}, or stepward job skip {case.job_id} {step_id}"
    shard = case.job_id.partition("-")[0]
    incident = case.reader.get(keys.incident(step.incident))
    proposed = isinstance(incident, Incident) and incident.proposed is not Remedy.NONE
    choices = ("--approve, " if proposed else "") + "--retry, --skip, --compensate or --fail"
    return f'stepward incident resolve i{shard}-{step.incident} --reason "..." with {choices}'


def _at_rest(case: Case, ordinal: int, step: Step) -> Reason | None:
    """It has ended going forward: perhaps an attempt of it may still act, or it is to be undone after others."""
    if step.timer_clock is not Clock.NONE:
        return _with_timer(case, step, _fence(case, step, "an attempt of it may still act; nothing is undone before"))
    waits = case.progress.undoing and step.undo_waits and step.state is not StepState.UNDO_SKIPPED
    if not waits or not compensation.needs_undo(step):
        return None
    open_ = (case.body.steps[each].id for each in case.body.steps[ordinal].dependents if _is_undone_later(case, each))
    names = tuple(islice(open_, case.limits.explain_names_max))
    text = f"is undone after {step.undo_waits} others" + (f": {', '.join(names)}" if names else "")
    return Reason(K.UNDO_ORDER, text, evidence={"undo_waits": str(step.undo_waits)})


def _is_undone_later(case: Case, ordinal: int) -> bool:
    """Whether the undo of a dependent has not ended."""
    step = case.reader.get(keys.step(case.job_id, ordinal))
    if not isinstance(step, rows.Step):
        return False
    return step.state in states.UNDO_OPEN or bool(step.undo_waits) or step.state in states.ACTIVE


def fixes(reasons: Iterable[Reason]) -> Iterator[str]:
    """What unblocks the reasons of a tree, in its order."""
    for reason in reasons:
        if reason.fix:
            yield reason.fix
        yield from fixes(reason.causes)
