"""The pages of a process answer from its start on, whatever kind of node it is by then."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from stepward.server import room_to_begin
from stepward.server.config import ClusterConfig
from stepward.server.logbook.identity import create_cluster
from stepward.server.probes import ProbesAddressTaken
from stepward.server.serving import serve_until
from stepward.server.store.errors import StoreInUse
from stepward.server.store.lmdb_store import FREE_BYTES_MIN
from stepward.v1 import cluster_service_pb2
from tests.server import nodes
from tests.server.nodes import CALL_S_MAX, eventually
from tests.server.test_joining import IDS, free_addresses
from tests.server.test_metrics import fetch, parsed
from tests.server.test_operating import Cluster

S = CALL_S_MAX


class Pages(Cluster):
    """Three processes whose pages are where they were told to be."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.pages = dict(zip(IDS, free_addresses(3), strict=True))

    async def page(self, node_id: str, path: str) -> tuple[int, str]:
        """Code and text; code 0 when nobody listens."""
        try:
            return await asyncio.to_thread(fetch, self.pages[node_id], path)
        except OSError as error:
            return 0, str(error)

    @contextlib.asynccontextmanager
    async def serving(self, *node_ids: str) -> AsyncIterator[None]:
        stop = asyncio.Event()
        tasks = []
        for node_id in node_ids:
            port = int(self.pages[node_id].rpartition(":")[2])
            config = msgspec.structs.replace(self.config(node_id), http_port=port)
            tasks.append(asyncio.create_task(serve_until(stop, ClusterConfig(), config)))
        try:
            yield
        finally:
            stop.set()
            await asyncio.gather(*tasks)


async def test_a_node_that_knows_no_cluster_has_pages(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It lives, is not ready, and says why; the same pages are those of the node that it becomes."""
    cluster = Pages(tmp_path)
    async with cluster.serving(*IDS), nodes.connected(cluster.addresses["n1"]) as stubs:

        async def waits() -> bool:
            return "no node knows a cluster" in (await cluster.page("n1", "/readyz"))[1]

        await eventually(waits)
        health, unready = await cluster.page("n1", "/healthz"), await cluster.page("n1", "/readyz")
        empty = parsed((await cluster.page("n1", "/metrics"))[1])
        said = capsys.readouterr().out
        await stubs.cluster.CreateCluster(cluster_service_pb2.CreateClusterRequest(), timeout=S)

        async def ready() -> bool:
            return [await cluster.page(node_id, "/readyz") for node_id in IDS] == [(200, "ok\n")] * 3

        await eventually(ready)
        member = parsed((await cluster.page("n1", "/metrics"))[1])

    assert health == (200, "ok\n")
    assert unready[0] == 503
    assert unready[1].startswith("the node knows no cluster yet: no node knows a cluster; `stepward cluster create`")
    assert f'"http": "{cluster.pages["n1"]}"' in said
    (who,) = [dict(labels) for name, labels in empty if name == "stepward_node"]
    assert (who["cluster_id"], who["node_id"]) == ("", "n1")
    for name, before, after in (("empty", 1, 0), ("healthy", 1, 1), ("ready", 0, 1)):
        assert (empty[f"stepward_{name}", ()], member[f"stepward_{name}", ()]) == (before, after)
    assert "stepward_term" in {name for name, _ in member} - {name for name, _ in empty}


async def test_a_start_on_a_full_disk_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It lives and is not ready, and why; and it is no node without a cluster."""
    cluster = Pages(tmp_path)
    create_cluster(tmp_path / "n1", "n1", members=IDS)
    free = [1_000]
    monkeypatch.setattr(room_to_begin, "disk_free_bytes", lambda _: free[0])
    monkeypatch.setattr(room_to_begin, "LOOK_S", 0.02)
    async with cluster.serving("n1"):

        async def waits(said: str) -> bool:
            return said in (await cluster.page("n1", "/readyz"))[1]

        await eventually(lambda: waits("1000 bytes are free"))
        health, unready = await cluster.page("n1", "/healthz"), await cluster.page("n1", "/readyz")
        page = parsed((await cluster.page("n1", "/metrics"))[1])
        free[0] = FREE_BYTES_MIN
        await eventually(lambda: waits("the node knows no leader"))

    assert (health[0], unready[0]) == (200, 503)
    assert unready[1].startswith(f"the disk of {tmp_path / 'n1'} is full: ")
    assert (page["stepward_ready", ()], page["stepward_empty", ()]) == (0, 0)


async def test_a_second_start_of_a_node_is_told_as_one(tmp_path: Path) -> None:
    """That the address of its pages is taken follows from it. Of somebody else's only that is told."""
    create_cluster(tmp_path / "n1", "n1", members=IDS)
    cluster = Pages(tmp_path)
    async with cluster.serving("n1"):

        async def answers() -> bool:
            return "the node knows no leader" in (await cluster.page("n1", "/readyz"))[1]

        await eventually(answers)
        again = msgspec.structs.replace(cluster.config("n1"), http_port=int(cluster.pages["n1"].rpartition(":")[2]))
        with pytest.raises(StoreInUse, match=f"in use by process {os.getpid()}; end it first"):
            await serve_until(asyncio.Event(), ClusterConfig(), again)
        still = await cluster.page("n1", "/healthz")
    create_cluster(tmp_path / "n2", "n2", members=IDS)
    with socket.create_server(("127.0.0.1", 0)) as other:
        of_other = msgspec.structs.replace(cluster.config("n2"), http_port=other.getsockname()[1])
        with pytest.raises(ProbesAddressTaken):
            await serve_until(asyncio.Event(), ClusterConfig(), of_other)

    assert still == (200, "ok\n")


async def test_pages_are_gone_with_the_process(tmp_path: Path) -> None:
    """Also when it never became a node; and nobody else's pages are taken for its own."""
    cluster = Pages(tmp_path)
    async with cluster.serving("n1"):

        async def answers() -> bool:
            return (await cluster.page("n1", "/healthz"))[0] == 200

        await eventually(answers)
        taken = msgspec.structs.replace(cluster.config("n2"), http_port=int(cluster.pages["n1"].rpartition(":")[2]))
        with pytest.raises(ProbesAddressTaken):
            await serve_until(asyncio.Event(), ClusterConfig(), taken)

    assert (await cluster.page("n1", "/healthz"))[0] == 0


async def test_pages_are_off_when_asked(tmp_path: Path) -> None:
    """No port is opened, before or after."""
    create_cluster(tmp_path / "n1", "n1", members=IDS)
    cluster, stop = Pages(tmp_path), asyncio.Event()
    serving = asyncio.create_task(serve_until(stop, ClusterConfig(), cluster.config("n1")))
    async with nodes.connected(cluster.addresses["n1"]) as stubs:
        request = cluster_service_pb2.GetStatusRequest()
        status = await stubs.cluster.GetStatus(request, timeout=S, wait_for_ready=True)
    stop.set()

    assert await serving == ""
    assert status.node_id == "n1"
