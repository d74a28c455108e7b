"""The ways to submit jobs and to learn of their ends. Each turns into what a user of that way would write."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Protocol, TypeAlias

import grpc.aio

from loadtest.shapes import INPUT, Shape
from stepward.client import AsyncClient
from stepward.client.payloads import Payload as ClientPayload
from stepward.client.tls import TlsFiles
from stepward.v1 import job_service_pb2, job_service_pb2_grpc
from stepward.v1.common_pb2 import (
    JOB_STATE_CANCELLED,
    JOB_STATE_COMPENSATED,
    JOB_STATE_COMPLETED,
    JOB_STATE_FAILED,
    JobState,
)
from stepward.v1.job_service_pb2 import JobSubmission

# A job that has not ended by then is lost.
JOB_S_MAX = 60.0

# Submissions in one SubmitJobs call at most.
BULK_MAX = 100

# Without WatchJobs the newest ends are looked up this often. More than fit on a page must not end in between.
LOOK_EVERY_S = 0.02
LIST_MAX = 1000

ENDS = (JOB_STATE_COMPLETED, JOB_STATE_COMPENSATED, JOB_STATE_CANCELLED, JOB_STATE_FAILED)

# A job's id, and the state that it ended in.
_End: TypeAlias = tuple[str, JobState.ValueType]

# With a connection of its own, and soon back at a node that was started again.
CHANNEL_OPTIONS = (("grpc.use_local_subchannel_pool", 1), ("grpc.max_reconnect_backoff_ms", 500))


def open_channel(address: str, tls: TlsFiles | None) -> grpc.aio.Channel:
    """A connection of its own."""
    if tls is None:
        return grpc.aio.insecure_channel(address, options=CHANNEL_OPTIONS)
    return grpc.aio.secure_channel(address, tls.credentials(), options=CHANNEL_OPTIONS)


class Ended(Exception):  # noqa: N818 - what happened, not an error of ours
    """A job ended in another state than its shape must."""


class Submitter(Protocol):
    """Runs one job: returns its id when it has ended as it must. May be called many times at once."""

    async def __call__(self) -> str:
        """Run one job.

        Raises:
            Ended: It ended in another state.
            AioRpcError, StepwardError: The call failed.
            TimeoutError: It has not ended in time.
        """


def keys(run: str) -> Callable[[], str]:
    """Idempotency keys that no other run uses."""
    numbers = itertools.count()
    return lambda: f"{run}-{next(numbers)}"


@asynccontextmanager
async def unary(route: Sequence[str], *, tls: TlsFiles | None, shape: Shape, run: str) -> AsyncIterator[Submitter]:
    """`RunJob`: submit and wait in one call over the generated stubs. What the figures are about."""
    next_key = keys(run)
    async with open_channel(route[0], tls) as channel:
        stub = job_service_pb2_grpc.JobServiceStub(channel)

        async def submit() -> str:
            job = JobSubmission(definition_name=shape.name, input=INPUT, idempotency_key=next_key())
            response = await stub.RunJob(job_service_pb2.RunJobRequest(job=job), timeout=JOB_S_MAX)
            return _checked(shape, response.job.job_id, response.job.state)

        yield submit


@asynccontextmanager
async def python_client(
    route: Sequence[str], *, tls: TlsFiles | None, shape: Shape, run: str
) -> AsyncIterator[Submitter]:
    """`AsyncClient.run`, as the README shows it. It goes to the next node when one is away."""
    next_key = keys(run)
    async with AsyncClient(route, tls=tls) as client:
        payload = ClientPayload(INPUT.data, INPUT.encoding)

        async def submit() -> str:
            result = await client.run(
                shape.name, payload, idempotency_key=next_key(), wait_max_s=JOB_S_MAX, check=False
            )
            return _checked(shape, result.job_id, JobState.Value(f"JOB_STATE_{result.state}"))

        yield submit


@asynccontextmanager
async def bulk(route: Sequence[str], *, tls: TlsFiles | None, shape: Shape, run: str) -> AsyncIterator[Submitter]:
    """`SubmitJobs` for all that wait to be submitted, and one stream or list for the ends of all."""
    async with open_channel(route[0], tls) as channel:
        ends = Bulk(job_service_pb2_grpc.JobServiceStub(channel), caller_id=run)
        next_key = keys(run)

        async def submit() -> str:
            job = JobSubmission(definition_name=shape.name, input=INPUT, idempotency_key=next_key(), caller_id=run)
            return _checked(shape, *await ends.run(job))

        # A task that fails ends the run: without it every job would look lost.
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(ends.follow()), group.create_task(ends.submit())]
            await ends.following.wait()
            yield submit
            for task in tasks:
                task.cancel()


class Bulk:
    """Gathers submissions into calls, and gives each caller the end of its job."""

    def __init__(self, stub: job_service_pb2_grpc.JobServiceAsyncStub, *, caller_id: str) -> None:
        self._stub = stub
        self._caller_id = caller_id
        self._queue: asyncio.Queue[tuple[JobSubmission, asyncio.Future[_End]]] = asyncio.Queue()
        self._waiting: dict[str, asyncio.Future[_End]] = {}
        # An end may come before the answer to the call that submitted the job.
        self._early: dict[str, JobState.ValueType] = {}
        self._calls: set[asyncio.Task[None]] = set()
        self.following = asyncio.Event()

    async def run(self, job: JobSubmission) -> _End:
        """Submit with the next call, and wait for the job's end; returns its id and its state."""
        ended: asyncio.Future[_End] = asyncio.get_running_loop().create_future()
        self._queue.put_nowait((job, ended))
        async with asyncio.timeout(JOB_S_MAX):
            return await ended

    async def follow(self) -> None:
        """Learn of the ends of all jobs: by one stream where the server has it, else by looking."""
        try:
            await self._watch()
        except grpc.aio.AioRpcError as error:
            if error.code() is not grpc.StatusCode.UNIMPLEMENTED:
                raise
            await self._look()

    async def _watch(self) -> None:
        stream = self._stub.WatchJobs(job_service_pb2.WatchJobsRequest(caller_id=self._caller_id))
        await stream.initial_metadata()
        self.following.set()
        async for message in stream:
            for job in message.jobs:
                self._ended(job.job_id, job.state)

    async def _look(self) -> None:
        """List what has ended, the newest first, again and again; latencies are then as coarse as that."""
        self.following.set()
        request = job_service_pb2.ListJobsRequest(states=ENDS, page_size=LIST_MAX)
        while True:
            response = await self._stub.ListJobs(request, timeout=JOB_S_MAX)
            for job in response.jobs:
                if job.job_id in self._waiting:
                    self._ended(job.job_id, job.state)
            await asyncio.sleep(LOOK_EVERY_S)

    def _ended(self, job_id: str, state: JobState.ValueType) -> None:
        ended = self._waiting.pop(job_id, None)
        if ended is None:
            self._early[job_id] = state
        else:
            _settle(ended, (job_id, state))

    async def submit(self) -> None:
        """Take what has gathered, call by call; calls overlap."""
        while True:
            group = [await self._queue.get()]
            while not self._queue.empty() and len(group) < BULK_MAX:
                group.append(self._queue.get_nowait())
            call = asyncio.create_task(self._call(group))
            self._calls.add(call)
            call.add_done_callback(self._calls.discard)
            # What becomes ready at the same time goes together.
            await asyncio.sleep(0.001)

    async def _call(self, group: list[tuple[JobSubmission, asyncio.Future[_End]]]) -> None:
        request = job_service_pb2.SubmitJobsRequest(jobs=[job for job, _ in group])
        try:
            response = await self._stub.SubmitJobs(request, timeout=JOB_S_MAX)
        except grpc.aio.AioRpcError as error:
            for _, ended in group:
                ended.set_exception(error)
            return
        for result, (_, ended) in zip(response.results, group, strict=True):
            job_id = result.job.job_id
            if result.HasField("error"):
                ended.set_exception(Ended(f"refused: {result.error.reason}: {result.error.message}"))
            elif job_id in self._early:
                _settle(ended, (job_id, self._early.pop(job_id)))
            else:
                self._waiting[job_id] = ended


def _checked(shape: Shape, job_id: str, state: JobState.ValueType) -> str:
    if state != shape.end:
        raise Ended(f"job {job_id} ended {JobState.Name(state)}, not {JobState.Name(shape.end)}")
    return job_id


def _settle(ended: asyncio.Future[_End], end: _End) -> None:
    # A caller who has lost patience has gone.
    if not ended.done():
        ended.set_result(end)


MODES = {"run": unary, "bulk": bulk, "python-client": python_client}


def run_name() -> str:
    """A name for this run's keys that a later run on the same data does not draw."""
    return f"bench-{time.time_ns():x}"
