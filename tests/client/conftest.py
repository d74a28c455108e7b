"""Servers for the client's tests; each test has its own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from stepward.v1 import agent_service_pb2
from tests.client.scripted_server import ScriptedServer


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    server = ScriptedServer()
    yield server
    server.stop()


@pytest.fixture
def second_server() -> Iterator[ScriptedServer]:
    server = ScriptedServer()
    yield server
    server.stop()


@pytest.fixture
def at(server: ScriptedServer) -> list[str]:
    """The options that lead a command to the scripted server."""
    server.always("ListAgents", agent_service_pb2.ListAgentsResponse())
    return ["--server", server.address]
