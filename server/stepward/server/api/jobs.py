"""JobService: for the programs and people who run jobs."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import TYPE_CHECKING, Final

from stepward.server.api import convert, explaining, history, job_steps, lookup, pages, validate
from stepward.server.api.job_lists import JobLists
from stepward.server.api.waits import seconds_left
from stepward.server.core import canonical, views
from stepward.server.core.commands import CancelJob, JobCancelled, SubmitJob
from stepward.server.core.rejections import Reason, Refused, Rejection, refuse
from stepward.server.core.rows import JOB_STATES_AWAITED, Payload
from stepward.v1 import job_service_pb2

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence
    from typing import Any

    from stepward.server.api.ends_watch import EndsWatch
    from stepward.server.api.watch import JobWatch
    from stepward.server.core.commands import JobSubmitted
    from stepward.server.core.limits import Limits
    from stepward.server.core.views import JobView
    from stepward.server.gateway import Gateway
    from stepward.server.reading import Reading

HISTORY_PAGE_DEFAULT: Final = 200
# Payloads of one call that are looked through in one turn of the loop.
_CHECKED_BYTES_MAX: Final = 256 * 1024


class JobService:
    """See `stepward.v1.JobService`."""

    def __init__(self, gateway: Gateway, limits: Limits, watch: JobWatch, ends: EndsWatch) -> None:
        self._gateway = gateway
        self._limits = limits
        self._watch = watch
        self._ends = ends
        self._lists = JobLists(gateway, limits)

    async def submit_job(
        self, request: job_service_pb2.SubmitJobRequest, context: Any
    ) -> job_service_pb2.SubmitJobResponse:
        """See the contract."""
        return _submitted(await self._gateway.submit(self._submission(request.job, "job")))

    async def submit_jobs(
        self, request: job_service_pb2.SubmitJobsRequest, context: Any
    ) -> job_service_pb2.SubmitJobsResponse:
        """See the contract."""
        limits = self._limits
        validate.require(validate.between("jobs", len(request.jobs), 0, limits.submissions_max, "entries"))
        self._require_room_for_all(request.jobs)
        submissions = self._submissions(request.jobs)
        # It may hold some MiB, and its jobs may wait for seconds.
        del request
        answers = await self._gateway.submit_all(submissions)
        return job_service_pb2.SubmitJobsResponse(results=[_result(answer) for answer in answers])

    async def run_job(self, request: job_service_pb2.RunJobRequest, context: Any) -> job_service_pb2.RunJobResponse:
        """See the contract."""
        ends_at = self._wait_ends_at(request, context.time_remaining())
        command = self._submission(request.job, "job")
        gateway, job_id = self._gateway, command.job_id
        # Registered before the job exists, so that its end cannot come too early to be seen.
        waiter = gateway.register_waiter(job_id)
        try:
            submitted = await gateway.submit(command)
            if submitted.duplicate:
                gateway.forget_waiter(job_id, waiter)
                job_id = submitted.job_id
                waiter = gateway.register_waiter(job_id)
            view = await self._ended(job_id, waiter, ends_at, may_have_ended=submitted.duplicate)
        finally:
            gateway.forget_waiter(job_id, waiter)
        return job_service_pb2.RunJobResponse(job=convert.ended_job(view), duplicate=submitted.duplicate)

    async def _ended(
        self, job_id: str, waiter: asyncio.Future[None], ends_at: float | None, *, may_have_ended: bool
    ) -> JobView:
        """The job at its end, or as it waits for a person.

        Raises:
            Refused: WAIT_TIMED_OUT; NODE_DRAINING.
        """
        if may_have_ended:
            with self._gateway.own_rows() as reader:
                view = self._view(reader, job_id, with_steps=False)
            if view.progress.state in JOB_STATES_AWAITED:
                return view
        # One timer a call: `asyncio.timeout` costs several times as much, and this is the call of which there are most.
        timer = None if ends_at is None else asyncio.get_running_loop().call_at(ends_at, _time_is_over, waiter)
        try:
            await waiter
        except TimeoutError:
            text = f"job {job_id} has not ended within the wait; it goes on: watch it, or run it again with its key"
            raise refuse(Reason.WAIT_TIMED_OUT, text, job_id=job_id) from None
        finally:
            if timer is not None:
                timer.cancel()
        with self._gateway.own_rows() as reader:
            return self._view(reader, job_id, with_steps=False)

    def _wait_ends_at(self, request: job_service_pb2.RunJobRequest, remaining_s: float | None) -> float | None:
        """Until when to wait, on the loop's clock: as long as asked, and a little less than the call may take."""
        waits: list[float] = []
        if request.HasField("wait_max"):
            validate.require(validate.duration("wait_max", request.wait_max, self._limits))
            waits.append(convert.duration_ms(request.wait_max) / 1_000)
        left_s = seconds_left(remaining_s)
        if left_s is not None:
            waits.append(left_s)
        return asyncio.get_running_loop().time() + min(waits) if waits else None

    async def get_job(self, request: job_service_pb2.GetJobRequest, context: Any) -> job_service_pb2.GetJobResponse:
        """See the contract."""

        def look(reader: Reading) -> job_service_pb2.GetJobResponse:
            view = self._view(reader, request.job_id, with_steps=True)
            answer = job_service_pb2.GetJobResponse(job=convert.job(view, reader.head()))
            job_steps.add(answer.job, reader, view, self._limits)
            return answer

        answer, staleness = await lookup.read(self._gateway, request.consistency, look)
        if staleness is not None:
            answer.staleness.CopyFrom(staleness)
        return answer

    async def list_jobs(
        self, request: job_service_pb2.ListJobsRequest, context: Any
    ) -> job_service_pb2.ListJobsResponse:
        """See the contract."""
        return await self._lists.page(request)

    def watch_job(
        self, request: job_service_pb2.WatchJobRequest, context: Any
    ) -> AsyncIterator[job_service_pb2.WatchJobResponse]:
        """See the contract."""
        return self._watch.follow(request.job_id, request.from_revision, context)

    def watch_jobs(
        self, request: job_service_pb2.WatchJobsRequest, context: Any
    ) -> AsyncIterator[job_service_pb2.WatchJobsResponse]:
        """See the contract."""
        return self._ends.follow(request, context)

    async def list_job_steps(
        self, request: job_service_pb2.ListJobStepsRequest, context: Any
    ) -> job_service_pb2.ListJobStepsResponse:
        """See the contract."""
        query = job_steps.read_query(request, self._limits)
        lookup.require_job_id(request.job_id)

        def look(reader: Reading) -> job_service_pb2.ListJobStepsResponse:
            body = views.definition_of(reader, request.job_id)
            if body is None:
                raise lookup.job_not_found(request.job_id)
            return job_steps.page(reader, request.job_id, body, query, self._limits)

        answer, staleness = await lookup.read(self._gateway, request.consistency, look)
        if staleness is not None:
            answer.staleness.CopyFrom(staleness)
        return answer

    async def count_jobs(
        self, request: job_service_pb2.CountJobsRequest, context: Any
    ) -> job_service_pb2.CountJobsResponse:
        """See the contract."""
        return await self._lists.count(request)

    async def cancel_job(
        self, request: job_service_pb2.CancelJobRequest, context: Any
    ) -> job_service_pb2.CancelJobResponse:
        """See the contract."""
        validate.require(validate.verb(request.reason, request.actor, self._limits))
        lookup.require_job_id(request.job_id)
        command = CancelJob(request.job_id, request.reason, request.actor)
        answer = await self._gateway.call(command, JobCancelled)
        with self._gateway.own_rows() as reader:
            view = self._view(reader, answer.job_id, with_steps=False)
        return job_service_pb2.CancelJobResponse(job=convert.ended_job(view), already=answer.already)

    async def get_job_history(
        self, request: job_service_pb2.GetJobHistoryRequest, context: Any
    ) -> job_service_pb2.GetJobHistoryResponse:
        """See the contract."""
        count_max = pages.page_size(request.page_size, self._limits, default=HISTORY_PAGE_DEFAULT)
        filters = ("history", request.job_id)
        at = history.parse_place(pages.position(filters, request.page_token))
        lookup.require_job_id(request.job_id)
        async with self._gateway.reading() as reader:
            page = history.page(reader, request.job_id, at=at, count_max=count_max)
        if page is None:
            raise lookup.job_not_found(request.job_id)
        return job_service_pb2.GetJobHistoryResponse(
            events=page.events,
            next_page_token=pages.token(filters, "" if page.next is None else page.next.text()),
            started_at=convert.timestamp(page.submitted_wall_ms),
        )

    async def explain_job(
        self, request: job_service_pb2.ExplainJobRequest, context: Any
    ) -> job_service_pb2.ExplainJobResponse:
        """See the contract."""
        return await explaining.explain_job(self._gateway, self._limits, request)

    def _view(self, reader: Reading, job_id: str, *, with_steps: bool) -> JobView:
        return lookup.job_view(reader, job_id, self._limits, with_steps=with_steps)

    def _require_room_for_all(self, jobs: Sequence[job_service_pb2.JobSubmission]) -> None:
        """Refuse the call as a whole while there is no room for all of it.

        What some of its jobs wait for, all of its bytes wait for; and the caller learns when to come back.

        Raises:
            Refused: OVERLOADED; DISK_FULL.
        """
        counts: Counter[str] = Counter()
        sizes_bytes: Counter[str] = Counter()
        for job in jobs:
            namespace = job.namespace or convert.DEFAULT_NAMESPACE
            counts[namespace] += 1
            sizes_bytes[namespace] += len(job.input.data)
        for namespace, count in counts.items():
            self._gateway.require_room(namespace, sizes_bytes[namespace], jobs=count)

    async def _submissions(self, jobs: Sequence[job_service_pb2.JobSubmission]) -> AsyncIterator[SubmitJob | Rejection]:
        """Submissions as they are checked, one by one; each may still find its room taken by another call."""
        checked_bytes = 0
        for position, job in enumerate(jobs):
            try:
                yield self._submission(job, f"jobs[{position}]")
            except Refused as refused:
                yield refused.rejection
            checked_bytes += len(job.input.data)
            if checked_bytes >= _CHECKED_BYTES_MAX:
                # Looking through some MiB of JSON takes a while; nobody else should wait for all of it.
                checked_bytes = 0
                await asyncio.sleep(0)

    def _submission(self, job: job_service_pb2.JobSubmission, path: str) -> SubmitJob:
        """A checked submission.

        Raises:
            Refused: That there is no room for it, or with everything that is wrong with it.
        """
        # First, since it costs least: under overload most come no further.
        self._gateway.require_room(job.namespace or convert.DEFAULT_NAMESPACE, len(job.input.data))
        refused = validate.submission(job, self._limits, path)
        if refused is not None:
            raise Refused(refused)
        return self._command(job)

    def _command(self, job: job_service_pb2.JobSubmission) -> SubmitJob:
        namespace = job.namespace or convert.DEFAULT_NAMESPACE
        payload = Payload(job.input.data, job.input.encoding)
        labels = dict(job.labels)
        deadline_ms = convert.duration_ms(job.deadline) if job.HasField("deadline") else 0
        fingerprint = b""
        if job.idempotency_key:
            fingerprint = canonical.submission_fingerprint(
                namespace=namespace,
                definition_name=job.definition_name,
                definition_version=job.definition_version,
                input=payload,
                labels=labels,
                deadline_ms=deadline_ms,
                limits=self._limits,
            )
        return SubmitJob(
            job_id=self._gateway.draw_job_id(),
            namespace=namespace,
            definition_name=job.definition_name,
            definition_version=job.definition_version,
            input=payload,
            idempotency_key=job.idempotency_key,
            labels=labels,
            caller_id=job.caller_id,
            fingerprint=fingerprint,
            deadline_ms=deadline_ms,
        )


def _time_is_over(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_exception(TimeoutError())


def _submitted(answer: JobSubmitted) -> job_service_pb2.SubmitJobResponse:
    return job_service_pb2.SubmitJobResponse(
        job_id=answer.job_id,
        duplicate=answer.duplicate,
        state=int(answer.state),  # type: ignore[arg-type]  # the numbers are the contract's, held to it by a test
        revision=answer.revision,
    )


def _result(answer: JobSubmitted | Rejection) -> job_service_pb2.SubmitJobsResult:
    if isinstance(answer, Rejection):
        error = job_service_pb2.SubmissionError(reason=answer.reason.value, message=answer.message)
        return job_service_pb2.SubmitJobsResult(error=error)
    return job_service_pb2.SubmitJobsResult(job=_submitted(answer))
