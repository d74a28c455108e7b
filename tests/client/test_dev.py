"""`stepward dev` with the real server, and with stand-ins for a server that does not do what it should."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from stepward.client import Client
from stepward.client.cli import dev_server
from stepward.client.cli.dev import RETENTION_BOUNDS, TTL_BOUNDS, TTL_LEAST_OF_SEVERAL
from stepward.client.cli.dev_cluster import RESTARTS_MAX, addresses_from
from stepward.client.cli.dev_server import PIP_LINE
from stepward.client.cli.exits import ExitCode
from stepward.client.durations import parse_duration
from stepward.server import config
from stepward.v1 import cluster_service_pb2
from tests.client.command_line import run
from tests.client.scripted_server import ScriptedServer

# Starts and stops of a process on a busy machine.
WAIT_S_MAX = 60.0
LOOK_EVERY_S = 0.1

READY = """
import json, os, signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
print("not JSON", flush=True)
print(json.dumps({"event": "ready", "address": "127.0.0.1:1", "pid": os.getpid()}), flush=True)
"""

Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts `stepward dev`; whatever is left of it is killed."""
    started = []

    def start(*arguments: str, server: Path | None = None) -> subprocess.Popen[str]:
        # In front of all others, the stand-in is what `python -m stepward.server` finds.
        environment = {**os.environ, "PYTHONPATH": str(server)} if server else None
        command = [sys.executable, "-c", "from stepward.client.cli import main; main()", "dev", *arguments]
        child = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment, start_new_session=True
        )
        started.append(child)
        return child

    yield start
    for child in started:
        if child.poll() is None:
            child.kill()
        child.communicate()


def stand_in(folder: Path, program: str) -> Path:
    """A server of a few lines, where Python finds it."""
    package = folder / "stepward" / "server"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "__main__.py").write_text(textwrap.dedent(program))
    return folder


def read_until(child: subprocess.Popen[str], last: str) -> str:
    """What a process prints up to a line; its end ends it, too."""
    assert child.stdout is not None
    lines = []
    for line in child.stdout:
        lines.append(line)
        if line.startswith(last):
            break
    return "".join(lines)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_real_server(start: Start, number: signal.Signals) -> None:
    """It says where it is, answers there, ends when it is told to, and leaves nothing behind."""
    child = start("--port", "0")
    banner = read_until(child, "Ctrl-C")
    address = re.search(r"address +(\S+)", banner)
    folder = re.search(r"data +(\S+)", banner)
    assert address
    assert folder
    with Client(address[1]) as client:
        status = client.status()
        there = Path(folder[1]).is_dir()

    child.send_signal(number)
    code = child.wait(WAIT_S_MAX)

    assert there
    assert status.shards[0].leader
    assert f"pid {status.pid}" in banner
    assert f"stepward agent run MODULE --server {address[1]}" in banner
    assert code == 0
    assert not Path(folder[1]).exists()
    with pytest.raises(ProcessLookupError):
        os.kill(status.pid, 0)


def test_a_server_goes_with_whoever_started_it(start: Start) -> None:
    """Also when that is killed, and nobody can pass on a signal."""
    child = start("--port", "0")
    pid = re.search(r"pid (\d+)", read_until(child, "Ctrl-C"))
    assert pid
    server = psutil.Process(int(pid[1]))

    child.kill()
    gone, _ = psutil.wait_procs([server], WAIT_S_MAX)

    assert gone == [server]


def test_data_is_kept(start: Start, tmp_path: Path) -> None:
    """With --data nothing is removed, and the arguments go to the server as they were agreed."""
    server = stand_in(
        tmp_path / "server", "import sys; print(sys.argv, file=sys.stderr, flush=True)" + READY + "time.sleep(60)"
    )
    data = tmp_path / "data"
    data.mkdir()
    child = start("--port", "0", "--data", str(data), "--ttl", "1500ms", "--retention", "1h30m", "-v", server=server)
    banner = read_until(child, "Ctrl-C")

    # As a terminal does: the signal goes to all processes of the group, and must reach the server only through us.
    os.killpg(child.pid, signal.SIGINT)
    _, stderr = child.communicate(timeout=WAIT_S_MAX)

    assert child.returncode == 0
    assert f"data     {data}\n" in banner
    assert data.is_dir()
    arguments = ["dev", "--data", str(data), "--port", "0", "--host", "127.0.0.1", "--session-ttl-ms", "1500"]
    assert str([*arguments, "--retention", "5400000ms", "--exit-with-parent"])[1:-1] in stderr
    assert "the server has ended" in stderr


@pytest.mark.parametrize(
    ("program", "complaint"),
    [
        ("import sys; sys.exit('no disk')", "the server did not start (exit code 1); it said last:\n  no disk"),
        ("import sys; sys.exit(78)", "the server did not start (exit code 78); it said last:\n  nothing"),
        (READY + "sys.exit('disk gone')", "the server ended by itself (exit code 1); it said last:\n  disk gone"),
        (
            """import sys; sys.exit('{"event": "node_failed", "reason": "the disk is full", "code": 1}')""",
            "error: the server did not start (exit code 1): the disk is full\n",
        ),
        (
            """import sys; sys.exit('{"event": "gone", "level": "error", "shard": 0, "exception": "Traceback"}')""",
            "the server did not start (exit code 1); it said last:\n  gone shard=0\n",
        ),
    ],
    ids=["does not start", "is not fit", "ends by itself", "says why", "breaks"],
)
def test_a_server_that_fails(start: Start, tmp_path: Path, program: str, complaint: str) -> None:
    """Its last words are shown, and the code is 1."""
    child = start("--port", "0", server=stand_in(tmp_path, program))
    _, stderr = child.communicate(timeout=WAIT_S_MAX)

    assert child.returncode == 1
    assert complaint in stderr
    assert "Traceback" not in stderr


def test_interrupted_before_it_is_ready(start: Start, tmp_path: Path) -> None:
    """It ends as a command does that a person has interrupted: nothing has failed."""
    slow = "import sys, time; print('begun', file=sys.stderr, flush=True); time.sleep(60)"
    child = start("--port", "0", "-v", server=stand_in(tmp_path, slow))
    assert child.stderr is not None
    assert child.stderr.readline() == "begun\n"

    child.send_signal(signal.SIGINT)
    stdout, stderr = child.communicate(timeout=WAIT_S_MAX)

    assert (child.returncode, stdout, stderr) == (ExitCode.INTERRUPTED, "", "interrupted\n")


def test_a_server_that_does_not_end(start: Start, tmp_path: Path) -> None:
    """It is killed by a second Ctrl-C."""
    deaf = READY.replace("lambda *_: sys.exit(0)", "signal.SIG_IGN") + "time.sleep(60)"
    child = start("--port", "0", server=stand_in(tmp_path, deaf))
    pid = re.search(r"pid (\d+)", read_until(child, "Ctrl-C"))
    assert pid

    child.send_signal(signal.SIGINT)
    assert child.stderr is not None
    assert child.stderr.readline() == "ending the server; a second Ctrl-C kills it\n"
    child.send_signal(signal.SIGINT)
    child.communicate(timeout=WAIT_S_MAX)

    assert child.returncode == ExitCode.INTERRUPTED
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid[1]), 0)


@pytest.mark.parametrize(
    ("option", "given", "bounds"),
    [
        ("--ttl", "999ms", "1s and 1h"),
        ("--ttl", "3600001ms", "1s and 1h"),
        ("--retention", "999ms", "1s and 3650d"),
        ("--retention", "3651d", "1s and 3650d"),
    ],
)
def test_a_duration_out_of_bounds(option: str, given: str, bounds: str) -> None:
    """The option is to blame, so it is named, and nothing is started."""
    ran = run("dev", "--port", "0", option, given)

    assert ran.code == ExitCode.USAGE
    assert f"{option}': {given} is out of bounds; it must be between {bounds}" in ran.stderr


@pytest.mark.parametrize(
    ("bounds", "of_the_server"), [(TTL_BOUNDS, config.SESSION_TTL_BOUND), (RETENTION_BOUNDS, config.RETENTION_BOUND)]
)
def test_bounds_are_those_of_the_server(bounds: tuple[str, str], of_the_server: config.Bound) -> None:
    """What the command lets through, the server takes."""
    assert tuple(parse_duration(text).total_seconds() * 1_000 for text in bounds) == (
        of_the_server.least,
        of_the_server.most,
    )


def test_a_taken_port() -> None:
    """Said before anything is started."""
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        ran = run("dev", "--port", str(port))

    assert (ran.code, ran.stdout) == (1, "")
    assert ran.stderr == (
        f"error: cannot listen on 127.0.0.1:{port}: Address already in use; choose another with --port, 0 for any\n"
    )


def test_a_port_taken_by_ourselves(server: ScriptedServer) -> None:
    """The one who has it is named when it is one of us."""
    server.on("GetStatus", cluster_service_pb2.GetStatusResponse(pid=4711))

    ran = run("dev", "--port", str(server.port))

    assert "(a stepward server, pid 4711, is running there already)" in ran.stderr


def test_without_the_server_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    """The exact line that installs it."""
    monkeypatch.setattr(dev_server, "SERVER_PACKAGE", "no_such_package")

    ran = run("dev", "--port", "0")

    assert (ran.code, ran.stdout) == (1, "")
    assert ran.stderr == f"error: the server is not installed; install it with:\n  {PIP_LINE}\n"


SERVES = """
import json, os, signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
print(sys.argv[1:], sorted(name for name in os.environ if "STEPWARD" in name), file=sys.stderr, flush=True)
if sys.argv[1] == "found":
    sys.exit(0)
print(json.dumps({"event": "waiting", "address": sys.argv[sys.argv.index("--nodes") + 1], "pid": os.getpid(),
                  "http": f"127.0.0.1:{os.getpid()}"}))
sys.stdout.flush()
"""


def pids(banner: str) -> dict[str, int]:
    return {found[1]: int(found[2]) for found in re.finditer(r"^ +(n\d) .* pid (\d+)", banner, re.MULTILINE)}


def stderr_line(child: subprocess.Popen[str], part: str) -> str:
    """The next line on stderr that has a part."""
    assert child.stderr is not None
    return next(line for line in child.stderr if part in line)


def test_nodes_are_told_of_each_other(start: Start, tmp_path: Path) -> None:
    """The directories are made first; each node has its own, and nothing of our environment but the log level."""
    data = tmp_path / "data"
    server = stand_in(tmp_path, SERVES + "time.sleep(60)")
    child = start("--nodes", "3", "--port", "0", "--data", str(data), "-v", server=server)
    banner = read_until(child, "Ctrl-C")
    child.send_signal(signal.SIGINT)
    _, stderr = child.communicate(timeout=WAIT_S_MAX)

    found = re.search(r"export STEPWARD_SERVER=(\S+)", banner)
    assert found
    addresses = dict(zip(("n1", "n2", "n3"), found[1].split(","), strict=True))
    nodes = ",".join(f"{name}={address}" for name, address in addresses.items())
    assert child.returncode == 0
    assert len(set(pids(banner).values())) == 3
    for name, address in addresses.items():
        told = ["run", "--data", str(data / name), "--node-id", name, "--nodes", nodes, "--host", "127.0.0.1"]
        told += ["--port", address.removeprefix("127.0.0.1:"), "--session-ttl-ms", "10000"]
        told += ["--retention", "604800000ms", "--exit-with-parent"]
        assert f"{name}: {told} []\n" in stderr
    assert stderr.endswith("the servers have ended\n")


def test_ports_of_several_nodes() -> None:
    """The one behind the first is left to the examples' travel service; with 0 each has a free one of its own."""
    assert addresses_from(7654, 3) == ["127.0.0.1:7654", "127.0.0.1:7664", "127.0.0.1:7674"]
    assert len(set(addresses_from(0, 5))) == 5


def test_a_node_that_is_killed_is_started_again(start: Start, tmp_path: Path) -> None:
    """With a line that says so; when the parent is killed none of them stays."""
    server = stand_in(tmp_path, SERVES + "sys.stdin.read()")
    child = start("--nodes", "3", "--port", "0", server=server)
    before = pids(read_until(child, "Ctrl-C"))

    os.kill(before["n2"], signal.SIGKILL)
    line = stderr_line(child, "killed")
    again = re.fullmatch(r"n2 was killed \(SIGKILL\); started again, pid (\d+)\n", line)
    assert again
    others = [psutil.Process(pid) for pid in (before["n1"], before["n3"], int(again[1]))]
    child.kill()
    gone, _ = psutil.wait_procs(others, WAIT_S_MAX)

    assert int(again[1]) != before["n2"]
    assert set(gone) == set(others)


def test_a_node_that_is_started_again_keeps_its_pages(start: Start, tmp_path: Path) -> None:
    """Whoever watches it there would else watch nobody."""
    server = stand_in(tmp_path, SERVES + "sys.stdin.read()")
    child = start("--nodes", "3", "--port", "0", "-v", server=server)
    # The stand-in says that its pages are where its pid is.
    before = pids(read_until(child, "Ctrl-C"))

    os.kill(before["n2"], signal.SIGKILL)

    assert f"'--http-port', '{before['n2']}'" in stderr_line(child, "--http-port")


def test_a_node_that_ends_again_and_again(start: Start, tmp_path: Path) -> None:
    """It is given up with its last words, and the others are ended."""
    server = stand_in(tmp_path, SERVES + "sys.exit('no disk') if 'n3' in sys.argv else time.sleep(60)")
    child = start("--nodes", "3", "--port", "0", server=server)
    banner = read_until(child, "Ctrl-C")
    _, stderr = child.communicate(timeout=WAIT_S_MAX)

    lines = stderr.splitlines()
    assert child.returncode == 1
    assert sum("started again" in line for line in lines) == RESTARTS_MAX
    assert "it was started 5 times within 60 s, which is enough" in stderr
    assert "no disk" in stderr
    for name in ("n1", "n2"):
        with pytest.raises(ProcessLookupError):
            os.kill(pids(banner)[name], 0)


def test_directories_that_cannot_be_made(start: Start, tmp_path: Path) -> None:
    """The reason is the server's own."""
    fails = """import sys; sys.exit('{"event": "node_failed", "reason": "the disk is full", "code": 1}')"""
    child = start("--nodes", "3", "--port", "0", server=stand_in(tmp_path, fails))
    _, stderr = child.communicate(timeout=WAIT_S_MAX)

    assert child.returncode == 1
    assert stderr == "error: the cluster was not made (exit code 1): the disk is full\n"


@pytest.mark.parametrize("count", ["0", "2", "4", "7"])
def test_numbers_of_nodes_that_make_no_sense(count: str) -> None:
    """With an even number no more may be gone than with one less."""
    ran = run("dev", "--nodes", count)

    assert ran.code == ExitCode.USAGE
    assert f"{count} is not among 1, 3, 5" in ran.stderr


def test_ttl_of_several_nodes() -> None:
    """The bound is the server's, and the option is to blame."""
    ran = run("dev", "--nodes", "3", "--ttl", "7999ms")

    assert ran.code == ExitCode.USAGE
    assert "--ttl: it must be at least 8s with several nodes" in ran.stderr
    assert parse_duration(TTL_LEAST_OF_SEVERAL).total_seconds() * 1_000 == config.SESSION_TTL_MS_MIN_NODES


def test_three_real_servers(start: Start) -> None:
    """One cluster: a leader is found, leadership is handed on, and a job that is stored on one is read on another."""
    child = start("--nodes", "3", "--port", "0")
    banner = read_until(child, "Ctrl-C")
    found = re.search(r"export STEPWARD_SERVER=(\S+)", banner)
    assert found
    addresses = found[1].split(",")
    well = wait_until_well(found[1])
    before = next(node["node_id"] for node in well if node["shards"][0]["leader"])
    other = "n1" if before != "n1" else "n2"
    handed = run("cluster", "transfer-leader", other, "--server", found[1], "-o", "json")
    os.kill(pids(banner)[before], signal.SIGKILL)
    line = stderr_line(child, "started again")
    again = wait_until_well(found[1])
    child.send_signal(signal.SIGINT)
    code = child.wait(WAIT_S_MAX)

    assert [node["node_id"] for node in well] == ["n1", "n2", "n3"]
    assert [node["address"] for node in well] == addresses
    assert {node["node_id"]: node["pid"] for node in well} == pids(banner)
    assert len({node["cluster_id"] for node in well}) == 1
    assert handed.json["node_id"] == other
    assert line.startswith(f"{before} was killed")
    assert again[int(before[1]) - 1]["pid"] != pids(banner)[before]
    assert code == 0


def wait_until_well(servers: str) -> list[dict[str, Any]]:
    """What `cluster status` says when nothing is wrong any more."""
    until = time.monotonic() + WAIT_S_MAX
    while (ran := run("cluster", "status", "--server", servers, "-o", "json")).code != ExitCode.OK:
        assert time.monotonic() < until, ran.stderr
        time.sleep(LOOK_EVERY_S)
    found: list[dict[str, Any]] = ran.json
    return found
