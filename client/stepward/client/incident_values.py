"""What the client returns of incidents and of the ledger, and what it may be asked for. As `values`, and beside it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import TypedDict

from stepward.client.values import Failure, JobState, StepState
from stepward.v1 import supervision_service_pb2


class Trouble(StrEnum):
    """What went wrong."""

    UNSPECIFIED = "UNSPECIFIED"
    """Also one that this client is too old to know."""
    ATTEMPT_FAILED = "ATTEMPT_FAILED"
    ATTEMPT_BROKEN = "ATTEMPT_BROKEN"
    ATTEMPT_UNKNOWN = "ATTEMPT_UNKNOWN"
    LEASE_LOST = "LEASE_LOST"
    START_TO_CLOSE = "START_TO_CLOSE"
    HEARTBEAT = "HEARTBEAT"
    QUEUE_TIME = "QUEUE_TIME"
    SCHEDULE_TO_CLOSE = "SCHEDULE_TO_CLOSE"
    RETRY_TIME = "RETRY_TIME"
    OFFER_UNANSWERED = "OFFER_UNANSWERED"
    POISON = "POISON"
    JOB_DEADLINE = "JOB_DEADLINE"
    STUCK = "STUCK"
    UNDO_FAILED = "UNDO_FAILED"
    UNDO_UNKNOWN = "UNDO_UNKNOWN"
    INPUT = "INPUT"


class Remedy(StrEnum):
    """What was decided about it."""

    UNSPECIFIED = "UNSPECIFIED"
    """None, or one that this client is too old to know."""
    RETRY = "RETRY"
    REASSIGN = "REASSIGN"
    VERIFY = "VERIFY"
    COMPENSATE = "COMPENSATE"
    ESCALATE = "ESCALATE"
    CONTINUE = "CONTINUE"
    FAIL = "FAIL"
    RESEND = "RESEND"
    WITHDRAW = "WITHDRAW"
    CANCEL = "CANCEL"


class RemedyBy(StrEnum):
    """What led to a remedy."""

    UNSPECIFIED = "UNSPECIFIED"
    """Nothing yet, or something that this client is too old to know."""
    SUPERVISOR = "SUPERVISOR"
    REPORT = "REPORT"
    """What an agent or a caller said."""
    PERSON = "PERSON"


class IncidentState(StrEnum):
    """Whether an incident waits for a person. ALL is for asking only."""

    UNSPECIFIED = "UNSPECIFIED"
    OPEN = "OPEN"
    RESOLVED = "RESOLVED"
    ALL = "ALL"


class Resolution(StrEnum):
    """What a person decides about an incident."""

    RETRY = "RETRY"
    SKIP = "SKIP"
    COMPENSATE = "COMPENSATE"
    FAIL = "FAIL"
    APPROVE = "APPROVE"


@dataclass(frozen=True, slots=True, kw_only=True)
class Incident:
    """What waits, or waited, for a person."""

    incident_id: str
    state: IncidentState
    opened_at: datetime | None
    definition_name: str
    definition_version: int
    job_id: str
    step_id: str = ""
    """Empty: it is about the job as a whole."""
    trouble: Trouble
    proposed: Remedy = Remedy.UNSPECIFIED
    """The remedy that waits for approval, if one does."""
    failure: Failure | None = None
    how: Remedy = Remedy.UNSPECIFIED
    """What ended the wait."""
    by: RemedyBy = RemedyBy.UNSPECIFIED
    actor: str = ""
    reason: str = ""
    resolved_at: datetime | None = None
    message: supervision_service_pb2.Incident = field(
        default_factory=supervision_service_pb2.Incident, repr=False, compare=False
    )

    @property
    def open(self) -> bool:
        """Whether it waits."""
        return self.state is IncidentState.OPEN


@dataclass(frozen=True, slots=True, kw_only=True)
class IncidentPreview:
    """What a filter of open incidents means at the moment. `as_of` holds it to that."""

    matched: int
    as_of: str
    first: tuple[Incident, ...]
    """The newest of them, at most 20."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolveRefusal:
    """An incident that could not be resolved, and why."""

    incident_id: str
    reason: str
    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedIncidents:
    """What became of incidents that were to be resolved."""

    resolved: int
    already: int
    """So many had been resolved before."""
    refused: int
    refusals: tuple[ResolveRefusal, ...]
    """The first of them, at most 20."""
    left: int
    """So many are meant and were not reached: call again, and expect so many."""
    message: supervision_service_pb2.ResolveIncidentsResponse = field(
        default_factory=supervision_service_pb2.ResolveIncidentsResponse, repr=False, compare=False
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerEntry:
    """One remedy: what was wrong, what was done, who decided it, on what evidence."""

    serial: int
    at: datetime | None
    epoch: int
    job_id: str
    step_id: str = ""
    """Empty: it is about the job as a whole."""
    part: str = ""
    trouble: Trouble
    remedy: Remedy
    rule: str = ""
    """The row of the table of remedies that decided. Empty: a person did."""
    proposed: bool = False
    """It was only proposed, and waits for approval."""
    by: RemedyBy
    actor: str = ""
    reason: str = ""
    definition_name: str = ""
    definition_version: int = 0
    attempts: int = 0
    lease_losses: int = 0
    token: int = 0
    session_id: str = ""
    failure: str = ""
    overdue: timedelta | None = None
    """How long before it a bound had passed."""
    silent: timedelta | None = None
    """How long before it there was the last sign of life."""
    step_before: StepState = StepState.UNSPECIFIED
    step_after: StepState = StepState.UNSPECIFIED
    job_before: JobState = JobState.UNSPECIFIED
    job_after: JobState = JobState.UNSPECIFIED
    message: supervision_service_pb2.LedgerEntry = field(
        default_factory=supervision_service_pb2.LedgerEntry, repr=False, compare=False
    )


class WantedIncidents(TypedDict, total=False):
    """What may be said of incidents. What is left out, or empty, says nothing."""

    definition: str
    step: str
    job: str
    trouble: Trouble | str
    labels: Mapping[str, str]
    """Of jobs with all of these labels."""
    since: datetime | None
    """Opened at this moment or later. Aware."""
    until: datetime | None
    """Opened before this moment. Aware."""
    proposed: bool
    """Only those with a remedy that waits for approval."""


class WantedEntries(TypedDict, total=False):
    """What may be said of entries of the ledger. What is left out, or empty, says nothing."""

    job: str
    epoch: int
    trouble: Trouble | str
    remedy: Remedy | str
    by: RemedyBy | str
    definition: str
    since: datetime | None
    """At this moment or later. Aware."""
    until: datetime | None
    """Before this moment. Aware."""
