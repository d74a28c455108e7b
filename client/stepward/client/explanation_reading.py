"""Reads why a job does not move into values."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stepward.client import reading
from stepward.client.explanation_values import Explanation, WaitReason
from stepward.v1 import job_service_pb2

if TYPE_CHECKING:
    from stepward.v1.job_service_pb2 import ExplainJobResponse
    from stepward.v1.job_service_pb2 import WaitReason as Message


def explanation(message: ExplainJobResponse) -> Explanation:
    """Why a job does not move."""
    return Explanation(
        job_id=message.job_id,
        state=reading.job_state(message.state),
        summary=message.summary,
        reasons=tuple(map(_reason, message.reasons)),
        message=message,
    )


def _reason(message: Message) -> WaitReason:
    """UNSPECIFIED for a kind that is newer than this client."""
    kinds = job_service_pb2.WaitKind
    kind = kinds.Name(message.kind) if message.kind in kinds.values() else "WAIT_KIND_UNSPECIFIED"
    return WaitReason(
        kind=kind.removeprefix("WAIT_KIND_"),
        text=message.text,
        fix=message.fix,
        step_ids=tuple(message.step_ids),
        steps_total=message.steps_total,
        at=reading.instant(message, "at"),
        evidence=dict(message.evidence),
        causes=tuple(map(_reason, message.causes)),
    )
