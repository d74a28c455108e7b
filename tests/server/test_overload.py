"""A node that is asked for ten times what its disk takes: new work is shed, what exists goes on, memory is bounded."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import grpc.aio
import psutil
import pytest

from stepward.v1 import agent_service_pb2, common_pb2, definition_pb2, definition_service_pb2, job_service_pb2
from tests.repo.sources import ROOT
from tests.server import nodes
from tests.server.nodes import Stubs, submission
from tests.server.plain_agent import PlainAgent, agent

S = 60.0
FLUSH_MS = 200
TTL_MS = 3_000
PAYLOAD = b'"' + b"x" * 100_000 + b'"'
# One call holds three MiB; all floods together offer some sixty MiB a second, of which a slow disk takes five.
JOBS_A_CALL, FLOODS, PACE_S = 30, 5, 0.25
# What a node may hold beside the pages of its files: twice the caches of rows (64 MiB) and the entries of its journal
# (64 MiB), the submissions that wait (32 MiB, three times: as they came, parsed, and as commands), calls on the way,
# and the process itself.
MEMORY_BYTES_MAX = 512 << 20
# Nobody's outcome, renewal or cancel waits for more than a few flushes, whatever waits beside it: one or two seconds,
# and four where others want the processors, too. Without room for calls between steps it is half a minute.
ANSWER_S_MAX = 6.0
# Nor does a submission in a namespace of its own, but it takes its turn with those of the flood, which are large: far
# less than the time in which all that waits before it would be written.
SUBMIT_S_MAX = 10.0


@contextlib.asynccontextmanager
async def slow_node(data: Path) -> AsyncIterator[tuple[psutil.Process, Stubs, Stubs]]:
    """A node as a process of its own, whose disk becomes slow by SIGUSR1 and fast by SIGUSR2; and two connections."""
    given = ("dev", "--data", str(data), "--port", "0", "--session-ttl-ms", str(TTL_MS), "--log-level", "warning")
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.faults.slow_disk", str(FLUSH_MS), *given),
        stdout=asyncio.subprocess.PIPE,
        cwd=ROOT,
    )
    assert process.stdout is not None
    try:
        async with asyncio.timeout(S):
            address = json.loads(await process.stdout.readline())["address"]
        async with nodes.connected(address) as first, nodes.connected(address) as second:
            yield psutil.Process(process.pid), first, second
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


class Flood:
    """Callers that submit on and on, whatever they are told."""

    def __init__(self, stubs: Stubs) -> None:
        self._stubs = stubs
        self.results: Counter[str] = Counter()
        self.delays_ms: list[int] = []

    async def run(self, until_s: float) -> None:
        jobs = [submission("one", PAYLOAD)] * JOBS_A_CALL
        calls = []
        while time.monotonic() < until_s:
            calls.append(asyncio.ensure_future(self._submit(jobs)))
            await asyncio.sleep(PACE_S)
        await asyncio.gather(*calls)

    async def _submit(self, jobs: list[job_service_pb2.JobSubmission]) -> None:
        try:
            answer = await self._stubs.jobs.SubmitJobs(job_service_pb2.SubmitJobsRequest(jobs=jobs), timeout=S)
        except grpc.aio.AioRpcError as error:
            refused = nodes.refusal(error)
            assert refused.code is grpc.StatusCode.RESOURCE_EXHAUSTED
            self.results[refused.reason] += len(jobs)
            self.delays_ms.append(refused.retry_after_ms)
            return
        for result in answer.results:
            self.results[result.error.reason or "GRANTED"] += 1


class Probe:
    """Somebody with a single job in a namespace of his own, who cancels it at once; and the delays that he is told."""

    def __init__(self, stubs: Stubs) -> None:
        self._stubs = stubs
        self.slowest_submit_s = self.slowest_cancel_s = 0.0
        self.rounds = 0

    async def run(self, until_s: float) -> None:
        while time.monotonic() < until_s:
            began = time.monotonic()
            job = submission("one", namespace="other")
            submitted = await self._stubs.jobs.SubmitJob(job_service_pb2.SubmitJobRequest(job=job), timeout=S)
            self.slowest_submit_s = max(self.slowest_submit_s, time.monotonic() - began)
            began = time.monotonic()
            cancel = job_service_pb2.CancelJobRequest(job_id=submitted.job_id)
            await self._stubs.jobs.CancelJob(cancel, timeout=S)
            self.slowest_cancel_s = max(self.slowest_cancel_s, time.monotonic() - began)
            self.rounds += 1


async def renew(joined: PlainAgent) -> float:
    """Heartbeats as the contract asks for them, until this is cancelled; the longest time without an answer (s)."""
    number, longest_s, seen, seen_at_s = 0, 0.0, 0, time.monotonic()
    try:
        while True:
            number += 1
            await joined.heartbeat(number)
            await asyncio.sleep(TTL_MS / 6 / 1_000)
            if len(joined.heartbeats) > seen:
                seen, seen_at_s = len(joined.heartbeats), time.monotonic()
            longest_s = max(longest_s, time.monotonic() - seen_at_s)
    except asyncio.CancelledError:
        return longest_s


async def watch_memory(process: psutil.Process) -> int:
    """The most memory that is not a page of a file, looked at until this is cancelled."""
    most = 0
    try:
        while True:
            found = process.memory_info()
            most = max(most, found.rss - found.shared)
            await asyncio.sleep(0.1)
    except asyncio.CancelledError:
        return most


async def define_in(stubs: Stubs, namespace: str, *steps: definition_pb2.Step) -> None:
    request = definition_service_pb2.ApplyDefinitionRequest(
        namespace=namespace, definition=definition_pb2.Definition(name="one", steps=steps)
    )
    await stubs.definitions.ApplyDefinition(request, timeout=S)


async def completed(stubs: Stubs) -> int:
    counts = (await stubs.jobs.CountJobs(job_service_pb2.CountJobsRequest(), timeout=S)).counts
    return sum(one.count for one in counts if one.state == common_pb2.JOB_STATE_COMPLETED)


@pytest.mark.parametrize("seconds", [4, pytest.param(20, marks=pytest.mark.slow)])
async def test_h066_overload_sheds_new_work_first(tmp_path: Path, seconds: int) -> None:
    """H066: outcomes, renewals and cancels get in, no lease is lost, and what was granted is done at last."""
    async with slow_node(tmp_path / "data") as (process, flooding, calls), agent(calls, "a", slots=50) as joined:
        for namespace in ("default", "other"):
            await define_in(calls, namespace, definition_pb2.Step(id="a", input='{"x":1}'))
        renewing, watching = asyncio.create_task(renew(joined)), asyncio.create_task(watch_memory(process))
        process.send_signal(signal.SIGUSR1)
        flood, probe, until_s = Flood(flooding), Probe(calls), time.monotonic() + seconds
        floods = (flood.run(until_s) for _ in range(FLOODS))
        await asyncio.gather(probe.run(until_s), *floods)
        done_under_flood = await completed(calls)
        process.send_signal(signal.SIGUSR2)
        granted = flood.results["GRANTED"]

        async def all_done() -> bool:
            return await completed(calls) >= granted

        await nodes.eventually(all_done, within_s=S)
        renewing.cancel()
        watching.cancel()
        silent_s, memory_bytes = await renewing, await watching
        agents = (await calls.agents.ListAgents(agent_service_pb2.ListAgentsRequest(), timeout=S)).agents

    print(f"{flood.results} {done_under_flood=} {probe.rounds=} {silent_s=:.2f}")
    print(f"{probe.slowest_submit_s=:.2f} {probe.slowest_cancel_s=:.2f}")
    print(f"{memory_bytes >> 20} MiB, delays {min(flood.delays_ms)} to {max(flood.delays_ms)} ms")
    # New work is shed, and told when to come back ...
    assert flood.results.keys() == {"GRANTED", "OVERLOADED"}
    assert flood.results["OVERLOADED"] > 2 * granted
    assert 50 <= min(flood.delays_ms) < max(flood.delays_ms) <= 10_000
    # ... what exists goes on ...
    assert done_under_flood > 0
    assert probe.slowest_cancel_s < ANSWER_S_MAX
    assert probe.slowest_submit_s < SUBMIT_S_MAX
    assert silent_s < TTL_MS / 1_000
    assert [(one.session_id, one.generation) for one in agents] == [(joined.session_id, 1)]
    assert joined.cancels == []
    # ... and memory stays bounded.
    assert memory_bytes < MEMORY_BYTES_MAX
