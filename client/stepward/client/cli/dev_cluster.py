"""`stepward dev --nodes 3`: several servers on this machine, which are one cluster.

One that ends although nobody asked it to is started again, as a service manager would do it, but not for ever.
"""

from __future__ import annotations

import socket
import subprocess
import threading
import time
from collections import deque
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

import click

from stepward.client.cli.dev_server import DevServer, DevServerError, LastWords, command, environment
from stepward.client.cli.exits import ExitCode
from stepward.client.cli.session import note
from stepward.client.failover import DEFAULT_PORT

HOST = "127.0.0.1"
# From one node to the next: the port after ours belongs to the examples.
PORT_STEP = 10
RESTARTS_MAX = 5
RESTARTS_WITHIN_S = 60.0
FOUND_S_MAX = 30.0


def addresses_from(port: int, count: int) -> list[str]:
    """Where the nodes will listen; with port 0 where nobody listens now."""
    if port:
        return [f"{HOST}:{port + number * PORT_STEP}" for number in range(count)]
    with ExitStack() as stack:
        probes = [stack.enter_context(socket.socket()) for _ in range(count)]
        for probe in probes:
            probe.bind((HOST, 0))
        return [f"{HOST}:{probe.getsockname()[1]}" for probe in probes]


class DevCluster:
    """The servers, and what was asked of them."""

    def __init__(self, folder: Path, addresses: Sequence[str], options: Sequence[str], *, verbose: bool) -> None:
        """`options` are the same for all of them."""
        self._folder = folder
        self._addresses = {f"n{number}": address for number, address in enumerate(addresses, start=1)}
        self._options = options
        self._verbose = verbose
        self._servers: dict[str, DevServer] = {}
        self._ended: SimpleQueue[tuple[DevServer, int]] = SimpleQueue()
        self._restarts: dict[str, deque[float]] = {name: deque() for name in self._addresses}
        self.ready: dict[str, dict[str, Any]] = {}
        """What each of them has said."""

    def start(self) -> None:
        """Make the directories if there are none, and start all.

        Raises:
            DevServerError: One did not start.
        """
        self._found()
        for name in self._addresses:
            self._launch(name)
        for name, server in self._servers.items():
            self.ready[name] = server.wait_until_ready()
        for server in self._servers.values():
            self._watch(server)

    def _found(self) -> None:
        node_ids = ",".join(self._addresses)
        found = subprocess.Popen(
            command("found", "--data", str(self._folder), "--node-ids", node_ids),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env=environment(),
        )
        assert found.stderr is not None
        last_words = LastWords(found.stderr, prefix="", shown=False)
        try:
            code = found.wait(FOUND_S_MAX)
        except subprocess.TimeoutExpired:
            raise DevServerError(f"the cluster was not made within {FOUND_S_MAX:.0f} s; is the disk busy?") from None
        finally:
            if found.poll() is None:
                found.kill()
                found.wait()
        if code:
            raise DevServerError(f"the cluster was not made (exit code {code}){last_words.text()}")

    def _launch(self, name: str) -> DevServer:
        host, _, port = self._addresses[name].rpartition(":")
        nodes = ",".join(f"{one}={address}" for one, address in self._addresses.items())
        where = ("--data", str(self._folder / name), "--node-id", name, "--nodes", nodes, "--host", host)
        # Where its pages were, they stay: somebody looks at them there.
        _, _, http_port = self.ready.get(name, {}).get("http", "").rpartition(":")
        pages = ("--http-port", http_port) if http_port else ()
        server = DevServer(["run", *where, "--port", port, *pages, *self._options], name=name, verbose=self._verbose)
        self._servers[name] = server
        return server

    def _watch(self, server: DevServer) -> None:
        """Hear of its end. A thread, since that is what waiting for a process takes."""
        threading.Thread(
            target=lambda: self._ended.put((server, server.wait())), name=f"dev-{server.name}", daemon=True
        ).start()

    def run(self) -> None:
        """Start again whatever ends, until somebody interrupts this.

        Raises:
            DevServerError: One ends again and again.
        """
        while True:
            try:
                server, code = self._ended.get(timeout=1.0)
            except Empty:
                continue
            self._restart(server, code)

    def _restart(self, server: DevServer, code: int) -> None:
        now, restarts = time.monotonic(), self._restarts[server.name]
        while restarts and now - restarts[0] > RESTARTS_WITHIN_S:
            restarts.popleft()
        why = server.ended(code)
        if len(restarts) >= RESTARTS_MAX:
            raise DevServerError(
                f"{why}; it was started {RESTARTS_MAX} times within {RESTARTS_WITHIN_S:.0f} s, which is enough"
            )
        restarts.append(now)
        server.close()
        again = self._launch(server.name)
        # One that does not start has ended, too, and is heard of in the same way.
        self._watch(again)
        note(f"{why}; started again, pid {again.pid}")

    def stop(self) -> ExitCode:
        """End all, and say how that went."""
        note("ending the servers; a second Ctrl-C kills them")
        for server in self._servers.values():
            server.terminate()
        complaints = [complaint for server in self._servers.values() if (complaint := server.stop())]
        for complaint in complaints or ["the servers have ended"]:
            note(complaint)
        return ExitCode.ERROR if complaints else ExitCode.OK

    def close(self) -> None:
        """Leave nothing running."""
        for server in self._servers.values():
            server.close()

    def print_banner(self, *, kept: str) -> None:
        """Where they are, and what may be tried with them."""
        from stepward.client.cli.version import installed

        addresses = ",".join(self._addresses.values())
        click.echo(
            f"stepward {installed('stepward')}: a cluster of {len(self._addresses)} nodes, for trying things out"
        )
        for name, said in self.ready.items():
            http = f"   http {said['http']}" if said.get("http") else ""
            click.echo(f"  {name}   {said.get('address')}   pid {said.get('pid')}{http}")
        click.echo(f"  data {kept}")
        server = f" --server {addresses}"
        if next(iter(self._addresses.values())) == f"{HOST}:{DEFAULT_PORT}":
            # Any of them will do, and the first is where everybody looks.
            server = ""
        click.echo("What next, in another terminal:")
        click.echo(f"  stepward cluster status{server}    # who leads, and how they are")
        click.echo(f"  export STEPWARD_SERVER={addresses}    # for agents and clients: all of them are asked")
        click.echo("Ctrl-C ends them. Kill one of them: it is started again, and the others go on meanwhile.")
