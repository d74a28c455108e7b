"""Binding an agent's session to this node: how it is asked for, and why it is served no more."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from stepward.server.api import convert
from stepward.server.core.commands import OpenSession, SessionOpened
from stepward.server.core.rejections import Reason, Refused, Rejection
from stepward.server.tickets import FutureTicket

if TYPE_CHECKING:
    from collections.abc import Callable

    from stepward.server.core.commands import Answer
    from stepward.server.core.rows import Session
    from stepward.server.shard import Shard
    from stepward.v1 import agent_service_pb2 as pb


def opening(hello: pb.Hello, *, node_id: str, goes_on: bool = False) -> OpenSession:
    """The command of a hello that was checked."""
    return OpenSession(
        session_id=hello.session_id,
        namespace=hello.namespace or convert.DEFAULT_NAMESPACE,
        queue=hello.queue or convert.DEFAULT_QUEUE,
        actions=tuple(dict.fromkeys(hello.actions)),
        slots=hello.slots,
        name=hello.name,
        library=hello.library,
        node_id=node_id,
        known_generation=hello.generation,
        goes_on=goes_on,
    )


async def opened(shard: Shard, command: OpenSession, ticket: OpenTicket) -> SessionOpened:
    """Have a session opened.

    Raises:
        Refused: By the rules, or for want of a leader.
    """
    shard.propose(command, ticket)
    try:
        answer = await ticket.future
    except asyncio.CancelledError:
        ticket.abandon()
        raise
    if isinstance(answer, SessionOpened):
        return answer
    assert isinstance(answer, Rejection), answer
    raise Refused(answer)


class OpenTicket(FutureTicket):
    """An agent that waits for its session. If it has gone away meanwhile, `unwanted` is told the generation at once."""

    __slots__ = ("_unwanted",)

    def __init__(self, future: asyncio.Future[Answer], unwanted: Callable[[int], None]) -> None:
        super().__init__(future)
        self._unwanted = unwanted

    def answered(self, answer: Answer) -> None:  # type: ignore[explicit-override]  # `override` is of 3.12
        """See `Ticket`."""
        if not self.future.done():
            self.future.set_result(answer)
        elif isinstance(answer, SessionOpened):
            self._unwanted(answer.generation)

    def abandon(self) -> None:
        """The agent has gone away; the answer may have come in the same moment."""
        if self.future.done() and not self.future.cancelled():
            answer = self.future.result()
            if isinstance(answer, SessionOpened):
                self._unwanted(answer.generation)


class NobodyWaits:
    """The ticket of a command whose answer changes nothing."""

    def answered(self, answer: Answer) -> None:
        """See `Ticket`."""


def why_over(session_id: str, session: Session | None, generation: int) -> Rejection | None:
    """Why a generation of a session is served no more, if so."""
    if session is None or session.ending:
        text = f"session {session_id} has ended; say hello with a new session id"
        return Rejection(Reason.SESSION_ENDED, text, {"session_id": session_id})
    return replaced(session_id, session.generation) if session.generation > generation else None


def replaced(session_id: str, generation: int) -> Rejection:
    """Why an older generation of a session is served no more."""
    text = f"session {session_id} has a newer stream, of generation {generation}"
    return Rejection(Reason.SESSION_ENDED, text, {"session_id": session_id, "generation": str(generation)})


def draining() -> Rejection:
    """Why a node that shuts down serves no agents."""
    return Rejection(Reason.NODE_DRAINING, "this node is shutting down; say hello to another one, the session stays")
