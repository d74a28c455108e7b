"""A node as a process: how it starts, says that it is ready, stops, and what it says when it cannot."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc  # type: ignore[import-untyped]  # ships no types

from stepward.server.logbook.identity import create_cluster
from stepward.server.store.lmdb_store import LmdbStore
from stepward.v1 import cluster_service_pb2, common_pb2, definition_pb2, job_service_pb2
from tests.server import nodes
from tests.server.nodes import CALL_S_MAX, submission
from tests.server.plain_agent import agent

S = CALL_S_MAX
START_S_MAX = 30.0


@dataclass
class Ready:
    """A process that said that it is ready."""

    process: asyncio.subprocess.Process
    line: dict[str, Any]

    @property
    def address(self) -> str:
        return str(self.line["address"])

    async def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Its exit code after a signal."""
        self.process.send_signal(number)
        async with asyncio.timeout(S):
            return await self.process.wait()


async def start(*arguments: str, python: tuple[str, ...] = (), stdin: int | None = None) -> asyncio.subprocess.Process:
    command = (*python, "-m", "stepward.server", *arguments)
    pipe = asyncio.subprocess.PIPE
    return await asyncio.create_subprocess_exec(sys.executable, *command, stdin=stdin, stdout=pipe, stderr=pipe)


@contextlib.asynccontextmanager
async def ready(*arguments: str, stdin: int | None = None) -> AsyncIterator[Ready]:
    """A node that is ready; killed at the end if it still runs."""
    process = await start(*arguments, stdin=stdin)
    assert process.stdout is not None
    try:
        async with asyncio.timeout(START_S_MAX):
            yield Ready(process, json.loads(await process.stdout.readline()))
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def last_words(*arguments: str, python: tuple[str, ...] = ()) -> tuple[int | None, str, str]:
    """Exit code, stdout, and the last line on stderr of a process that must end by itself."""
    process = await start(*arguments, python=python)
    async with asyncio.timeout(START_S_MAX):
        out, err = await process.communicate()
    return process.returncode, out.decode(), (err.decode().strip().splitlines() or [""])[-1]


def names(directory: Path) -> list[str]:
    return [path.name for path in directory.iterdir()]


async def test_ready_line(tmp_path: Path) -> None:
    """One line of JSON on stdout, and at that moment the node leads."""
    async with (
        ready("dev", "--data", str(tmp_path / "d"), "--port", "0") as node,
        nodes.connected(node.address) as stubs,
    ):
        status = await stubs.cluster.GetStatus(cluster_service_pb2.GetStatusRequest(), timeout=S)
        code = await node.end()
        assert node.process.stdout is not None
        rest = await node.process.stdout.read()

    assert sorted(node.line) == ["address", "cluster_id", "event", "http", "node_id", "pid"]
    assert node.line["event"] == "ready"
    assert node.line["pid"] == node.process.pid == status.pid
    assert (status.cluster_id, status.node_id) == (node.line["cluster_id"], node.line["node_id"])
    assert status.shards[0].leader
    assert (code, rest) == (0, b"")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_signal_ends_it_in_order(tmp_path: Path, number: signal.Signals) -> None:
    """Exit code 0, soon, also while calls and agents are connected."""
    async with (
        ready("dev", "--data", str(tmp_path / "d"), "--port", "0") as node,
        nodes.connected(node.address) as stubs,
        agent(stubs, "nothing") as joined,
    ):
        await nodes.define(stubs, "one", definition_pb2.Step(id="one"))
        running = asyncio.ensure_future(
            stubs.jobs.RunJob(job_service_pb2.RunJobRequest(job=submission("one")), timeout=S)
        )
        await nodes.eventually(lambda: has_jobs(stubs))

        code = await node.end(number)

        assert (await nodes.refused(running)).reason == "NODE_DRAINING"
        assert joined.redirected
    assert code == 0


async def has_jobs(stubs: nodes.Stubs) -> bool:
    return bool((await stubs.jobs.ListJobs(job_service_pb2.ListJobsRequest(), timeout=S)).jobs)


async def test_job_survives_a_kill(tmp_path: Path) -> None:
    """What was answered is there after kill -9; the same directory is the same cluster, and ids go on rising."""
    data = str(tmp_path / "d")
    request = job_service_pb2.SubmitJobRequest(job=submission("one", b"[1.10]"))
    async with ready("dev", "--data", data, "--port", "0") as first, nodes.connected(first.address) as stubs:
        await nodes.define(stubs, "one", definition_pb2.Step(id="one"))
        submitted = await stubs.jobs.SubmitJob(request, timeout=S)
        await first.end(signal.SIGKILL)
    async with ready("run", "--data", data, "--port", "0") as second, nodes.connected(second.address) as stubs:
        later = await stubs.jobs.SubmitJob(request, timeout=S)
        async with agent(stubs, "one"):
            watch = stubs.jobs.WatchJob(job_service_pb2.WatchJobRequest(job_id=submitted.job_id), timeout=S)
            jobs = [message.job async for message in watch]

    assert second.line["cluster_id"] == first.line["cluster_id"]
    assert later.job_id > submitted.job_id
    assert jobs[-1].state == common_pb2.JOB_STATE_COMPLETED
    assert jobs[-1].output.data == b"[1.10]"


async def test_taken_port(tmp_path: Path) -> None:
    """Also when it is a node of ours that has it; the last line names the address and what to do."""
    async with nodes.running(tmp_path / "other") as other:
        port = other.address.rpartition(":")[2]
        code, out, line = await last_words("dev", "--data", str(tmp_path / "d"), "--port", port)

    assert (code, out) == (1, "")
    assert f"127.0.0.1:{port}" in json.loads(line)["reason"]
    assert "--port" in json.loads(line)["reason"]


async def test_directory_in_use(tmp_path: Path) -> None:
    """Two nodes never write one directory; the last line names the process that has it."""
    data = str(tmp_path / "d")
    async with ready("dev", "--data", data, "--port", "0") as node:
        code, _, line = await last_words("dev", "--data", data, "--port", "0")

        assert code == 1
        assert str(node.process.pid) in json.loads(line)["reason"]


async def test_run_refuses_an_empty_directory(tmp_path: Path) -> None:
    """A cluster is never made by accident: an empty directory may be a disk that was lost."""
    code, out, line = await last_words("run", "--data", str(tmp_path), "--port", "0")

    assert (code, out) == (1, "")
    assert str(tmp_path) in json.loads(line)["reason"]
    assert names(tmp_path) == []


async def test_dev_refuses_a_directory_of_something_else(tmp_path: Path) -> None:
    """Files that are not ours stay alone in it."""
    (tmp_path / "letter.txt").write_text("dear")

    code, _, line = await last_words("dev", "--data", str(tmp_path), "--port", "0")

    assert code == 1
    assert names(tmp_path) == ["letter.txt"]
    assert str(tmp_path) in json.loads(line)["reason"]
    assert "'letter.txt'" in json.loads(line)["reason"]


@pytest.mark.parametrize("left", ["nothing", "files", "store", "cluster", "cluster and letter"])
async def test_dev_starts_wherever_a_node_may_live(tmp_path: Path, left: str) -> None:
    """On a fresh volume, after a crash while it made its cluster, and beside what a person put there later."""
    (tmp_path / "lost+found").mkdir()
    if left == "files":
        (tmp_path / "node.lock").touch()
    if left == "store":
        LmdbStore(tmp_path, create=True).close()
    if left.startswith("cluster"):
        create_cluster(tmp_path, "n1")
    if left.endswith("letter"):
        (tmp_path / "letter.txt").write_text("dear")

    async with ready("dev", "--data", str(tmp_path), "--port", "0") as node:
        assert await node.end() == 0


async def test_data_that_is_taken_away(tmp_path: Path) -> None:
    """The last line names the directory and what to do."""
    data = tmp_path / "d"
    async with ready("dev", "--data", str(data), "--port", "0") as node:
        shutil.rmtree(data)
        async with asyncio.timeout(S):
            _, err = await node.process.communicate()

    line = json.loads(err.decode().strip().splitlines()[-1])
    assert node.process.returncode == line["code"] == 70
    assert f"{data} cannot be reached" in line["reason"]
    assert "start again" in line["reason"]


@pytest.mark.parametrize("command", ["dev", "run"])
async def test_data_that_is_a_file(tmp_path: Path, command: str) -> None:
    """An ordinary mistake is told in one sentence."""
    (tmp_path / "d").touch()

    code, _, line = await last_words(command, "--data", str(tmp_path / "d"), "--port", "0")

    assert code == 1
    assert str(tmp_path / "d") in json.loads(line)["reason"]


@pytest.mark.parametrize(
    ("field", "option", "value"),
    [("cluster.session_ttl_ms", "--session-ttl-ms", "999"), ("node.port", "--port", "65536")],
)
async def test_configuration_out_of_bounds(tmp_path: Path, field: str, option: str, value: str) -> None:
    """The last line names the field, the value and the bound; nothing was made."""
    code, _, line = await last_words("dev", "--data", str(tmp_path / "d"), option, value)

    reason = json.loads(line)["reason"]
    assert code == 1
    assert reason.startswith(f"{option}: {field} is {value}; ")
    assert not (tmp_path / "d").exists()


async def test_refuses_to_run_without_assertions(tmp_path: Path) -> None:
    """They are what stops a broken node."""
    code, _, line = await last_words("dev", "--data", str(tmp_path / "d"), python=("-O",))

    assert code == 78
    assert "-O" in json.loads(line)["reason"]


async def test_missing_library_is_told_with_the_command_that_brings_it(tmp_path: Path) -> None:
    """A plain install brings no node."""
    hidden = f"import sys; sys.modules['lmdb'] = None; sys.argv[1:] = ['dev', '--data', {str(tmp_path / 'd')!r}]"
    code = f"{hidden}; from stepward.server.__main__ import main; sys.exit(main())"
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", code, stdout=pipe, stderr=pipe)
    async with asyncio.timeout(START_S_MAX):
        _, err = await process.communicate()

    assert process.returncode == 78
    assert "pip install 'stepward[server]'" in json.loads(err.decode().splitlines()[-1])["reason"]


async def test_ready_descriptor(tmp_path: Path) -> None:
    """For parents that keep stdout for something else."""
    reading, writing = os.pipe()
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "stepward.server", "dev", "--data", str(tmp_path / "d"), "--port", "0"),
        *("--ready-fd", str(writing)),
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
        pass_fds=(writing,),
    )
    os.close(writing)
    with os.fdopen(reading) as lines:
        async with asyncio.timeout(START_S_MAX):
            line = await asyncio.to_thread(lines.readline)
    process.terminate()

    assert json.loads(line)["event"] == "ready"
    assert await process.wait() == 0


STARTER = """
import subprocess, sys, time
log = open(sys.argv[1], "w")
command = [sys.executable, "-m", "stepward.server", "dev", "--port", "0", *sys.argv[2:]]
server = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log)
sys.stdout.buffer.write(server.stdout.readline())
sys.stdout.flush()
time.sleep(600)
"""


async def test_ends_with_its_parent(tmp_path: Path) -> None:
    """In order, although the parent was killed and could say nothing."""
    log = tmp_path / "log"
    arguments = (str(log), "--data", str(tmp_path / "d"), "--exit-with-parent")
    starter = await asyncio.create_subprocess_exec(
        sys.executable, "-c", STARTER, *arguments, stdout=asyncio.subprocess.PIPE
    )
    assert starter.stdout is not None
    async with asyncio.timeout(START_S_MAX):
        line = json.loads(await starter.stdout.readline())
    starter.kill()
    await starter.wait()

    try:
        await nodes.eventually(lambda: asyncio.to_thread(lambda: "node_stopped" in log.read_text()))
    finally:
        # It may have ended, which is what is hoped for.
        with contextlib.suppress(ProcessLookupError):
            os.kill(line["pid"], signal.SIGKILL)


async def test_end_of_stdin_ends_nothing_unasked(tmp_path: Path) -> None:
    """A service manager gives no stdin; nor does what is written to it end anything."""
    async with ready("dev", "--data", str(tmp_path / "d"), "--port", "0", stdin=asyncio.subprocess.PIPE) as node:
        assert node.process.stdin is not None
        node.process.stdin.close()
        await node.process.stdin.wait_closed()
        async with nodes.connected(node.address) as stubs:
            await stubs.cluster.GetStatus(cluster_service_pb2.GetStatusRequest(), timeout=S)

        assert node.process.returncode is None


async def test_logs_are_json_without_payloads(tmp_path: Path) -> None:
    """Also at the finest level."""
    async with (
        ready("dev", "--data", str(tmp_path / "d"), "--port", "0", "--log-level", "debug") as node,
        nodes.connected(node.address) as stubs,
    ):
        await nodes.define(stubs, "one", definition_pb2.Step(id="one"))
        async with agent(stubs, "one"):
            job = submission("one", b'"a-secret"')
            await stubs.jobs.RunJob(job_service_pb2.RunJobRequest(job=job), timeout=S)
        await node.end()
        assert node.process.stderr is not None
        text = (await node.process.stderr.read()).decode()

    lines = [json.loads(line) for line in text.splitlines()]
    calls = [line for line in lines if line["event"] == "call"]
    assert {"method", "code", "ms"} <= calls[0].keys()
    assert "stepward.v1.JobService/RunJob" in {line["method"] for line in calls}
    assert "a-secret" not in text


async def test_counters_come_with_the_status(tmp_path: Path) -> None:
    """For measurements: what the process has done, in the trailing metadata."""
    async with nodes.running(tmp_path / "data") as node, nodes.connected(node.address) as stubs:
        await nodes.define(stubs, "one", definition_pb2.Step(id="one"))
        call = stubs.cluster.GetStatus(cluster_service_pb2.GetStatusRequest(), timeout=S)
        status = await call
        raw = dict(await call.trailing_metadata())["stepward-counters-bin"]

    counters = msgspec.json.decode(raw)
    assert counters["batches"] == status.shards[0].sequence
    assert counters["puts"] >= 3
    assert counters["log_bytes"] > 0
    assert counters["flushes"] >= counters["batches"]
    assert counters["calls"] == 2


async def test_health_says_when_it_serves(tmp_path: Path) -> None:
    """For those who ask over the standard service."""
    async with nodes.running(tmp_path / "data") as node, nodes.connected(node.address) as stubs:
        health = health_pb2_grpc.HealthStub(stubs.channel)
        before = await health.Check(health_pb2.HealthCheckRequest(service="stepward.v1.JobService"), timeout=S)
        watch = health.Watch(health_pb2.HealthCheckRequest(), timeout=S)
        states = [(await watch.read()).status]
        stopping = asyncio.create_task(node.stop())
        states.append((await watch.read()).status)
        watch.cancel()
        await stopping

    assert before.status == health_pb2.HealthCheckResponse.SERVING
    assert states == [health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING]
