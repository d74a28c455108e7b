"""The disk of a follower is full, really full: it stays, takes nothing, says so, and goes on when there is room."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from stepward.client.demo.processes import Child
from tests.cluster.nodes import LEVEL_S_MAX, Nodes, judged
from tests.cluster.rig import until
from tests.cluster.traffic import Traffic, agents_connect
from tests.cluster.wiped import hand_over
from tests.faults.powercut import PowerCutDisk
from tests.server.test_metrics import fetch

TRIPS = 40
SLOW_MS = 10
DISK_MIB = 128
MIB = 1 << 20
# Below what a follower needs to take entries, and as good as nothing.
LEFT_BYTES = 8 * MIB
NEXT_TO_NOTHING = 64 << 10


def fill(folder: Path, name: str, *, left_bytes: int) -> Path:
    """Let something else take the disk, but for so much."""
    disk, ballast = os.statvfs(folder), folder / name
    with ballast.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, disk.f_bavail * disk.f_frsize - left_bytes)
    return ballast


def unready(node: Child) -> str:
    """Why it is not ready; empty when it is."""
    code, text = fetch(str(node.ready["http"]), "/readyz")
    return "" if code == 200 else text


async def trips(traffic: Traffic) -> None:
    await traffic.submit(TRIPS)
    await traffic.ended(seconds_max=60)


async def started_again(nodes: Nodes) -> None:
    """Kill the node and start it where there is no room to begin: it waits."""
    nodes.nodes["n3"].kill()
    nodes.launch_node("n3")
    log = nodes.folder / "n3.log"
    await until(lambda: "node_waits_for_room" in log.read_text(), seconds_max=LEVEL_S_MAX, what="n3 waits for room")
    assert nodes.nodes["n3"].running


@pytest.mark.root
@pytest.mark.timeout(180)
async def test_h077_follower_with_a_full_disk_stays_and_comes_back(tmp_path: Path) -> None:
    """H077: the others work on. While it has no room it acknowledges nothing, and a start waits; then it is level."""
    (tmp_path / "disk").mkdir()
    with (
        PowerCutDisk(tmp_path / "disk", mebibytes=DISK_MIB) as disk,
        Nodes(tmp_path, disks={"n3": disk.folder}) as nodes,
    ):
        nodes.start_nodes()
        nodes.start_travel("--no-deduplication", "--slow-ms", str(SLOW_MS))
        nodes.start_agent("agent-1", at=f"{nodes.addresses['n1']},{nodes.addresses['n2']}")
        async with nodes.client("n1", "n2") as client:
            traffic, full = Traffic(client), nodes.nodes["n3"]
            await agents_connect(client, 1)
            if await nodes.leader() == "n3":
                await hand_over(nodes, "n3", "n1")
            await trips(traffic)
            ballast = fill(disk.folder, "ballast", left_bytes=LEFT_BYTES)
            await until(lambda: "disk is nearly full" in unready(full), seconds_max=LEVEL_S_MAX, what="n3 says so")
            before = await nodes.status("n3")
            await trips(traffic)
            async with nodes.client("n3", "n1", "n2") as client_of_full:
                # It is asked first, and sends its callers on at once.
                traffic.client = client_of_full
                async with asyncio.timeout(30):
                    await trips(traffic)
                traffic.client = client
            more = fill(disk.folder, "more", left_bytes=NEXT_TO_NOTHING)
            await trips(traffic)
            after = await nodes.status("n3")

            assert before is not None
            assert after is not None
            assert (full.running, after.sequence, after.log_last_index) == (
                True,
                before.sequence,
                before.log_last_index,
            )
            await started_again(nodes)
            more.unlink()
            ballast.unlink()
            await asyncio.to_thread(nodes.nodes["n3"].wait_until_ready)
            await until(lambda: not unready(nodes.nodes["n3"]), seconds_max=LEVEL_S_MAX, what="n3 is ready")
            await nodes.level()
            print(await judged(nodes, traffic))
