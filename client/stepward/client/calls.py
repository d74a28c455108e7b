"""Every call of the contract that the client makes: its request, whether it may be repeated, how its answer is read.

Both clients only carry these out, so they cannot differ in what they ask.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Generic, TypeVar
from uuid import uuid4

import grpc

from stepward.client import explanation_reading, payloads, reading
from stepward.client.answers import CODE
from stepward.client.definition_forms import definition_message
from stepward.client.errors import PayloadTooLarge, Unavailable
from stepward.client.failover import Attempts, Repeat
from stepward.client.job_filter import WantedJobs, job_filter, step_states
from stepward.client.values import (
    Agent,
    AppliedDefinition,
    CheckedDefinition,
    CreatedCluster,
    DefinitionVersion,
    HistoryEvent,
    Job,
    JobCounts,
    JobResult,
    Leadership,
    NodeStatus,
    OperatorAnswer,
    Step,
    StepState,
    SubmittedJob,
)
from stepward.v1 import (
    agent_service_pb2,
    cluster_service_pb2,
    common_pb2,
    definition_service_pb2,
    job_service_pb2,
    operator_service_pb2,
    supervision_service_pb2,
)

if TYPE_CHECKING:
    from google.protobuf.message import Message

    from stepward.client.definition_forms import AnyDefinition
    from stepward.client.errors import StepwardError, Violation
    from stepward.client.explanation_values import Explanation

V = TypeVar("V")

PAGE_SIZE_MAX = 1_000

# No server refuses a message that is smaller than this for its size: gRPC's own default.
MESSAGE_BYTES_MIN = 4 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Rpc:
    """One rpc of the contract."""

    service: str
    method: str
    answer: type[Message]
    repeat: Repeat
    waits: bool = False
    """Whether the server answers only when the job has got somewhere."""

    @property
    def path(self) -> str:
        return f"/stepward.v1.{self.service}/{self.method}"


SUBMIT_JOB = Rpc("JobService", "SubmitJob", job_service_pb2.SubmitJobResponse, Repeat.KEYED)
SUBMIT_JOBS = Rpc("JobService", "SubmitJobs", job_service_pb2.SubmitJobsResponse, Repeat.KEYED)
RUN_JOB = Rpc("JobService", "RunJob", job_service_pb2.RunJobResponse, Repeat.KEYED, waits=True)
GET_JOB = Rpc("JobService", "GetJob", job_service_pb2.GetJobResponse, Repeat.READ)
LIST_JOBS = Rpc("JobService", "ListJobs", job_service_pb2.ListJobsResponse, Repeat.READ)
COUNT_JOBS = Rpc("JobService", "CountJobs", job_service_pb2.CountJobsResponse, Repeat.READ)
LIST_JOB_STEPS = Rpc("JobService", "ListJobSteps", job_service_pb2.ListJobStepsResponse, Repeat.READ)
WATCH_JOB = Rpc("JobService", "WatchJob", job_service_pb2.WatchJobResponse, Repeat.READ, waits=True)
WATCH_JOBS = Rpc("JobService", "WatchJobs", job_service_pb2.WatchJobsResponse, Repeat.READ, waits=True)
CANCEL_JOB = Rpc("JobService", "CancelJob", job_service_pb2.CancelJobResponse, Repeat.IDEMPOTENT)
EXPLAIN_JOB = Rpc("JobService", "ExplainJob", job_service_pb2.ExplainJobResponse, Repeat.READ)
GET_JOB_HISTORY = Rpc("JobService", "GetJobHistory", job_service_pb2.GetJobHistoryResponse, Repeat.READ)
TERMINATE_JOB = Rpc("OperatorService", "TerminateJob", operator_service_pb2.TerminateJobResponse, Repeat.IDEMPOTENT)
PAUSE_JOB = Rpc("OperatorService", "PauseJob", operator_service_pb2.PauseJobResponse, Repeat.IDEMPOTENT)
RESUME_JOB = Rpc("OperatorService", "ResumeJob", operator_service_pb2.ResumeJobResponse, Repeat.IDEMPOTENT)
RETRY_STEP = Rpc("OperatorService", "RetryStep", operator_service_pb2.RetryStepResponse, Repeat.IDEMPOTENT)
SKIP_STEP = Rpc("OperatorService", "SkipStep", operator_service_pb2.SkipStepResponse, Repeat.IDEMPOTENT)
APPLY_DEFINITION = Rpc(
    "DefinitionService", "ApplyDefinition", definition_service_pb2.ApplyDefinitionResponse, Repeat.IDEMPOTENT
)
VALIDATE_DEFINITION = Rpc(
    "DefinitionService", "ValidateDefinition", definition_service_pb2.ValidateDefinitionResponse, Repeat.READ
)
GET_DEFINITION = Rpc("DefinitionService", "GetDefinition", definition_service_pb2.GetDefinitionResponse, Repeat.READ)
LIST_DEFINITIONS = Rpc(
    "DefinitionService", "ListDefinitions", definition_service_pb2.ListDefinitionsResponse, Repeat.READ
)
LIST_AGENTS = Rpc("AgentService", "ListAgents", agent_service_pb2.ListAgentsResponse, Repeat.READ)
GET_STATUS = Rpc("ClusterService", "GetStatus", cluster_service_pb2.GetStatusResponse, Repeat.READ)
LIST_INCIDENTS = Rpc("SupervisionService", "ListIncidents", supervision_service_pb2.ListIncidentsResponse, Repeat.READ)
GET_INCIDENT = Rpc("SupervisionService", "GetIncident", supervision_service_pb2.GetIncidentResponse, Repeat.READ)
# By a filter it is refused when it is repeated after it was carried out, since it means others then.
RESOLVE_INCIDENTS = Rpc(
    "SupervisionService", "ResolveIncidents", supervision_service_pb2.ResolveIncidentsResponse, Repeat.IDEMPOTENT
)
LIST_LEDGER = Rpc("SupervisionService", "ListLedger", supervision_service_pb2.ListLedgerResponse, Repeat.READ)
# Repeated after an unknown outcome this is refused, since the cluster is there then.
CREATE_CLUSTER = Rpc("ClusterService", "CreateCluster", cluster_service_pb2.CreateClusterResponse, Repeat.UNSAFE)
# Another one, with no target named, may hand leadership on once more.
TRANSFER_LEADER = Rpc("ClusterService", "TransferLeader", cluster_service_pb2.TransferLeaderResponse, Repeat.UNSAFE)
# As creating: a node that was recovered waits for nobody any more, and refuses.
RECOVER_NODE = Rpc("ClusterService", "RecoverNode", cluster_service_pb2.RecoverNodeResponse, Repeat.UNSAFE)

RPCS = (
    SUBMIT_JOB,
    SUBMIT_JOBS,
    RUN_JOB,
    GET_JOB,
    LIST_JOBS,
    COUNT_JOBS,
    LIST_JOB_STEPS,
    WATCH_JOB,
    WATCH_JOBS,
    CANCEL_JOB,
    GET_JOB_HISTORY,
    EXPLAIN_JOB,
    TERMINATE_JOB,
    PAUSE_JOB,
    RESUME_JOB,
    RETRY_STEP,
    SKIP_STEP,
    APPLY_DEFINITION,
    VALIDATE_DEFINITION,
    GET_DEFINITION,
    LIST_DEFINITIONS,
    LIST_AGENTS,
    LIST_INCIDENTS,
    GET_INCIDENT,
    RESOLVE_INCIDENTS,
    LIST_LEDGER,
    GET_STATUS,
    CREATE_CLUSTER,
    TRANSFER_LEADER,
    RECOVER_NODE,
)


@dataclass(frozen=True, slots=True)
class Call(Generic[V]):
    """One call to carry out."""

    rpc: Rpc
    request: Message
    read: Callable[[Any], V]
    """From the answer, which is an `rpc.answer`, to the value."""
    idempotency_key: str = ""
    """The submission's, to tell those who must repeat it themselves."""
    wait_max_s: float | None = None
    """The caller's bound for a call that waits. None: for ever."""

    def __post_init__(self) -> None:
        assert self.idempotency_key or self.rpc.repeat is not Repeat.KEYED, (
            "a submission without a key is not repeatable"
        )

    def request_for(self, wait_s: float | None) -> Message:
        """The request of one attempt, in which the server may wait for that long."""
        if wait_s is None or not isinstance(self.request, job_service_pb2.RunJobRequest):
            return self.request
        request = job_service_pb2.RunJobRequest()
        request.CopyFrom(self.request)
        request.wait_max.FromTimedelta(timedelta(seconds=wait_s))
        return request

    def failed(self, attempts: Attempts, error: StepwardError, now_s: float) -> float:
        """As `Attempts.failed`; a submission that may have been stored says by which key to repeat it."""
        size = self.request.ByteSize()
        if size >= MESSAGE_BYTES_MIN and error.metadata.get(CODE) == grpc.StatusCode.RESOURCE_EXHAUSTED.name:
            # gRPC refuses a message by its size, here or there, before any stepward server could say why.
            error = PayloadTooLarge(
                f"the request has {size} bytes, which is more than one message can have: store what is large elsewhere "
                "and refer to it",
                address=error.address,
            )
        try:
            return attempts.failed(error, now_s)
        except Unavailable as over:
            if self.idempotency_key:
                over.metadata.setdefault("idempotency_key", self.idempotency_key)
            raise


@dataclass(frozen=True, slots=True)
class Page(Generic[V]):
    """One page of a list."""

    items: tuple[V, ...]
    next_page_token: str


def size_of_page(asked: int, left: int | None) -> int:
    """How much to ask for when this much is left to take. 0: the server's default."""
    if asked or left is None:
        return asked
    return min(left, PAGE_SIZE_MAX)


def pages(page: Callable[[str, int], Page[V]], *, limit: int | None, page_size: int) -> Iterator[V]:
    """All items of all pages, each page read when it is needed."""
    left, token = limit, ""
    while left is None or left > 0:
        one = page(token, size_of_page(page_size, left))
        yield from one.items if left is None else one.items[:left]
        token = one.next_page_token
        if not token:
            return
        left = None if left is None else left - len(one.items)


async def async_pages(
    page: Callable[[str, int], Awaitable[Page[V]]], *, limit: int | None, page_size: int
) -> AsyncIterator[V]:
    """All items of all pages, each page read when it is needed."""
    left, token = limit, ""
    while left is None or left > 0:
        one = await page(token, size_of_page(page_size, left))
        for item in one.items if left is None else one.items[:left]:
            yield item
        token = one.next_page_token
        if not token:
            return
        left = None if left is None else left - len(one.items)


def submission(
    definition: str,
    input: Any,
    *,
    version: int,
    idempotency_key: str | None,
    labels: Mapping[str, str] | None,
    deadline: timedelta | None,
    namespace: str,
) -> job_service_pb2.JobSubmission:
    """What to run. A key is drawn when there is none: without one the submission could not be sent twice."""
    encoded = payloads.encode(input)
    job = job_service_pb2.JobSubmission(
        namespace=namespace,
        definition_name=definition,
        definition_version=version,
        input=common_pb2.Payload(data=encoded.data, encoding=encoded.encoding) if encoded else None,
        idempotency_key=idempotency_key or uuid4().hex,
        labels=dict(labels or {}),
    )
    if deadline is not None:
        job.deadline.FromTimedelta(deadline)
    return job


def submit_job(job: job_service_pb2.JobSubmission) -> Call[SubmittedJob]:
    """Store a job and start it."""
    key = job.idempotency_key
    request = job_service_pb2.SubmitJobRequest(job=job)
    return Call(SUBMIT_JOB, request, lambda answer: reading.submitted_job(answer, key), idempotency_key=key)


def submit_jobs(request: job_service_pb2.SubmitJobsRequest) -> Call[job_service_pb2.SubmitJobsResponse]:
    """Store many jobs, each of which has a key, and start them. The answer is read by whoever put them together."""
    assert all(job.idempotency_key for job in request.jobs), "a submission without a key is not repeatable"
    return Call(SUBMIT_JOBS, request, lambda answer: answer, idempotency_key=request.jobs[0].idempotency_key)


def run_job(job: job_service_pb2.JobSubmission, *, wait_max_s: float | None) -> Call[JobResult]:
    """Store a job, start it and wait for its end."""

    def read(answer: job_service_pb2.RunJobResponse) -> JobResult:
        return JobResult(job=reading.job(answer.job), duplicate=answer.duplicate)

    request = job_service_pb2.RunJobRequest(job=job)
    return Call(RUN_JOB, request, read, idempotency_key=job.idempotency_key, wait_max_s=wait_max_s)


def get_job(job_id: str) -> Call[Job]:
    """Read one job with its steps."""
    request = job_service_pb2.GetJobRequest(job_id=job_id)
    return Call(GET_JOB, request, lambda answer: reading.job(answer.job))


def list_jobs(wanted: WantedJobs, *, namespace: str, page_size: int, page_token: str) -> Call[Page[Job]]:
    """Read a page of jobs, the newest first."""
    request = job_service_pb2.ListJobsRequest(
        namespace=namespace, filter=job_filter(wanted), page_size=page_size, page_token=page_token
    )
    return Call(LIST_JOBS, request, lambda answer: Page(tuple(map(reading.job, answer.jobs)), answer.next_page_token))


def count_jobs(wanted: WantedJobs, *, namespace: str) -> Call[JobCounts]:
    """Count jobs by state."""
    request = job_service_pb2.CountJobsRequest(namespace=namespace, filter=job_filter(wanted))
    return Call(COUNT_JOBS, request, reading.job_counts)


def list_job_steps(
    job_id: str, *, states: Sequence[StepState | str], page_size: int, page_token: str
) -> Call[Page[Step]]:
    """Read a page of the steps of a job, in the order of the definition."""
    request = job_service_pb2.ListJobStepsRequest(
        job_id=job_id, states=step_states(states), page_size=page_size, page_token=page_token
    )
    return Call(
        LIST_JOB_STEPS, request, lambda answer: Page(tuple(map(reading.step, answer.steps)), answer.next_page_token)
    )


def cancel_job(job_id: str, *, reason: str, actor: str) -> Call[Job]:
    """Undo what was done, and end."""
    request = job_service_pb2.CancelJobRequest(job_id=job_id, reason=reason, actor=actor)
    return Call(CANCEL_JOB, request, lambda answer: reading.job(answer.job))


def terminate_job(job_id: str, *, reason: str, actor: str) -> Call[OperatorAnswer]:
    """End at once, and undo nothing more."""
    request = operator_service_pb2.TerminateJobRequest(job_id=job_id, reason=reason, actor=actor)
    return Call(TERMINATE_JOB, request, reading.operator_answer)


def pause_job(job_id: str, *, reason: str, actor: str) -> Call[OperatorAnswer]:
    """Start nothing new."""
    request = operator_service_pb2.PauseJobRequest(job_id=job_id, reason=reason, actor=actor)
    return Call(PAUSE_JOB, request, reading.operator_answer)


def resume_job(job_id: str, *, reason: str, actor: str) -> Call[OperatorAnswer]:
    """Go on."""
    request = operator_service_pb2.ResumeJobRequest(job_id=job_id, reason=reason, actor=actor)
    return Call(RESUME_JOB, request, reading.operator_answer)


def retry_step(job_id: str, step_id: str, *, reason: str, actor: str) -> Call[OperatorAnswer]:
    """Try a step again."""
    request = operator_service_pb2.RetryStepRequest(job_id=job_id, step_id=step_id, reason=reason, actor=actor)
    return Call(RETRY_STEP, request, reading.operator_answer)


def skip_step(job_id: str, step_id: str, *, output: Any, undone: bool, reason: str, actor: str) -> Call[OperatorAnswer]:
    """Pass over a step, or over its undo."""
    encoded = payloads.encode(output)
    request = operator_service_pb2.SkipStepRequest(
        job_id=job_id,
        step_id=step_id,
        output=common_pb2.Payload(data=encoded.data, encoding=encoded.encoding) if encoded else None,
        undone=undone,
        reason=reason,
        actor=actor,
    )
    return Call(SKIP_STEP, request, reading.operator_answer)


def explain_job(job_id: str) -> Call[Explanation]:
    """Read why a job does not move."""
    return Call(EXPLAIN_JOB, job_service_pb2.ExplainJobRequest(job_id=job_id), explanation_reading.explanation)


def get_job_history(job_id: str, *, page_size: int, page_token: str) -> Call[Page[HistoryEvent]]:
    """Read a page of what happened to a job, oldest first."""
    request = job_service_pb2.GetJobHistoryRequest(job_id=job_id, page_size=page_size, page_token=page_token)
    return Call(
        GET_JOB_HISTORY,
        request,
        lambda answer: Page(tuple(map(reading.event, answer.events)), answer.next_page_token),
    )


def apply_definition(definition: AnyDefinition, *, namespace: str) -> Call[AppliedDefinition]:
    """Store a new version, unless the newest is equal."""
    message = definition_message(definition)
    request = definition_service_pb2.ApplyDefinitionRequest(namespace=namespace, definition=message)
    return Call(
        APPLY_DEFINITION,
        request,
        lambda answer: AppliedDefinition(version=reading.definition_version(answer.version), created=answer.created),
    )


def validate_definition(definition: AnyDefinition, *, namespace: str) -> Call[tuple[Violation, ...]]:
    """Check a definition and change nothing."""
    message = definition_message(definition)
    request = definition_service_pb2.ValidateDefinitionRequest(namespace=namespace, definition=message)
    return Call(VALIDATE_DEFINITION, request, lambda answer: reading.violations(answer.violations))


def check_definition(definition: AnyDefinition, *, namespace: str) -> Call[CheckedDefinition]:
    """Check a definition, and tell what may be meant otherwise and how soon trouble is noticed."""
    message = definition_message(definition)
    request = definition_service_pb2.ValidateDefinitionRequest(namespace=namespace, definition=message)
    return Call(VALIDATE_DEFINITION, request, reading.checked_definition)


def get_definition(name: str, *, version: int, namespace: str) -> Call[DefinitionVersion]:
    """Read one version."""
    request = definition_service_pb2.GetDefinitionRequest(namespace=namespace, name=name, version=version)
    return Call(GET_DEFINITION, request, lambda answer: reading.definition_version(answer.version))


def list_definitions(*, namespace: str, page_size: int, page_token: str) -> Call[Page[DefinitionVersion]]:
    """Read a page of the newest versions, by name."""
    request = definition_service_pb2.ListDefinitionsRequest(
        namespace=namespace, page_size=page_size, page_token=page_token
    )
    return Call(
        LIST_DEFINITIONS,
        request,
        lambda answer: Page(tuple(map(reading.definition_version, answer.versions)), answer.next_page_token),
    )


def list_agents(*, namespace: str, page_size: int, page_token: str) -> Call[Page[Agent]]:
    """Read a page of the open sessions."""
    request = agent_service_pb2.ListAgentsRequest(namespace=namespace, page_size=page_size, page_token=page_token)
    return Call(
        LIST_AGENTS, request, lambda answer: Page(tuple(map(reading.agent, answer.agents)), answer.next_page_token)
    )


def get_status() -> Call[NodeStatus]:
    """Ask a node how it is."""
    return Call(GET_STATUS, cluster_service_pb2.GetStatusRequest(), reading.node_status)


def create_cluster() -> Call[CreatedCluster]:
    """Make a cluster of the nodes in the configuration of the node that answers."""
    return Call(CREATE_CLUSTER, cluster_service_pb2.CreateClusterRequest(), reading.created_cluster)


def transfer_leader(node_id: str) -> Call[Leadership]:
    """Hand leadership to a node, or to the one that is most up to date."""
    request = cluster_service_pb2.TransferLeaderRequest(node_id=node_id)
    return Call(TRANSFER_LEADER, request, lambda answer: Leadership(answer.node_id, answer.term))


def recover_node(gone: Iterable[str], *, reason: str, actor: str) -> Call[str]:
    """Let the node that answers take part without having heard of those that are gone."""
    request = cluster_service_pb2.RecoverNodeRequest(gone_node_ids=gone, reason=reason, actor=actor)
    return Call(RECOVER_NODE, request, lambda answer: str(answer.warning))
