"""The states of jobs and steps. Their numbers are those of the public contract; `states` has the tables."""

from __future__ import annotations

from enum import IntEnum
from typing import Final


class JobState(IntEnum):
    """The state of a job."""

    RUNNING = 1
    PAUSED = 2
    COMPENSATING = 3
    ESCALATED = 4
    COMPLETED = 5
    COMPENSATED = 6
    CANCELLED = 7
    FAILED = 8


class StepState(IntEnum):
    """The state of a step."""

    PENDING = 1
    READY = 2
    OFFERED = 3
    RUNNING = 4
    RETRY_WAIT = 5
    OUTCOME_UNKNOWN = 6
    ESCALATED = 7
    SUCCEEDED = 8
    FAILED = 9
    SKIPPED = 10
    CANCELLED = 11
    UNDO_READY = 12
    UNDO_OFFERED = 13
    UNDO_RUNNING = 14
    UNDO_RETRY_WAIT = 15
    UNDO_OUTCOME_UNKNOWN = 16
    UNDO_FAILED = 17
    COMPENSATED = 18
    VERIFY_READY = 19
    VERIFY_OFFERED = 20
    VERIFY_RUNNING = 21
    VERIFY_RETRY_WAIT = 22
    UNDO_SKIPPED = 23


JOB_STATES_FINAL: Final = frozenset({JobState.COMPLETED, JobState.COMPENSATED, JobState.CANCELLED, JobState.FAILED})
# At these a caller who waits for a job has his answer: it has ended, or it waits for a person.
JOB_STATES_AWAITED: Final = JOB_STATES_FINAL | {JobState.ESCALATED}
