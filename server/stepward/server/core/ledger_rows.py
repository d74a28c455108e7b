"""What is stored of remedies, and of what waits for a person."""

from __future__ import annotations

from stepward.server.core.parts import By, Part, Remedy, Trouble
from stepward.server.core.rows import Clock, Failure, JobState, Row, StepState, Value


class Evidence(Value, frozen=True):
    """What a remedy was decided on.

    `due_at_ms` is the instant that had passed, and `heard_at_ms` the last sign of life, each on its clock; Clock.NONE:
    there was none. `attempts` and `lease_losses` count the one that has just ended.
    """

    attempts: int = 0
    lease_losses: int = 0
    token: int = 0
    session_id: str = ""
    failure: str = ""
    due_clock: Clock = Clock.NONE
    due_at_ms: int = 0
    heard_clock: Clock = Clock.NONE
    heard_at_ms: int = 0


class LedgerEntry(Row, frozen=True):
    """One remedy, and why (`l`); the sequence of its batch and its number in there are in the key.

    `serial` rises by one from entry to entry, also over those that are not kept any more. `ordinal` -1, and no step,
    part and step states: it is about the job as a whole. `proposed`: nothing was done, it waits for approval. `rule` is
    the row of the table that decided, "" for a person; the version of the definition is that of the policy.
    """

    serial: int
    wall_ms: int
    led_ms: int
    log_ms: int
    epoch: int
    namespace: str
    definition_name: str
    definition_version: int
    job_id: str
    ordinal: int
    step_id: str
    part: Part | None
    trouble: Trouble
    remedy: Remedy
    by: By
    actor: str
    reason: str
    evidence: Evidence
    proposed: bool
    rule: str
    step_before: StepState | None
    job_before: JobState
    step_after: StepState | None
    job_after: JobState


class Incident(Row, frozen=True):
    """What waits, or waited, for a person (`i`); its number is in the key.

    `ordinal` -1: the job as a whole. `proposed`: the remedy that waits for approval. `resolved_wall_ms` 0: it is open,
    and `how`, `by`, `actor` and `reason` say nothing yet. `opened_notice` is the number of the notice of its opening.
    """

    opened_wall_ms: int
    namespace: str
    definition_name: str
    definition_version: int
    job_id: str
    ordinal: int
    step_id: str
    trouble: Trouble
    proposed: Remedy
    failure: Failure | None
    opened_notice: int
    resolved_wall_ms: int = 0
    how: Remedy = Remedy.NONE
    by: By | None = None
    actor: str = ""
    reason: str = ""


class IncidentIndex(Row, frozen=True):
    """An incident under its job (`j`), and while it is open under its namespace (`o`); everything is in the key."""


class IncidentCounts(Row, frozen=True):
    """The number of the newest incident, how many are open, and the number of the newest notice (`c`)."""

    newest: int = 0
    open: int = 0
    newest_notice: int = 0


class Notice(Row, frozen=True):
    """An incident was opened or resolved, which others may have to be told (`n`); its number is in the key."""

    incident: int
    resolved: bool
    wall_ms: int


class NoticeCursor(Row, frozen=True):
    """Up to which number notices have been sent or given up (`w`), and how many were given up in all."""

    done: int
    given_up: int = 0
