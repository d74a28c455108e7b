"""Three nodes of one cluster as real processes, each of which can be killed, paused, wiped and started again.

Travel service and agents are those of `rig`, outside the cluster: they know all three addresses. At the end everything
is judged by those who cannot have been deceived: the record of the travel service, the rows of all replicas, and the
logs of the nodes.
"""

from __future__ import annotations

import asyncio
import json
import random
import shutil
import socket
import subprocess
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import grpc
import grpc.aio
from typing_extensions import override

from stepward.client import AsyncClient
from stepward.client.demo.processes import Child
from stepward.v1 import cluster_service_pb2 as pb
from stepward.v1 import cluster_service_pb2_grpc
from tests.cluster.rig import LOOK_EVERY_S, Rig, until
from tests.cluster.traffic import Traffic

ROOT: Final = Path(__file__).parents[2]
NODE_IDS: Final = ("n1", "n2", "n3")

# The least that a cluster of several nodes takes: a failover fits into a third of it.
TTL_MS: Final = 8_000
# What an agent that is lost costs at most: its session, a third more, the kill grace, the margin; and a busy machine.
LEASE_LOSS_S_MAX: Final = TTL_MS * 4 / 3 / 1_000 + 3.5 + 10.0
# A leader is missed after 0.6 s and another elected in a moment; here every processor is busy with other things.
LEADER_S_MAX: Final = 20.0
# One that has been away applies what it has missed within this.
LEVEL_S_MAX: Final = 30.0
STATUS_S_MAX: Final = 2.0
# Of a follower that keeps up; some entries are always on their way.
ENTRIES_BEHIND_MAX: Final = 20
# Below those that outgoing connections get.
LASTING_PORTS: Final = (15_000, 32_000)


class Nodes(Rig):
    """A cluster of three, its travel service and its agents. Use it as a context manager: it ends them all."""

    def __init__(
        self,
        folder: Path,
        *,
        disks: Mapping[str, Path] | None = None,
        modules: Mapping[str, Sequence[str]] | None = None,
        addresses: Mapping[str, str] | None = None,
        prefixes: Mapping[str, Sequence[str]] | None = None,
        options: Sequence[str] = (),
    ) -> None:
        """Make three directories; nothing runs yet.

        Args:
            folder: For the logs, and the directories unless `disks` says otherwise.
            disks: Where the directory of a node is.
            modules: What runs a node in place of `stepward.server`, with its first arguments: one with a planted fault.
            addresses: Where the nodes listen. None: on this machine, on ports that were free a moment ago.
            prefixes: What stands before the command of a node, such as what brings it to another host.
            options: Further options of every node.
        """
        super().__init__(folder, session_ttl_ms=TTL_MS)
        self.addresses = dict(addresses or {name: f"127.0.0.1:{lasting_port()}" for name in NODE_IDS})
        self.nodes: dict[str, Child] = {}
        self.modules = dict(modules or {})
        self._prefixes = dict(prefixes or {})
        self._options = tuple(options)
        self._found(disks or {})

    def _found(self, disks: Mapping[str, Path]) -> None:
        found = [sys.executable, "-m", "stepward.server", "found", "--data", str(self.folder)]
        made = [*found, "--node-ids", ",".join(NODE_IDS)]
        subprocess.run(made, check=True, timeout=60, stdout=subprocess.DEVNULL)
        self.directories = {name: self.folder / name for name in NODE_IDS}
        for name, disk in disks.items():
            shutil.copytree(self.directories[name], disk / name)
            # A cluster is made with a flush; a copy of it is not.
            subprocess.run(["sync", "--file-system", disk], check=True, timeout=60)
            self.directories[name] = disk / name

    @property
    @override
    def address(self) -> str:
        return ",".join(self.addresses.values())

    @override
    def children(self) -> list[Child]:
        return [*self.nodes.values(), *super().children()]

    def launch_node(self, name: str) -> None:
        """Start a node, the second time on the same directory and port, and do not wait for it."""
        module, *first = self.modules.get(name, ("stepward.server",))
        _, _, port = self.addresses[name].rpartition(":")
        host = self.addresses[name].removesuffix(f":{port}")
        listed = ",".join(f"{other}={address}" for other, address in self.addresses.items())
        there = ("--data", str(self.directories[name]), "--node-id", name, "--nodes", listed)
        command = [*self._prefixes.get(name, ()), sys.executable, "-m", module, *first, "run", *there]
        command += ["--host", host, "--port", port, "--http-host", host, "--session-ttl-ms", str(self.session_ttl_ms)]
        # Modules with planted faults are found from the root of the repository.
        self.nodes[name] = Child.launch(name, [*command, *self._options], folder=self.folder, inside=ROOT)

    def start_nodes(self, *names: str) -> None:
        """Start these nodes, or all, and wait until each can be called."""
        for name in names or NODE_IDS:
            self.launch_node(name)
        for name in names or NODE_IDS:
            self.nodes[name].wait_until_ready()

    def wipe(self, name: str) -> None:
        """Take everything from a node that has ended."""
        assert not self.nodes[name].running, f"{name} runs on its directory"
        shutil.rmtree(self.directories[name])

    def others(self, name: str) -> list[str]:
        return [other for other in NODE_IDS if other != name]

    def client(self, *names: str, timeout_s: float = 30.0) -> AsyncClient:
        """A client that knows these nodes, or all."""
        return AsyncClient([self.addresses[name] for name in names or NODE_IDS], timeout_s=timeout_s)

    async def answer(self, name: str) -> pb.GetStatusResponse | None:
        """What a node says of itself; None when it does not answer."""
        async with grpc.aio.insecure_channel(self.addresses[name]) as channel:
            stub = cluster_service_pb2_grpc.ClusterServiceStub(channel)
            try:
                return await stub.GetStatus(pb.GetStatusRequest(), timeout=STATUS_S_MAX)
            except grpc.aio.AioRpcError:
                return None

    async def status(self, name: str) -> pb.ShardStatus | None:
        """What it says of its replica; None when it does not answer, or has none."""
        answer = await self.answer(name)
        return answer.shards[0] if answer is not None and answer.shards else None

    async def takes_part(self, name: str) -> None:
        """Wait until a node that came back with nothing votes and counts again.

        Raises:
            TimeoutError: It did not in time.
        """
        async with asyncio.timeout(LEVEL_S_MAX):
            while True:
                answer = await self.answer(name)
                if answer is not None and answer.state == pb.NODE_STATE_SERVING:
                    return
                await asyncio.sleep(LOOK_EVERY_S)

    async def statuses(self, *names: str) -> dict[str, pb.ShardStatus]:
        """The same of these nodes, or all that run and are not paused; those that answer."""
        asked = names or NODE_IDS
        found = await asyncio.gather(*(self.status(name) for name in asked))
        return {name: status for name, status in zip(asked, found, strict=True) if status is not None}

    async def leader(self, *names: str) -> str:
        """Who of these, or of all, leads with the highest term, as soon as one does.

        Raises:
            TimeoutError: Nobody did in time.
        """
        async with asyncio.timeout(LEADER_S_MAX):
            while True:
                statuses = await self.statuses(*names)
                leading = [(status.term, name) for name, status in statuses.items() if status.leader]
                if leading:
                    return max(leading)[1]
                await asyncio.sleep(LOOK_EVERY_S)

    async def whole(self) -> None:
        """Wait until a leader is in contact with both others, which lack next to nothing.

        Raises:
            TimeoutError: It was not in time.
        """
        async with asyncio.timeout(LEVEL_S_MAX):
            while True:
                leader = await self.status(await self.leader())
                if leader is not None and sum(_follows(leader, one) for one in leader.followers) == len(NODE_IDS) - 1:
                    return
                await asyncio.sleep(LOOK_EVERY_S)

    async def level(self, *names: str) -> tuple[int, str]:
        """Wait until these replicas, or all, have been seen with one head; returns its sequence and hash.

        The head of a cluster at rest moves about once a second, so that all are soon caught between two moves.

        Raises:
            AssertionError: Two have different rows at one sequence, or one stays behind.
        """
        asked, seen = names or NODE_IDS, defaultdict[int, dict[str, str]](dict)
        try:
            async with asyncio.timeout(LEVEL_S_MAX):
                while True:
                    for name, status in (await self.statuses(*asked)).items():
                        hashes = seen[status.sequence]
                        hashes[name] = status.hash
                        assert len(set(hashes.values())) == 1, f"at sequence {status.sequence} rows differ: {hashes}"
                        if len(hashes) == len(asked):
                            return status.sequence, status.hash
                    await asyncio.sleep(LOOK_EVERY_S)
        except TimeoutError:
            heads = {name: max((at for at, hashes in seen.items() if name in hashes), default=-1) for name in asked}
            raise AssertionError(f"the replicas are not level after {LEVEL_S_MAX:.0f} s: {heads}") from None

    def terms_led(self) -> dict[int, set[str]]:
        """Which nodes said in their logs that they lead, by term."""
        found = defaultdict[int, set[str]](set)
        for name in NODE_IDS:
            for line in (self.folder / f"{name}.log").read_text(errors="replace").splitlines():
                if "standing_changed" in line and (standing := standing_of(line)):
                    found[standing].add(name)
        return dict(found)


def _follows(leader: pb.ShardStatus, follower: pb.FollowerStatus) -> bool:
    return follower.connected and follower.match_index + ENTRIES_BEHIND_MAX >= leader.log_last_index


def lasting_port() -> int:
    """A port that is free now, and that the kernel gives to nobody while the node that listens there is away."""
    chance = random.SystemRandom()
    while True:
        port = chance.randrange(*LASTING_PORTS)
        with socket.socket() as one:
            try:
                one.bind(("127.0.0.1", port))
            except OSError:
                continue
        return port


def standing_of(line: str) -> int:
    """The term that a node leads, of the line in which it says so; 0 when it says something else."""
    said = json.loads(line)
    return int(said["term"]) if said["leads"] else 0


async def judged(nodes: Nodes, traffic: Traffic, *, seconds_max: float = 90.0, losses_max: int | None = 0) -> str:
    """Wait until everything has ended, and judge it; returns a line of figures.

    Args:
        nodes: All of them run again.
        traffic: What was asked of them.
        seconds_max: How long what is open may still take.
        losses_max: So many attempts may have been given up because their agent was not heard from. None: any number,
            where agents were hit, too.

    Raises:
        AssertionError: Something acknowledged is lost, wrong or done twice; replicas differ; a term had two leaders.
    """
    jobs = await traffic.ended(seconds_max=seconds_max)
    losses = await traffic.losses()
    sequence, _ = await nodes.level()
    report = nodes.judge({job_id: str(job.state) for job_id, job in jobs.items()})
    led = nodes.terms_led()

    # Each submission was repeated with its key until it was answered, and made one job.
    assert jobs.keys() == traffic.acknowledged.keys()
    assert traffic.wrong_ends(jobs) == {}
    assert report.breaches == []
    assert losses_max is None or len(losses) <= losses_max, losses
    assert [(term, names) for term, names in led.items() if len(names) > 1] == []
    return (
        f"{len(jobs)} jobs, {report.calls} calls, {report.stale_refused} refused as stale, "
        f"{len(losses)} attempts lost, {len(led)} terms led, all level at {sequence}"
    )


async def calls_made(nodes: Nodes, count: int) -> None:
    """Wait until the travel service has had so many calls more."""
    wanted = nodes.calls() + count
    await until(lambda: nodes.calls() >= wanted, seconds_max=60, what=f"{wanted} calls of the travel service")
