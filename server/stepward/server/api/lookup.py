"""Finding the job that a call names."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stepward.server.api import validate
from stepward.server.core import views
from stepward.server.core.rejections import Reason, refuse
from stepward.server.job_ids import is_job_id

if TYPE_CHECKING:
    from stepward.server.core.limits import Limits
    from stepward.server.core.rejections import Refused
    from stepward.server.core.views import JobView
    from stepward.server.shard import Reading


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
