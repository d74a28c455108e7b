"""An agent whose renewal breaks when its handler says so, for a test that runs it in a worker process."""

from __future__ import annotations

from stepward.agents.session import Session
from tests.agents import held

agent = held.agent

# The method is called by the session's own clockwork; there is no seam for a bug of ours.
_heartbeat = Session._heartbeat


def _broken(session: Session, now_ms: int) -> None:
    if held.renewal_is_broken.is_set():
        raise ZeroDivisionError("a bug in the renewal")
    _heartbeat(session, now_ms)


Session._heartbeat = _broken  # type: ignore[method-assign, assignment]  # the bug is put in from outside
