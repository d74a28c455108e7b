"""What the command line's exit code says. Part of the interface: add, never renumber."""

from __future__ import annotations

from enum import IntEnum

from stepward.client import errors


class ExitCode(IntEnum):
    """How a command ended."""

    OK = 0
    ERROR = 1
    """Anything that has no code of its own."""
    USAGE = 2
    """The command line itself is wrong."""
    NOT_FOUND = 3
    CONFLICT = 4
    """What is already there speaks against it."""
    UNAVAILABLE = 5
    """No server answered, or the cluster cannot do it at the moment. May pass."""
    JOB_FAILED = 10
    """The job ended FAILED or COMPENSATED."""
    JOB_CANCELLED = 11
    JOB_ESCALATED = 12
    """The job waits for a person."""
    WAIT_TIMED_OUT = 124
    """The wait ended before the job, which goes on. The number is that of timeout(1)."""
    INTERRUPTED = 130
    """Ctrl-C. The number is that of a shell."""


_CODES: tuple[tuple[type[errors.StepwardError], ExitCode], ...] = (
    (errors.NotFound, ExitCode.NOT_FOUND),
    (errors.Conflict, ExitCode.CONFLICT),
    (errors.Unavailable, ExitCode.UNAVAILABLE),
    (errors.WaitTimedOut, ExitCode.WAIT_TIMED_OUT),
    (errors.JobCancelled, ExitCode.JOB_CANCELLED),
    (errors.JobEscalated, ExitCode.JOB_ESCALATED),
    (errors.JobNotCompleted, ExitCode.JOB_FAILED),
)

_STATES = {
    "COMPENSATED": ExitCode.JOB_FAILED,
    "FAILED": ExitCode.JOB_FAILED,
    "CANCELLED": ExitCode.JOB_CANCELLED,
    "ESCALATED": ExitCode.JOB_ESCALATED,
}


def code_of(error: errors.StepwardError) -> ExitCode:
    """The exit code for an error."""
    return next((code for kind, code in _CODES if isinstance(error, kind)), ExitCode.ERROR)


def code_of_state(state: str) -> ExitCode:
    """The exit code of a command that followed a job to this state."""
    return _STATES.get(state, ExitCode.OK)
