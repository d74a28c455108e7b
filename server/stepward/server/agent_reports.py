"""What agents report, on its way in and back: the same on a stream and in calls."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from stepward.server.api import convert
from stepward.server.core.commands import ProgressMade, ReportAttempts
from stepward.server.core.rejections import Reason, Refused, Rejection
from stepward.server.job_ids import is_job_id
from stepward.v1 import agent_service_pb2 as pb

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from stepward.server.core.commands import AttemptReport
    from stepward.server.core.limits import Limits

# Reports that one command carries: a success of the widest step makes some hundred rows, and there is room in a batch
# for this many of those.
REPORTS_A_COMMAND: Final = 32

# Answers that say that nothing of a report was recorded, or that nobody knows: it is to be reported again.
REPORT_AGAIN: Final = frozenset(
    {
        Reason.SESSION_ENDED,
        Reason.NOT_LEADER,
        Reason.NO_LEADER,
        Reason.COMMIT_UNKNOWN,
        Reason.NODE_DRAINING,
        Reason.OVERLOADED,
        Reason.DISK_FULL,
    }
)


def read(report: pb.Report, limits: Limits) -> tuple[AttemptReport, ...]:
    """What is reported, in its order.

    Raises:
        Refused: INVALID_ARGUMENT, when it is too much at once.
    """
    count = len(report.attempts)
    if count > limits.reports_max:
        text = f"report.attempts has {count} entries; it must have at most {limits.reports_max}"
        raise Refused(Rejection(Reason.INVALID_ARGUMENT, text))
    return tuple(convert.reports(report, limits))


def may_exist(report: AttemptReport) -> bool:
    """Whether it can be looked up: what is not even shaped like a job's id must not be."""
    return is_job_id(report.attempt.job_id)


def commands(session_id: str, generation: int, reports: Sequence[AttemptReport]) -> list[ReportAttempts]:
    """The reports in parts: a command is decided as a whole, so it may not need more rows than a batch has room for."""
    return [
        ReportAttempts(session_id, generation, tuple(reports[at : at + REPORTS_A_COMMAND]))
        for at in range(0, len(reports), REPORTS_A_COMMAND)
    ]


def same_answer(reports: Iterable[AttemptReport], result: str, message: str) -> list[pb.ReportAnswer]:
    """One answer to all reports that are not mere progress."""
    value = pb.ReportResult.Value(f"REPORT_RESULT_{result}")
    return [
        pb.ReportAnswer(attempt=convert.attempt_ref(one.attempt), result=value, message=message)
        for one in reports
        if not isinstance(one.event, ProgressMade)
    ]
