"""Agents that speak TLS to a node which wants to see a certificate."""

from __future__ import annotations

import asyncio
from pathlib import Path

import grpc
import pytest

from stepward.agents import Agent, AgentError, engine, parent
from stepward.client import TlsFiles
from tests.agents.stub import BOUND_S, Stub, new_stub, until
from tests.agents.test_agent_live import trip
from tests.agents.test_worker import ready, running
from tests.certificates import Authority


async def test_worker_process_serves_over_tls(tmp_path: Path) -> None:
    """Its hello and its definitions go through TLS; the options of the command line reach the worker."""
    authority = Authority(tmp_path)
    node = authority.files("n1", uri="stepward://node/n1")
    agent = authority.files("booker", uri="stepward://agent/booker")
    pair = (node.key.read_bytes(), node.certificate.read_bytes())
    stub = new_stub()
    stub.credentials = grpc.ssl_server_credentials([pair], node.ca.read_bytes(), require_client_auth=True)
    await stub.start()
    files = ("--tls-ca", str(agent.ca), "--tls-cert", str(agent.certificate), "--tls-key", str(agent.key))
    command = ("-m", "stepward.agents.worker", "tests.agents.sample", "--server", stub.address, *files)
    try:
        async with running(*command) as process:
            await ready(process)
            stream = await stub.stream()
            process.terminate()
            async with asyncio.timeout(BOUND_S):
                code = await process.wait()
    finally:
        await stub.stop()

    assert (stream.drained, code) == (True, 0)


async def told(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, stub: Stub, agent: Agent) -> str:
    """What an agent without a welcome finds out about why. The agent goes on trying."""
    monkeypatch.setattr(engine, "WELCOME_S_MAX", 0.01)
    task = asyncio.create_task(agent.serve(["127.0.0.1:1", stub.address]))
    try:
        await until(lambda: "connection_refused" in caplog.text)
        assert not task.done()
    finally:
        agent.drain()
        async with asyncio.timeout(BOUND_S):
            await task
    (line,) = [line for line in caplog.messages if line.startswith("connection_refused")]
    return line


async def test_agent_without_tls_is_told_that_it_is_spoken(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of gRPC one only hears "Socket closed", again and again; of a node that is not there nothing is added."""
    node = Authority(tmp_path).files("n1", uri="stepward://node/n1")
    stub = new_stub()
    pair = (node.key.read_bytes(), node.certificate.read_bytes())
    stub.credentials = grpc.ssl_server_credentials([pair], node.ca.read_bytes(), require_client_auth=True)
    await stub.start()
    try:
        line = await told(caplog, monkeypatch, stub, trip())
    finally:
        await stub.stop()

    assert line == (
        f"connection_refused address={stub.address} why=the node speaks TLS, and no authority to trust was given"
    )


def test_parent_hands_the_files_to_its_worker() -> None:
    """A worker that was started again has them, too."""
    options = parent.WorkerOptions(tls=TlsFiles("ca.pem", "a.pem", "a.key"))

    command = parent._command("tests.agents.sample", ["localhost:1"], options)

    assert command[-6:] == ["--tls-ca", "ca.pem", "--tls-cert", "a.pem", "--tls-key", "a.key"]


async def test_files_that_cannot_be_used_are_told_at_once(tmp_path: Path) -> None:
    """Nothing would ever connect with them."""
    with pytest.raises(AgentError, match=r"absent\.pem cannot be read: No such file"):
        await trip().serve(["127.0.0.1:1"], tls=TlsFiles(tmp_path / "absent.pem"))
