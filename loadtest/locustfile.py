"""Load with locust, for mixes, soaks and failures under load; what one job costs is measured by `loadtest.bench`.

    python -m loadtest.agent --server localhost:7654 &
    locust -f loadtest/locustfile.py --headless -u 20 -r 20 -t 30s --host localhost:7654

Each user submits a job, waits for its end, and begins the next. Latencies contain the time that a call waits for its
turn in this one Python process, so read them as a limit to what the server took. Exits with 1 when more fails, or takes
longer, than the command line allows.
"""

import time
from argparse import ArgumentParser
from typing import Any

import grpc
import grpc.experimental.gevent
from locust import User, constant, events, task
from locust.env import Environment
from typing_extensions import override

from loadtest.shapes import INPUT, TRIP, trip
from stepward.client.answers import error_from
from stepward.v1 import definition_service_pb2, definition_service_pb2_grpc, job_service_pb2, job_service_pb2_grpc
from stepward.v1.common_pb2 import JOB_STATE_COMPLETED, JobState
from stepward.v1.job_service_pb2 import JobSubmission

# gRPC waits in C, where gevent cannot see it: without this, before the first channel, one call at a time would run.
grpc.experimental.gevent.init_gevent()

JOB_S_MAX = 60.0


class JobNotCompletedError(Exception):
    """A job ended in another state; its message is that state."""


class CallFailedError(Exception):
    """A call failed; its message is the server's reason, or the client's name for it: the same for all of a kind."""


def stable_error(error: grpc.RpcError, address: str) -> CallFailedError:
    """The failure without addresses and ids, so that failures of one kind are counted together."""
    read = error_from(error, address)
    return CallFailedError(read.reason or type(read).__name__)


@events.init_command_line_parser.add_listener  # type: ignore[untyped-decorator]  # locust's decorators say nothing of types
def add_options(parser: ArgumentParser) -> None:
    """What is still good enough."""
    group = parser.add_argument_group("stepward")
    group.add_argument("--fail-ratio-max", type=float, default=0.0, help="of all jobs (default: %(default)s)")
    group.add_argument("--p99-ms-max", type=float, default=5000.0, help="99th percentile (default: %(default)s)")


@events.test_start.add_listener  # type: ignore[untyped-decorator]  # locust's decorators say nothing of types
def apply_definition(environment: Environment, **_: Any) -> None:
    """Store what the users run; storing it again changes nothing. A server that is away shows in every job."""
    address = environment.host or ""
    with grpc.insecure_channel(address) as channel:
        stub = definition_service_pb2_grpc.DefinitionServiceStub(channel)
        try:
            stub.ApplyDefinition(definition_service_pb2.ApplyDefinitionRequest(definition=trip()), timeout=JOB_S_MAX)
        except grpc.RpcError as error:
            print(f"the definition was not stored: {error_from(error, address)}")


@events.quitting.add_listener  # type: ignore[untyped-decorator]  # locust's decorators say nothing of types
def judge(environment: Environment, **_: Any) -> None:
    """Set the exit code."""
    total = environment.stats.total
    options = environment.parsed_options
    assert options is not None
    p99_ms = total.get_response_time_percentile(0.99) or 0
    complaints = []
    if total.num_requests == 0:
        complaints.append("no job was run")
    if total.fail_ratio > options.fail_ratio_max:
        complaints.append(f"{total.fail_ratio:.2%} of the jobs failed; at most {options.fail_ratio_max:.2%} may")
    if p99_ms > options.p99_ms_max:
        complaints.append(f"the 99th percentile is {p99_ms:.0f} ms; at most {options.p99_ms_max:.0f} ms are allowed")
    for complaint in complaints:
        print(complaint)
    environment.process_exit_code = 1 if complaints else 0


class SubmitAndWait(User):
    """Submits a job, waits for its end, begins the next."""

    wait_time = constant(0)

    @override
    def on_start(self) -> None:
        # Without a pool of its own every user would share one connection.
        self.address = self.host or ""
        options = (("grpc.use_local_subchannel_pool", 1),)
        self.channel = grpc.insecure_channel(self.address, options=options)
        self.jobs = job_service_pb2_grpc.JobServiceStub(self.channel)

    @override
    def on_stop(self) -> None:
        self.channel.close()

    @task
    def run_job(self) -> None:
        """One `RunJob` call."""
        began = time.perf_counter()
        failure: Exception | None = None
        length = 0
        try:
            request = job_service_pb2.RunJobRequest(job=JobSubmission(definition_name=TRIP, input=INPUT))
            response = self.jobs.RunJob(request, timeout=JOB_S_MAX)
        except grpc.RpcError as error:
            failure = stable_error(error, self.address)
        else:
            length = response.ByteSize()
            if response.job.state != JOB_STATE_COMPLETED:
                failure = JobNotCompletedError(JobState.Name(response.job.state))
        self.environment.events.request.fire(
            request_type="rpc",
            name="RunJob",
            response_time=(time.perf_counter() - began) * 1000,
            response_length=length,
            exception=failure,
            context={},
        )
