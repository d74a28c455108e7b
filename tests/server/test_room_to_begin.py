"""A start on a full disk waits for room, and for nothing else."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from stepward.server import room_to_begin as rooms
from stepward.server.config import NodeConfig
from stepward.server.store.lmdb_store import FREE_BYTES_MIN

S = 5.0


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How much is free, from look to look; the last one stays. Looks follow each other at once."""
    free: list[int] = []
    monkeypatch.setattr(rooms, "disk_free_bytes", lambda _: free.pop(0) if len(free) > 1 else free[0])
    monkeypatch.setattr(rooms, "LOOK_S", 0.0)
    return free


def asked() -> asyncio.Future[bool]:
    return asyncio.get_running_loop().create_future()


@pytest.mark.parametrize(
    ("looks", "left"),
    [
        # At the bound it begins at once.
        ([FREE_BYTES_MIN, 0], [0]),
        # One byte below it waits until there is more.
        ([FREE_BYTES_MIN - 1, 0, FREE_BYTES_MIN, 7], [7]),
    ],
)
async def test_start_waits_for_room(tmp_path: Path, disk: list[int], looks: list[int], left: list[int]) -> None:
    disk += looks
    async with asyncio.timeout(S):
        assert await rooms.room_to_begin(NodeConfig(data=tmp_path), asked(), on_waiting=lambda _: None)

    assert disk == left


async def test_directory_that_is_not_there_is_no_full_disk(tmp_path: Path, disk: list[int]) -> None:
    """It may be made, or refused, by those who know what belongs there."""
    disk.append(0)
    async with asyncio.timeout(S):
        assert await rooms.room_to_begin(NodeConfig(data=tmp_path / "none"), asked(), on_waiting=pytest.fail)


async def test_who_waits_can_be_stopped(tmp_path: Path, disk: list[int]) -> None:
    disk.append(0)
    stop = asked()
    waiting = asyncio.create_task(rooms.room_to_begin(NodeConfig(data=tmp_path), stop, on_waiting=lambda _: None))
    await asyncio.sleep(0)
    assert not waiting.done()
    stop.set_result(True)
    async with asyncio.timeout(S):
        assert not await waiting


async def test_reason_is_told_once(tmp_path: Path, disk: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """With the numbers and what to do."""
    told: list[tuple[str, dict[str, Any]]] = []
    monkeypatch.setattr(rooms._log, "error", lambda event, **fields: told.append((event, fields)))
    disk += [1_000, 1_000, 1_000, FREE_BYTES_MIN]
    waits: list[str] = []
    await rooms.room_to_begin(NodeConfig(data=tmp_path), asked(), on_waiting=waits.append)

    ((event, fields),) = told
    assert event == "node_waits_for_room"
    assert "1000 bytes are free and at least 1048576 are needed to start" in fields["reason"]
    assert waits == [fields["reason"]]
