"""What must hold of the rows after every batch, checked by recounting everything from scratch. For tests and trials.

Each violation is a sentence; a correct run never meets one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from stepward.server.core import (
    advance,
    compensation,
    incidents,
    keys,
    leases,
    pauses,
    rows,
    schedules,
    slice_rows,
    states,
    wide_jobs,
)
from stepward.server.core.caller_rows import CallerEnds
from stepward.server.core.rows import JOB_STATES_AWAITED, JOB_STATES_FINAL, Clock, JobState, PassKind, StepState
from stepward.server.core.states import Mover

if TYPE_CHECKING:
    from collections.abc import Iterator

    from stepward.server.core.reader import Reader
    from stepward.server.core.rows import DefinitionBody, Progress, Step, StepSpec

_READY = tuple(phase.ready for phase in states.PHASES)


def violations(reader: Reader, *, led_ms: int) -> list[str]:
    """Everything that is wrong with these rows."""
    jobs = [key[1:].decode() for key in reader.scan(keys.JOB)]
    ready = {_ready_subject(key) for key in reader.scan(keys.READY)}
    found = [text for job_id in jobs for text in _job_violations(reader, job_id, led_ms, ready)]
    found += _index_violations(reader, set(jobs))
    found += count_violations(reader)
    found += wide_jobs.leftovers(reader, set(jobs))
    found += incident_violations(reader)
    found += caller_violations(reader)
    return found + list(_session_violations(reader))


def _ready_subject(key: bytes) -> tuple[str, int]:
    """The step that stands in a lane."""
    return keys.parse_subject(key.split(b"\0", 3)[3][8:])


def _job_violations(reader: Reader, job_id: str, led_ms: int, ready: set[tuple[str, int]]) -> Iterator[str]:
    job, progress = reader.get(keys.job(job_id)), reader.get(keys.progress(job_id))
    assert isinstance(job, rows.Job)
    assert isinstance(progress, rows.Progress)
    body = reader.get(keys.definition_body(job.definition_hash))
    assert isinstance(body, rows.DefinitionBody)
    steps = _steps(reader, job_id)
    for text in _progress_violations(reader, job_id, progress, body, steps, led_ms):
        yield f"job {job_id}: {text}"
    for text in wide_jobs.violations(reader, job_id, progress, body, steps):
        yield f"job {job_id}: {text}"
    if reader.get(keys.job_index(job.namespace, progress.state, job_id)) is None:
        yield f"job {job_id}: no index row for {progress.state.name}"
    waits = progress.deadline_log_ms > 0 and not progress.deadline_passed and progress.state not in JOB_STATES_FINAL
    if waits != (reader.get(keys.deadline_timer(progress.deadline_log_ms, job_id)) is not None):
        yield f"job {job_id}: its deadline {'has no timer' if waits else 'does not wait, but has a timer'}"
    pass_ = reader.get(keys.job_pass(job_id))
    for ordinal, step in steps.items():
        # Until a walk has come to it, a step may be as it was before the walk.
        passed = not isinstance(pass_, slice_rows.Pass) or ordinal <= pass_.after
        for text in (
            *_lane_violations(step, in_lane=(job_id, ordinal) in ready),
            *_step_violations(reader, job_id, ordinal, step, progress, passed=passed),
            *_bound_violations(reader, body.steps[ordinal], step),
        ):
            yield f"job {job_id} step {body.steps[ordinal].id} {step.state.name}: {text}"


def _lane_violations(step: Step, *, in_lane: bool) -> Iterator[str]:
    """A ready step stands in a lane, unless it is held back."""
    belongs = step.state in _READY and not pauses.is_held_back(step)
    if in_lane is not belongs:
        yield f"it {'stands' if in_lane else 'does not stand'} in a lane"


def _steps(reader: Reader, job_id: str) -> dict[int, Step]:
    found: dict[int, Step] = {}
    for key in reader.scan(keys.steps(job_id)):
        row = reader.get(key)
        assert isinstance(row, rows.Step)
        found[keys.parse_subject(key[1:])[1]] = row
    return found


def _progress_violations(
    reader: Reader, job_id: str, progress: Progress, body: DefinitionBody, steps: dict[int, Step], led_ms: int
) -> Iterator[str]:
    """Counters against a recount, and what each job state promises."""
    pass_ = reader.get(keys.job_pass(job_id))
    assert pass_ is None or isinstance(pass_, slice_rows.Pass)
    succeeded = sum(step.state in (StepState.SUCCEEDED, StepState.SKIPPED) for step in steps.values())
    waiting = [step for step in steps.values() if states.MOVERS[step.state] is Mover.PERSON]
    if progress.waiting != len(waiting):
        yield f"waiting is {progress.waiting}, but {len(waiting)} steps wait for a person"
    goes_on = progress.state is JobState.RUNNING or (progress.state is JobState.COMPENSATING and progress.undoing)
    answered = pass_ is not None and pass_.kind is PassKind.TERMINATE
    if waiting and goes_on and not answered:
        yield f"{progress.state.name}, but {len(waiting)} steps wait for a person"
    if not progress.undoing and progress.steps_open != len(body.steps) - succeeded:
        yield f"steps_open is {progress.steps_open}, but {succeeded} of {len(body.steps)} succeeded or were skipped"
    if progress.state is JobState.COMPLETED and succeeded != len(body.steps):
        yield "COMPLETED with steps that have not succeeded"
    if progress.state is JobState.COMPENSATING and not progress.undoing:
        stopped = [step for n, step in steps.items() if pass_ is None or n <= pass_.after]
        settling = sum(step.timer_clock is not Clock.NONE for step in stopped)
        if progress.settling != settling:
            yield f"settling is {progress.settling}, but {settling} steps are not settled"
    if progress.state in (JobState.COMPENSATED, JobState.CANCELLED):
        left = [body.steps[ordinal].id for ordinal, step in steps.items() if compensation.needs_undo(step)]
        if left:
            yield f"{progress.state.name}, but {left} remain done"
    if progress.undoing:
        for ordinal, step in steps.items():
            if step.state < StepState.UNDO_READY and not leases.is_clear(step, led_ms=led_ms) and not step.undo_waits:
                yield f"undoing while an attempt of step {body.steps[ordinal].id} may still act"
    if progress.state in JOB_STATES_FINAL:
        moving = [body.steps[n].id for n, step in steps.items() if states.MOVERS[step.state] is not Mover.NOTHING]
        if moving:
            yield f"{progress.state.name} with steps that are not final: {moving}"
        timed = [body.steps[n].id for n, step in steps.items() if step.timer_clock is not Clock.NONE]
        if timed:
            yield f"{progress.state.name} with steps that have a timer: {timed}"
    elif pass_ is None and not _moves(progress, steps) and not reader.count(keys.spreads(job_id)):
        yield f"{progress.state.name}, but nothing will ever move it"


def _moves(progress: Progress, steps: dict[int, Step]) -> bool:
    """Whether something is left that moves a job: a timer, or a person."""
    if progress.state is JobState.PAUSED:
        return True
    if progress.state is JobState.ESCALATED:
        waits = any(states.MOVERS[step.state] is Mover.PERSON for step in steps.values())
        # A job that is late behind its point of no return waits for a person, and goes on.
        if waits or not progress.deadline_passed or progress.undoing:
            return waits
    return any(step.timer_clock is not Clock.NONE for step in steps.values())


def _step_violations(
    reader: Reader, job_id: str, ordinal: int, step: Step, progress: Progress, *, passed: bool
) -> Iterator[str]:
    """Each state has exactly the rows that move it."""
    mover = states.mover(step.state, progress.state)
    if step.timer_clock is not Clock.NONE:
        if reader.get(states.timer_key(job_id, ordinal, step)) is None:
            yield "its timer has no row"
        if mover is Mover.PERSON and passed:
            yield "it waits for a person, and has a timer"
    elif mover is Mover.TIMER and not (
        (step.state is StepState.OUTCOME_UNKNOWN and (progress.undoing or advance.is_stopping(progress)))
        or (pauses.is_held_back(step) and not passed)
    ):
        yield "it has no timer"
    if step.state in states.HELD:
        if reader.get(keys.assignment(step.session_id, step.token, job_id, ordinal)) is None:
            yield "it is held, but there is no assignment"
        if reader.get(keys.session(step.session_id)) is None:
            yield f"it is held by session {step.session_id}, which is not open"
    for attempt in step.lingering:
        key = keys.assignment(attempt.session_id, attempt.token, job_id, ordinal)
        if not (attempt.lost or attempt.closed) and reader.get(key) is None:
            yield f"attempt {attempt.token} lingers without an assignment"
    if step.maybe_done and step.state is StepState.COMPENSATED:
        yield "it is undone and may be done"


def _bound_violations(reader: Reader, spec: StepSpec, step: Step) -> Iterator[str]:
    """No attempt is waited for beyond the bound over all of them."""
    phase = states.phase(step.state)
    if (step.aside is not None) != (phase is states.VERIFY):
        yield f"what its action has used stands {'aside' if step.aside is not None else 'not aside'}"
    if step.held and step.state not in (phase.offered, phase.retry_wait):
        yield f"it is {step.state.name}, and marked as held by the brake"
    if step.state not in (phase.ready, phase.running, phase.retry_wait):
        return
    policy = schedules.policy_of(spec, phase.part)
    ends_log_ms = schedules.ends_log_ms(policy, step)
    if step.timer_clock is Clock.LOG and 0 < ends_log_ms < step.timer_at_ms:
        yield f"its timer is at {step.timer_at_ms}, but all its attempts end at {ends_log_ms}"
    if step.state is not phase.retry_wait and step.ready_log_ms < 0:
        yield "it became ready at no time"


def _index_violations(reader: Reader, jobs: set[str]) -> Iterator[str]:
    """No index row without what it points at."""
    for key in reader.scan(keys.READY):
        job_id, ordinal = _ready_subject(key)
        step = reader.get(keys.step(job_id, ordinal))
        if not isinstance(step, rows.Step) or step.state not in _READY:
            yield f"ready row of {job_id}/{ordinal}, which is not ready: {step}"
    for queue in keys.TIMER_QUEUES:
        for key in reader.scan(keys.timers(*queue)):
            at_ms, kind, subject = keys.parse_timer(key)
            if kind == keys.TIMER_STEP:
                job_id, ordinal = keys.parse_subject(subject)
                step = reader.get(keys.step(job_id, ordinal))
                if not isinstance(step, rows.Step) or states.timer_key(job_id, ordinal, step) != key:
                    yield f"timer row at {at_ms} of a step that has another timer: {subject!r}"
            elif kind == keys.TIMER_PASS:
                pass_ = reader.get(keys.job_pass(subject.decode()))
                if not isinstance(pass_, slice_rows.Pass) or pass_.timer_at_led_ms != at_ms:
                    yield f"timer row at {at_ms} of a pass that has another timer: {subject!r}"
            elif kind == keys.TIMER_SPREAD:
                spread = reader.get(keys.SPREAD + subject)
                if not isinstance(spread, slice_rows.Spread) or spread.timer_at_led_ms != at_ms:
                    yield f"timer row at {at_ms} of a spread that has another timer: {subject!r}"
            elif kind == keys.TIMER_DEADLINE:
                progress = reader.get(keys.progress(subject.decode()))
                if not isinstance(progress, rows.Progress) or progress.deadline_log_ms != at_ms:
                    yield f"timer row at {at_ms} of a job that has another deadline: {subject.decode()}"
            elif reader.get(keys.session(subject.decode())) is None:
                yield f"timer row of session {subject.decode()}, which is not open"
    if reader.count(keys.JOB_INDEX) != len(jobs):
        yield f"{reader.count(keys.JOB_INDEX)} index rows for {len(jobs)} jobs"


def count_violations(reader: Reader) -> Iterator[str]:
    """The counts of each namespace against a recount of its jobs, and its bounds against all their times."""
    recounted: dict[str, dict[JobState, int]] = {}
    for key in reader.scan(keys.JOB):
        job_id = key[1:].decode()
        job, progress = reader.get(key), reader.get(keys.progress(job_id))
        assert isinstance(job, rows.Job)
        assert isinstance(progress, rows.Progress)
        counts = recounted.setdefault(job.namespace, {})
        counts[progress.state] = counts.get(progress.state, 0) + 1
        row = reader.get(keys.job_counts(job.namespace))
        late_ms = job.submitted_wall_ms - keys.job_id_ms(job_id)
        if isinstance(row, rows.JobCounts) and not row.submitted_late_ms_min <= late_ms <= row.submitted_late_ms_max:
            yield f"job {job_id} was submitted {late_ms} ms after the time in its id, which {row} leaves out"
    counted = {key[1:].decode(): reader.get(key) for key in reader.scan(keys.JOB_COUNTS)}
    for namespace in {*recounted, *counted}:
        row = counted.get(namespace)
        found = row.counts if isinstance(row, rows.JobCounts) else {}
        if found != recounted.get(namespace, {}):
            yield f"namespace {namespace} counts {found}, and has {recounted.get(namespace, {})}"


def incident_violations(reader: Reader) -> Iterator[str]:
    """Each step that waits for a person, and each job that was found stuck, has an open incident; no other is open."""
    waiting = dict(_waiting(reader))
    open_: set[int] = set()
    for key in reader.scan(keys.INCIDENT_OPEN):
        number = keys.parse_number(key)
        open_.add(number)
        incident = incidents.find(reader, number)
        if incident is None or incident.resolved_wall_ms or key != keys.incident_open(incident.namespace, number):
            yield f"incident {number} stands among the open ones, and is {incident}"
        elif waiting.get((incident.job_id, incident.ordinal)) != number:
            yield f"incident {number} is open, and nothing waits for it: {incident}"
    for (job_id, ordinal), number in waiting.items():
        if number not in open_:
            yield f"job {job_id} step {ordinal} waits for a person, and its incident {number} is not open"
        if reader.get(keys.incident_of(job_id, number)) is None:
            yield f"incident {number} does not stand under its job {job_id}"
    counted = incidents.counts(reader)
    if counted.open != len(open_):
        yield f"{counted} counts {counted.open} open incidents, and there are {len(open_)}"
    notices = [keys.parse_number(key) for key in reader.scan(keys.NOTICE)]
    if notices != list(range(counted.newest_notice + 1 - len(notices), counted.newest_notice + 1)):
        yield f"notices {notices} are not the newest, of which {counted} counts"


def caller_violations(reader: Reader) -> Iterator[str]:
    """Each job of a caller that has ended, or waits for a person, stands among the ends of one batch, once."""
    wanted: set[tuple[bytes, str]] = set()
    for key in reader.scan(keys.JOB):
        job_id = key[1:].decode()
        job, progress = reader.get(key), reader.get(keys.progress(job_id))
        assert isinstance(job, rows.Job)
        assert isinstance(progress, rows.Progress)
        if progress.told_sequence:
            wanted.add((keys.caller_ends(job.caller_id, progress.told_sequence), job_id))
        if bool(job.caller_id) < bool(progress.told_sequence) or progress.told_sequence > progress.revision:
            yield f"job {job_id} of caller {job.caller_id!r} stands among ends that are not there: {progress}"
        if job.caller_id and progress.state in JOB_STATES_AWAITED and not progress.told_sequence:
            yield f"job {job_id} is {progress.state.name}, and its caller {job.caller_id!r} is not told"
    found: list[tuple[bytes, str]] = []
    for key in reader.scan(keys.CALLER_ENDS):
        row = reader.get(key)
        assert isinstance(row, CallerEnds)
        found += [(key, job_id) for job_id in row.job_ids]
        if not row.job_ids:
            yield f"ends {key!r} are none"
    if sorted(found) != sorted(wanted):
        yield f"ends that callers are told are {found}, and should be {wanted}"


def _waiting(reader: Reader) -> Iterator[tuple[tuple[str, int], int]]:
    """What waits for a person, and the number of its incident."""
    for key in reader.scan(keys.STEP):
        step = reader.get(key)
        assert isinstance(step, rows.Step)
        if step.incident or step.state in states.WAIT_FOR_PERSON:
            yield keys.parse_subject(key[1:]), step.incident
    for key in reader.scan(keys.PROGRESS):
        progress = reader.get(key)
        assert isinstance(progress, rows.Progress)
        if progress.incident:
            yield (keys.progress_job_id(key), -1), progress.incident


def _session_violations(reader: Reader) -> Iterator[str]:
    """Assignments fit into slots, belong to open sessions, and are wanted or cancelled."""
    for key in reader.scan(keys.SESSION):
        session = reader.get(key)
        assert isinstance(session, rows.Session)
        session_id = key[1:].decode()
        taken = reader.count(keys.assignments(session_id))
        if taken > session.slots:
            yield f"session {session_id} holds {taken} assignments in {session.slots} slots"
        timer = keys.session_timer(session.timer_at_led_ms, session_id, ending=session.ending)
        if reader.get(timer) is None:
            yield f"session {session_id} has no timer"
    for key in reader.scan(keys.ASSIGNMENT):
        session_id, token, job_id, ordinal = keys.parse_assignment(key)
        step = reader.get(keys.step(job_id, ordinal))
        if not isinstance(step, rows.Step):
            yield f"assignment of {job_id}/{ordinal}, which has no row"
            continue
        current = step.token == token and step.session_id == session_id and step.state in states.HELD
        if not current and not any(a.token == token and not (a.lost or a.closed) for a in step.lingering):
            yield f"assignment {token} of {job_id}/{ordinal} that nothing waits for: {step.state.name}"
