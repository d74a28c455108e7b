"""Servers for the client's tests; each test has its own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

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
