"""How many calls may be in progress at once, by kind, and how many connections."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from stepward.server.config import NodeConfig
from stepward.server.interceptor import Room, Rooms
from stepward.server.node import SERVICES
from stepward.v1 import cluster_service_pb2, definition_pb2, job_service_pb2
from tests.server import nodes
from tests.server.nodes import CALL_S_MAX, define, refused, submission

S = CALL_S_MAX


class Call:
    """A call in progress, which ends when it is told."""

    def __init__(self) -> None:
        self._callbacks: list[Callable[[Any], None]] = []

    def add_done_callback(self, callback: Callable[[Any], None]) -> None:
        self._callbacks.append(callback)

    def end(self) -> None:
        for callback in self._callbacks:
            callback(self)


def entered(room: Room) -> Call | None:
    """A call that got in, if there was a place."""
    call = Call()
    return None if room.enter(call) else call  # type: ignore[arg-type]  # all that is asked of a context


def test_room_has_a_bound_and_gives_places_back() -> None:
    """At the bound the last one gets in, one more does not, and each that ends makes room for one."""
    room = Room(NodeConfig(data=Path("data"), reads_max=2), "reads_max")
    first, second, third = entered(room), entered(room), entered(room)
    assert first is not None
    first.end()
    fourth, fifth = entered(room), entered(room)

    assert second is not None
    assert third is None
    assert fourth is not None
    assert fifth is None


def test_refusal_names_the_bound() -> None:
    """Whoever runs the node should know which field it is."""
    room = Room(NodeConfig(data=Path("data"), reads_max=1), "reads_max")
    entered(room)

    assert "1 such calls are in progress here, which is the most (reads_max)" in room.enter(Call())  # type: ignore[arg-type]  # all that is asked of a context


def test_every_call_has_a_room() -> None:
    """Also those to come: what agents and operators do never stands behind what others do."""
    rooms = Rooms(NodeConfig(data=Path("data")))
    fields = {
        f"{service.name}/{method.name}": None if (room := rooms.of(service.name, method)) is None else room._field
        for service in SERVICES
        for method in service.methods
    }

    assert {name for name, field in fields.items() if field is None} == {"AgentService/Work"}
    assert fields["JobService/CancelJob"] == fields["AgentService/RenewSession"] == "calls_reserved_max"
    assert fields["ClusterService/GetStatus"] == "calls_reserved_max"
    assert fields["JobService/GetJob"] == fields["DefinitionService/ValidateDefinition"] == "reads_max"
    assert fields["JobService/SubmitJob"] == fields["JobService/WatchJob"] == "calls_max"


async def test_calls_that_wait_do_not_shut_out_cancels(tmp_path: Path) -> None:
    """With every place taken by waits, more submissions are shed with a delay, and a cancel and the status get in."""
    run = job_service_pb2.RunJobRequest(job=submission("one"))
    async with nodes.running(tmp_path / "data") as node, nodes.connected(node.address) as stubs:
        await define(stubs, "one", definition_pb2.Step(id="a"))
    async with nodes.running(tmp_path / "data", calls_max=1) as node, nodes.connected(node.address) as stubs:
        waits = asyncio.ensure_future(stubs.jobs.RunJob(run, timeout=S))
        await nodes.eventually(lambda: waiting(node, 1))
        shed = await refused(stubs.jobs.SubmitJob(job_service_pb2.SubmitJobRequest(job=submission("one")), timeout=S))
        (job,) = (await stubs.jobs.ListJobs(job_service_pb2.ListJobsRequest(), timeout=S)).jobs
        await stubs.cluster.GetStatus(cluster_service_pb2.GetStatusRequest(), timeout=S)
        await stubs.jobs.CancelJob(job_service_pb2.CancelJobRequest(job_id=job.job_id), timeout=S)
        await waits

    assert (shed.code, shed.reason) == (grpc.StatusCode.RESOURCE_EXHAUSTED, "OVERLOADED")
    assert "calls_max" in shed.message
    assert shed.retry_after_ms > 0


async def waiting(node: Any, count: int) -> bool:
    return bool(node.waiters == count)


async def test_connections_are_bounded(tmp_path: Path) -> None:
    """One more than the bound is closed; those that are open go on, and one that goes makes room."""
    request = cluster_service_pb2.GetStatusRequest()
    async with nodes.running(tmp_path / "data", connections_max=2) as node, nodes.connected(node.address) as first:
        await first.cluster.GetStatus(request, timeout=S)
        async with nodes.connected(node.address) as second, nodes.connected(node.address) as third:
            await second.cluster.GetStatus(request, timeout=S)
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await third.cluster.GetStatus(request, timeout=S)
            await first.cluster.GetStatus(request, timeout=S)
        async with nodes.connected(node.address) as fourth:
            await fourth.cluster.GetStatus(request, timeout=S, wait_for_ready=True)

    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
