"""What runs while the failover is shown: several nodes of one cluster, the travel service and two agents."""

from __future__ import annotations

import subprocess
import sys
import time
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from socket import socket

from stepward.client.blocking_client import Client
from stepward.client.demo.processes import LOOK_EVERY_S, Child, ChildError, stop_all
from stepward.client.demo.stage import AGENTS, CONNECT_S_MAX, deaf_to_interrupts
from stepward.client.errors import StepwardError
from stepward.client.values import ShardStatus

HOST = "127.0.0.1"
FOUND_S_MAX = 30.0
# How long the nodes may take to agree on one that leads, on a busy machine.
LEADER_S_MAX = 20.0
ASK_S_MAX = 2.0


class ClusterStage:
    """The running processes."""

    def __init__(self, folder: Path, count: int) -> None:
        """Nothing runs yet. The folder takes data and logs."""
        self.folder = folder
        self.count = count
        self.nodes = {f"n{number}": address for number, address in enumerate(_free_addresses(count), start=1)}
        self._servers: dict[str, Child] = {}
        self._others: list[Child] = []
        self._agents: list[Child] = []

    @property
    def addresses(self) -> list[str]:
        """Of all nodes."""
        return list(self.nodes.values())

    @property
    def ledger(self) -> Path:
        """The travel service's record."""
        return self.folder / "record.jsonl"

    def open(self) -> None:
        """Start everything.

        Raises:
            ChildError: Something did not start.
        """
        self._found()
        for name in self.nodes:
            self._servers[name] = self._serve(name)
        service = ("--port", "0", "--ledger", str(self.ledger), "--end-with-input")
        travel = self._launch("service", "stepward.agents.examples.travel_service", *service)
        self._others.append(travel)
        for child in (*self._servers.values(), travel):
            child.wait_until_ready()
        for name in AGENTS:
            there = ("--server", ",".join(self.addresses), "--travel", travel.address, "--no-service", "--name", name)
            self._agents.append(self._launch(name, "stepward.agents.examples", *there, "--drain-with-input"))

    def _found(self) -> None:
        command = [sys.executable, "-m", "stepward.server", "found", "--data", str(self.folder)]
        done = subprocess.run(
            [*command, "--node-ids", ",".join(self.nodes)],
            capture_output=True,
            text=True,
            timeout=FOUND_S_MAX,
            check=False,
        )
        if done.returncode:
            raise ChildError(f"the cluster was not made: {done.stderr.strip()}")

    def _serve(self, name: str) -> Child:
        nodes = ",".join(f"{one}={address}" for one, address in self.nodes.items())
        where = ("--data", str(self.folder / name), "--node-id", name, "--nodes", nodes)
        port = self.nodes[name].rpartition(":")[2]
        return self._launch(f"server-{name}", "stepward.server", "run", *where, "--port", port, "--exit-with-parent")

    def _launch(self, name: str, module: str, *arguments: str) -> Child:
        # Each of them ends when its input does: whoever kills the demo leaves nothing running.
        return Child.launch(name, [sys.executable, "-m", module, *arguments], folder=self.folder, holds_input=True)

    def wait_for_agents(self, client: Client) -> None:
        """Wait until both agents can be given work.

        Raises:
            ChildError: An agent ended, or did not connect in time.
        """
        until = time.monotonic() + CONNECT_S_MAX
        while sum(agent.connected for agent in client.agents()) < len(AGENTS):
            gone = [child for child in self._agents if not child.running]
            if gone or time.monotonic() > until:
                late = (gone or self._agents)[0]
                raise ChildError(f"{late.name} did not connect; {late.log}:\n{late.tail()}")
            time.sleep(LOOK_EVERY_S)

    def leader(self, *, other_than: str = "") -> str:
        """The node that leads, waiting until there is one.

        Raises:
            ChildError: There was none in time.
        """
        until = time.monotonic() + LEADER_S_MAX
        while time.monotonic() < until:
            for name, shard in self.shards().items():
                if shard.leader and name != other_than:
                    return name
            time.sleep(LOOK_EVERY_S)
        raise ChildError(f"no node led within {LEADER_S_MAX:.0f} s; their logs are in {self.folder}")

    def shards(self) -> dict[str, ShardStatus]:
        """What each node that answers says of its replica."""
        found = {}
        for name, address in self.nodes.items():
            if not self._servers[name].running:
                continue
            with Client(address, timeout_s=ASK_S_MAX) as client:
                try:
                    [found[name]] = client.status().shards
                except StepwardError:
                    # It is not there at the moment, which is what this tells by leaving it out.
                    continue
        return found

    def kill(self, name: str) -> tuple[int, datetime]:
        """Kill a node; its pid, and when it was dead for certain."""
        server = self._servers[name]
        server.kill()
        return server.pid, datetime.now(UTC)

    def start_again(self, name: str) -> None:
        """Start a node that was killed, with its data."""
        self._servers[name] = self._serve(name)

    def wait_until_alike(self, seconds_max: float) -> str:
        """Wait until all nodes have shown the same rows at the same batch; how they differ, empty if they do not."""
        until = time.monotonic() + seconds_max
        while True:
            shards = self.shards()
            heads = {(shard.sequence, shard.hash) for shard in shards.values()}
            if len(shards) == self.count and len(heads) == 1:
                return ""
            if time.monotonic() > until:
                return ", ".join(f"{name}: {shard.sequence} {shard.hash[:12]}" for name, shard in shards.items())
            time.sleep(LOOK_EVERY_S)

    def close(self) -> None:
        """End every process that was started, the agents before the nodes that they report to."""
        with deaf_to_interrupts():
            stop_all(self._agents)
            stop_all([*self._servers.values(), *self._others])


def _free_addresses(count: int) -> list[str]:
    """Where nobody listens now."""
    with ExitStack() as stack:
        probes = [stack.enter_context(socket()) for _ in range(count)]
        for probe in probes:
            probe.bind((HOST, 0))
        return [f"{HOST}:{probe.getsockname()[1]}" for probe in probes]
