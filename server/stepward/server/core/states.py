"""The state tables: what each state may become, and what moves it on.

Every state that is not final has exactly one timer of its own, or is moved by a named other row, or waits for a
person. A test holds these tables against the enums, so that a new state without a way out fails the build.
"""

from __future__ import annotations

from enum import Enum
from typing import Final, NamedTuple

from stepward.server.core.rows import EventType, StepState

S = StepState


class Mover(Enum):
    """What moves a state on when nothing is reported."""

    TIMER = "its own timer"
    NEEDS = "the steps that it needs"
    DEPENDENTS = "the undos of its dependents"
    PERSON = "a person"
    NOTHING = "nothing: it is final"


# What moves a step while its job runs, and while its job is being undone.
MOVERS: Final[dict[StepState, Mover]] = {
    S.PENDING: Mover.NEEDS,
    S.READY: Mover.TIMER,
    S.OFFERED: Mover.TIMER,
    S.RUNNING: Mover.TIMER,
    S.RETRY_WAIT: Mover.TIMER,
    # Reached only on the way to an undo: its fence is its timer, then its dependents move it.
    S.OUTCOME_UNKNOWN: Mover.TIMER,
    S.ESCALATED: Mover.PERSON,
    S.SUCCEEDED: Mover.NOTHING,
    S.FAILED: Mover.NOTHING,
    S.SKIPPED: Mover.NOTHING,
    S.CANCELLED: Mover.NOTHING,
    S.UNDO_READY: Mover.TIMER,
    S.UNDO_OFFERED: Mover.TIMER,
    S.UNDO_RUNNING: Mover.TIMER,
    S.UNDO_RETRY_WAIT: Mover.TIMER,
    S.UNDO_OUTCOME_UNKNOWN: Mover.PERSON,
    S.UNDO_FAILED: Mover.PERSON,
    S.COMPENSATED: Mover.NOTHING,
    S.VERIFY_READY: Mover.TIMER,
    S.VERIFY_OFFERED: Mover.TIMER,
    S.VERIFY_RUNNING: Mover.TIMER,
    S.VERIFY_RETRY_WAIT: Mover.TIMER,
    S.UNDO_SKIPPED: Mover.NOTHING,
}

# States that wait for a person; a job counts its steps in them.
WAIT_FOR_PERSON: Final = frozenset(state for state, mover in MOVERS.items() if mover is Mover.PERSON)

_ATTEMPT_ENDS: Final = frozenset(
    {
        S.READY,
        S.RETRY_WAIT,
        S.OUTCOME_UNKNOWN,
        S.ESCALATED,
        S.SUCCEEDED,
        S.FAILED,
        S.CANCELLED,
        S.SKIPPED,
    }
)
_UNDO_BEGINS: Final = frozenset({S.UNDO_READY, S.UNDO_RETRY_WAIT})
# By a person: undone by other means, or left as it is.
_UNDO_PASSED_OVER: Final = frozenset({S.COMPENSATED, S.UNDO_SKIPPED})
_UNDO_ENDS: Final = _UNDO_PASSED_OVER | _UNDO_BEGINS | {S.UNDO_FAILED}

# What a step may become. A move to the same state keeps it and may change its timer.
MOVES: Final[dict[StepState, frozenset[StepState]]] = {
    S.PENDING: frozenset({S.READY, S.FAILED}),
    S.READY: frozenset({S.OFFERED, S.FAILED, S.CANCELLED, S.OUTCOME_UNKNOWN, S.SKIPPED}),
    S.OFFERED: _ATTEMPT_ENDS | {S.RUNNING},
    S.RUNNING: _ATTEMPT_ENDS,
    S.RETRY_WAIT: frozenset({S.READY, S.OUTCOME_UNKNOWN, S.CANCELLED, S.FAILED, S.SKIPPED}),
    S.OUTCOME_UNKNOWN: _UNDO_BEGINS | {S.FAILED, S.ESCALATED},
    S.ESCALATED: frozenset({S.OUTCOME_UNKNOWN, S.RETRY_WAIT, S.SKIPPED}),
    S.SUCCEEDED: _UNDO_BEGINS,
    S.FAILED: _UNDO_BEGINS,
    # An attempt that was at work when its step was passed over may have happened.
    S.SKIPPED: _UNDO_BEGINS,
    S.CANCELLED: _UNDO_BEGINS,
    S.UNDO_READY: _UNDO_PASSED_OVER | {S.UNDO_OFFERED, S.UNDO_FAILED},
    S.UNDO_OFFERED: _UNDO_ENDS | {S.UNDO_RUNNING},
    S.UNDO_RUNNING: _UNDO_ENDS,
    S.UNDO_RETRY_WAIT: _UNDO_PASSED_OVER | {S.UNDO_READY, S.UNDO_FAILED},
    S.UNDO_OUTCOME_UNKNOWN: _UNDO_PASSED_OVER | _UNDO_BEGINS,
    S.UNDO_FAILED: _UNDO_PASSED_OVER | _UNDO_BEGINS,
    S.COMPENSATED: frozenset(),
    S.VERIFY_READY: frozenset(),
    S.VERIFY_OFFERED: frozenset(),
    S.VERIFY_RUNNING: frozenset(),
    S.VERIFY_RETRY_WAIT: frozenset(),
    S.UNDO_SKIPPED: frozenset(),
}


class Phase(NamedTuple):
    """The states and events of one direction: the action of a step, or its undo. The rules are the same for both."""

    undo: bool
    ready: StepState
    offered: StepState
    running: StepState
    retry_wait: StepState
    became_ready: EventType
    was_offered: EventType
    offer_resent: EventType
    offer_withdrawn: EventType
    started: EventType
    handed_back: EventType
    attempt_failed: EventType
    attempt_timed_out: EventType
    attempt_lost: EventType
    attempt_unknown: EventType
    attempt_stopped: EventType
    retry_scheduled: EventType


FORWARD: Final = Phase(
    undo=False,
    ready=S.READY,
    offered=S.OFFERED,
    running=S.RUNNING,
    retry_wait=S.RETRY_WAIT,
    became_ready=EventType.StepReady,
    was_offered=EventType.StepOffered,
    offer_resent=EventType.StepOfferResent,
    offer_withdrawn=EventType.StepOfferWithdrawn,
    started=EventType.StepStarted,
    handed_back=EventType.StepHandedBack,
    attempt_failed=EventType.StepAttemptFailed,
    attempt_timed_out=EventType.StepAttemptTimedOut,
    attempt_lost=EventType.StepAttemptLost,
    attempt_unknown=EventType.StepAttemptUnknown,
    attempt_stopped=EventType.StepAttemptStopped,
    retry_scheduled=EventType.StepRetryScheduled,
)
UNDO: Final = Phase(
    undo=True,
    ready=S.UNDO_READY,
    offered=S.UNDO_OFFERED,
    running=S.UNDO_RUNNING,
    retry_wait=S.UNDO_RETRY_WAIT,
    became_ready=EventType.UndoReady,
    was_offered=EventType.UndoOffered,
    offer_resent=EventType.UndoOfferResent,
    offer_withdrawn=EventType.UndoOfferWithdrawn,
    started=EventType.UndoStarted,
    handed_back=EventType.UndoHandedBack,
    attempt_failed=EventType.UndoAttemptFailed,
    attempt_timed_out=EventType.UndoAttemptTimedOut,
    attempt_lost=EventType.UndoAttemptLost,
    attempt_unknown=EventType.UndoAttemptUnknown,
    attempt_stopped=EventType.UndoAttemptStopped,
    retry_scheduled=EventType.UndoRetryScheduled,
)

# An undo has begun and has not undone the step.
UNDO_OPEN: Final = frozenset(
    {
        S.UNDO_READY,
        S.UNDO_OFFERED,
        S.UNDO_RUNNING,
        S.UNDO_RETRY_WAIT,
        S.UNDO_OUTCOME_UNKNOWN,
        S.UNDO_FAILED,
        S.UNDO_SKIPPED,
    }
)
HELD: Final = frozenset({S.OFFERED, S.RUNNING, S.UNDO_OFFERED, S.UNDO_RUNNING})


def phase(state: StepState) -> Phase:
    """The direction that a state belongs to."""
    return UNDO if state >= S.UNDO_READY else FORWARD
