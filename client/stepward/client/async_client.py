"""The client for asyncio: the methods of `blocking_client`, awaited. Not for gevent, where grpc.aio hangs."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Mapping, Sequence
from contextlib import aclosing
from datetime import timedelta
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar, Unpack
from uuid import uuid4

import grpc
import grpc.aio

from stepward.client import calls, errors, reading
from stepward.client.answers import error_from
from stepward.client.async_gathering import AsyncGathering
from stepward.client.async_incidents import AsyncIncidents
from stepward.client.calls import Call, Page, Rpc
from stepward.client.channels import CHANNEL_OPTIONS, credentials_of
from stepward.client.failover import DEFAULT_ADDRESSES, Addresses, Attempts, Patience
from stepward.client.job_filter import WantedJobs
from stepward.client.values import (
    Agent,
    AppliedDefinition,
    CheckedDefinition,
    CreatedCluster,
    DefinitionVersion,
    HistoryEvent,
    Job,
    JobChange,
    JobCounts,
    JobResult,
    JobState,
    Leadership,
    NodeStatus,
    OperatorAnswer,
    Step,
    StepState,
    SubmittedJob,
)
from stepward.client.watching import Watch
from stepward.v1.job_service_pb2 import WatchJobRequest, WatchJobResponse

if TYPE_CHECKING:
    from stepward.client.definition_forms import AnyDefinition
    from stepward.client.errors import Violation
    from stepward.client.explanation_values import Explanation
    from stepward.client.tls import TlsFiles

V = TypeVar("V")


class AsyncClient(AsyncIncidents):
    """Submits jobs, follows them, and reads what a cluster knows.

    It connects when it is first used, and from then on belongs to the event loop that it was used on. Every failure is
    a `StepwardError`; calls are repeated by themselves where that is safe, at each of the addresses in turn.
    """

    def __init__(
        self,
        addresses: str | Iterable[str] = DEFAULT_ADDRESSES,
        *,
        timeout_s: float = 10.0,
        namespace: str = "default",
        tls: TlsFiles | None = None,
        credentials: grpc.ChannelCredentials | None = None,
        patience: Patience | None = None,
        rng: random.Random | None = None,
    ) -> None:
        """Connect to nothing yet.

        Args:
            addresses: "host:port", several of them separated by commas, or an iterable of these.
            timeout_s: How long a call may take, all its attempts together.
            namespace: Where jobs and definitions live unless a call says otherwise.
            tls: Files for TLS. None: plain text.
            credentials: In place of `tls`, for those who have them in another form than files.
            patience: The fine print of `timeout_s`, in place of it.
            rng: Draws the waits between attempts.

        Raises:
            ValueError: An address or a time makes no sense.
            TlsFilesWrong: A file cannot be used.
        """
        self.addresses = Addresses(addresses)
        self.namespace = namespace
        self._patience = patience or Patience(timeout_s=timeout_s)
        self._credentials = credentials_of(tls, credentials)
        self._rng = rng or random.Random()
        self._channels: dict[str, grpc.aio.Channel] = {}
        self._gathering = AsyncGathering(
            uuid4().hex,
            perform=self._perform,
            attempts=lambda rpc: self._attempts(rpc, None),
            channel=self._channel,
            timeout_s=self._patience.timeout_s,
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections. A later call opens them again."""
        await self._gathering.close()
        channels, self._channels = self._channels, {}
        for channel in channels.values():
            await channel.close()

    async def submit(
        self,
        definition: str,
        input: Any = None,
        *,
        version: int = 0,
        idempotency_key: str | None = None,
        labels: Mapping[str, str] | None = None,
        deadline: timedelta | None = None,
        namespace: str | None = None,
    ) -> SubmittedJob:
        """Store a job and start it.

        Args:
            definition: Name of the definition.
            input: Anything with a JSON form, a dataclass, a msgspec struct, a `Payload`, or opaque bytes.
            version: Of the definition. 0: the newest.
            idempotency_key: The same key and the same request give the first job, also from another process. None: a
                random one, which lets this call be repeated but means nothing afterwards.
            labels: For those who list and look.
            deadline: From the submission to the end of the job. None: the definition's.
            namespace: None: the client's.

        Raises:
            DefinitionNotFound: No such definition.
            IdempotencyConflict: The key was used with another request.
            Unavailable: It may have been stored; submit again with the idempotency key that stands in the metadata.
        """
        job = calls.submission(
            definition,
            input,
            version=version,
            idempotency_key=idempotency_key,
            labels=labels,
            deadline=deadline,
            namespace=namespace or self.namespace,
        )
        return await self._gathering.submit(job, lambda: calls.submit_job(job))

    async def run(
        self,
        definition: str,
        input: Any = None,
        *,
        version: int = 0,
        idempotency_key: str | None = None,
        labels: Mapping[str, str] | None = None,
        deadline: timedelta | None = None,
        namespace: str | None = None,
        wait_max_s: float | None = None,
        check: bool = True,
    ) -> JobResult:
        """Store a job, start it and wait for its end, or until it waits for a person. Arguments as for `submit`.

        Args:
            definition: Name of the definition.
            input: The job's input.
            version: Of the definition. 0: the newest.
            idempotency_key: With a known key this waits for the first job.
            labels: For those who list and look.
            deadline: From the submission to the end of the job. None: the definition's.
            namespace: None: the client's.
            wait_max_s: None: for ever, as long as a server answers.
            check: Whether a job that does not complete is an error.

        Raises:
            JobNotCompleted: One of its four kinds; carries the job.
            WaitTimedOut: The job goes on.
            StepwardError: As `submit`.
        """
        job = calls.submission(
            definition,
            input,
            version=version,
            idempotency_key=idempotency_key,
            labels=labels,
            deadline=deadline,
            namespace=namespace or self.namespace,
        )
        result = await self._gathering.run(
            job, lambda left_s: calls.run_job(job, wait_max_s=left_s), wait_max_s=wait_max_s
        )
        return reading.checked(result, check=check)

    async def wait(self, job_id: str, *, wait_max_s: float | None = None, check: bool = True) -> JobResult:
        """Wait for the end of a job, or until it waits for a person. Raises as `run`; the job comes with its steps."""
        # A generator that is left early closes its stream only when it is closed itself.
        async with aclosing(self._follow(Watch(job_id, 0), wait_max_s)) as changes:
            async for change in changes:
                if change.job.state.final or change.job.state is JobState.ESCALATED:
                    return reading.checked(JobResult(job=change.job), check=check)
        raise AssertionError("a watch ends with the job's end")

    async def get(self, job_id: str) -> Job:
        """Read one job with its steps.

        Raises:
            JobNotFound: No such job.
        """
        return await self._perform(calls.get_job(job_id))

    def list(
        self,
        *,
        limit: int | None = None,
        page_size: int = 0,
        namespace: str | None = None,
        **wanted: Unpack[WantedJobs],
    ) -> AsyncIterator[Job]:
        """Read jobs without their steps, the newest first, page by page as they are taken. No limit: all of them.

        `wanted` says which: `states`, `definition`, `labels`, `since`, `until`, `queue`, as `WantedJobs` has them.
        """
        namespace = namespace or self.namespace

        async def page(token: str, size: int) -> Page[Job]:
            return await self._perform(calls.list_jobs(wanted, namespace=namespace, page_size=size, page_token=token))

        return calls.async_pages(page, limit=limit, page_size=page_size)

    async def count(self, *, namespace: str | None = None, **wanted: Unpack[WantedJobs]) -> JobCounts:
        """Count the jobs that `list` would read. Cheap when nothing, or only `states`, is said of them."""
        return await self._perform(calls.count_jobs(wanted, namespace=namespace or self.namespace))

    def steps(
        self, job_id: str, *, states: Sequence[StepState | str] = (), limit: int | None = None
    ) -> AsyncIterator[Step]:
        """Read the steps of a job, in the order of the definition, page by page. No states: in any.

        Raises:
            JobNotFound: No such job.
        """

        async def page(token: str, size: int) -> Page[Step]:
            return await self._perform(calls.list_job_steps(job_id, states=states, page_size=size, page_token=token))

        return calls.async_pages(page, limit=limit, page_size=0)

    def watch(self, job_id: str, from_revision: int = 0) -> AsyncGenerator[JobChange, None]:
        """Follow a job until it has ended: the job as it is, then each change.

        After a lost connection it resumes by itself behind the last change that it gave out, without a gap and without
        a repetition. To leave it early, close it: `async with contextlib.aclosing(client.watch(...)) as changes`.

        Raises:
            JobNotFound: No such job.
            Unavailable: No server answered for the client's timeout.
        """
        return self._follow(Watch(job_id, from_revision), None)

    async def cancel(self, job_id: str, reason: str = "", *, actor: str = "") -> Job:
        """Ask for the end of a job: what was done, or may have been done, is undone. Safe to repeat.

        `actor` is who asks, for the history, as in every call that somebody makes by hand.

        Raises:
            JobNotFound: No such job.
            JobEnded: It completed or failed before.
        """
        return await self._perform(calls.cancel_job(job_id, reason=reason, actor=actor))

    async def terminate(self, job_id: str, *, reason: str, actor: str = "") -> OperatorAnswer:
        """End a job at once and undo nothing more; the answer tells what remains done. Safe to repeat.

        Raises:
            JobNotFound: No such job.
            JobEnded: It has ended otherwise.
        """
        return await self._perform(calls.terminate_job(job_id, reason=reason, actor=actor))

    async def pause(self, job_id: str, *, reason: str = "", actor: str = "") -> OperatorAnswer:
        """Start nothing new of a job; attempts that run go on to their ends. Safe to repeat.

        Raises:
            JobNotFound: No such job.
            JobEnded: It has ended.
            JobStateRefused: It is being undone.
        """
        return await self._perform(calls.pause_job(job_id, reason=reason, actor=actor))

    async def resume(self, job_id: str, *, reason: str = "", actor: str = "") -> OperatorAnswer:
        """Let a paused job go on. Safe to repeat. Raises as `pause`."""
        return await self._perform(calls.resume_job(job_id, reason=reason, actor=actor))

    async def retry_step(self, job_id: str, step_id: str, *, reason: str = "", actor: str = "") -> OperatorAnswer:
        """Try a step again, or its undo: one that waits for a person, or for its next attempt. Safe to repeat.

        Raises:
            JobNotFound: No such job.
            StepNotFound: The job has no such step.
            JobEnded: It has ended.
            StepStateRefused: The step waits neither for a person nor for its next attempt.
        """
        return await self._perform(calls.retry_step(job_id, step_id, reason=reason, actor=actor))

    async def skip_step(
        self,
        job_id: str,
        step_id: str,
        *,
        output: Any = None,
        undone: bool = False,
        reason: str = "",
        actor: str = "",
    ) -> OperatorAnswer:
        """Pass over a step, so that those which need it go on, or over its undo. Safe to repeat.

        Args:
            job_id: The job.
            step_id: The step.
            output: What stands in place of its output, as for an input. None: JSON null. Not for an undo.
            undone: Of an undo: whether somebody undid the step by other means; otherwise what it did remains.
            reason: For the history.
            actor: Who asks, for the history.

        Raises:
            JobNotFound: No such job.
            StepNotFound: The job has no such step.
            JobEnded: It has ended.
            StepStateRefused: The step has not become ready, or has ended.
        """
        call = calls.skip_step(job_id, step_id, output=output, undone=undone, reason=reason, actor=actor)
        return await self._perform(call)

    async def explain(self, job_id: str) -> Explanation:
        """Read why a job does not move, as a tree of reasons with what unblocks each; or how it ended.

        Raises:
            JobNotFound: No such job.
        """
        return await self._perform(calls.explain_job(job_id))

    def history(self, job_id: str) -> AsyncIterator[HistoryEvent]:
        """Read what happened to a job, oldest first.

        Raises:
            JobNotFound: No such job.
        """

        async def page(token: str, size: int) -> Page[HistoryEvent]:
            return await self._perform(calls.get_job_history(job_id, page_size=size, page_token=token))

        return calls.async_pages(page, limit=None, page_size=0)

    async def apply_definition(self, definition: AnyDefinition, *, namespace: str | None = None) -> AppliedDefinition:
        """Store a definition as a new version, unless the newest is equal.

        Args:
            definition: A `stepward.client.Definition`, the path of a file, or the contract's message.
            namespace: Where it is to live.

        Raises:
            DefinitionFileError: The file cannot be read; `problems` has all that is wrong, by line and column.
            InvalidDefinition: The cluster refuses it; all that is wrong is in `violations`.
        """
        return await self._perform(calls.apply_definition(definition, namespace=namespace or self.namespace))

    async def validate_definition(
        self, definition: AnyDefinition, *, namespace: str | None = None
    ) -> tuple[Violation, ...]:
        """Check a definition, in any form that `apply_definition` takes, and change nothing. Nothing wrong: empty."""
        return await self._perform(calls.validate_definition(definition, namespace=namespace or self.namespace))

    async def check_definition(self, definition: AnyDefinition, *, namespace: str | None = None) -> CheckedDefinition:
        """Check a definition as `validate_definition` does; tell warnings, and how soon trouble is noticed."""
        return await self._perform(calls.check_definition(definition, namespace=namespace or self.namespace))

    async def get_definition(self, name: str, *, version: int = 0, namespace: str | None = None) -> DefinitionVersion:
        """Read one version of a definition. 0: the newest.

        Raises:
            DefinitionNotFound: No such definition or version.
        """
        return await self._perform(calls.get_definition(name, version=version, namespace=namespace or self.namespace))

    def list_definitions(self, *, namespace: str | None = None) -> AsyncIterator[DefinitionVersion]:
        """Read the newest version of each definition, by name."""

        async def page(token: str, size: int) -> Page[DefinitionVersion]:
            return await self._perform(
                calls.list_definitions(namespace=namespace or self.namespace, page_size=size, page_token=token)
            )

        return calls.async_pages(page, limit=None, page_size=0)

    def agents(self, *, namespace: str | None = None) -> AsyncIterator[Agent]:
        """Read the open sessions of agents."""

        async def page(token: str, size: int) -> Page[Agent]:
            return await self._perform(
                calls.list_agents(namespace=namespace or self.namespace, page_size=size, page_token=token)
            )

        return calls.async_pages(page, limit=None, page_size=0)

    async def status(self) -> NodeStatus:
        """Ask the node that answers how it is."""
        return await self._perform(calls.get_status())

    async def create_cluster(self) -> CreatedCluster:
        """Make a cluster of the nodes in the configuration of the node that answers; all run and know none."""
        return await self._perform(calls.create_cluster())

    async def transfer_leader(self, node_id: str = "") -> Leadership:
        """Hand leadership to a node; to the one that is most up to date when none is named."""
        return await self._perform(calls.transfer_leader(node_id))

    async def recover_node(self, gone: Iterable[str], *, reason: str, actor: str = "") -> str:
        """Let the node that answers take part though `gone` never come back; what may have been lost."""
        return await self._perform(calls.recover_node(gone, reason=reason, actor=actor))

    async def _perform(self, call: Call[V], since_s: float | None = None) -> V:  # type: ignore[explicit-override]  # `override` is of 3.12
        """Carry out a call, the time for which began at an instant, or begins now."""
        attempts = self._attempts(call.rpc, call.wait_max_s, since_s)
        while True:
            attempt = attempts.begin(time.monotonic())
            send = self._channel(attempt.address).unary_unary(
                call.rpc.path, type(call.request).SerializeToString, call.rpc.answer.FromString
            )
            try:
                answer = await send(call.request_for(attempt.wait_s), timeout=attempt.timeout_s)
            except grpc.RpcError as failed:
                await asyncio.sleep(call.failed(attempts, error_from(failed, attempt.address), time.monotonic()))
            else:
                attempts.answered()
                return call.read(answer)

    async def _follow(self, watch: Watch, wait_max_s: float | None) -> AsyncGenerator[JobChange, None]:
        attempts = self._attempts(calls.WATCH_JOB, wait_max_s)
        while not watch.ended:
            attempt = attempts.begin(time.monotonic())
            timeout_s = None if wait_max_s is None else attempt.wait_s
            try:
                async with aclosing(self._stream(watch, attempts, attempt.address, timeout_s)) as changes:
                    async for change in changes:
                        yield change
            except errors.StepwardError as error:
                await asyncio.sleep(watch.lost(error, attempts, time.monotonic()))

    async def _stream(
        self, watch: Watch, attempts: Attempts, address: str, timeout_s: float | None
    ) -> AsyncGenerator[JobChange, None]:
        follow = self._channel(address).unary_stream(
            calls.WATCH_JOB.path, WatchJobRequest.SerializeToString, WatchJobResponse.FromString
        )
        stream = follow(watch.request(), timeout=timeout_s)
        try:
            async for answer in stream:
                attempts.answered()
                for change in watch.take(answer):
                    yield change
        except grpc.RpcError as failed:
            raise error_from(failed, address) from None
        finally:
            stream.cancel()
        watch.stream_ended()
        if not watch.ended:
            for change in watch.take_job(await self.get(watch.job_id), address):
                yield change

    def _attempts(self, rpc: Rpc, wait_max_s: float | None, since_s: float | None = None) -> Attempts:
        now_s = time.monotonic() if since_s is None else since_s
        return Attempts(
            rpc.repeat,
            addresses=self.addresses,
            patience=self._patience,
            rng=self._rng,
            now_s=now_s,
            waits=rpc.waits,
            ends_at_s=None if wait_max_s is None else now_s + wait_max_s,
        )

    def _channel(self, address: str) -> grpc.aio.Channel:
        channel = self._channels.get(address)
        if channel is None:
            channel = (
                grpc.aio.secure_channel(address, self._credentials, CHANNEL_OPTIONS)
                if self._credentials
                else grpc.aio.insecure_channel(address, CHANNEL_OPTIONS)
            )
            self._channels[address] = channel
        return channel
