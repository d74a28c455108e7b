"""Agents at a node that does not lead: what it says of their sessions is what the leader says."""

from __future__ import annotations

import asyncio

import pytest

from stepward.server.core.rejections import Reason, Refused
from stepward.v1 import agent_service_pb2 as pb
from tests.peers.test_rows_taken_over import opened, stream_at
from tests.peers.twins import S, twins, until


def reporting(generation: int) -> pb.ReportAttemptsRequest:
    attempt = pb.AttemptRef(job_id="0-" + "0" * 32, step_id="book", token=1)
    report = pb.AttemptReport(attempt=attempt, started=pb.Started())
    return pb.ReportAttemptsRequest(session_id="s" * 8, generation=generation, report=pb.Report(attempts=[report]))


async def test_reports_of_a_generation_that_this_node_has_not_heard_of_are_taken() -> None:
    """Its agent has been welcomed elsewhere; an older generation is refused, as one that nobody ever had."""
    async with twins() as cluster, asyncio.timeout(S):
        node = cluster["n2"]
        await opened(node)
        node.replica.applies = False
        newer = await opened(cluster["n1"])
        assert newer.generation == 2
        taking = asyncio.ensure_future(node.agent_calls.report_attempts(reporting(2)))
        await asyncio.sleep(0.05)
        node.replica.applies = True

        assert len((await taking).answers.answers) == 1
        for generation in (1, 3):
            with pytest.raises(Refused) as refused:
                await node.agent_calls.report_attempts(reporting(generation))
            assert refused.value.rejection.reason is Reason.SESSION_ENDED


async def test_heartbeat_that_finds_no_leader_does_not_end_the_stream() -> None:
    """An election is shorter than the patience of an agent; the next heartbeat is for the next leader."""
    async with twins() as cluster, asyncio.timeout(S):
        node = cluster["n2"]
        stream = await stream_at(node)
        cluster.elect("")
        await until(lambda: not node.shard.standing.leader_id)
        stream._heartbeat(pb.Heartbeat(number=1))
        await until(lambda: not stream._heartbeats_waiting)
        assert stream.ending is None
        await cluster.led_by("n3")
        stream._heartbeat(pb.Heartbeat(number=2))
        await until(lambda: not stream._heartbeats_waiting)

        acknowledged = [message.heartbeat.number for message in stream.queued() if message.HasField("heartbeat")]
        assert acknowledged == [2]
