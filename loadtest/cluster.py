"""The servers of a run: one node or several, on this machine, each a process of its own."""

from __future__ import annotations

import random
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import grpc

from stepward.client.demo.processes import Child, stop_all
from stepward.client.tls import TlsFiles
from stepward.v1 import cluster_service_pb2, cluster_service_pb2_grpc

WAIT_S_MAX = 30.0
LOOK_EVERY_S = 0.05
HOST = "127.0.0.1"
# Below those that outgoing connections get.
LASTING_PORTS = range(15_000, 32_000)


class ClusterError(Exception):
    """The servers could not be brought to work. The message says why."""


@dataclass
class Cluster:
    """Servers that work."""

    servers: list[Child]
    commands: Mapping[str, Sequence[str]]
    """By name of the child: what started it."""
    folder: Path
    leader: Child
    """The one that led at the start."""
    tls: TlsFiles | None
    """What a client or an agent shows them; None: plain text."""

    @property
    def pids(self) -> dict[str, int]:
        """By name; `server` is the only one, or the one that led at the start."""
        return {("server" if one is self.leader else one.name): one.pid for one in self.servers}

    @property
    def addresses(self) -> tuple[str, ...]:
        """Of all, the leader first."""
        others = [one.address for one in self.servers if one is not self.leader]
        return (self.leader.address, *others)

    def leads_now(self) -> Child:
        """The one that leads at this moment.

        Raises:
            ClusterError: None did in time.
        """
        return _leader([one for one in self.servers if one.running], self.tls)

    def start_again(self, child: Child) -> Child:
        """Start one that has ended on what it left, at its address, and wait until it can be called."""
        again = Child.start(child.name, self.commands[child.name], folder=self.folder)
        self.servers[self.servers.index(child)] = again
        if child is self.leader:
            self.leader = again
        return again


def channel(address: str, tls: TlsFiles | None) -> grpc.Channel:
    """A connection to a server."""
    return grpc.insecure_channel(address) if tls is None else grpc.secure_channel(address, tls.credentials())


def tls_options(tls: TlsFiles | None) -> list[str]:
    """The same files for another command line."""
    if tls is None:
        return []
    return ["--tls-ca", str(tls.ca), "--tls-cert", str(tls.certificate), "--tls-key", str(tls.key)]


@contextmanager
def cluster(folder: Path, *, nodes: int, with_tls: bool) -> Iterator[Cluster]:
    """Servers with empty directories, ended at the end.

    Raises:
        ClusterError: Nobody leads them.
    """
    names = [f"n{number}" for number in range(1, nodes + 1)]
    server = [sys.executable, "-m", "stepward.server"]
    if nodes == 1 and not with_tls:
        # One that is started again must be where it was.
        port = str(_free_ports(1)[0])
        commands = {"server": [*server, "dev", "--data", str(folder / "data"), "--port", port]}
    else:
        found = [*server, "found", "--data", str(folder), "--node-ids", ",".join(names)]
        subprocess.run(found, check=True, timeout=WAIT_S_MAX, stdout=subprocess.DEVNULL)
        files = _write_files(folder, names, with_tls=with_tls)
        commands = {name: [*server, "run", "--config", str(files[name])] for name in names}
    tls = _files_of(folder) if with_tls else None
    with ExitStack() as started:
        servers: list[Child] = []
        started.callback(stop_all, servers)
        for name, command in commands.items():
            servers.append(Child.launch(name, command, folder=folder))
        for one in servers:
            one.wait_until_ready()
        yield Cluster(servers, commands, folder, _leader(servers, tls), tls)


def _files_of(folder: Path) -> TlsFiles:
    return TlsFiles(folder / "ca.pem", folder / "load.pem", folder / "load.key")


def _write_files(folder: Path, names: list[str], *, with_tls: bool) -> dict[str, Path]:
    """A configuration for each node, and certificates when asked for."""
    nodes = {name: f"{HOST}:{port}" for name, port in zip(names, _free_ports(len(names)), strict=True)}
    if with_tls:
        from tests.certificates import Authority  # noqa: PLC0415 - only who measures with TLS needs its library

        authority = Authority(folder)
        authority.files("load", uri="stepward://client/load")
        for name in names:
            authority.files(name, uri=f"stepward://node/{name}")
    paths = {}
    for name in names:
        paths[name] = folder / f"{name}.toml"
        paths[name].write_text(_configuration(folder, name, nodes, with_tls=with_tls), encoding="utf-8")
    return paths


def _configuration(folder: Path, name: str, nodes: Mapping[str, str], *, with_tls: bool) -> str:
    host, _, port = nodes[name].rpartition(":")
    listed = ", ".join(f'{one} = "{address}"' for one, address in nodes.items())
    lines = ["[node]", f'id = "{name}"', f'data = "{folder / name}"', f'host = "{host}"', f"port = {port}"]
    lines += ["[cluster]", f"nodes = {{ {listed} }}"]
    if with_tls:
        files = {"ca": "ca.pem", "certificate": f"{name}.pem", "key": f"{name}.key"}
        lines += ["[tls]", *(f'{key} = "{folder / file}"' for key, file in files.items())]
    return "\n".join(lines) + "\n"


def _free_ports(count: int) -> list[int]:
    """Ports that are free, and that the system gives to nobody while a node is away.

    Each node must be told those of the others before it starts.
    """
    chance = random.SystemRandom()
    with ExitStack() as opened:
        sockets: list[socket.socket] = []
        for port in chance.sample(LASTING_PORTS, len(LASTING_PORTS)):
            one = opened.enter_context(socket.socket())
            try:
                one.bind((HOST, port))
            except OSError:
                # Somebody else's.
                continue
            sockets.append(one)
            if len(sockets) == count:
                return [one.getsockname()[1] for one in sockets]
    raise ClusterError(f"none of the ports {LASTING_PORTS.start} to {LASTING_PORTS.stop - 1} is free")


def _leader(servers: list[Child], tls: TlsFiles | None) -> Child:
    """The one that leads, as soon as one does."""
    until = time.monotonic() + WAIT_S_MAX
    with ExitStack() as opened:
        stubs = [
            (one, cluster_service_pb2_grpc.ClusterServiceStub(opened.enter_context(channel(one.address, tls))))
            for one in servers
        ]
        while time.monotonic() < until:
            for one, stub in stubs:
                status = stub.GetStatus(cluster_service_pb2.GetStatusRequest(), timeout=WAIT_S_MAX)
                if any(shard.leader for shard in status.shards):
                    return one
            time.sleep(LOOK_EVERY_S)
    raise ClusterError(f"none of {len(servers)} servers led within {WAIT_S_MAX:.0f} s:\n{servers[0].tail()}")
