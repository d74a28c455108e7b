"""What an explanation is made of: reasons, each with what unblocks it, as a tree."""

from __future__ import annotations

from enum import IntEnum

from msgspec import Struct

from stepward.server.core.rows import Clock, JobState


class ReasonKind(IntEnum):
    """Why something does not move. Numbers are those of the public contract."""

    ENDED = 1
    PERSON = 2
    PAUSED = 3
    NO_AGENT = 4
    AGENTS_BUSY = 5
    TO_BE_OFFERED = 6
    OFFERED = 7
    AT_WORK = 8
    RETRY_WAIT = 9
    FENCE = 10
    NEEDS = 11
    UNDO_ORDER = 12
    SETTLING = 13
    UNDER_WAY = 14
    BREAKER = 15
    BRAKE = 16
    OVERDUE = 17
    STUCK = 18
    NO_LEADER = 19
    DISK_LOW = 20
    SUPERVISION = 21


class Reason(Struct, frozen=True):
    """One reason. `steps`: whom it holds, the first of them; `steps_total` counts all. `fix`: what unblocks it.

    `at_ms` is when it ends by itself at the latest, on `clock`; Clock.NONE: never by itself.
    """

    kind: ReasonKind
    text: str
    fix: str = ""
    steps: tuple[str, ...] = ()
    steps_total: int = 0
    clock: Clock = Clock.NONE
    at_ms: int = 0
    evidence: dict[str, str] = {}
    causes: tuple[Reason, ...] = ()


class Explanation(Struct, frozen=True):
    """Why a job does not move, or how it ended. `summary` is one sentence."""

    job_id: str
    state: JobState
    summary: str
    reasons: tuple[Reason, ...]


class Circumstances(Struct, frozen=True):
    """What the node that answers knows beside the rows. Empty texts: nothing is wrong with that."""

    no_leader: str = ""
    disk_low: str = ""
