"""Tests of the twins run in played time: all of their nodes are on one loop, and nothing of them is outside of it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

import pytest

from tests.peers.played_time import PlayedTimeLoop


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """The one loop for all of them."""
    return {"played time": PlayedTimeLoop}
