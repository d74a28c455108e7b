"""Why a running handler is stopped."""

from enum import StrEnum


class StopReason(StrEnum):
    """Why a handler is cancelled; `ctx.cancel_reason` shows it."""

    JOB_ENDING = "JOB_ENDING"
    """The job goes on, or ends, without this step."""
    TIMEOUT = "TIMEOUT"
    """The attempt has used up its time."""
    STALE = "STALE"
    """Another assignment has replaced this one, or nobody knows it."""
    LEASE_LOST = "LEASE_LOST"
    """The agent's lease has ended: the step may be given to another agent."""
    DRAINING = "DRAINING"
    """The agent is shutting down and its drain timeout is over."""
