"""What the watchdog says: a level, and every reason for it. Values, no rules."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, StrEnum


class Level(Enum):
    """How supervision is. The value is the exit code of `stepward watchdog --once`: add none, renumber none."""

    WELL = 0
    WARNING = 1
    CRITICAL = 2
    UNKNOWN = 3
    """The watchdog cannot tell, which is no better than trouble."""

    @property
    def gravity(self) -> int:
        """Which of two counts: what is surely critical comes before what nobody can tell."""
        return (Level.WELL, Level.WARNING, Level.UNKNOWN, Level.CRITICAL).index(self)


class Kind(StrEnum):
    """What a reason is about. A label of a metric and a field of what is sent: add, never rename."""

    NOBODY_ANSWERS = "NOBODY_ANSWERS"
    NODE_SILENT = "NODE_SILENT"
    NODE_PARTLY = "NODE_PARTLY"
    """It answers, and says itself that it does not take part as it should."""
    NODE_DIVERGED = "NODE_DIVERGED"
    NO_CLUSTER = "NO_CLUSTER"
    CLUSTERS_DIFFER = "CLUSTERS_DIFFER"
    SAME_NODE_TWICE = "SAME_NODE_TWICE"
    NOT_WATCHED = "NOT_WATCHED"
    """The cluster has a node that this watchdog was not told of."""
    NO_LEADER = "NO_LEADER"
    TWO_LEADERS = "TWO_LEADERS"
    ROWS_DIFFER = "ROWS_DIFFER"
    BEAT_OLD = "BEAT_OLD"
    """No replica has applied a sign of life of the supervisor for too long."""
    REPLICA_BEHIND = "REPLICA_BEHIND"
    """One has not, while another has."""
    OVERDUE = "OVERDUE"
    """Steps are due and nobody does anything about them."""
    LEADERSHIP_STAYS = "LEADERSHIP_STAYS"
    """Supervision failed on every node: the leader stays, and remediates nothing."""
    SUPERVISOR_LOST = "SUPERVISOR_LOST"
    SUPERVISOR_UNWELL = "SUPERVISOR_UNWELL"
    BRAKE = "BRAKE"
    BREAKER = "BREAKER"
    NODE_SAYS = "NODE_SAYS"
    """A node judges its own replica worse than what else is seen explains."""
    CANARY = "CANARY"


@dataclass(frozen=True, slots=True)
class Reason:
    """One thing that is not as it should be."""

    kind: Kind
    level: Level
    text: str
    """For a person: what, with which value, against which bound."""
    node: str = ""
    """The node, by its id or else its address. Empty: it is the cluster's."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What one judgement came to."""

    reasons: tuple[Reason, ...] = ()
    """The gravest first."""

    @property
    def level(self) -> Level:
        return max((reason.level for reason in self.reasons), key=lambda level: level.gravity, default=Level.WELL)

    @property
    def text(self) -> str:
        """In one line."""
        return "; ".join(reason.text for reason in self.reasons) or "supervision is well"


@dataclass(frozen=True, slots=True)
class Change:
    """The level is another than before."""

    number: int
    """From 1 since the watchdog started."""
    before: Level
    verdict: Verdict
    level: Level
    at_wall_s: float
    cluster_id: str
