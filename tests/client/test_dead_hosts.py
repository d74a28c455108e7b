"""Clients whose node is gone without a word: no reset, no end, only silence."""

from __future__ import annotations

import asyncio
import time

import grpc
import pytest

from stepward.client import AsyncClient, async_client, channels
from stepward.client.failover import Patience
from stepward.v1 import cluster_service_pb2, common_pb2, job_pb2, job_service_pb2
from tests.client.scripted_server import NO_LEADER, Refused, ScriptedServer, Silence
from tests.swallowing import road

STATUS = cluster_service_pb2.GetStatusResponse(cluster_id="c", node_id="n2")
COMPLETED = job_service_pb2.RunJobResponse(
    job=job_pb2.Job(job_id="0-1", state=common_pb2.JOB_STATE_COMPLETED, revision=9)
)
# Shorter than by default, in the same proportions.
QUICK = Patience(timeout_s=10.0, attempt_s=0.3, backoff_initial_s=0.001, backoff_max_s=0.002)
S = 10.0


@pytest.mark.parametrize("connected", [False, True], ids=["never reached", "reached before"])
async def test_h010_another_address_is_asked_long_before_the_deadline(
    server: ScriptedServer, second_server: ScriptedServer, connected: bool
) -> None:
    """Each attempt has a bound of its own, and the next call begins where there was an answer."""
    server.always("GetStatus", STATUS)
    second_server.always("GetStatus", STATUS)
    async with (
        road(server.address) as dead,
        AsyncClient(f"{dead.address},{second_server.address}", patience=QUICK) as client,
    ):
        if connected:
            await client.status()
        dead.swallow()
        began = time.monotonic()
        await client.status()
        first_s = time.monotonic() - began
        await client.status()
        both_s = time.monotonic() - began

    assert len(second_server.requests("GetStatus")) == 2
    assert QUICK.attempt_s <= first_s < QUICK.timeout_s / 2
    assert both_s - first_s < QUICK.attempt_s


async def test_h067_a_wait_for_a_job_goes_to_another_node(
    server: ScriptedServer, second_server: ScriptedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The keepalive finds out that the node is gone, and the same submission is sent to the next one."""
    asked = Silence()
    server.on("RunJob", asked)
    second_server.always("RunJob", COMPLETED)
    # A tenth of what it is by default.
    options = tuple(
        (name, value // 10 if "keepalive" in name or "ping_timeout" in name else value)
        for name, value in channels.CHANNEL_OPTIONS
    )
    monkeypatch.setattr(async_client, "CHANNEL_OPTIONS", options)
    async with (
        road(server.address) as dead,
        AsyncClient(f"{dead.address},{second_server.address}", patience=QUICK) as client,
    ):
        running = asyncio.create_task(client.run("trip", {}))
        await asyncio.to_thread(asked.wait_for_begin)
        dead.swallow()
        async with asyncio.timeout(S):
            result = await running

    (first,), (second,) = server.requests("RunJob"), second_server.requests("RunJob")
    assert result.state == "COMPLETED"
    assert first.job.idempotency_key == second.job.idempotency_key


def test_h067_how_long_a_dead_node_may_go_unnoticed() -> None:
    """What the pages promise: a wait that hangs on a dead host is noticed within 15 s."""
    options = dict(channels.CHANNEL_OPTIONS)

    assert options["grpc.keepalive_time_ms"] + options["grpc.http2.ping_timeout_ms"] <= 15_000
    assert options["grpc.min_reconnect_backoff_ms"] <= 1_000 * Patience().attempt_s < 1_000 * Patience().timeout_s / 3


@pytest.mark.parametrize("reason", ["NO_LEADER", "NOT_LEADER", "NODE_DRAINING"])
async def test_the_leader_that_a_node_names_is_asked_once(
    server: ScriptedServer, second_server: ScriptedServer, reason: str
) -> None:
    """Also when the client was not told of it; the next call begins with the addresses that it was given."""
    hint = Refused(grpc.StatusCode.UNAVAILABLE, reason, metadata={"leader_address": second_server.address})
    server.on("GetStatus", hint, STATUS)
    second_server.always("GetStatus", STATUS)
    async with AsyncClient(server.address, patience=QUICK) as client:
        await client.status()
        assert len(second_server.requests("GetStatus")) == 1
        await client.status()

    assert len(server.requests("GetStatus")) == 2
    assert len(second_server.requests("GetStatus")) == 1


async def test_a_node_that_knows_no_leader_is_left_at_once(
    server: ScriptedServer, second_server: ScriptedServer
) -> None:
    """It may be cut off from the others."""
    server.always("GetStatus", NO_LEADER)
    second_server.always("GetStatus", STATUS)
    patient = Patience(timeout_s=60.0, backoff_initial_s=50.0, backoff_max_s=50.0)
    async with AsyncClient(f"{server.address},{second_server.address}", patience=patient) as client:
        async with asyncio.timeout(S):
            status = await client.status()

    assert status.node_id == "n2"
