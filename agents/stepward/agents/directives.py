"""What the session tells its runner to do, and what it wants sent."""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec

from stepward.agents.attempts import AttemptKey
from stepward.agents.stops import StopReason
from stepward.v1 import agent_service_pb2 as wire


class StartHandler(msgspec.Struct, frozen=True):
    """Start the handler of an offer, now."""

    key: AttemptKey
    offer: wire.Offer
    deadline_ms: int


@dataclass(frozen=True, slots=True)
class CancelHandler:
    """Tell a handler to stop."""

    key: AttemptKey
    reason: StopReason


@dataclass(frozen=True, slots=True)
class KillHandler:
    """End the process of a handler that was told to stop and has not."""

    key: AttemptKey


@dataclass(frozen=True, slots=True)
class SetLeaseLost:
    """Tell a handler whether its lease is over."""

    key: AttemptKey
    lost: bool


@dataclass(frozen=True, slots=True)
class OpenedSession:
    """A node has welcomed the session, for the first time or again."""

    session_id: str
    node_id: str
    generation: int
    node_addresses: tuple[str, ...] = ()
    """Where the nodes of the cluster are reached, as that one knows them."""


@dataclass(frozen=True, slots=True)
class ChangeNode:
    """Drop this connection hard and say hello to another node."""

    why: str
    addresses: tuple[str, ...] = ()
    """Nodes to try first."""


@dataclass(frozen=True, slots=True)
class EndProcess:
    """End the process at once: a handler that cannot be stopped may act when it no longer may."""

    exit_code: int
    why: str


@dataclass(frozen=True, slots=True)
class Finish:
    """Send what is to be sent, close the stream, and end in order."""

    exit_code: int


Directive = StartHandler | CancelHandler | KillHandler | SetLeaseLost | OpenedSession | ChangeNode | EndProcess | Finish


@dataclass(frozen=True, slots=True)
class Outputs:
    """What came of the inputs since the last time, in order."""

    messages: list[wire.WorkRequest] = field(default_factory=list)
    directives: list[Directive] = field(default_factory=list)
