"""What must hold of jobs whose steps are walked and told in slices, by recounting. For tests, with `invariants`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stepward.server.core import advance, compensation, keys, rows, slice_rows, spreads, states
from stepward.server.core.rows import JOB_STATES_FINAL, JobState, PassKind, StepState
from stepward.server.core.states import Mover

if TYPE_CHECKING:
    from collections.abc import Iterator

    from stepward.server.core.reader import Reader
    from stepward.server.core.rows import DefinitionBody, Progress, Step
    from stepward.server.core.slice_rows import Pass, Purge, Spread

_DONE = (StepState.SUCCEEDED, StepState.SKIPPED)


def violations(
    reader: Reader, job_id: str, progress: Progress, body: DefinitionBody, steps: dict[int, Step]
) -> Iterator[str]:
    """What is wrong with the passes and spreads of a job, and with what they have counted."""
    pass_ = reader.get(keys.job_pass(job_id))
    assert pass_ is None or isinstance(pass_, slice_rows.Pass)
    spreading = _spreads(reader, job_id)
    if pass_ is not None:
        yield from _pass_violations(reader, job_id, pass_, steps)
    for source, spread in spreading.items():
        if reader.get(keys.spread_timer(spread.timer_at_led_ms, job_id, source)) is None:
            yield f"the spread of {source} has no timer"
        if spread.told >= len(_told(body, source, undo=spread.undo)):
            yield f"the spread of {source} has nobody left to tell"
    # A job that was paused, or went on, may end before that walk has; then the walk is forgotten.
    walked = pass_ is not None and pass_.kind not in (PassKind.PAUSE, PassKind.RESUME)
    if progress.state in JOB_STATES_FINAL and (walked or spreading):
        yield f"{progress.state.name}, but its steps are still walked or told"
    if not advance.is_given_up(progress):
        yield from _join_violations(reader, job_id, body, steps, spreading)
    if progress.undoing and not progress.terminating and (pass_ is None or pass_.kind is not PassKind.UNDO_COUNT):
        yield from _undo_violations(progress, body, steps, pass_, spreading)


def leftovers(reader: Reader, jobs: set[str]) -> Iterator[str]:
    """What is there of jobs that are not: only what is still being removed. Every ended job will be removed, once."""
    going: dict[str, list[Purge]] = {}
    for key in reader.scan(keys.PURGE):
        row = reader.get(key)
        assert isinstance(row, slice_rows.Purge)
        going.setdefault(keys.parse_purge(key)[1], []).append(row)
    hidden = {job_id for job_id, purges in going.items() if any(purge.hidden for purge in purges)}
    if hidden & jobs:
        yield f"jobs {sorted(hidden & jobs)} have vanished, but are there"
    for kind in (keys.STEP, keys.OUTPUT, keys.STEP_PROGRESS, keys.JOIN, keys.SPREAD, keys.HISTORY):
        for key in reader.scan(kind):
            job_id = key[1 : key.index(b"/")].decode()
            if job_id not in jobs and job_id not in hidden:
                yield f"row {key!r} of job {job_id}, which is not there"
    for kind in (keys.PROGRESS, keys.PASS):
        for key in reader.scan(kind):
            if key[1:].decode() not in jobs:
                yield f"row {key!r} of a job that is not there"
    for key in reader.scan(keys.IDEMPOTENCY):
        named = reader.get(key)
        assert isinstance(named, rows.IdempotencyKey)
        if named.job_id not in jobs:
            yield f"an idempotency key names job {named.job_id}, which is not there"
    for job_id in jobs:
        progress = reader.get(keys.progress(job_id))
        ended = isinstance(progress, rows.Progress) and progress.state in JOB_STATES_FINAL
        if len(going.get(job_id, ())) != ended:
            yield f"job {job_id} has ended: {ended}; it will be removed {len(going.get(job_id, ()))} times"


def _pass_violations(reader: Reader, job_id: str, pass_: Pass, steps: dict[int, Step]) -> Iterator[str]:
    if reader.get(keys.pass_timer(pass_.timer_at_led_ms, job_id)) is None:
        yield f"{pass_.kind.name} has no timer"
    if not any(ordinal > pass_.after for ordinal in steps):
        yield f"{pass_.kind.name} has come to step {pass_.after}, behind which there is none"


def _spreads(reader: Reader, job_id: str) -> dict[int, Spread]:
    found: dict[int, Spread] = {}
    for key in reader.scan(keys.spreads(job_id)):
        row = reader.get(key)
        assert isinstance(row, slice_rows.Spread)
        found[keys.parse_subject(key[1:])[1]] = row
    return found


def _told(body: DefinitionBody, source: int, *, undo: bool) -> tuple[int, ...]:
    """Those whom an outcome is told, in order."""
    if source == spreads.SUBMISSION:
        return tuple(ordinal for ordinal, spec in enumerate(body.steps) if not spec.needs)
    return body.steps[source].needs if undo else body.steps[source].dependents


def _untold(body: DefinitionBody, spreading: dict[int, Spread], *, undo: bool) -> dict[int, set[int]]:
    """By source, who still has to be told of it."""
    return {
        source: set(_told(body, source, undo=undo)[spread.told :])
        for source, spread in spreading.items()
        if spread.undo is undo
    }


def _join_violations(
    reader: Reader, job_id: str, body: DefinitionBody, steps: dict[int, Step], spreading: dict[int, Spread]
) -> Iterator[str]:
    """A step begins exactly when it has been told of each of its needs, and a join counts those that are open."""
    untold = _untold(body, spreading, undo=False)
    for ordinal, spec in enumerate(body.steps):
        sources = spec.needs or (spreads.SUBMISSION,)
        met = sum(
            (source == spreads.SUBMISSION or (source in steps and steps[source].state in _DONE))
            and ordinal not in untold.get(source, ())
            for source in sources
        )
        if (ordinal in steps) != (met == len(sources)):
            yield f"step {spec.id} has been told of {met} of {len(sources)}; has begun: {ordinal in steps}"
        join = reader.get(keys.join(job_id, ordinal))
        remaining = join.remaining if isinstance(join, rows.Join) else len(sources)
        if ordinal not in steps and remaining != len(sources) - met:
            yield f"the join of {spec.id} waits for {remaining}, but {len(sources) - met} are open"
        if ordinal in steps and join is not None:
            yield f"step {spec.id} has begun, but has a join"


def _undo_violations(
    progress: Progress, body: DefinitionBody, steps: dict[int, Step], pass_: Pass | None, spreading: dict[int, Spread]
) -> Iterator[str]:
    """What each undo waits for, how many have not ended, and what remains done."""
    untold = _untold(body, spreading, undo=True)
    opened = steps.keys() if pass_ is None or pass_.kind is not PassKind.UNDO_OPEN else range(pass_.after + 1)
    ended: set[int] = set()
    for ordinal, step in steps.items():
        is_last = not any(dependent in steps for dependent in body.steps[ordinal].dependents)
        moves = states.MOVERS[step.state] is not Mover.NOTHING
        if not (moves or step.undo_waits or (is_last and ordinal not in opened)):
            ended.add(ordinal)
    for ordinal, step in steps.items():
        dependents = [other for other in body.steps[ordinal].dependents if other in steps]
        waits = sum(other not in ended or ordinal in untold.get(other, ()) for other in dependents)
        if step.undo_waits != waits:
            yield f"the undo of {body.steps[ordinal].id} waits for {step.undo_waits}, but {waits} are open"
    if progress.undo_open != len(steps) - len(ended):
        yield f"undo_open is {progress.undo_open}, but {len(steps) - len(ended)} have not ended"
    remaining = sum(compensation.needs_undo(steps[ordinal]) for ordinal in ended)
    if progress.remaining != remaining:
        yield f"remaining is {progress.remaining}, but {remaining} remain done"
    if progress.state in JOB_STATES_FINAL and (progress.state is JobState.FAILED) != (remaining > 0):
        yield f"{progress.state.name}, and {remaining} remain done"
