"""What a demo shows: a definition with its outside world, some jobs of it, and what must be true of them at the end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepward.client.demo.findings import Finding
from stepward.client.demo.stories import Journey, Kill, Story

if TYPE_CHECKING:
    from stepward.client.blocking_client import Client
    from stepward.client.demo.screen import LiveTree, Screen
    from stepward.client.demo.stage import Stage


@dataclass(frozen=True, kw_only=True)
class Cast:
    """The processes beside the server."""

    service: str
    """Name of the outside world, such as "travel service"."""
    service_module: str
    agent_module: str
    flag: str
    """The agents' option for the address of the outside world."""


@dataclass(frozen=True)
class Scene:
    """One story while it is told."""

    story: Story
    job_id: str
    client: Client
    stage: Stage
    screen: Screen
    tree: LiveTree


@dataclass(frozen=True, kw_only=True)
class Play:
    """Everything about one demo. Entries of the record are of the example's own type, which only it looks into."""

    name: str
    """Its page is `name.md`."""
    definition: str
    """Name of the definition."""
    file: Callable[[], Path]
    """The definition's file."""
    cast: Cast
    stories: Callable[[bool], tuple[Story, ...]]
    """By whether it is to be fast."""
    act: Callable[[Scene], Kill | None]
    """What somebody does to the job or its agents meanwhile; it returns when nothing is left to do."""
    settle: Callable[[Scene], None] = lambda scene: None
    """Waits, when the job has ended, for what is still on its way in the outside world."""
    read: Callable[[Path], list[Any]]
    """The entries of the outside world's record."""
    number: Callable[[Any], str]
    """What an answer of that world gives, such as a booking's number."""
    judge: Callable[[Sequence[Journey], Sequence[Any]], list[Finding]]
    introduction: str
    """The beginning of its page."""


def play_of(name: str) -> Play:
    """The play of a name, which is one of PLAYS. Loads its example, and no other."""
    play: Play = import_module(f"stepward.client.demo.{PLAYS[name]}").PLAY
    return play


# Names, with the modules that have them.
PLAYS = {"trip": "trips", "machines": "machines", "orders": "orders"}
