"""What may be refused: a closed set, decided here, mapped to gRPC once in `api.errors`."""

from __future__ import annotations

from enum import Enum

from msgspec import Struct


class Reason(Enum):
    """Names are those of the public `ErrorReason`, without its prefix. `transient` ones may be granted later."""

    INVALID_ARGUMENT = "INVALID_ARGUMENT"
    INVALID_DEFINITION = "INVALID_DEFINITION"
    PAYLOAD_TOO_LARGE = "PAYLOAD_TOO_LARGE"
    PAGE_TOKEN_INVALID = "PAGE_TOKEN_INVALID"
    JOB_NOT_FOUND = "JOB_NOT_FOUND"
    DEFINITION_NOT_FOUND = "DEFINITION_NOT_FOUND"
    STEP_NOT_FOUND = "STEP_NOT_FOUND"
    IDEMPOTENCY_CONFLICT = "IDEMPOTENCY_CONFLICT"
    JOB_ENDED = "JOB_ENDED"
    STALE_TOKEN = "STALE_TOKEN"
    SESSION_ENDED = "SESSION_ENDED"
    PROTOCOL_VERSION = "PROTOCOL_VERSION"
    NOT_LEADER = "NOT_LEADER"
    NO_LEADER = "NO_LEADER"
    COMMIT_UNKNOWN = "COMMIT_UNKNOWN"
    NODE_DRAINING = "NODE_DRAINING"
    OVERLOADED = "OVERLOADED"
    DISK_FULL = "DISK_FULL"
    INTERNAL = "INTERNAL"
    UNIMPLEMENTED = "UNIMPLEMENTED"
    REVISION_COMPACTED = "REVISION_COMPACTED"
    WAIT_TIMED_OUT = "WAIT_TIMED_OUT"
    JOB_STATE = "JOB_STATE"
    STEP_STATE = "STEP_STATE"
    WATCH_TOO_SLOW = "WATCH_TOO_SLOW"
    NO_CLUSTER = "NO_CLUSTER"
    CLUSTER_EXISTS = "CLUSTER_EXISTS"
    NODE_STATE = "NODE_STATE"
    NOT_ALLOWED = "NOT_ALLOWED"
    INCIDENT_NOT_FOUND = "INCIDENT_NOT_FOUND"
    INCIDENT_COUNT = "INCIDENT_COUNT"
    INCIDENT_STATE = "INCIDENT_STATE"


class Violation(Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """One broken rule: the field's path, and what is wrong with which value against which bound."""

    field: str
    description: str


class Rejection(Struct, frozen=True, array_like=True, tag=True, forbid_unknown_fields=True):
    """A request that cannot be granted. The message says what happened, with which value, and what to do."""

    reason: Reason
    message: str
    metadata: dict[str, str] = {}
    violations: tuple[Violation, ...] = ()
    retry_after_ms: int = 0


class Refused(Exception):  # noqa: N818 - it is a refusal, not an error of ours
    """Raised inside a decision to refuse one command; the savepoint of that command catches it."""

    def __init__(self, rejection: Rejection) -> None:
        super().__init__(rejection.message)
        self.rejection = rejection


def refuse(reason: Reason, message: str, **metadata: str) -> Refused:
    """A refusal to raise."""
    return Refused(Rejection(reason, message, metadata))
