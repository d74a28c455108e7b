"""Reads the contract's messages into values. The only place that knows both."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from stepward.client.errors import (
    JobCancelled,
    JobCompensated,
    JobEscalated,
    JobFailed,
    JobNotCompleted,
    Violation,
)
from stepward.client.payloads import Payload
from stepward.client.supervision import Brake, Breaker, BreakerState, Supervision, SupervisionHealth
from stepward.client.values import (
    Agent,
    CheckedDefinition,
    CreatedCluster,
    DefinitionVersion,
    DetectionLatency,
    Failure,
    FollowerStatus,
    HistoryEvent,
    Job,
    JobCounts,
    JobResult,
    JobState,
    Member,
    NodeState,
    NodeStatus,
    OperatorAnswer,
    Refusal,
    Remainder,
    ShardStatus,
    Step,
    StepState,
    SubmittedJob,
)
from stepward.v1 import cluster_service_pb2, common_pb2

if TYPE_CHECKING:
    from collections.abc import Iterable

    from google.protobuf.duration_pb2 import Duration
    from google.protobuf.message import Message
    from google.protobuf.timestamp_pb2 import Timestamp

    from stepward.v1 import (
        agent_service_pb2,
        definition_pb2,
        definition_service_pb2,
        job_pb2,
        job_service_pb2,
        operator_service_pb2,
    )

    _Acted = (
        operator_service_pb2.TerminateJobResponse
        | operator_service_pb2.PauseJobResponse
        | operator_service_pb2.ResumeJobResponse
        | operator_service_pb2.RetryStepResponse
        | operator_service_pb2.SkipStepResponse
    )


def job_state(number: common_pb2.JobState.ValueType) -> JobState:
    """The state, UNSPECIFIED for one that is newer than this client."""
    if number not in common_pb2.JobState.values():
        return JobState.UNSPECIFIED
    return JobState(common_pb2.JobState.Name(number).removeprefix("JOB_STATE_"))


def node_state(number: cluster_service_pb2.NodeState.ValueType) -> NodeState:
    """The state, UNSPECIFIED for one that is newer than this client."""
    if number not in cluster_service_pb2.NodeState.values():
        return NodeState.UNSPECIFIED
    return NodeState(cluster_service_pb2.NodeState.Name(number).removeprefix("NODE_STATE_"))


def supervision_health(number: cluster_service_pb2.SupervisionHealth.ValueType) -> SupervisionHealth:
    """The verdict, UNSPECIFIED for one that is newer than this client."""
    if number not in cluster_service_pb2.SupervisionHealth.values():
        return SupervisionHealth.UNSPECIFIED
    name = cluster_service_pb2.SupervisionHealth.Name(number)
    return SupervisionHealth(name.removeprefix("SUPERVISION_HEALTH_"))


def breaker_state(number: cluster_service_pb2.BreakerState.ValueType) -> BreakerState:
    """The state, UNSPECIFIED for one that is newer than this client."""
    if number not in cluster_service_pb2.BreakerState.values():
        return BreakerState.UNSPECIFIED
    return BreakerState(cluster_service_pb2.BreakerState.Name(number).removeprefix("BREAKER_STATE_"))


def step_state(number: common_pb2.StepState.ValueType) -> StepState:
    """The state, UNSPECIFIED for one that is newer than this client."""
    if number not in common_pb2.StepState.values():
        return StepState.UNSPECIFIED
    name = common_pb2.StepState.Name(number).removeprefix("STEP_STATE_")
    return StepState(name) if name in StepState.__members__ else StepState.UNSPECIFIED


def instant(owner: Message, name: str) -> datetime | None:
    """A time of a message; None when it is absent."""
    if not owner.HasField(name):
        return None
    timestamp: Timestamp = getattr(owner, name)
    return timestamp.ToDatetime(tzinfo=UTC)


def span(owner: Message, name: str) -> timedelta | None:
    """A duration of a message; None when it is absent."""
    if not owner.HasField(name):
        return None
    duration: Duration = getattr(owner, name)
    return duration.ToTimedelta()


def payload(owner: Message, name: str) -> Payload | None:
    """A payload of a message; None when it is absent."""
    if not owner.HasField(name):
        return None
    message: common_pb2.Payload = getattr(owner, name)
    return Payload(message.data, message.encoding)


def failure(owner: Message) -> Failure | None:
    """The failure of a job or a step; None when it is absent."""
    if not owner.HasField("failure"):
        return None
    message: common_pb2.Failure = owner.failure  # type: ignore[attr-defined]  # Job and JobStep both have it
    return Failure(kind=message.kind, message=message.message, step_id=message.step_id, retryable=message.retryable)


def step(message: job_pb2.JobStep) -> Step:
    """One step."""
    return Step(
        step_id=message.step_id,
        state=step_state(message.state),
        action=message.action,
        queue=message.queue,
        needs=tuple(message.needs),
        attempts=message.attempts,
        attempts_max=message.attempts_max,
        lease_losses=message.lease_losses,
        token=message.token,
        session_id=message.session_id,
        output_payload=payload(message, "output"),
        failure=failure(message),
        updated_at=instant(message, "updated_at"),
        due_at=instant(message, "due_at"),
        due_for=message.due_for,
        maybe_done=message.maybe_done,
        has_undo=message.has_undo,
        generation=message.generation or 1,
        schedule_ends_at=instant(message, "schedule_ends_at"),
        lease_ends_at=instant(message, "lease_ends_at"),
        progress_payload=payload(message, "progress"),
        message=message,
    )


def job(message: job_pb2.Job) -> Job:
    """One job."""
    return Job(
        job_id=message.job_id,
        state=job_state(message.state),
        namespace=message.namespace or "default",
        definition_name=message.definition_name,
        definition_version=message.definition_version,
        input_payload=payload(message, "input"),
        output_payload=payload(message, "output"),
        failure=failure(message),
        steps=tuple(step(one) for one in message.steps),
        steps_total=message.steps_total or len(message.steps),
        step_counts={step_state(one.state): one.count for one in message.step_counts},
        labels=dict(message.labels),
        submitted_at=instant(message, "submitted_at"),
        updated_at=instant(message, "updated_at"),
        ended_at=instant(message, "ended_at"),
        deadline_at=instant(message, "deadline_at"),
        revision=message.revision,
        cancel_requested=message.cancel_requested,
        remaining=tuple(message.remaining),
        remainders=tuple(
            Remainder(step_id=one.step_id, may_be_done=one.may_be_done, reason=one.reason) for one in message.remainders
        ),
        undone=tuple(message.undone),
        idempotency_key=message.idempotency_key,
        message=message,
    )


def submitted_job(answer: job_service_pb2.SubmitJobResponse, idempotency_key: str) -> SubmittedJob:
    """A job that was stored under a key."""
    return SubmittedJob(
        job_id=answer.job_id,
        state=job_state(answer.state),
        revision=answer.revision,
        duplicate=answer.duplicate,
        idempotency_key=idempotency_key,
        message=answer,
    )


def job_counts(message: job_service_pb2.CountJobsResponse) -> JobCounts:
    """How many jobs there are in each state."""
    by_state = {job_state(one.state): one.count for one in message.counts}
    return JobCounts(by_state=by_state, truncated=message.truncated, message=message)


def operator_answer(answer: _Acted) -> OperatorAnswer:
    """What came of an operator's verb."""
    return OperatorAnswer(job=job(answer.job), already=answer.already)


def event(message: job_pb2.HistoryEvent) -> HistoryEvent:
    """One event of a job's history."""
    return HistoryEvent(
        revision=message.revision,
        type=message.type,
        at=instant(message, "at"),
        step_id=message.step_id,
        attempt=message.attempt,
        token=message.token,
        session_id=message.session_id,
        detail=message.detail,
        led_time_ms=message.led_time_ms,
        log_time_ms=message.log_time_ms,
        due_in=span(message, "due_in"),
        actor=message.actor,
        message=message,
    )


def definition_version(message: definition_pb2.DefinitionVersion) -> DefinitionVersion:
    """One stored definition."""
    return DefinitionVersion(
        name=message.definition.name,
        version=message.version,
        hash=message.hash,
        namespace=message.namespace or "default",
        created_at=instant(message, "created_at"),
        definition=message.definition,
        message=message,
    )


def violations(messages: Iterable[definition_service_pb2.Violation]) -> tuple[Violation, ...]:
    """What is wrong with a definition."""
    return tuple(Violation(message.field, message.description) for message in messages)


def checked_definition(answer: definition_service_pb2.ValidateDefinitionResponse) -> CheckedDefinition:
    """What a cluster says of a definition."""
    return CheckedDefinition(
        violations=violations(answer.violations),
        warnings=violations(answer.warnings),
        detections=tuple(
            DetectionLatency(
                step_id=one.step_id,
                part=one.part,
                trouble=one.trouble,
                within=one.within.ToTimedelta(),
                text=one.text,
            )
            for one in answer.detections
        ),
    )


def agent(message: agent_service_pb2.Agent) -> Agent:
    """One open session."""
    return Agent(
        session_id=message.session_id,
        name=message.name,
        queue=message.queue,
        actions=tuple(message.actions),
        slots=message.slots,
        slots_taken=message.slots_taken,
        draining=message.draining,
        connected=message.connected,
        renewed_at=instant(message, "renewed_at"),
        lease_ends_at=instant(message, "lease_ends_at"),
        ttl=span(message, "ttl"),
        message=message,
    )


def shard_status(message: cluster_service_pb2.ShardStatus) -> ShardStatus:
    """One replica of one shard."""
    return ShardStatus(
        shard=message.shard,
        leader=message.leader,
        leader_id=message.leader_id,
        term=message.term,
        epoch=message.epoch,
        sequence=message.sequence,
        hash=message.hash,
        supervisor_beat_at=instant(message, "supervisor_beat_at"),
        overdue=message.overdue,
        jobs={job_state(count.state): count.count for count in message.jobs},
        store_bytes=message.store_bytes,
        followers=tuple(follower_status(follower) for follower in message.followers),
        log_first_index=message.log_first_index,
        log_last_index=message.log_last_index,
        leader_contact_age=span(message, "leader_contact_age"),
        free_bytes=message.free_bytes,
        fetching_rows=message.fetching_rows,
        elections=message.elections,
        supervision=supervision(message.supervision) if message.HasField("supervision") else None,
    )


def supervision(message: cluster_service_pb2.Supervision) -> Supervision:
    """How supervision is, as one node sees it."""
    return Supervision(
        health=supervision_health(message.health),
        reason=message.reason,
        beat_age=span(message, "beat_age"),
        beats=message.beats,
        due=message.due,
        overdue=message.overdue,
        oldest_overdue=span(message, "oldest_overdue"),
        overdue_by_kind={count.kind: count.count for count in message.overdue_by_kind},
        remediations=message.remediations,
        detection_latency_max=span(message, "detection_latency_max"),
        incidents_open=message.incidents_open,
        epochs_lost=message.epochs_lost,
        stays=message.stays,
        supervisor_state=message.supervisor_state,
        brake=brake(message.brake) if message.HasField("brake") else None,
        breakers=tuple(breaker(one) for one in message.breakers),
    )


def brake(message: cluster_service_pb2.BrakeStatus) -> Brake:
    """What bounds the changes of the supervisor."""
    return Brake(
        on=message.on,
        reason=message.reason,
        ends_in=span(message, "ends_in"),
        held=message.held,
        per_minute=message.per_minute,
        used=message.used,
    )


def breaker(message: cluster_service_pb2.BreakerStatus) -> Breaker:
    """How an action that fails often is treated."""
    return Breaker(
        namespace=message.namespace,
        action=message.action,
        queue=message.queue,
        state=breaker_state(message.state),
        reason=message.reason,
        probes_in=span(message, "probes_in"),
    )


def follower_status(message: cluster_service_pb2.FollowerStatus) -> FollowerStatus:
    """A node as the leader sees it."""
    return FollowerStatus(
        node_id=message.node_id,
        connected=message.connected,
        match_index=message.match_index,
        answer_age=span(message, "answer_age"),
        free_bytes=message.free_bytes if message.HasField("free_bytes") else None,
    )


def members(messages: Iterable[cluster_service_pb2.Member]) -> tuple[Member, ...]:
    """The nodes of a cluster."""
    return tuple(Member(member.node_id, member.address) for member in messages)


def created_cluster(message: cluster_service_pb2.CreateClusterResponse) -> CreatedCluster:
    """A new cluster."""
    return CreatedCluster(message.cluster_id, members(message.members))


def node_status(message: cluster_service_pb2.GetStatusResponse) -> NodeStatus:
    """One node."""
    return NodeStatus(
        cluster_id=message.cluster_id,
        node_id=message.node_id,
        version=message.version,
        shards=tuple(shard_status(shard) for shard in message.shards),
        started_at=instant(message, "started_at"),
        pid=message.pid,
        members=members(message.members),
        state=node_state(message.state),
        state_reason=message.state_reason,
        incarnation=message.incarnation,
        refusals=tuple(
            Refusal(one.node_id, one.refused_node_id, one.refused_host, one.reason) for one in message.refusals
        ),
        message=message,
    )


def checked(result: JobResult, *, check: bool) -> JobResult:
    """The result, unless it is to be checked and the job has not completed.

    Raises:
        JobNotCompleted: One of its four kinds.
    """
    error = not_completed(result.job) if check else None
    if error:
        raise error
    return result


def not_completed(ended: Job) -> JobNotCompleted | None:
    """The error that a job's end is to those who wanted it completed; None when it is."""
    why = f": {ended.failure.text}" if ended.failure else ""
    remaining = f"; still done: {', '.join(ended.remaining)}" if ended.remaining else ""
    match ended.state:
        case JobState.FAILED:
            return JobFailed(f"job {ended.job_id} failed{why}{remaining}", ended)
        case JobState.COMPENSATED:
            return JobCompensated(f"job {ended.job_id} failed and was undone{why}", ended)
        case JobState.CANCELLED:
            return JobCancelled(f"job {ended.job_id} was cancelled and nothing is left done{why}", ended)
        case JobState.ESCALATED:
            return JobEscalated(f"job {ended.job_id} waits for a person{why}", ended)
        case _:
            return None
