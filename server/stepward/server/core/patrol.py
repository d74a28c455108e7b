"""Looks for jobs that nothing will ever move: no timer, no walk, nobody to tell, and no person that is asked.

A correct run never meets one; a bug, or old rows, may make one, and it would stand in RUNNING for ever. So each beat
looks at some of the jobs that have not ended, in turn, and what it finds becomes a person's: rows that are known to be
wrong are nothing that a rule should go on from. To cancel such a job walks over its steps as they are, whatever its
counters say.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Final

from stepward.server.core import incidents, keys, passes, remediation, remedies, rows, states
from stepward.server.core.parts import Trouble
from stepward.server.core.remedies import Facts, RemedyPolicy
from stepward.server.core.rows import JOB_STATES_FINAL, Clock, EventType, Failure, JobState, Patrol

if TYPE_CHECKING:
    from collections.abc import Iterator

    from stepward.server.core.batch import Batch
    from stepward.server.core.rows import Progress, Step

# Kind of the failure of a job that was found.
STUCK: Final = "STUCK"


def walk(batch: Batch, patrol: Patrol) -> tuple[Patrol, tuple[str, ...]]:
    """Look at some jobs, from where the last beat came to. Where that is now, and the jobs that were found."""
    found: list[str] = []
    left = batch.limits.patrol_steps_max
    if patrol.after >= 0:
        patrol, left = _try(batch, patrol, left, found)
    places = 0
    for place, is_job in islice(_places(batch, patrol.job), batch.limits.patrol_jobs_max):
        if patrol.after >= 0 or left <= 0:
            return patrol, tuple(found)
        places += 1
        if is_job:
            patrol, left = _try(batch, Patrol(place), left, found)
        else:
            patrol = Patrol(place)
    ended = places < batch.limits.patrol_jobs_max and patrol.after < 0
    return Patrol() if ended else patrol, tuple(found)


def _places(batch: Batch, after: bytes) -> Iterator[tuple[bytes, bool]]:
    """Index keys of jobs that have not ended, and for each namespace the place behind all of its jobs."""
    while True:
        for key in batch.draft.keys(keys.JOB_INDEX, after=after):
            namespace, state, _ = keys.parse_job_index(key)
            if state in JOB_STATES_FINAL:
                after = keys.behind_jobs(namespace)
                yield after, False
                break
            yield key, True
        else:
            return


def _try(batch: Batch, patrol: Patrol, left: int, found: list[str]) -> tuple[Patrol, int]:
    """Look at a job whose rows may be such that looking fails: that is told, and the walk goes on behind it."""
    savepoint = batch.draft.savepoint()
    try:
        return _look(batch, patrol, left, found)
    except Exception as error:  # noqa: BLE001 - rows that no rule expects are what this looks for
        batch.draft.rollback(savepoint)
        batch.failures.append((patrol.job, error))
        return Patrol(patrol.job), left - 1


def _look(batch: Batch, patrol: Patrol, left: int, found: list[str]) -> tuple[Patrol, int]:
    """Look at one job, at no more than `left` of its steps. Where the walk is now, and how many steps are left."""
    job_id, done = keys.parse_job_index(patrol.job)[2], Patrol(patrol.job)
    progress = batch.draft.read(keys.progress(job_id), rows.Progress)
    if progress is None or progress.state in JOB_STATES_FINAL or _is_moved(batch, job_id, progress):
        return done, left - 1
    if patrol.after >= 0 and progress.revision != patrol.revision:
        # Something has happened to it since its first steps were looked at, so it moves.
        return done, left - 1
    after = b"" if patrol.after < 0 else keys.step(job_id, patrol.after)
    steps = list(islice(batch.draft.keys(keys.steps(job_id), after=after), left + 1))
    for looked, key in enumerate(steps[:left]):
        ordinal = keys.parse_subject(key[1:])[1]
        if _is_due(batch, job_id, ordinal, batch.draft.require(key, rows.Step)):
            return done, left - looked - 1
    if len(steps) > left:
        return Patrol(patrol.job, keys.parse_subject(steps[left - 1][1:])[1], progress.revision), 0
    _give_to_a_person(batch, job_id, progress)
    found.append(job_id)
    return done, left - len(steps) - 1


def _is_moved(batch: Batch, job_id: str, progress: Progress) -> bool:
    """Whether a person is asked, or a walk over the steps or an outcome that is being told will go on."""
    if progress.state is JobState.PAUSED:
        return True
    if progress.state is JobState.ESCALATED and (progress.waiting or _is_stuck(progress)):
        return True
    pass_ = passes.under_way(batch, job_id)
    if pass_ is not None and batch.draft.get(keys.pass_timer(pass_.timer_at_led_ms, job_id)) is not None:
        return True
    return next(batch.draft.keys(keys.spreads(job_id)), None) is not None


def _is_stuck(progress: Progress) -> bool:
    return progress.failure is not None and progress.failure.kind == STUCK


def _is_due(batch: Batch, job_id: str, ordinal: int, step: Step) -> bool:
    """Whether a timer will look at a step again. Each that is ready, at work or waits has one."""
    if step.timer_clock is Clock.NONE:
        return False
    return batch.draft.get(states.timer_key(job_id, ordinal, step)) is not None


def _give_to_a_person(batch: Batch, job_id: str, progress: Progress) -> None:
    open_ = progress.undo_open if progress.undoing else progress.steps_open
    what = "undos have not ended" if progress.undoing else "steps have not succeeded"
    # A cancel of what is being undone begins nothing anew: how far that was is what nobody knows any more.
    verb = "terminate" if progress.undoing else "cancel or terminate"
    text = (
        f"{open_} {what}, but none is ready, at work, due or waits for a person ({progress.state.name}); this is a bug "
        f"of the server: look at the job's history, then {verb} the job"
    )
    batch.event(job_id, EventType.JobStuck, detail=text)
    failure = Failure(STUCK, text, retryable=False)
    decision = remedies.decide(Trouble.STUCK, RemedyPolicy(), Facts(None))
    remediation.record(batch, job_id, -1, decision, failure)
    # One that is late may wait for a person already.
    number = progress.incident or incidents.opened(
        batch, job_id, -1, decision.trouble, proposed=decision.proposed, failure=failure
    )
    batch.put_progress(job_id, progress, state=JobState.ESCALATED, failure=failure, incident=number)
