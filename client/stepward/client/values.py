"""What the client returns: frozen values that are read from the contract's messages.

Each keeps the message that it was read from as `message`, for what a newer server tells beyond these classes and for
printing it as JSON; leave it unchanged. Times are aware datetimes in UTC, by the wall clock of the leader.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from stepward.client.payloads import Payload
from stepward.client.supervision import Supervision
from stepward.v1 import agent_service_pb2, cluster_service_pb2, definition_pb2, job_pb2, job_service_pb2

if TYPE_CHECKING:
    from stepward.client.errors import Violation


class JobState(StrEnum):
    """The state of a job."""

    UNSPECIFIED = "UNSPECIFIED"
    """Also a state that this client is too old to know."""
    RUNNING = "RUNNING"
    PAUSED = "PAUSED"
    COMPENSATING = "COMPENSATING"
    ESCALATED = "ESCALATED"
    COMPLETED = "COMPLETED"
    COMPENSATED = "COMPENSATED"
    CANCELLED = "CANCELLED"
    FAILED = "FAILED"

    @property
    def final(self) -> bool:
        """Whether it never changes again. ESCALATED is not final: it waits for a person."""
        return self in FINAL_JOB_STATES


FINAL_JOB_STATES = frozenset({JobState.COMPLETED, JobState.COMPENSATED, JobState.CANCELLED, JobState.FAILED})


class StepState(StrEnum):
    """The state of a step. The UNDO_ states belong to its compensation, the VERIFY_ ones to the question before it."""

    UNSPECIFIED = "UNSPECIFIED"
    """Also a state that this client is too old to know."""
    PENDING = "PENDING"
    READY = "READY"
    OFFERED = "OFFERED"
    RUNNING = "RUNNING"
    RETRY_WAIT = "RETRY_WAIT"
    OUTCOME_UNKNOWN = "OUTCOME_UNKNOWN"
    ESCALATED = "ESCALATED"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    SKIPPED = "SKIPPED"
    CANCELLED = "CANCELLED"
    UNDO_READY = "UNDO_READY"
    UNDO_OFFERED = "UNDO_OFFERED"
    UNDO_RUNNING = "UNDO_RUNNING"
    UNDO_RETRY_WAIT = "UNDO_RETRY_WAIT"
    UNDO_OUTCOME_UNKNOWN = "UNDO_OUTCOME_UNKNOWN"
    UNDO_FAILED = "UNDO_FAILED"
    COMPENSATED = "COMPENSATED"
    VERIFY_READY = "VERIFY_READY"
    VERIFY_OFFERED = "VERIFY_OFFERED"
    VERIFY_RUNNING = "VERIFY_RUNNING"
    VERIFY_RETRY_WAIT = "VERIFY_RETRY_WAIT"
    UNDO_SKIPPED = "UNDO_SKIPPED"

    @property
    def undo(self) -> bool:
        """Whether its undo has begun."""
        return self.startswith("UNDO_") or self is StepState.COMPENSATED

    @property
    def waits_for_person(self) -> bool:
        """Whether only a person moves it on."""
        return self in (StepState.ESCALATED, StepState.UNDO_FAILED, StepState.UNDO_OUTCOME_UNKNOWN)


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """Why an attempt, a step or a job did not succeed."""

    kind: str
    """A short stable name, such as "SoldOut"."""
    message: str = ""
    step_id: str = ""
    retryable: bool = False

    @property
    def text(self) -> str:
        """Kind and message in one line for a person."""
        return f"{self.kind}: {self.message}" if self.message else self.kind


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One step of one job."""

    step_id: str
    state: StepState
    action: str = ""
    queue: str = ""
    needs: tuple[str, ...] = ()
    attempts: int = 0
    """Attempts that started so far: of the action, or of its undo while that runs."""
    attempts_max: int = 0
    lease_losses: int = 0
    token: int = 0
    session_id: str = ""
    """The session that holds it, or held it last."""
    output_payload: Payload | None = None
    failure: Failure | None = None
    updated_at: datetime | None = None
    due_at: datetime | None = None
    due_for: str = ""
    """What its timer is for, such as "retry" or "fence"."""
    maybe_done: bool = False
    has_undo: bool = False
    generation: int = 1
    """One more with every rerun that may not be taken for an earlier one."""
    lease_ends_at: datetime | None = None
    schedule_ends_at: datetime | None = None
    """When all its attempts must be over. None: no such bound."""
    progress_payload: Payload | None = None
    message: job_pb2.JobStep = field(default_factory=job_pb2.JobStep, repr=False, compare=False)

    @property
    def output(self) -> Any:
        """What it gave, decoded. None when there is nothing."""
        return self.output_payload.decode() if self.output_payload else None

    @property
    def progress(self) -> Any:
        """How far the running attempt says it is, decoded. None when it says nothing."""
        return self.progress_payload.decode() if self.progress_payload else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Remainder:
    """A step that remains done, or may remain done, although its job did not complete."""

    step_id: str
    may_be_done: bool = False
    """True when nobody knows; False when it surely remains done."""
    reason: str = ""
    """Why it was not undone, in words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One run of a definition."""

    job_id: str
    state: JobState
    namespace: str = "default"
    definition_name: str = ""
    definition_version: int = 0
    input_payload: Payload | None = None
    output_payload: Payload | None = None
    failure: Failure | None = None
    steps: tuple[Step, ...] = ()
    """In the order of the definition; those that fit into an answer, when there are very many. Left out of lists."""
    steps_total: int = 0
    """How many steps it has. When `steps` has fewer, steps() of a client reads them all."""
    step_counts: Mapping[StepState, int] = field(default_factory=dict)
    """How many of all its steps are in each state. Left out of lists."""
    labels: Mapping[str, str] = field(default_factory=dict)
    submitted_at: datetime | None = None
    updated_at: datetime | None = None
    ended_at: datetime | None = None
    deadline_at: datetime | None = None
    """When it must have ended. None: it may take as long as it takes."""
    revision: int = 0
    """Rises with every change; watch() resumes from it."""
    cancel_requested: bool = False
    remaining: tuple[str, ...] = ()
    """Steps that remain done although the job did not complete."""
    remainders: tuple[Remainder, ...] = ()
    """The same steps, and why each was not undone."""
    undone: tuple[str, ...] = ()
    """Steps that were undone."""
    idempotency_key: str = ""
    message: job_pb2.Job = field(default_factory=job_pb2.Job, repr=False, compare=False)

    @property
    def input(self) -> Any:
        """What it was submitted with, decoded. None when there is nothing."""
        return self.input_payload.decode() if self.input_payload else None

    @property
    def output(self) -> Any:
        """What it gave, decoded. None until it is COMPLETED."""
        return self.output_payload.decode() if self.output_payload else None

    def step(self, step_id: str) -> Step:
        """The step of this id.

        Raises:
            KeyError: The job has no such step, or came without it.
        """
        for step in self.steps:
            if step.step_id == step_id:
                return step
        raise KeyError(f"job {self.job_id} has no step {step_id!r}; it has {[step.step_id for step in self.steps]}")


@dataclass(frozen=True, slots=True, kw_only=True)
class JobCounts:
    """How many jobs there are."""

    by_state: Mapping[JobState, int] = field(default_factory=dict)
    """States without jobs are left out."""
    truncated: bool = False
    """Whether there may be more: a filter beyond states looks at a bounded number of jobs, the newest."""
    message: job_service_pb2.CountJobsResponse = field(
        default_factory=job_service_pb2.CountJobsResponse, repr=False, compare=False
    )

    @property
    def total(self) -> int:
        """In all states together."""
        return sum(self.by_state.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class SubmittedJob:
    """A job that is in the logbook."""

    job_id: str
    state: JobState
    revision: int
    duplicate: bool
    """Whether the idempotency key was known, and this is the first job of that key."""
    idempotency_key: str
    message: job_service_pb2.SubmitJobResponse = field(
        default_factory=job_service_pb2.SubmitJobResponse, repr=False, compare=False
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class JobResult:
    """A job at its end, or ESCALATED."""

    job: Job
    """Without its steps when it comes from run()."""
    duplicate: bool = False

    @property
    def job_id(self) -> str:
        return self.job.job_id

    @property
    def state(self) -> JobState:
        return self.job.state

    @property
    def output(self) -> Any:
        """What the job gave, decoded. None unless it is COMPLETED."""
        return self.job.output

    @property
    def failure(self) -> Failure | None:
        return self.job.failure


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorAnswer:
    """A job after somebody acted on it by hand."""

    job: Job
    """Without its steps."""
    already: bool = False
    """Whether there was nothing left to do: it had been done before, or went on by itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryEvent:
    """One thing that happened to a job."""

    revision: int
    type: str
    """Past tense, such as "StepSucceeded"."""
    at: datetime | None = None
    step_id: str = ""
    attempt: int = 0
    token: int = 0
    session_id: str = ""
    detail: str = ""
    led_time_ms: int = 0
    log_time_ms: int = 0
    due_in: timedelta | None = None
    actor: str = ""
    """Who asked for it. Empty: nobody, it followed from something else; or somebody who gave no name."""
    message: job_pb2.HistoryEvent = field(default_factory=job_pb2.HistoryEvent, repr=False, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobChange:
    """A job after a change, and what happened since the change before."""

    job: Job
    """Of a job with very many steps, `steps` has those that this watch was told of so far."""
    events: tuple[HistoryEvent, ...] = ()
    events_missing: bool = False
    """Whether the server no longer kept where this watch had to resume: history() has the events between."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DefinitionVersion:
    """A stored version of a definition."""

    name: str
    version: int
    hash: str = ""
    namespace: str = "default"
    created_at: datetime | None = None
    definition: definition_pb2.Definition = field(default_factory=definition_pb2.Definition, repr=False)
    message: definition_pb2.DefinitionVersion = field(
        default_factory=definition_pb2.DefinitionVersion, repr=False, compare=False
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class AppliedDefinition:
    """What is stored after an apply."""

    version: DefinitionVersion
    created: bool
    """False when the newest version was already equal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DetectionLatency:
    """How soon one kind of trouble with a part of a step, or with the job (""), is noticed while a leader leads."""

    step_id: str
    part: str
    trouble: str
    within: timedelta
    text: str
    """The same in words, and what it is made of."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedDefinition:
    """What a cluster says of a definition that it does not store. Without violations it may be stored."""

    violations: tuple[Violation, ...]
    warnings: tuple[Violation, ...]
    """What may be stored, and yet will hardly be meant."""
    detections: tuple[DetectionLatency, ...]
    """Empty with violations, and from a server that is too old to tell."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Agent:
    """One open session of an agent."""

    session_id: str
    name: str = ""
    queue: str = ""
    actions: tuple[str, ...] = ()
    slots: int = 0
    slots_taken: int = 0
    draining: bool = False
    connected: bool = False
    renewed_at: datetime | None = None
    lease_ends_at: datetime | None = None
    """When it would be given up if nothing were heard from it again."""
    ttl: timedelta | None = None
    message: agent_service_pb2.Agent = field(default_factory=agent_service_pb2.Agent, repr=False, compare=False)

    def offers(self, action: str, queue: str) -> bool:
        """Whether it could be given such a step when it has a free slot."""
        return self.connected and not self.draining and self.queue == queue and action in self.actions


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardStatus:
    """How one replica of one shard is."""

    shard: int
    leader: bool
    leader_id: str = ""
    term: int = 0
    epoch: int = 0
    sequence: int = 0
    hash: str = ""
    supervisor_beat_at: datetime | None = None
    overdue: int = 0
    jobs: Mapping[JobState, int] = field(default_factory=dict)
    store_bytes: int = 0
    followers: tuple[FollowerStatus, ...] = ()
    """On the leader: how the others are."""
    log_first_index: int = 0
    log_last_index: int = 0
    leader_contact_age: timedelta | None = None
    """How long ago the node last heard of a leader. None: it leads, or never has."""
    free_bytes: int = 0
    fetching_rows: bool = False
    """Whether the node fetches all rows from the leader."""
    elections: int = 0
    supervision: Supervision | None = None
    """None: an older node, which does not tell."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FollowerStatus:
    """A node as the leader sees it."""

    node_id: str
    connected: bool = False
    match_index: int = 0
    """The last entry of the log that it surely has."""
    answer_age: timedelta | None = None
    """How long ago it last answered. None: not since this leader leads."""
    free_bytes: int | None = None
    """What its disk could take then. None: it has not said so since this leader leads."""


@dataclass(frozen=True, slots=True)
class Member:
    """A node of a cluster."""

    node_id: str
    address: str


@dataclass(frozen=True, slots=True)
class CreatedCluster:
    """A cluster that was just made."""

    cluster_id: str
    members: tuple[Member, ...]


@dataclass(frozen=True, slots=True)
class Leadership:
    """Which node leads, in which term."""

    node_id: str
    term: int


class NodeState(StrEnum):
    """How far a node is."""

    UNSPECIFIED = "UNSPECIFIED"
    """Not said: an older node."""
    EMPTY = "EMPTY"
    """It knows no cluster."""
    QUARANTINED = "QUARANTINED"
    """Its directory was empty in a cluster that exists: until it holds what the others hold it does not count."""
    SERVING = "SERVING"
    DIVERGED = "DIVERGED"
    """Its rows and the log do not fit together: it has stopped, and keeps its files."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """One node does not take another for one of the cluster."""

    node_id: str
    """The node that refuses."""
    refused_node_id: str
    """Who the other says that it is."""
    refused_host: str
    """From where that one calls. Empty: it is the node that told this."""
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeStatus:
    """How the node that answered is, and what it knows of its shards."""

    cluster_id: str
    node_id: str
    version: str
    shards: tuple[ShardStatus, ...] = ()
    started_at: datetime | None = None
    pid: int = 0
    members: tuple[Member, ...] = ()
    """All nodes of the cluster, where this one reaches them."""
    state: NodeState = NodeState.UNSPECIFIED
    state_reason: str = ""
    """Why it takes part only partly, for a person."""
    incarnation: int = 0
    """How often it has begun with an empty directory."""
    refusals: tuple[Refusal, ...] = ()
    """Nodes that do not take this one for one of the cluster, and those that it has not taken a moment ago."""
    message: cluster_service_pb2.GetStatusResponse = field(
        default_factory=cluster_service_pb2.GetStatusResponse, repr=False, compare=False
    )
