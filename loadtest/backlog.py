"""`backlog`: what a trip costs in an empty store, and what it costs beside very many jobs, ended and waiting.

Then the node that leads is killed, and started again on all of it.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections import Counter

import grpc.aio

from loadtest import meters
from loadtest.cluster import Cluster
from loadtest.shapes import INPUT, PLAIN, waiting
from loadtest.stage import CALL_S_MAX, Played, Stage, Window
from loadtest.submitters import open_channel
from loadtest.tally import Pace, begin_all
from stepward.v1 import cluster_service_pb2, job_service_pb2, job_service_pb2_grpc
from stepward.v1.common_pb2 import JobState
from stepward.v1.job_service_pb2 import JobSubmission

# By hand a million and a hundred thousand.
FINISHED = 2_000
WAITING = 1_000
# In flight while the store is filled.
FILLING = 512
# Submissions in one call.
AT_ONCE = 500
LOOK_EVERY_S = 0.02
READY_S_MAX = 120.0


async def play(stage: Stage, servers: Cluster, given: argparse.Namespace) -> Played:
    """Measure, fill, measure again, start again."""
    pace = Pace(inflight=given.inflight, rate=given.rate)
    first = await stage.window(PLAIN, pace, warmup=given.warmup, seconds=given.seconds)
    began_s = time.monotonic()
    await _finish(stage, given.finished if given.finished is not None else FINISHED)
    await _wait(stage, given.waiting if given.waiting is not None else WAITING)
    filled_s = time.monotonic() - began_s
    last = await stage.window(PLAIN, pace, warmup=given.warmup, seconds=given.seconds)
    figures = {"filled_s": filled_s, **costs(first, last), **await _memory(stage, servers)}
    return Played(window=last, steps=PLAIN.steps, figures=figures | await _restart(stage, servers))


def costs(first: Window, last: Window) -> dict[str, float]:
    """Of a trip in an empty store and in the full one: all processors, and that of the node that leads."""
    of_leader = [window.cpu_ms["server"] / max(1, window.jobs) for window in (first, last)]
    return {
        "first_jobs_per_s": first.jobs_per_s,
        "first_p99_ms": first.latencies_ms["p99"],
        "first_cpu_ms_per_job": first.cpu_ms_per_job,
        "first_leader_cpu_ms_per_job": of_leader[0],
        "last_leader_cpu_ms_per_job": of_leader[1],
        "cost_ratio": last.cpu_ms_per_job / first.cpu_ms_per_job if first.cpu_ms_per_job else 0.0,
    }


async def _finish(stage: Stage, count: int) -> None:
    """Run so many trips in bulk."""
    tally = stage.tally(PLAIN)
    async with stage.submitter(PLAIN, "bulk") as submit:
        await begin_all(submit, tally, count, in_flight=FILLING)


async def _wait(stage: Stage, count: int) -> None:
    """Submit jobs that nobody takes."""
    shape = waiting()
    await stage.apply(shape)
    stub = job_service_pb2_grpc.JobServiceStub(stage.channel)
    stored: Counter[str] = Counter()
    for begun in range(0, count, AT_ONCE):
        jobs = [JobSubmission(definition_name=shape.name, input=INPUT)] * min(AT_ONCE, count - begun)
        answer = await stub.SubmitJobs(job_service_pb2.SubmitJobsRequest(jobs=jobs), timeout=CALL_S_MAX)
        for result in answer.results:
            # One that was refused is named in place of a state, and then what is stored does not fit.
            state = result.error.reason if result.HasField("error") else JobState.Name(result.job.state)
            stored[state.removeprefix("JOB_STATE_")] += 1
    stage.keep(stored)


async def _memory(stage: Stage, servers: Cluster) -> dict[str, float]:
    """What the node that leads holds, with and without the pages of the store's file that it has mapped."""
    pid = servers.leads_now().pid
    status, _ = await meters.status(stage.channel)
    return {
        "leader_memory_mb": meters.resident_mb(pid),
        "leader_own_memory_mb": meters.own_memory_mb(pid),
        "store_mb": max(shard.store_bytes for shard in status.shards) / 1e6,
    }


async def _restart(stage: Stage, servers: Cluster) -> dict[str, float]:
    """Kill the node that leads, and start it on what it left: how long until it serves again, and takes part."""
    leader = servers.leads_now()
    leader.kill()
    began_s = time.monotonic()
    again = await asyncio.to_thread(servers.start_again, leader)
    async with asyncio.timeout(READY_S_MAX), open_channel(again.address, stage.tls) as channel:
        await _serves(channel)
    stage.pids |= servers.pids
    return {"restart_to_ready_s": time.monotonic() - began_s}


async def _serves(channel: grpc.aio.Channel) -> None:
    """Wait until a node takes part, and knows who leads."""
    while True:
        status, _ = await meters.status(channel)
        knows = any(shard.leader_id for shard in status.shards)
        if knows and status.state == cluster_service_pb2.NODE_STATE_SERVING:
            return
        await asyncio.sleep(LOOK_EVERY_S)
