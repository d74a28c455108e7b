"""ExplainJob: why a job does not move, as a message."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stepward.server.api import convert, lookup
from stepward.server.core import explain, views
from stepward.server.core.explaining import Circumstances
from stepward.server.core.rejections import Reason, Refused
from stepward.server.core.rows import Clock
from stepward.v1 import job_service_pb2

if TYPE_CHECKING:
    from stepward.server.core import explaining
    from stepward.server.core.limits import Limits
    from stepward.server.core.rows import Head
    from stepward.server.gateway import Gateway
    from stepward.server.reading import Reading


async def explain_job(
    gateway: Gateway, limits: Limits, request: job_service_pb2.ExplainJobRequest
) -> job_service_pb2.ExplainJobResponse:
    """See the contract. While nobody leads, that is the first reason, and the others are those of this node's rows.

    Raises:
        Refused: JOB_NOT_FOUND; NO_LEADER, when this node has no such job.
    """
    lookup.require_job_id(request.job_id)

    def look(reader: Reading, no_leader: str = "") -> job_service_pb2.ExplainJobResponse:
        known = Circumstances(no_leader=no_leader, disk_low=gateway.want_of_disk())
        head = reader.head()
        found = explain.explain(reader, request.job_id, head=head, limits=limits, circumstances=known)
        if found is None:
            raise lookup.job_not_found(request.job_id)
        return _message(found, head)

    try:
        answer, staleness = await lookup.read(gateway, request.consistency, look)
    except Refused as refused:
        if refused.rejection.reason is not Reason.NO_LEADER:
            raise
        with gateway.own_rows() as reader:
            if views.definition_of(reader, request.job_id) is None:
                raise
            answer, staleness = look(reader, refused.rejection.message), convert.duration(gateway.staleness_ms)
    if staleness is not None:
        answer.staleness.CopyFrom(staleness)
    return answer


def _message(found: explaining.Explanation, head: Head) -> job_service_pb2.ExplainJobResponse:
    return job_service_pb2.ExplainJobResponse(
        job_id=found.job_id,
        state=int(found.state),  # type: ignore[arg-type]  # the numbers are the contract's, held to it by a test
        summary=found.summary,
        reasons=[_reason(reason, head) for reason in found.reasons],
    )


def _reason(reason: explaining.Reason, head: Head) -> job_service_pb2.WaitReason:
    at = None
    if reason.clock is not Clock.NONE:
        at = convert.timestamp(views.wall_ms(head, reason.clock, reason.at_ms))
    return job_service_pb2.WaitReason(
        kind=int(reason.kind),  # type: ignore[arg-type]  # the numbers are the contract's, held to it by a test
        text=reason.text,
        fix=reason.fix,
        step_ids=reason.steps,
        steps_total=reason.steps_total,
        at=at,
        evidence=reason.evidence,
        causes=[_reason(cause, head) for cause in reason.causes],
    )
