"""What runs while a demo is shown: a server, the outside world and two agents, each a process of its own."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from stepward.client.blocking_client import Client
from stepward.client.demo.processes import LOOK_EVERY_S, Child, ChildError, stop_all
from stepward.client.values import Agent

if TYPE_CHECKING:
    from stepward.client.demo.plays import Play

AGENTS = ("agent-1", "agent-2")

# A lease this short ends while somebody watches; a cluster that is not watched has longer ones.
SESSION_TTL_MS = 3_000

CONNECT_S_MAX = 30.0


class Stage:
    """The running processes."""

    def __init__(self, play: Play, folder: Path) -> None:
        """Nothing runs yet. The folder takes data and logs."""
        self.play = play
        self.folder = folder
        self._children: list[Child] = []
        self._agents: dict[str, Child] = {}
        self.names: dict[str, str] = {}
        """Of the agents, by session; also of those that are gone."""
        self.address = ""
        self.service_address = ""
        """Of the outside world."""

    @property
    def ledger(self) -> Path:
        """The outside world's record."""
        return self.folder / "record.jsonl"

    def open(self) -> None:
        """Start everything.

        Raises:
            ChildError: Something did not start.
        """
        options = ("--data", str(self.folder / "data"), "--port", "0", "--session-ttl-ms", str(SESSION_TTL_MS))
        server = self._launch("server", "stepward.server", "dev", *options, "--exit-with-parent")
        service = ("--port", "0", "--ledger", str(self.ledger), "--end-with-input")
        cast = self.play.cast
        world = self._launch("service", cast.service_module, *service)
        server.wait_until_ready()
        world.wait_until_ready()
        self.address = server.address
        self.service_address = world.address
        for name in AGENTS:
            there = ("--server", server.address, cast.flag, world.address, "--no-service", "--name", name)
            self._agents[name] = self._launch(name, cast.agent_module, *there, "--drain-with-input")

    def prepare(self, client: Client) -> None:
        """Store the definition, and wait until both agents can be given work.

        Raises:
            ChildError: An agent ended, or did not connect in time.
        """
        client.apply_definition(self.play.file())
        until = time.monotonic() + CONNECT_S_MAX
        while sum(agent.connected for agent in self.sessions(client).values()) < len(AGENTS):
            gone = [child for child in self._agents.values() if not child.running]
            if gone or time.monotonic() > until:
                late = (gone or list(self._agents.values()))[0]
                raise ChildError(f"{late.name} did not connect to {self.address}; {late.log}:\n{late.tail()}")
            time.sleep(LOOK_EVERY_S)

    def sessions(self, client: Client) -> dict[str, Agent]:
        """The open sessions by id. Notes their names, since a session that has ended is listed no more."""
        agents = {agent.session_id: agent for agent in client.agents()}
        self.names.update((session_id, agent.name) for session_id, agent in agents.items())
        return agents

    def agent(self, session_id: str) -> Child:
        """The agent of a session."""
        return self._agents[self.names[session_id]]

    def close(self) -> None:
        """End every process that was started, the agents before the server that they report to."""
        with deaf_to_interrupts():
            agents = list(self._agents.values())
            for agent in agents:
                # One that was left paused would not hear that it is to end.
                agent.resume()
            stop_all(agents)
            stop_all([child for child in self._children if child not in agents])

    def _launch(self, name: str, module: str, *arguments: str) -> Child:
        command = [sys.executable, "-m", module, *arguments]
        # Each of them ends when its input does: whoever kills the demo leaves nothing running.
        child = Child.launch(name, command, folder=self.folder, holds_input=True)
        self._children.append(child)
        return child


@contextmanager
def deaf_to_interrupts() -> Iterator[None]:
    """Finish what must be finished: a second Ctrl-C would leave processes behind."""
    before = {number: signal.signal(number, signal.SIG_IGN) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def interrupted_by_sigterm() -> Iterator[None]:
    """Take a SIGTERM like a Ctrl-C, so that the processes are ended then, too."""

    def interrupt(number: int, _: object) -> None:
        raise KeyboardInterrupt(f"signal {number}")

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
