"""Follows a job for a person: shows what changes, and says what nobody would guess.

The watch runs in a thread of its own, since the view must go on while nothing changes: countdowns run, and a
missing agent causes no event at all.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

from stepward.client.errors import StepwardError, WaitTimedOut
from stepward.client.tree import HELD
from stepward.client.vacancies import serving, what_is_there
from stepward.client.values import JobChange, JobState, StepState

if TYPE_CHECKING:
    from stepward.client.blocking_client import Client
    from stepward.client.cli.session import Session
    from stepward.client.cli.views import View
    from stepward.client.values import Agent, Job


@dataclass(frozen=True)
class Pace:
    """How often to look at what. Seconds."""

    look_every_s: float = 0.25
    """How often the view may move although nothing has changed."""
    agents_every_s: float = 1.0
    """How often agents are asked about while it matters."""
    agents_timeout_s: float = 1.0
    """A view must not stand still because a node does."""
    ready_patience_s: float = 3.0
    """A step that waits longer than this for an agent makes one wonder whether there is any."""


PACE = Pace()


class _Over:
    """The watch has ended in good order."""


_Changes: TypeAlias = "queue.Queue[JobChange | StepwardError | _Over]"


def follow(
    session: Session,
    client: Client,
    job_id: str,
    view: View,
    *,
    wait_max_s: float | None = None,
    pace: Pace = PACE,
) -> Job:
    """Show a job until it has ended or waits for a person; the job as it was last.

    Raises:
        WaitTimedOut: It goes on.
        StepwardError: It cannot be followed.
    """
    ends_at_s = None if wait_max_s is None else time.monotonic() + wait_max_s
    changes = _watch(client, job_id)
    lookout = _Lookout(session, view, pace)
    try:
        while True:
            item = _next(changes, job_id, ends_at_s, pace)
            if isinstance(item, JobChange):
                view.change(item)
                lookout.job = item.job
                if item.job.state is JobState.ESCALATED:
                    return item.job
            elif lookout.job is not None and lookout.job.state.final:
                # Whatever ended the watch: the end of the job is known.
                if item is not None:
                    return lookout.job
            elif isinstance(item, StepwardError):
                raise item
            lookout.look(time.monotonic())
    finally:
        lookout.close()
        view.close()


def _watch(client: Client, job_id: str) -> _Changes:
    # Unbounded, but one job changes a bounded number of times, and the reader only waits for this.
    changes: _Changes = queue.Queue()

    def run() -> None:
        try:
            for change in client.watch(job_id):
                changes.put(change)
            changes.put(_Over())
        except StepwardError as error:
            changes.put(error)

    threading.Thread(target=run, name=f"watch-{job_id}", daemon=True).start()
    return changes


def _next(
    changes: _Changes, job_id: str, ends_at_s: float | None, pace: Pace
) -> JobChange | StepwardError | _Over | None:
    """What has come; None when it is time to look."""
    left_s = None if ends_at_s is None else ends_at_s - time.monotonic()
    if left_s is not None and left_s <= 0:
        raise WaitTimedOut(
            f"job {job_id} has not ended in the time that was given; it goes on", metadata={"job_id": job_id}
        )
    try:
        return changes.get(timeout=pace.look_every_s if left_s is None else min(pace.look_every_s, left_s))
    except queue.Empty:
        return None


@dataclass
class Hints:
    """Which steps have waited for an agent so long that it is worth a word. Pure; each word is said once."""

    patience_s: float
    _ready_since_s: dict[str, float] = field(default_factory=dict)
    _said: set[tuple[str, str]] = field(default_factory=set)

    def waiting(self, job: Job, now_s: float) -> list[tuple[str, str, str]]:
        """Step, action and queue of those that have waited long enough."""
        ready = {step.step_id: step for step in job.steps if step.state is StepState.READY}
        self._ready_since_s = {step_id: self._ready_since_s.get(step_id, now_s) for step_id in ready}
        return [
            (step_id, step.action, step.queue or "default")
            for step_id, step in ready.items()
            if now_s - self._ready_since_s[step_id] >= self.patience_s
        ]

    def hints(self, job: Job, agents: Mapping[str, Agent], now_s: float, again: str) -> list[str]:
        """What to say, now that the agents are known. `again` are the options that lead to the same cluster."""
        texts = []
        for step_id, action, on_queue in self.waiting(job, now_s):
            if (action, on_queue) in self._said or any(agent.offers(action, on_queue) for agent in agents.values()):
                continue
            self._said.add((action, on_queue))
            there = what_is_there(action, on_queue, serving(agents.values(), on_queue))
            texts.append(
                f'step "{step_id}" waits: no agent offers action "{action}" on queue "{on_queue}" ({there}); '
                f"start one with: stepward agent run MODULE --queue {on_queue}{again}"
            )
        return texts


class _Lookout:
    """Asks about agents when a step waits for one or one may be lost, and tells the view.

    It has a client of its own, which gives up sooner.
    """

    def __init__(self, session: Session, view: View, pace: Pace) -> None:
        self.job: Job | None = None
        self._session = session
        self._view = view
        self._client = session.client(timeout_s_max=pace.agents_timeout_s)
        self._pace = pace
        self._hints = Hints(pace.ready_patience_s)
        self._asked_at_s = float("-inf")

    def close(self) -> None:
        self._client.close()

    def look(self, now_s: float) -> None:
        job = self.job
        if job is None:
            return
        matters = bool(self._hints.waiting(job, now_s)) or any(step.state in HELD for step in job.steps)
        if not matters or now_s - self._asked_at_s < self._pace.agents_every_s:
            return
        self._asked_at_s = now_s
        agents = self._ask(job.namespace)
        self._view.look(agents)
        if agents is not None:
            for text in self._hints.hints(job, agents, now_s, self._session.again()):
                self._view.say(text)

    def _ask(self, namespace: str) -> Mapping[str, Agent] | None:
        """The open sessions; None when nobody can tell at the moment, which the watch will find out by itself."""
        try:
            return {agent.session_id: agent for agent in self._client.agents(namespace=namespace)}
        except StepwardError:
            return None
