"""How an outcome reaches the steps that wait for it: a success its dependents, the end of an undo the needs.

Almost always these are few, and are told in the batch of the outcome. Of a wide step a slice is told; the row
`slice_rows.Spread` says how far that is, and its timer, due at once, lets the next sweep go on. So work per outcome is
in the step's own degree, and no batch grows with the width of a definition.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from stepward.server.core import advance, compensation, keys, rows, slice_rows

if TYPE_CHECKING:
    from collections.abc import Sequence

    from stepward.server.core.batch import Batch
    from stepward.server.core.slice_rows import Spread

# The source of the steps that need nothing: the submission itself. Behind every position.
SUBMISSION: Final = 0xFFFF


def begin(batch: Batch, job_id: str, source: int) -> None:
    """Tell the dependents of a step that it has succeeded, or the first steps that their job was submitted."""
    _tell_dependents(batch, job_id, source, 0)


def begin_later(batch: Batch, job_id: str, source: int) -> None:
    """Leave it to the next sweep to tell the dependents of a step, where a chain of such steps would have no bound."""
    if dependents(batch, job_id, source):
        _wait(batch, job_id, source, slice_rows.Spread(undo=False, told=0))


def begin_undo(batch: Batch, job_id: str, source: int) -> None:
    """Tell the needs of a step that its undo has ended."""
    _tell_needs(batch, job_id, source, 0)


def go_on(batch: Batch, job_id: str, source: int) -> None:
    """The timer of a spread is due: tell the next slice."""
    spread = batch.draft.require(keys.spread(job_id, source), slice_rows.Spread)
    _forget(batch, job_id, source, spread)
    if not spread.undo and advance.is_given_up(batch.progress(job_id)):
        return
    tell = _tell_needs if spread.undo else _tell_dependents
    tell(batch, job_id, source, spread.told)


def end(batch: Batch, job_id: str) -> None:
    """A job has ended: whoever has not been told need not be."""
    for key in list(batch.draft.keys(keys.spreads(job_id))):
        _forget(batch, job_id, keys.parse_subject(key[1:])[1], batch.draft.require(key, slice_rows.Spread))


def dependents(batch: Batch, job_id: str, source: int) -> Sequence[int]:
    """Who waits for the success of a step, or for the submission."""
    return batch.places(job_id).roots if source == SUBMISSION else batch.spec(job_id, source).dependents


def _tell_dependents(batch: Batch, job_id: str, source: int, told: int) -> None:
    """Tell a slice of the dependents. Of a job that is given up the rest never begins."""
    waiting = dependents(batch, job_id, source)
    least, most = told + batch.limits.told_least, told + batch.limits.activation_slice
    outer = batch.place
    try:
        for place in range(told, len(waiting)):
            # Whoever begins has just looked.
            if place and advance.is_given_up(batch.progress(job_id)):
                return
            if place >= most or (place >= least and batch.full):
                _wait(batch, job_id, source, slice_rows.Spread(undo=False, told=place))
                return
            batch.place = place
            advance.need_met(batch, job_id, waiting[place])
    finally:
        batch.place = outer


def _tell_needs(batch: Batch, job_id: str, source: int, told: int) -> None:
    """Tell a slice of the needs, and of the needs of those that have nothing to undo, and so on.

    A list rather than recursion, and one bound for all of it: such chains may be as long as a definition.
    """
    if batch.progress(job_id).terminating:
        return
    steps = batch.body(job_id).steps
    left = batch.limits.activation_slice
    ended = [(source, told)]
    outer = batch.place
    while ended:
        ordinal, place = ended.pop()
        needs = steps[ordinal].needs
        while place < len(needs) and left > 0:
            batch.place = place
            try:
                if compensation.dependent_undone(batch, job_id, needs[place]):
                    ended.append((needs[place], 0))
            finally:
                batch.place = outer
            place += 1
            left = 0 if batch.full else left - 1
        if place < len(needs):
            _wait(batch, job_id, ordinal, slice_rows.Spread(undo=True, told=place))


def _forget(batch: Batch, job_id: str, source: int, spread: Spread) -> None:
    batch.draft.delete(keys.spread_timer(spread.timer_at_led_ms, job_id, source))
    batch.draft.delete(keys.spread(job_id, source))


def _wait(batch: Batch, job_id: str, source: int, spread: Spread) -> None:
    """Leave the rest to the next sweep."""
    before = batch.draft.read(keys.spread(job_id, source), slice_rows.Spread)
    if before is not None:
        # What its success was still to be told of, when the job began to be undone, matters no more.
        _forget(batch, job_id, source, before)
    led_ms = batch.moment.led_ms
    batch.draft.put(keys.spread(job_id, source), slice_rows.Spread(spread.undo, spread.told, led_ms))
    batch.draft.put(keys.spread_timer(led_ms, job_id, source), rows.Timer())
    batch.unfinished = True
