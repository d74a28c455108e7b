"""Gathers the calls of a client for asyncio: carries out what `gathering` decides.

A task of the client's own sends each call, and one follows the stream, so a caller who is cancelled takes nobody with
him. What becomes ready in one turn of the loop goes together; nobody waits for a clock.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import grpc
import grpc.aio

from stepward.client import calls, errors, gathering
from stepward.client.answers import error_from
from stepward.client.errors import StepwardError
from stepward.client.gathering import Gathering, Place
from stepward.v1.job_service_pb2 import WatchJobsRequest, WatchJobsResponse

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine, Iterable

    from stepward.client.calls import Call, Rpc
    from stepward.client.failover import Attempts
    from stepward.client.gathering import Bundle, Settled
    from stepward.client.values import JobResult, SubmittedJob
    from stepward.v1 import job_pb2, job_service_pb2

# Jobs that are looked up at once after a stream could not be resumed.
LOOKED_UP_MAX = 32


@dataclass(slots=True, eq=False)
class _Caller(Place):
    """A place whose owner waits in a coroutine."""

    future: asyncio.Future[Any] = field(default_factory=lambda: asyncio.get_running_loop().create_future())


class AsyncGathering:
    """Belongs to one client, and to the loop that it is used on."""

    def __init__(
        self,
        caller_id: str,
        *,
        perform: Callable[[Call[Any], float | None], Awaitable[Any]],
        attempts: Callable[[Rpc], Attempts],
        channel: Callable[[str], grpc.aio.Channel],
        timeout_s: float,
    ) -> None:
        """`perform` carries out a call whose patience has begun at an instant; the others are the client's, too."""
        self._core = Gathering(caller_id)
        self._perform = perform
        self._attempts = attempts
        self._channel = channel
        self._timeout_s = timeout_s
        self._running = self._submitting = 0
        self._is_due = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._stream: asyncio.Task[None] | None = None
        # When following may be tried again, after nobody has told.
        self._not_before_s = 0.0

    async def submit(self, job: job_service_pb2.JobSubmission, plain: Callable[[], Call[SubmittedJob]]) -> SubmittedJob:
        """Submit, with others if any are on their way. `plain`: the call of his own. Raises as that."""
        self._submitting += 1
        try:
            found: SubmittedJob | None = None
            if (self._submitting > 1 or self._core.busy) and self._core.fits(job):
                found = await self._settled(self._enter(job, waits=False), None)
            value: SubmittedJob = found or await self._perform(plain(), None)
            return value
        finally:
            self._submitting -= 1

    async def run(
        self,
        job: job_service_pb2.JobSubmission,
        plain: Callable[[float | None], Call[JobResult]],
        *,
        wait_max_s: float | None,
    ) -> JobResult:
        """Submit and wait for the end, with others if enough do. `plain`: the call of his own. Raises as that."""
        ends_at_s = None if wait_max_s is None else time.monotonic() + wait_max_s
        self._running += 1
        try:
            found: JobResult | None = None
            if self._running >= gathering.RUNS_MIN and self._core.fits(job):
                if self._core.tells:
                    found = await self._settled(self._enter(job, waits=True), ends_at_s)
                    job.caller_id = ""
                else:
                    self._follow_soon()
            left_s = None if ends_at_s is None else max(0.0, ends_at_s - time.monotonic())
            value: JobResult = found or await self._perform(plain(left_s), None)
            return value
        finally:
            self._running -= 1

    async def close(self) -> None:
        """Stop following. Whoever waits here is cancelled, as gRPC cancels whoever waits for a call of his own."""
        for place in self._core.over():
            assert isinstance(place, _Caller)
            place.future.cancel()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _enter(self, job: job_service_pb2.JobSubmission, *, waits: bool) -> _Caller:
        place = _Caller(job, waits, time.monotonic())
        self._core.add(place)
        self._send_soon()
        return place

    async def _settled(self, place: _Caller, ends_at_s: float | None) -> Any:
        """What became of a place. None: he goes the plain way, also when his wait is over, which is told him there."""
        left_s = None if ends_at_s is None else ends_at_s - time.monotonic()
        try:
            async with asyncio.timeout(left_s):
                return await place.future
        except TimeoutError:
            return None
        finally:
            self._core.withdraw(place)

    def _settle(self, settled: Iterable[Settled]) -> None:
        for one in settled:
            assert isinstance(one.place, _Caller)
            future = one.place.future
            if future.done():
                # He was cancelled, or his wait is over.
                continue
            if isinstance(one.value, StepwardError):
                future.set_exception(one.value)
            else:
                future.set_result(one.value)

    def _begin(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    # Submissions.

    def _send_soon(self) -> None:
        """In the next turn of the loop: who is ready in this one comes along."""
        if not self._is_due:
            self._is_due = True
            asyncio.get_running_loop().call_soon(self._send_all)

    def _send_all(self) -> None:
        self._is_due = False
        while (bundle := self._core.bundle()) is not None:
            self._begin(self._send(bundle))

    async def _send(self, bundle: Bundle) -> None:
        settled: list[Settled] = []
        try:
            # Patience begins with who has waited longest.
            answer = await self._perform(calls.submit_jobs(bundle.request()), bundle.places[0].since_s)
            settled = self._core.answered(bundle, answer)
        except StepwardError as error:
            settled = self._core.failed(bundle, error)
        finally:
            self._settle([*settled, *self._core.dropped(bundle)])
        self._send_all()

    # The stream.

    def _follow_soon(self) -> None:
        if self._stream is None and time.monotonic() >= self._not_before_s:
            self._stream = self._begin(self._follow())

    async def _follow(self) -> None:
        """Follow the ends until nobody needs them, or nobody tells them."""
        attempts = self._attempts(calls.WATCH_JOBS)
        try:
            while not self._core.is_off:
                attempt = attempts.begin(time.monotonic())
                try:
                    await self._listen(attempts, attempt.address)
                    return
                except StepwardError as error:
                    if not self._core.lost(error):
                        await asyncio.sleep(attempts.failed(error, time.monotonic()))
        except StepwardError:
            # Whoever waits asks by a call of his own, and is told there what is wrong.
            self._not_before_s = time.monotonic() + self._timeout_s
        finally:
            self._stream = None
            self._settle(self._core.stream_over())

    async def _listen(self, attempts: Attempts, address: str) -> None:
        """Take in one stream, until nobody needs it.

        Raises:
            StepwardError: It has ended.
        """
        follow = self._channel(address).unary_stream(
            calls.WATCH_JOBS.path, WatchJobsRequest.SerializeToString, WatchJobsResponse.FromString
        )
        stream = follow(self._core.request())
        is_first = True
        try:
            while True:
                async with asyncio.timeout(gathering.SILENT_S_MAX):
                    answer = await stream.read()
                if not isinstance(answer, WatchJobsResponse):
                    raise errors.Unreachable(f"{address} ended the stream of ends", address=address)
                attempts.answered()
                if not answer.jobs and self._core.is_idle and not is_first:
                    return
                is_first = False
                self._settle(self._core.took(answer))
                await self._look_up(self._core.to_check())
        except TimeoutError:
            text = f"{address} said nothing on the stream of ends for {gathering.SILENT_S_MAX:.0f} s"
            raise errors.Unreachable(text, address=address) from None
        except grpc.RpcError as failed:
            raise error_from(failed, address) from None
        finally:
            stream.cancel()

    async def _look_up(self, job_ids: list[str]) -> None:
        for begin in range(0, len(job_ids), LOOKED_UP_MAX):
            await asyncio.gather(*(self._look_up_one(job_id) for job_id in job_ids[begin : begin + LOOKED_UP_MAX]))

    async def _look_up_one(self, job_id: str) -> None:
        found: job_pb2.Job | StepwardError
        try:
            found = (await self._perform(calls.get_job(job_id), None)).message
        except StepwardError as error:
            found = error
        self._settle(self._core.checked(job_id, found))
