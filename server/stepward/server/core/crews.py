"""Who could take a step, and why nobody has: open sessions against a namespace, a queue and an action."""

from __future__ import annotations

import difflib
from itertools import islice
from typing import TYPE_CHECKING

from stepward.server.core import keys, leases, rows
from stepward.server.core.explaining import Reason, ReasonKind

if TYPE_CHECKING:
    from stepward.server.core.limits import Limits
    from stepward.server.core.reader import Reader
    from stepward.server.core.rows import Session


class Crews:
    """The open sessions, read once when somebody asks; so many of them as a bound says."""

    def __init__(self, reader: Reader, led_ms: int, limits: Limits) -> None:
        self._reader = reader
        self._led_ms = led_ms
        self._limits = limits
        self._sessions: dict[str, Session] | None = None
        self._answers: dict[tuple[str, str, str], Reason] = {}

    def name_of(self, session_id: str) -> str:
        """What an agent calls itself, or its session."""
        session = self._reader.get(keys.session(session_id))
        return session.name if isinstance(session, rows.Session) and session.name else session_id

    def why_not_taken(self, namespace: str, queue: str, action: str) -> Reason:
        """Why nobody has been offered a step of an action."""
        place = (namespace, queue, action)
        if place not in self._answers:
            self._answers[place] = self._why_not_taken(*place)
        return self._answers[place]

    def _why_not_taken(self, namespace: str, queue: str, action: str) -> Reason:
        able = {
            session_id: session
            for session_id, session in self._open().items()
            if (session.namespace, session.queue) == (namespace, queue) and action in session.actions
        }
        if not able:
            return self._nobody(namespace, queue, action)
        listening = {i: session for i, session in able.items() if self._hindrance(session) == ""}
        if not listening:
            causes = [self._hindered(i, session) for i, session in islice(able.items(), self._limits.explain_names_max)]
            text = f"{_agents(len(able))} on queue {queue!r} can run {action!r}, but none takes work now"
            fix = f"start an agent for action {action!r} on queue {queue!r} in namespace {namespace!r}"
            return Reason(ReasonKind.NO_AGENT, text, fix, causes=tuple(causes))
        slots = sum(session.slots for session in listening.values())
        taken = sum(self._reader.count(keys.assignments(session_id)) for session_id in listening)
        evidence = {"slots": str(slots), "taken": str(taken), "agents": str(len(listening))}
        if taken < slots:
            text = f"an agent for {action!r} is free: it is offered with the next batch"
            return Reason(ReasonKind.TO_BE_OFFERED, text, evidence=evidence)
        text = f"all {slots} slots of {_agents(len(listening))} for {action!r} on queue {queue!r} are taken"
        causes = [Reason(ReasonKind.AT_WORK, each) for each in self._held_by(listening)]
        fix = "start more agents, or give them more slots"
        return Reason(ReasonKind.AGENTS_BUSY, text, fix, evidence=evidence, causes=tuple(causes))

    def _open(self) -> dict[str, Session]:
        if self._sessions is None:
            self._sessions = {}
            for key in islice(self._reader.scan(keys.SESSION), self._limits.explain_sessions_max):
                session = self._reader.get(key)
                assert isinstance(session, rows.Session), key
                self._sessions[key[1:].decode()] = session
        return self._sessions

    def _hindrance(self, session: Session) -> str:
        """Why an agent is offered nothing; empty: it is, while it has a free slot."""
        if session.ending:
            return "its lease is over"
        if session.draining:
            return "it is draining"
        if not session.connected:
            return "it has no stream"
        if not leases.heard_lately(session, led_ms=self._led_ms):
            return f"nothing was heard from it for {self._led_ms - session.renewed_led_ms} ms"
        if session.full:
            return "it handed work back for want of room"
        return ""

    def _hindered(self, session_id: str, session: Session) -> Reason:
        text = f"agent {session.name or session_id}: {self._hindrance(session)}"
        return Reason(ReasonKind.NO_AGENT, text, evidence={"session_id": session_id})

    def _held_by(self, sessions: dict[str, Session]) -> list[str]:
        """What takes the slots, the first of it."""
        found: list[str] = []
        for session_id, session in sessions.items():
            for key in self._reader.scan(keys.assignments(session_id)):
                if len(found) == self._limits.explain_names_max:
                    return found
                _, _, job_id, ordinal = keys.parse_assignment(key)
                found.append(f"agent {session.name or session_id}: job {job_id}, step {self._step_id(job_id, ordinal)}")
        return found

    def _step_id(self, job_id: str, ordinal: int) -> str:
        job = self._reader.get(keys.job(job_id))
        body = self._reader.get(keys.definition_body(job.definition_hash)) if isinstance(job, rows.Job) else None
        return body.steps[ordinal].id if isinstance(body, rows.DefinitionBody) else f"number {ordinal}"

    def _nobody(self, namespace: str, queue: str, action: str) -> Reason:
        text = f"no agent that is connected offers action {action!r} on queue {queue!r} in namespace {namespace!r}"
        fix = f"start an agent with action {action!r} for queue {queue!r} in namespace {namespace!r}"
        causes = [Reason(ReasonKind.NO_AGENT, near) for near in self._nearly(namespace, queue, action)]
        return Reason(ReasonKind.NO_AGENT, text, fix, causes=tuple(causes))

    def _nearly(self, namespace: str, queue: str, action: str) -> list[str]:
        """Agents that would fit but for one thing."""
        found: list[str] = []
        here = [session for session in self._open().values() if session.namespace == namespace]
        same_queue = {name for session in here if session.queue == queue for name in session.actions}
        close = difflib.get_close_matches(action, sorted(same_queue), n=1)
        most = self._limits.explain_names_max
        if close:
            found.append(f"an agent on queue {queue!r} offers {close[0]!r}: is that what is meant?")
        elif same_queue:
            found.append(f"agents on queue {queue!r} offer {_some(sorted(same_queue), most)}")
        for session_id, session in self._open().items():
            if len(found) >= most:
                break
            name = session.name or session_id
            if action in session.actions and session.namespace == namespace and session.queue != queue:
                found.append(f"agent {name} offers {action!r}, but on queue {session.queue!r}")
            elif action in session.actions and session.namespace != namespace:
                found.append(f"agent {name} offers {action!r}, but in namespace {session.namespace!r}")
        if not found and not same_queue:
            queues = sorted({session.queue for session in here})
            near = difflib.get_close_matches(queue, queues, n=1) or queues[:1]
            where = f"; there are agents on {_some(near, most)}" if near else ""
            found.append(f"no agent is connected for queue {queue!r} in namespace {namespace!r}{where}")
        return found


def _agents(count: int) -> str:
    return "1 agent" if count == 1 else f"{count} agents"


def _some(names: list[str], most: int) -> str:
    shown = ", ".join(repr(name) for name in names[:most])
    return shown + (f" and {len(names) - most} more" if len(names) > most else "")
