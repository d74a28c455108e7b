"""Walks over the steps of a job, a slice in each batch.

What concerns every step of a job is a pass: its steps that have begun are visited in their order. A job with no more
of them than a slice is walked at once, in the batch that begins the pass, and no row tells of it. Of a larger one the
row `slice_rows.Pass` says how far the walk has come, and its timer, due at once, lets the next sweep go on.

A pass has a visit, which is given one step as it is now, and an end. Steps may move while the walk is under way, so a
visit judges what it finds, and whoever depends on the walk asks `reached`.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Final, NamedTuple, assert_never

from msgspec.structs import replace

from stepward.server.core import compensation, keys, pauses, rows, slice_rows, termination
from stepward.server.core.batch import Cause
from stepward.server.core.rows import PassKind

if TYPE_CHECKING:
    from collections.abc import Callable

    from stepward.server.core.batch import Batch
    from stepward.server.core.rows import Step
    from stepward.server.core.slice_rows import Pass

# Which pass may be replaced while it is under way, and by which. A pass that is not named here runs to its end; what
# it leads to begins there.
#
#   STOP        -> UNDO_COUNT -> UNDO_OPEN, each by the end of the one before, when nothing can act any more
#   UNDO_RETRY  begins on request, while no other is under way
#   PAUSE, RESUME  give way to each other, and to STOP
#   TERMINATE      goes over everything
_ENDS: Final = frozenset({PassKind.TERMINATE})
MAY_REPLACE: Final[dict[PassKind, frozenset[PassKind]]] = {
    PassKind.STOP: _ENDS,
    PassKind.UNDO_COUNT: _ENDS,
    PassKind.UNDO_OPEN: _ENDS,
    PassKind.UNDO_RETRY: _ENDS,
    PassKind.PAUSE: _ENDS | {PassKind.RESUME, PassKind.STOP},
    PassKind.RESUME: _ENDS | {PassKind.PAUSE, PassKind.STOP},
    PassKind.TERMINATE: frozenset(),
}


class Walk(NamedTuple):
    """What a pass does: with each step (job, position, step), and when it has come to the end."""

    visit: Callable[[Batch, str, int, Step], None]
    ended: Callable[[Batch, str], None] | None = None


def _walk(kind: PassKind) -> Walk:
    match kind:
        case PassKind.STOP:
            return Walk(compensation.stop, compensation.all_stopped)
        case PassKind.UNDO_COUNT:
            return Walk(compensation.count_waits, compensation.all_counted)
        case PassKind.UNDO_OPEN:
            return Walk(compensation.open_last)
        case PassKind.UNDO_RETRY:
            return Walk(compensation.retry_undo)
        case PassKind.PAUSE:
            return Walk(pauses.hold_back)
        case PassKind.RESUME:
            return Walk(pauses.let_go)
        case PassKind.TERMINATE:
            return Walk(termination.end_step, termination.all_ended)
        case _:
            assert_never(kind)


def begin(batch: Batch, job_id: str, kind: PassKind) -> None:
    """Walk over the steps of a job: over the first slice now, over the rest in the batches that follow."""
    before = under_way(batch, job_id)
    if before is not None:
        assert kind in MAY_REPLACE[before.kind], (job_id, before.kind, kind)
        _forget(batch, job_id, before)
    _go_on(batch, job_id, slice_rows.Pass(kind, -1, 0, *batch.cause))


def go_on(batch: Batch, job_id: str) -> None:
    """The timer of a pass is due: walk over the next slice."""
    pass_ = batch.draft.require(keys.job_pass(job_id), slice_rows.Pass)
    _forget(batch, job_id, pass_)
    # One that was paused, or went on, may have ended before the walk had come to its last steps.
    if batch.progress(job_id).state not in rows.JOB_STATES_FINAL:
        sweep = batch.cause
        batch.cause = Cause(pass_.by, pass_.actor, pass_.reason)
        try:
            _go_on(batch, job_id, pass_)
        finally:
            batch.cause = sweep


def under_way(batch: Batch, job_id: str) -> Pass | None:
    """The pass of a job that has not come to its end."""
    return batch.draft.read(keys.job_pass(job_id), slice_rows.Pass)


def end(batch: Batch, job_id: str) -> None:
    """A job has ended: whatever step its walk has not come to has nothing left to undo."""
    pass_ = under_way(batch, job_id)
    if pass_ is not None:
        _forget(batch, job_id, pass_)


def reached(batch: Batch, job_id: str, ordinal: int) -> bool:
    """Whether a step has been visited by the pass that is under way. True when there is none."""
    pass_ = under_way(batch, job_id)
    return pass_ is None or ordinal <= pass_.after


def _forget(batch: Batch, job_id: str, pass_: Pass) -> None:
    batch.draft.delete(keys.pass_timer(pass_.timer_at_led_ms, job_id))
    batch.draft.delete(keys.job_pass(job_id))


def _go_on(batch: Batch, job_id: str, pass_: Pass) -> None:
    """Visit a slice of the steps. One is visited even in a batch that is full, so that every walk comes to its end."""
    walk = _walk(pass_.kind)
    after = b"" if pass_.after < 0 else keys.step(job_id, pass_.after)
    slice_max = batch.limits.activation_slice
    found = list(islice(batch.draft.keys(keys.steps(job_id), after=after), slice_max + 1))
    for number, key in enumerate(found):
        if number == slice_max or (number and batch.full):
            if batch.progress(job_id).state not in rows.JOB_STATES_FINAL:
                _wait(batch, job_id, replace(pass_, after=keys.parse_subject(found[number - 1][1:])[1]))
            return
        ordinal = keys.parse_subject(key[1:])[1]
        outer, batch.place = batch.place, ordinal
        try:
            walk.visit(batch, job_id, ordinal, batch.draft.require(key, rows.Step))
        finally:
            batch.place = outer
    if walk.ended is not None:
        walk.ended(batch, job_id)


def _wait(batch: Batch, job_id: str, pass_: Pass) -> None:
    """Leave the rest to the next sweep."""
    led_ms = batch.moment.led_ms
    batch.draft.put(keys.job_pass(job_id), replace(pass_, timer_at_led_ms=led_ms))
    batch.draft.put(keys.pass_timer(led_ms, job_id), rows.Timer())
    batch.unfinished = True
