"""Why a job does not move, as a client has it: reasons as a tree."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime

from stepward.client.values import JobState
from stepward.v1 import job_service_pb2


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitReason:
    """Why something does not move, and what unblocks it."""

    kind: str
    """Such as "NO_AGENT", "RETRY_WAIT", "PERSON"."""
    text: str
    fix: str = ""
    """A command or an act that unblocks it. Empty: it ends by itself, or its causes say more."""
    step_ids: tuple[str, ...] = ()
    """The first of the steps that it holds up. Empty: the job as a whole."""
    steps_total: int = 0
    at: datetime | None = None
    """When it ends by itself at the latest. None: never by itself."""
    evidence: Mapping[str, str] = field(default_factory=dict)
    causes: tuple[WaitReason, ...] = ()

    def walk(self) -> Iterator[WaitReason]:
        """This reason and everything behind it."""
        yield self
        for cause in self.causes:
            yield from cause.walk()


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """Why a job does not move, or how it ended."""

    job_id: str
    state: JobState
    summary: str
    """The first reason in one sentence."""
    reasons: tuple[WaitReason, ...]
    message: job_service_pb2.ExplainJobResponse = field(
        default_factory=job_service_pb2.ExplainJobResponse, repr=False, compare=False
    )
