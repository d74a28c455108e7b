"""A user of the bulk calls: many jobs in one `SubmitJobs`, and one `WatchJobs` stream for their ends."""

from __future__ import annotations

import secrets
import time

import grpc
from locust import task
from typing_extensions import override

from loadtest.mix_jobs import ENDS, TRIPS
from loadtest.routes import Route
from loadtest.shapes import INPUT
from loadtest.users import JOB_S_MAX, Caller, CallFailedError, JobNotEndedError, event, stable
from stepward.client import JobState
from stepward.client.answers import error_from
from stepward.client.errors import StepwardError
from stepward.v1 import common_pb2, job_service_pb2_grpc
from stepward.v1 import job_service_pb2 as pb

BULK = 20
# A node that does not answer within this is left for another.
CALL_S_MAX = 3.0
LOOK_EVERY_S = 0.1


class BulkSubmitter(Caller):
    """Submits a batch of jobs, and learns of all their ends before the next."""

    @override
    def on_start(self) -> None:
        super().on_start()
        self.route = Route(self.host or "", first=secrets.randbelow(1 << 16))
        self.caller_id = f"mix-{secrets.token_hex(8)}"
        self.place: list[pb.ShardRevision] = []
        self.watches = True

    @override
    def on_stop(self) -> None:
        self.route.close()
        super().on_stop()

    @task
    def run_jobs(self) -> None:
        """One batch."""
        keys = [f"mix-{secrets.token_hex(8)}" for _ in range(BULK)]
        for key in keys:
            self.ledger.begun(key, definition=TRIPS.name, wanted=ENDS[TRIPS.name])
        try:
            with event(self, f"submit and watch {BULK} jobs"):
                self._run(keys, until=time.monotonic() + JOB_S_MAX)
        finally:
            for key in keys:
                self.ledger.gave_up(key)

    def _run(self, keys: list[str], *, until: float) -> None:
        if self.watches and not self.place:
            self._find_place(until)
        waiting = self._submit(keys, until)
        while waiting:
            try:
                self._watch(waiting, until) if self.watches else self._look(waiting, until)
            except grpc.RpcError as failed:
                self._failed(failed, until)

    def _find_place(self, until: float) -> None:
        """Where the first stream begins: the first message says it."""
        while self.watches and not self.place:
            try:
                self._watch({}, until)
            except grpc.RpcError as failed:
                self._failed(failed, until)

    def _submit(self, keys: list[str], until: float) -> dict[str, str]:
        """Submit with the same keys until there is an answer. Returns the keys by job."""
        jobs = [
            pb.JobSubmission(definition_name=TRIPS.name, input=INPUT, idempotency_key=key, caller_id=self.caller_id)
            for key in keys
        ]
        while True:
            stub = job_service_pb2_grpc.JobServiceStub(self.route.channel)
            try:
                answer = stub.SubmitJobs(pb.SubmitJobsRequest(jobs=jobs), timeout=CALL_S_MAX)
            except grpc.RpcError as failed:
                self._failed(failed, until)
                continue
            refused = {result.error.reason for result in answer.results if result.HasField("error")}
            for key, result in zip(keys, answer.results, strict=True):
                if result.HasField("job"):
                    self.ledger.stored(key, result.job.job_id)
            if refused:
                raise CallFailedError(", ".join(sorted(refused)))
            return {result.job.job_id: key for key, result in zip(keys, answer.results, strict=True)}

    def _watch(self, waiting: dict[str, str], until: float) -> None:
        """Read the stream until all that is waited for has ended, at least one message."""
        stub = job_service_pb2_grpc.JobServiceStub(self.route.channel)
        request = pb.WatchJobsRequest(caller_id=self.caller_id)
        getattr(request, "from").extend(self.place)
        stream = stub.WatchJobs(request, timeout=max(0.0, until - time.monotonic()))
        try:
            for message in stream:
                for job in message.jobs:
                    self._ended(waiting, job.job_id, job.state)
                self.place = list(message.revisions)
                if not waiting:
                    return
        finally:
            stream.cancel()

    def _look(self, waiting: dict[str, str], until: float) -> None:
        """Ask for each, where a server has no stream of ends."""
        stub = job_service_pb2_grpc.JobServiceStub(self.route.channel)
        for job_id in list(waiting):
            job = stub.GetJob(pb.GetJobRequest(job_id=job_id), timeout=CALL_S_MAX).job
            self._ended(waiting, job_id, job.state)
        if waiting:
            if time.monotonic() > until:
                raise JobNotEndedError("not in time")
            time.sleep(LOOK_EVERY_S)

    def _ended(self, waiting: dict[str, str], job_id: str, wire: common_pb2.JobState.ValueType) -> None:
        state = JobState(common_pb2.JobState.Name(wire).removeprefix("JOB_STATE_"))
        if state.final and job_id in waiting:
            self.ended(waiting.pop(job_id), TRIPS.name, job_id, state)

    def _failed(self, failed: grpc.RpcError, until: float) -> None:
        """Go to another node while there is time.

        Raises:
            CallFailedError: There is none.
        """
        error: StepwardError = error_from(failed, self.route.address)
        if failed.code() is grpc.StatusCode.UNIMPLEMENTED:
            self.watches = False
        elif time.monotonic() > until:
            raise stable(error) from None
        elif error.reason == "REVISION_COMPACTED":
            # What is waited for has to be asked for; the next stream begins anew.
            self.place, self.watches = [], False
        else:
            time.sleep(LOOK_EVERY_S)
            self.route.go_on()
