"""What an agent holds: attempts from their offer until the answer to their outcome."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from enum import StrEnum
from typing import NamedTuple

import msgspec

from stepward.agents.stops import StopReason
from stepward.v1 import agent_service_pb2 as wire


class AttemptKey(NamedTuple):
    """How an assignment is named everywhere. Assignments of one batch share the token."""

    job_id: str
    step_id: str
    token: int

    @classmethod
    def of(cls, ref: wire.AttemptRef) -> AttemptKey:
        return cls(ref.job_id, ref.step_id, ref.token)

    def ref(self) -> wire.AttemptRef:
        return wire.AttemptRef(job_id=self.job_id, step_id=self.step_id, token=self.token)

    @property
    def shard(self) -> str:
        """Tokens are comparable within a shard, which the job id names."""
        return self.job_id.partition("-")[0]


def held_digest(held: Iterable[AttemptKey]) -> int:
    """Digest of a set of assignments, as the contract defines it for `Heartbeat.held_digest`."""
    lines = sorted(f"{key.job_id}/{key.step_id}/{key.token}" for key in held)
    return int.from_bytes(hashlib.sha256("\n".join(lines).encode()).digest()[:8], "big")


class Phase(StrEnum):
    """How far an attempt is on the agent's side."""

    ASKING = "ASKING"
    """Its accept is not yet answered; nothing has started."""
    GRANTED = "GRANTED"
    """Its accept is recorded; it starts while the lease runs."""
    RUNNING = "RUNNING"
    """Its handler runs."""


class Attempt(msgspec.Struct):
    """One attempt that takes a slot."""

    key: AttemptKey
    offer: wire.Offer
    phase: Phase
    started_at_ms: int = 0
    deadline_ms: int = 0
    """When its start-to-close time is over."""
    start_reported: bool = False
    stop_reason: StopReason | None = None
    """Why its handler was cancelled; the newest reason."""
    stopped_at_ms: int = 0
    """When its handler was first cancelled."""
    killed: bool = False
    """Whether the process of its handler was killed."""
    lease_ended_at_ms: int | None = None
    """When the lease that it runs under ended. None: it runs."""
    stray: bool = False
    """The cluster no longer counts it: its token is stale or its session over. It takes its slot until it ends."""
    progress: bytes | None = None
    """What was said and not sent yet: details, or nothing (`b""`) for a mere sign of life. None: nothing was said."""
    progress_sent_at_ms: int | None = None
    has_spoken: bool = False
    """Whether its handler has given a sign of life."""

    @property
    def heartbeat_timeout_ms(self) -> int:
        """The longest time between two signs of life. 0: none are asked for."""
        return self.offer.heartbeat_timeout.ToMilliseconds()
