"""An example's agent in one process of its own, which nothing starts again, with the address of its outside world."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass

from stepward.agents import Agent, worker

SLOTS_DEFAULT = 16


@dataclass(frozen=True, kw_only=True)
class AgentOptions:
    """What the command line says of itself, and what it takes when it is told nothing else."""

    prog: str
    description: str | None
    server: str
    flag: str
    """The option for the address of the outside world, such as "--cloud"."""
    service: str
    """That address."""


@dataclass(frozen=True, kw_only=True)
class Given:
    """What the agent is to be."""

    service: str
    slots: int
    name: str | None
    starts_service: bool


def run(options: AgentOptions, make: Callable[[Given], Agent]) -> int:
    """Read the command line and serve until the process is told to end. Returns the exit code."""
    parser = argparse.ArgumentParser(prog=options.prog, description=options.description)
    parser.add_argument("--server", default=options.server, help="addresses, with commas between (%(default)s)")
    parser.add_argument(
        options.flag, dest="service", default=options.service, help="address of its outside world (%(default)s)"
    )
    parser.add_argument("--slots", type=int, default=SLOTS_DEFAULT, help="steps at once (default: %(default)s)")
    parser.add_argument("--name", help="for people")
    parser.add_argument("--no-service", dest="starts_service", action="store_false", help="never start one")
    parser.add_argument("--drain-with-input", action="store_true", help="drain when standard input ends")
    given = parser.parse_args()
    agent = make(Given(service=given.service, slots=given.slots, name=given.name, starts_service=given.starts_service))
    if given.drain_with_input:
        worker.drain_when_input_ends(agent)
    return agent.run(given.server.split(","))
