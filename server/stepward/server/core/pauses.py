"""How a paused job holds back what is ready, and lets it go: two walks over its steps.

A step that is held back stands in no lane and has no timer. Until the walk has come to it, a ready step of a paused job
is still in its lane, where offers pass it over.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from stepward.server.core import advance, states
from stepward.server.core.batch import NO_TIMER
from stepward.server.core.rows import Clock

if TYPE_CHECKING:
    from stepward.server.core.batch import Batch
    from stepward.server.core.rows import Step


def hold_back(batch: Batch, job_id: str, ordinal: int, step: Step) -> None:
    """Visit of PAUSE. A step whose time would be over before the walk has come to it is held back then."""
    if step.state in states.HELD_BACK_IN_PAUSED and not is_held_back(step):
        advance.unready(batch, job_id, ordinal, step)
        batch.move(job_id, ordinal, step, step.state, NO_TIMER)


def let_go(batch: Batch, job_id: str, ordinal: int, step: Step) -> None:
    """Visit of RESUME: what was held back may be offered, and has its whole time again, as if it became ready now."""
    if is_held_back(step):
        step = batch.keep(job_id, ordinal, step, ready_log_ms=-1)
        advance.make_ready(batch, job_id, ordinal, step, states.phase(step.state))


def is_held_back(step: Step) -> bool:
    """Whether a step is ready and in no lane."""
    return step.state in states.HELD_BACK_IN_PAUSED and step.timer_clock is Clock.NONE
