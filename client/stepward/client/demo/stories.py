"""What a demo is made of: stories before they are told, and journeys, which is what became of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from stepward.client.values import HistoryEvent, Job


@dataclass(frozen=True, kw_only=True)
class Story:
    """One job before it is submitted: what it is to show, and what it asks for."""

    number: int
    title: str
    promise: str
    """What is to be seen, in a sentence."""
    input: Mapping[str, Any]
    lesson: str
    """What a reader should take from it, in a few sentences."""
    name: str
    """For claims, such as "trip 2"."""


@dataclass(frozen=True, kw_only=True)
class Kill:
    """An agent that was killed in the middle of a step."""

    agent: str
    """Its name."""
    pid: int
    session_id: str
    step_id: str
    token: int
    at_s: float
    """Seconds since the job was submitted."""
    lease_ends_s: float
    """When the cluster will hold its lease to have ended, in the same seconds."""


@dataclass(frozen=True, kw_only=True)
class Journey:
    """One job at its end."""

    story: Story
    job: Job
    """With its steps."""
    history: tuple[HistoryEvent, ...]
    agents: Mapping[str, str]
    """Names of the agents by session, also of those that are gone."""
    kill: Kill | None = None
