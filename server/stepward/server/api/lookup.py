"""Finding the job that a call names."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from stepward.server.api import convert, validate
from stepward.server.core import views
from stepward.server.core.rejections import Reason, Refused, refuse
from stepward.server.job_ids import is_job_id
from stepward.v1 import common_pb2

if TYPE_CHECKING:
    from collections.abc import Callable

    from google.protobuf.duration_pb2 import Duration

    from stepward.server.core.limits import Limits
    from stepward.server.core.views import JobView
    from stepward.server.gateway import Gateway
    from stepward.server.reading import Reading

A = TypeVar("A")


async def read(gateway: Gateway, consistency: int, look: Callable[[Reading], A]) -> tuple[A, Duration | None]:
    """What `look` finds in rows of a consistency; how stale it may be, unless it is not.

    Nobody is told from stale rows that there is no such job or incident: it may have been acknowledged, and not be here
    yet.

    Raises:
        Refused: By `look`; NO_LEADER.
    """
    is_stale = consistency == common_pb2.CONSISTENCY_STALE
    if is_stale:
        staleness = convert.duration(gateway.staleness_ms)
        try:
            with gateway.own_rows() as reader:
                return look(reader), staleness
        except Refused as refused:
            if refused.rejection.reason not in (Reason.JOB_NOT_FOUND, Reason.INCIDENT_NOT_FOUND):
                raise
    async with gateway.reading() as reader:
        found = look(reader)
    return found, convert.duration(0) if is_stale else None


def require_job_id(job_id: str) -> None:
    """Refuse what cannot be the id of any job, before it is part of a key.

    Raises:
        Refused: JOB_NOT_FOUND.
    """
    if not is_job_id(job_id):
        raise job_not_found(job_id)


def job_view(reader: Reading, job_id: str, limits: Limits, *, with_steps: bool) -> JobView:
    """One job.

    Raises:
        Refused: JOB_NOT_FOUND.
    """
    view = views.job_view(reader, job_id, limits, with_steps=with_steps) if is_job_id(job_id) else None
    if view is None:
        raise job_not_found(job_id)
    return view


def job_not_found(job_id: str) -> Refused:
    """There is no such job."""
    return refuse(Reason.JOB_NOT_FOUND, f"there is no job {validate.shown(job_id)}", job_id=job_id)
