"""The state tables: what each state may become, and what moves it on.

Every state that is not final has exactly one timer of its own, or is moved by a named other row, or waits for a
person. A test holds these tables against the enums, so that a new state without a way out fails the build.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Final, NamedTuple

from stepward.server.core import keys
from stepward.server.core.keys import Duty
from stepward.server.core.rows import EventType, JobState, Part, StepState

if TYPE_CHECKING:
    from stepward.server.core.rows import Step

S = StepState


class Mover(Enum):
    """What moves a state on when nothing is reported."""

    TIMER = "its own timer"
    NEEDS = "the steps that it needs"
    DEPENDENTS = "the undos of its dependents"
    PERSON = "a person"
    NOTHING = "nothing: it is final"


# What moves a step while its job runs, and while its job is being undone. `mover` knows those of a paused job, too.
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

# What a paused job holds back: in no lane and without a timer, until a person lets the job go on.
HELD_BACK_IN_PAUSED: Final = frozenset({S.READY, S.VERIFY_READY})


def mover(state: StepState, job_state: JobState) -> Mover:
    """What moves a step on, given what its job does."""
    if job_state is JobState.PAUSED and state in HELD_BACK_IN_PAUSED:
        return Mover.PERSON
    return MOVERS[state]


# States in which a timer that falls due is trouble: nobody took a step, or ended an attempt in time.
_JUDGED: Final = frozenset(
    {
        S.READY,
        S.RUNNING,
        S.UNDO_READY,
        S.UNDO_RUNNING,
        S.VERIFY_READY,
        S.VERIFY_RUNNING,
    }
)


def duty(step: Step) -> Duty:
    """What the timer of a step is for.

    What follows the end of a wait, or an offer that nobody answered, is most often no remedy. It stands with trouble
    from when it turns out to be one that the brake holds.
    """
    return Duty.JUDGE if step.held or step.state in _JUDGED else Duty.WAKE


def timer_key(job_id: str, ordinal: int, step: Step) -> bytes:
    """Key of the one timer of a step that has one."""
    return keys.step_timer(step.timer_clock, duty(step), step.timer_at_ms, job_id, ordinal)


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
_UNDO_ENDS: Final = _UNDO_PASSED_OVER | _UNDO_BEGINS | {S.UNDO_FAILED, S.UNDO_OUTCOME_UNKNOWN}
# It is asked what became of an attempt, at once or when no other can still act.
_ASK: Final = frozenset({S.VERIFY_READY, S.VERIFY_RETRY_WAIT})
# What follows the answer, or that there is none; or the job or a person needs it no more.
_ANSWERED: Final = _UNDO_BEGINS | {
    S.RETRY_WAIT,
    S.OUTCOME_UNKNOWN,
    S.SUCCEEDED,
    S.FAILED,
    S.CANCELLED,
    S.SKIPPED,
    S.ESCALATED,
}

# What a step may become. A move to the same state keeps it and may change its timer.
MOVES: Final[dict[StepState, frozenset[StepState]]] = {
    S.PENDING: frozenset({S.READY, S.FAILED, S.ESCALATED, S.SKIPPED}),
    S.READY: frozenset({S.OFFERED, S.FAILED, S.CANCELLED, S.OUTCOME_UNKNOWN, S.SKIPPED, S.ESCALATED}),
    S.OFFERED: _ATTEMPT_ENDS | _ASK | {S.RUNNING},
    S.RUNNING: _ATTEMPT_ENDS | _ASK,
    S.RETRY_WAIT: frozenset({S.READY, S.OUTCOME_UNKNOWN, S.CANCELLED, S.FAILED, S.SKIPPED, S.ESCALATED}),
    S.OUTCOME_UNKNOWN: _UNDO_BEGINS | _ASK | {S.FAILED, S.ESCALATED},
    S.ESCALATED: frozenset({S.OUTCOME_UNKNOWN, S.RETRY_WAIT, S.SKIPPED, S.FAILED}),
    S.SUCCEEDED: _UNDO_BEGINS,
    S.FAILED: _UNDO_BEGINS | _ASK,
    # An attempt that was at work when its step was passed over may have happened.
    S.SKIPPED: _UNDO_BEGINS | _ASK,
    S.CANCELLED: _UNDO_BEGINS,
    S.UNDO_READY: _UNDO_PASSED_OVER | {S.UNDO_OFFERED, S.UNDO_FAILED},
    S.UNDO_OFFERED: _UNDO_ENDS | {S.UNDO_RUNNING},
    S.UNDO_RUNNING: _UNDO_ENDS,
    S.UNDO_RETRY_WAIT: _UNDO_PASSED_OVER | {S.UNDO_READY, S.UNDO_FAILED},
    S.UNDO_OUTCOME_UNKNOWN: _UNDO_PASSED_OVER | _UNDO_BEGINS,
    S.UNDO_FAILED: _UNDO_PASSED_OVER | _UNDO_BEGINS,
    S.COMPENSATED: frozenset(),
    S.VERIFY_READY: _ANSWERED | {S.VERIFY_OFFERED},
    S.VERIFY_OFFERED: _ANSWERED | _ASK | {S.VERIFY_RUNNING},
    S.VERIFY_RUNNING: _ANSWERED | _ASK,
    S.VERIFY_RETRY_WAIT: _ANSWERED | _ASK,
    S.UNDO_SKIPPED: frozenset(),
}


class Phase(NamedTuple):
    """The states and events of one part of a step. The rules are the same for all of them."""

    part: Part
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

    @property
    def undo(self) -> bool:
        """Whether it is the undo that is at work."""
        return self.part is Part.UNDO


FORWARD: Final = Phase(
    part=Part.ACTION,
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
    part=Part.UNDO,
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
VERIFY: Final = Phase(
    part=Part.VERIFY,
    ready=S.VERIFY_READY,
    offered=S.VERIFY_OFFERED,
    running=S.VERIFY_RUNNING,
    retry_wait=S.VERIFY_RETRY_WAIT,
    became_ready=EventType.VerifyReady,
    was_offered=EventType.VerifyOffered,
    offer_resent=EventType.VerifyOfferResent,
    offer_withdrawn=EventType.VerifyOfferWithdrawn,
    started=EventType.VerifyStarted,
    handed_back=EventType.VerifyHandedBack,
    attempt_failed=EventType.VerifyAttemptFailed,
    attempt_timed_out=EventType.VerifyAttemptTimedOut,
    attempt_lost=EventType.VerifyAttemptLost,
    attempt_unknown=EventType.VerifyAttemptUnknown,
    attempt_stopped=EventType.VerifyAttemptStopped,
    retry_scheduled=EventType.VerifyRetryScheduled,
)
PHASES: Final = (FORWARD, UNDO, VERIFY)

HELD: Final = frozenset(state for phase in PHASES for state in (phase.offered, phase.running))
# States in which a part of a step is at work, or is going to be.
ACTIVE: Final = HELD | {state for phase in PHASES for state in (phase.ready, phase.retry_wait)}


def phase(state: StepState) -> Phase:
    """The part of a step that a state belongs to."""
    if state < S.UNDO_READY:
        return FORWARD
    return VERIFY if S.VERIFY_READY <= state <= S.VERIFY_RETRY_WAIT else UNDO
