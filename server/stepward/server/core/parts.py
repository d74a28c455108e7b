"""The parts of a step that agents run, what may go wrong with them, and what is done about it.

The numbers stand in rows, those of `Trouble`, `Remedy`, `Resolution` and `By` in the public contract, too: add, never
change.
"""

from __future__ import annotations

from enum import IntEnum


class Part(IntEnum):
    """The parts of a step that agents run: what it does, how that is undone, and the question what became of it."""

    ACTION = 1
    UNDO = 2
    VERIFY = 3


class Trouble(IntEnum):
    """What was detected.

    After all ends of an attempt but ATTEMPT_FAILED it may have happened; ATTEMPT_BROKEN is a failure that may hide an
    effect.
    """

    ATTEMPT_FAILED = 1
    ATTEMPT_BROKEN = 2
    ATTEMPT_UNKNOWN = 3
    LEASE_LOST = 4
    START_TO_CLOSE = 5
    HEARTBEAT = 6
    QUEUE_TIME = 7
    SCHEDULE_TO_CLOSE = 8
    RETRY_TIME = 9
    OFFER_UNANSWERED = 10
    POISON = 11
    JOB_DEADLINE = 12
    STUCK = 13
    UNDO_FAILED = 14
    UNDO_UNKNOWN = 15
    INPUT = 16


class Remedy(IntEnum):
    """What was decided about it. RETRY repeats after a failure, REASSIGN after a loss or a timeout."""

    NONE = 0
    RETRY = 1
    REASSIGN = 2
    VERIFY = 3
    COMPENSATE = 4
    ESCALATE = 5
    CONTINUE = 6
    FAIL = 7
    RESEND = 8
    WITHDRAW = 9
    CANCEL = 10


class Resolution(IntEnum):
    """What a person decides about an incident. APPROVE does what was proposed."""

    RETRY = 1
    SKIP = 2
    COMPENSATE = 3
    FAIL = 4
    APPROVE = 5


class By(IntEnum):
    """What led to a remedy: a sweep of the supervisor, what an agent or a caller said, or a person."""

    SUPERVISOR = 1
    REPORT = 2
    PERSON = 3
