"""What the author of a definition chooses from. Numbers are those of the public contract, names those of files."""

from __future__ import annotations

from enum import IntEnum


class Effect(IntEnum):
    """Whether an action may be repeated without harm, and undone. Behind a PIVOT that succeeded no job turns back."""

    IDEMPOTENT = 1
    NON_IDEMPOTENT = 2
    PIVOT = 3
    IRREVERSIBLE = 4


class StartMode(IntEnum):
    """When a handler starts: at delivery, or when its accept is committed."""

    ON_OFFER = 1
    ON_ACCEPT = 2


class OnUnknown(IntEnum):
    """What follows an unknown outcome that may not be repeated."""

    ESCALATE = 1
    COMPENSATE = 2


class OnExhausted(IntEnum):
    """What follows when no further attempt of a step is made, and it is known that it has not succeeded."""

    COMPENSATE = 1
    ESCALATE = 2
    CONTINUE = 3
    FAIL = 4


class Reassign(IntEnum):
    """Who may be given the next attempt."""

    ANY_AGENT = 1
    AVOID_SAME_AGENT = 2


class Approval(IntEnum):
    """Whether a person must agree before a job is given another direction."""

    NOT_REQUIRED = 1
    REQUIRED = 2


class OnDeadline(IntEnum):
    """What becomes of a job whose deadline has passed."""

    CANCEL = 1
    COMPENSATE = 2
    FAIL = 3
