"""A cluster as it is run for good: a file for each node, mutual TLS, made by hand, and a disk that is lost."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stepward.client import Client, Definition, TlsFiles
from stepward.client.cli.exits import ExitCode
from tests.certificates import Authority, Files
from tests.client.command_line import Ran, run
from tests.server.test_joining import IDS, free_addresses

WAIT_S_MAX = 60.0
LOOK_EVERY_S = 0.1


class Machines:
    """Three machines, each with a file, a certificate, and a node that is started as a service manager would do it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.nodes = dict(zip(IDS, free_addresses(3), strict=True))
        self._authority = Authority(folder)
        self.operator = self._authority.files("operator", uri="stepward://client/operator")
        self._running: dict[str, subprocess.Popen[str]] = {}
        for node_id in IDS:
            self._write(node_id, self._authority.files(node_id, uri=f"stepward://node/{node_id}"))

    def file(self, node_id: str) -> Path:
        return self.folder / f"{node_id}.toml"

    def _write(self, node_id: str, files: Files) -> None:
        nodes = "\n".join(f'{one} = "{address}"' for one, address in self.nodes.items())
        port = self.nodes[node_id].rpartition(":")[2]
        self.file(node_id).write_text(
            f'[node]\nid = "{node_id}"\ndata = "data/{node_id}"\nport = {port}\n[cluster.nodes]\n{nodes}\n'
            f'[tls]\nca = "{files.ca}"\ncertificate = "{files.certificate}"\nkey = "{files.key}"\n'
        )

    def start(self, node_id: str) -> dict[str, Any]:
        """Start a node; its first line."""
        command = [sys.executable, "-m", "stepward.client.console", "server", "run", str(self.file(node_id))]
        with (self.folder / f"{node_id}.log").open("ab") as log:
            popen = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
        self._running[node_id] = popen
        assert popen.stdout is not None
        line: dict[str, Any] = json.loads(popen.stdout.readline())
        return line

    def end(self, node_id: str, number: signal.Signals) -> int:
        popen = self._running.pop(node_id)
        popen.send_signal(number)
        code = popen.wait(WAIT_S_MAX)
        assert popen.stdout is not None
        popen.stdout.close()
        return code

    def close(self) -> None:
        for node_id in list(self._running):
            self.end(node_id, signal.SIGKILL)

    def command(self, *arguments: str, at: str = "") -> Ran:
        """What an operator types, with the certificate of one."""
        ca, certificate, key = map(str, self.operator)
        server = at or ",".join(self.nodes.values())
        return run(*arguments, "--server", server, "--tls-ca", ca, "--tls-cert", certificate, "--tls-key", key)

    def wait_until_well(self) -> dict[str, dict[str, Any]]:
        """What each node says when nothing is wrong any more."""
        until = time.monotonic() + WAIT_S_MAX
        while (ran := self.command("cluster", "status", "-o", "json")).code != ExitCode.OK:
            assert time.monotonic() < until, ran.stderr
            time.sleep(LOOK_EVERY_S)
        return {node["node_id"]: node for node in ran.json}


@pytest.fixture
def machines(tmp_path: Path) -> Iterator[Machines]:
    machines = Machines(tmp_path)
    yield machines
    machines.close()


def test_from_the_files_to_a_node_that_came_back(machines: Machines) -> None:
    """Nothing that was acknowledged is lost on the way."""
    first = [machines.start(node_id) for node_id in IDS]
    before = machines.command("cluster", "status")
    created = machines.command("cluster", "create", at=machines.nodes["n2"])
    machines.wait_until_well()
    again = machines.command("cluster", "create", at=machines.nodes["n3"])
    with client(machines) as caller:
        trip = Definition("trip")
        trip.step("book", queue="nobody")
        caller.apply_definition(trip)
        job_id = caller.submit("trip", {}, idempotency_key="k").job_id

    machines.end("n3", signal.SIGKILL)
    shutil.rmtree(machines.folder / "data" / "n3")
    back = machines.start("n3")
    joined = machines.wait_until_well()
    codes = [machines.end(node_id, signal.SIGTERM) for node_id in IDS]
    later = [machines.start(node_id) for node_id in IDS]
    machines.wait_until_well()
    with client(machines) as caller:
        found = caller.get(job_id)
        duplicate = caller.submit("trip", {}, idempotency_key="k")

    assert [line["event"] for line in first] == ["waiting"] * 3
    assert before.code == ExitCode.ERROR
    assert before.stderr.count("EMPTY") == 3
    assert (created.code, again.code) == (ExitCode.OK, ExitCode.CONFLICT)
    assert back["event"] == "waiting"
    assert joined["n3"]["cluster_id"] == created.stdout.strip()
    assert int(joined["n3"]["incarnation"]) > int(joined["n1"]["incarnation"]) == 1
    assert codes == [0, 0, 0]
    assert [line["cluster_id"] for line in later] == [created.stdout.strip()] * 3
    assert (found.job_id, duplicate.job_id) == (job_id, job_id)


def client(machines: Machines) -> Client:
    return Client(list(machines.nodes.values()), tls=TlsFiles(*map(str, machines.operator)))


def test_a_node_with_the_certificate_of_another_does_not_start(machines: Machines) -> None:
    """The others would refuse it, each for itself; here it is told in one line, and `check` tells it before."""
    text = machines.file("n3").read_text()
    machines.file("n3").write_text(text.replace("n3.pem", "n2.pem").replace("n3.key", "n2.key"))

    said = {}
    for word in ("run", "check"):
        command = [sys.executable, "-m", "stepward.client.console", "server", word, str(machines.file("n3"))]
        ran = subprocess.run(command, capture_output=True, text=True, timeout=WAIT_S_MAX, check=False)
        said[word] = (ran.returncode, ran.stdout, ran.stderr.splitlines()[-1])

    complaint = "it names stepward://node/n2, and this node needs stepward://node/n3"
    assert said["check"][:2] == said["run"][:2] == (1, "")
    assert complaint in said["check"][2]
    assert complaint in json.loads(said["run"][2])["reason"]
