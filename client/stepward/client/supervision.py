"""How supervision of a shard is, as one node judges it by its own rows and clock: values that `status` returns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum


class SupervisionHealth(StrEnum):
    """How supervision is."""

    UNSPECIFIED = "UNSPECIFIED"
    """Also one that this client is too old to know."""
    WELL = "WELL"
    WARNING = "WARNING"
    CRITICAL = "CRITICAL"


class BreakerState(StrEnum):
    """How a breaker stands."""

    UNSPECIFIED = "UNSPECIFIED"
    """Also one that this client is too old to know."""
    CLOSED = "CLOSED"
    OPEN = "OPEN"
    HALF_OPEN = "HALF_OPEN"


@dataclass(frozen=True, slots=True, kw_only=True)
class Brake:
    """What bounds the changes of the supervisor."""

    on: bool
    """Whether it holds something back."""
    reason: str = ""
    ends_in: timedelta | None = None
    """None: nobody can tell."""
    held: int = 0
    per_minute: int = 0
    used: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Breaker:
    """How an action that fails often is treated."""

    namespace: str
    action: str
    queue: str
    state: BreakerState
    reason: str = ""
    probes_in: timedelta | None = None
    """When it is tried again. None: it is being tried."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Supervision:
    """How supervision is, as one node sees it."""

    health: SupervisionHealth
    reason: str = ""
    """Why it is not better, for a person."""
    beat_age: timedelta | None = None
    """How long ago this node applied a sign of life of a supervisor. None: not since it started."""
    beats: int = 0
    due: int = 0
    overdue: int = 0
    """Timers that are due, and those that a supervisor at work would have dealt with."""
    oldest_overdue: timedelta | None = None
    overdue_by_kind: Mapping[str, int] = field(default_factory=dict)
    remediations: int = 0
    detection_latency_max: timedelta | None = None
    incidents_open: int = 0
    epochs_lost: int = 0
    """Leaderships of the last minute that have lost their supervisor."""
    stays: bool = False
    """Whether so many have that leadership moves no more for it, and nothing is remedied."""
    supervisor_state: str = ""
    """On the leader: RUNNING, FAILING, STALLED or NOT_STARTED."""
    brake: Brake | None = None
    breakers: tuple[Breaker, ...] = ()
