"""Every bound of every field of every call, in one table: what is granted at the bound, what is refused one past it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from google.protobuf.descriptor import Descriptor

from stepward.server.api.convert import ENCODING_CHARS_MAX
from stepward.server.core.limits import Limits
from stepward.v1 import agent_service_pb2, common_pb2, job_service_pb2, supervision_service_pb2

# Small enough to be reached quickly; the others are those of a node.
LIMITS = Limits(
    session_ttl_ms=3_600_000, payload_bytes_max=4_096, submissions_max=20, slots_max=30, reports_max=40, actions_max=50
)
NAME = LIMITS.name_chars_max
KEY = "x" * LIMITS.idempotency_key_chars_max
YEAR_S = LIMITS.duration_ms_max // 1_000
SHARD = job_service_pb2.ShardRevision(shard=0)
REF = agent_service_pb2.AttemptRef(job_id="0-" + "0" * 32, step_id="a", token=1)


class Bound(NamedTuple):
    """A field at its bound and one past it. `field`: what the refusal calls it, where that is not its path."""

    path: str
    at: Any
    past: Any
    reason: str = "INVALID_ARGUMENT"
    field: str = ""


def json_of(size_bytes: int) -> bytes:
    """JSON of exactly so many bytes."""
    return b'"' + b"x" * (size_bytes - 2) + b'"'


def names(path: str) -> Bound:
    return Bound(path, "x" * NAME, "x" * (NAME + 1))


def payload(path: str) -> list[Bound]:
    most = LIMITS.payload_bytes_max
    return [
        Bound(f"{path}.data", json_of(most), json_of(most + 1), "PAYLOAD_TOO_LARGE"),
        Bound(f"{path}.data", b"[" * 64 + b"]" * 64, b"[" * 65 + b"]" * 65),
        Bound(f"{path}.encoding", "x" * ENCODING_CHARS_MAX, "x" * (ENCODING_CHARS_MAX + 1)),
    ]


def labels(path: str) -> list[Bound]:
    key, value = LIMITS.label_key_chars_max, LIMITS.label_value_chars_max
    count = LIMITS.labels_max
    return [
        Bound(path, {str(n): "" for n in range(count)}, {str(n): "" for n in range(count + 1)}),
        Bound(path, {"k" * key: ""}, {"k" * (key + 1): ""}),
        Bound(path, {"k": "v" * value}, {"k": "v" * (value + 1)}),
        Bound(path, {"k": ""}, {"": ""}),
    ]


def duration(path: str) -> list[Bound]:
    return [
        Bound(f"{path}.seconds", YEAR_S, YEAR_S + 1, field=path),
        Bound(f"{path}.seconds", 0, -1, field=path),
        Bound(f"{path}.nanos", 0, -1_000_000, field=path),
    ]


def timestamp(path: str) -> list[Bound]:
    return [
        Bound(f"{path}.seconds", 253_402_300_799, 253_402_300_800, field=path),
        Bound(f"{path}.seconds", -62_135_596_800, -62_135_596_801, field=path),
        Bound(f"{path}.nanos", 999_999_999, 1_000_000_000, field=path),
    ]


def states(path: str, most: int) -> Bound:
    return Bound(path, [1, most], [1, most + 1], field=f"{path}[1]")


def held(path: str) -> Bound:
    return Bound(path, [REF] * LIMITS.slots_max, [REF] * (LIMITS.slots_max + 1))


def submission(path: str) -> list[Bound]:
    return [
        names(f"{path}.namespace"),
        names(f"{path}.definition_name"),
        Bound(f"{path}.idempotency_key", KEY, KEY + "x"),
        names(f"{path}.caller_id"),
        *labels(f"{path}.labels"),
        *payload(f"{path}.input"),
        Bound(f"{path}.deadline.seconds", YEAR_S, YEAR_S + 1, field=f"{path}.deadline"),
        Bound(f"{path}.deadline.nanos", 1_000_000, 999_999, field=f"{path}.deadline"),
    ]


def hello(path: str) -> list[Bound]:
    return [
        Bound(f"{path}.protocol_version", 1, 2, "PROTOCOL_VERSION"),
        Bound(f"{path}.protocol_version", 1, 0, "PROTOCOL_VERSION"),
        Bound(f"{path}.session_id", "x" * 64, "x" * 65),
        Bound(f"{path}.session_id", "x" * 16, "x" * 15),
        names(f"{path}.namespace"),
        names(f"{path}.queue"),
        Bound(f"{path}.actions", ["a"] * LIMITS.actions_max, ["a"] * (LIMITS.actions_max + 1)),
        Bound(f"{path}.actions", ["a"], []),
        Bound(f"{path}.actions", ["x" * NAME], ["x" * (NAME + 1)], field=f"{path}.actions[0]"),
        Bound(f"{path}.slots", LIMITS.slots_max, LIMITS.slots_max + 1),
        Bound(f"{path}.slots", 1, 0),
        held(f"{path}.held"),
        Bound(f"{path}.name", "x" * 256, "x" * 257),
        Bound(f"{path}.library", "x" * 256, "x" * 257),
    ]


def page() -> Bound:
    return Bound("page_size", LIMITS.page_size_max, LIMITS.page_size_max + 1)


def incidents(path: str, *, states: int) -> list[Bound]:
    most = max(supervision_service_pb2.Trouble.values())
    return [
        Bound(f"{path}.state", states, states + 1),
        names(f"{path}.definition_name"),
        names(f"{path}.step_id"),
        Bound(f"{path}.trouble", most, most + 1),
        *timestamp(f"{path}.opened_from"),
        *timestamp(f"{path}.opened_before"),
        *labels(f"{path}.labels"),
    ]


def verb(*, reason_least: int = 0) -> list[Bound]:
    most = LIMITS.reason_chars_max
    bounds = [Bound("reason", "x" * most, "x" * (most + 1)), names("actor")]
    return [*bounds, Bound("reason", "x", "")] if reason_least else bounds


TROUBLE_MOST = max(supervision_service_pb2.Trouble.values())
REMEDY_MOST = max(supervision_service_pb2.Remedy.values())
JOB_STATE_MOST = max(common_pb2.JobState.values())
STEP_STATE_MOST = max(common_pb2.StepState.values())
FILTER = [
    states("filter.states", JOB_STATE_MOST),
    names("filter.definition_name"),
    *labels("filter.labels"),
    *timestamp("filter.submitted_from"),
    *timestamp("filter.submitted_before"),
    names("filter.queue"),
]
DEFINITION = Bound(
    "definition.description",
    "x" * 1_000,
    "x" * (LIMITS.definition_bytes_max + 1),
    "INVALID_DEFINITION",
    # The definition as a whole is too large.
    field="*",
)

BOUNDS: dict[str, list[Bound]] = {
    "JobService/SubmitJob": submission("job"),
    "JobService/RunJob": [*submission("job"), *duration("wait_max")],
    "JobService/SubmitJobs": [],
    "JobService/GetJob": [],
    "JobService/ListJobSteps": [states("states", STEP_STATE_MOST), page()],
    "JobService/ListJobs": [
        names("namespace"),
        states("states", JOB_STATE_MOST),
        names("definition_name"),
        page(),
        *FILTER,
    ],
    "JobService/CountJobs": [names("namespace"), *FILTER],
    "JobService/WatchJob": [],
    "JobService/WatchJobs": [
        names("caller_id"),
        Bound("caller_id", "x", ""),
        Bound("caller_id", "x", "x\0"),
        Bound("from", [SHARD], [SHARD] * 2),
        Bound("from", [SHARD], [job_service_pb2.ShardRevision(shard=1)], field="from[0].shard"),
    ],
    "JobService/CancelJob": verb(),
    "JobService/GetJobHistory": [page()],
    "JobService/ExplainJob": [],
    "DefinitionService/ApplyDefinition": [names("namespace")._replace(reason="INVALID_DEFINITION"), DEFINITION],
    "DefinitionService/ValidateDefinition": [],
    "DefinitionService/GetDefinition": [names("namespace"), names("name")],
    "DefinitionService/ListDefinitions": [names("namespace"), page()],
    "AgentService/Work": [
        *hello("hello"),
        held("heartbeat.held"),
        Bound(
            "report.attempts",
            [agent_service_pb2.AttemptReport(attempt=REF)] * LIMITS.reports_max,
            [agent_service_pb2.AttemptReport(attempt=REF)] * (LIMITS.reports_max + 1),
        ),
    ],
    "AgentService/LeaseWork": [*hello("hello"), *duration("wait_max"), held("cancelled")],
    "AgentService/RenewSession": [
        Bound("session_id", "x" * 64, "x" * 65),
        Bound("session_id", "x" * 16, "x" * 15),
        held("heartbeat.held"),
    ],
    "AgentService/ReportAttempts": [
        Bound("session_id", "x" * 64, "x" * 65),
        Bound(
            "report.attempts",
            [agent_service_pb2.AttemptReport(attempt=REF)] * LIMITS.reports_max,
            [agent_service_pb2.AttemptReport(attempt=REF)] * (LIMITS.reports_max + 1),
        ),
    ],
    "AgentService/ListAgents": [names("namespace"), page()],
    "ClusterService/GetStatus": [],
    "ClusterService/CreateCluster": [],
    "ClusterService/TransferLeader": [],
    "ClusterService/RecoverNode": verb(reason_least=1),
    "OperatorService/TerminateJob": verb(reason_least=1),
    "OperatorService/PauseJob": verb(),
    "OperatorService/ResumeJob": verb(),
    "OperatorService/RetryStep": verb(),
    "OperatorService/SkipStep": [*verb(), *payload("output")],
    "SupervisionService/ListIncidents": [names("namespace"), *incidents("filter", states=3), page()],
    "SupervisionService/GetIncident": [],
    "SupervisionService/ResolveIncidents": [
        names("namespace"),
        *incidents("filter", states=1),
        Bound("resolution", 2, 6),
        Bound("resolution", 2, 0),
        *payload("output"),
        *verb(reason_least=1),
        Bound("as_of", "i0-" + "9" * 19, "i0-" + "9" * 20),
        Bound("as_of", "i0-1", "0-1"),
    ],
    "SupervisionService/ListLedger": [
        names("namespace"),
        Bound("filter.trouble", TROUBLE_MOST, TROUBLE_MOST + 1),
        Bound("filter.remedy", REMEDY_MOST, REMEDY_MOST + 1),
        Bound("filter.by", 3, 4),
        names("filter.definition_name"),
        *timestamp("filter.from"),
        *timestamp("filter.before"),
        page(),
    ],
}

# Fields that need no bound of their own, and why. A path of any call that ends so.
UNBOUNDED: dict[str, str] = {
    "job_id": "what is no id of a job is not found",
    "step_id": "what is no id of a step is not found",
    "consistency": "a number that is not known asks for the strongest",
    "page_token": "one that was not made here is refused, whatever it is",
    "definition_version": "a version that is not there is not found",
    "version": "a version that is not there is not found",
    "from_revision": "any number is a place before or behind the end",
    "generation": "one that is not the session's is refused",
    "number": "comes back as it came",
    "held_digest": "any number; another than ours asks for the whole list",
    "busy_slots": "only compared with the session's slots",
    "held_is_complete": "both values mean something",
    "reads_together": "both values mean something",
    "undone": "both values mean something",
    "token": "one that is not the attempt's is stale",
    "drain": "empty",
    # Fields of messages whose bound is on how many there are.
    "held": "each names an attempt that may not exist",
    "cancelled": "each names an attempt that may not exist",
    "attempts": "what an agent says is cut or judged by the rules, each with an answer of its own",
    "definition": "the rules of definitions, all of which have a table of their own",
    "jobs": "each is refused by itself, as SubmitJob would",
    "incident_id": "what is no name of an incident is not found",
    "incident_ids": "how many there may be is tried in test_supervision_service; what names none is refused by itself",
    "proposed_only": "both values mean something",
    "preview": "both values mean something",
    "expected_count": "another number than is meant is refused",
    "epoch": "any number; nothing happened in most of them",
    "oldest_first": "both values mean something",
    "shard": "there is one; another is refused",
    "node_id": "one that is no member is refused",
    "gone_node_ids": "each must be another member",
}
# Calls that refuse nothing for what a field holds, and why.
NOT_REFUSED: dict[str, str] = {
    "DefinitionService/ValidateDefinition": "what is wrong is its answer",
    "ClusterService/CreateCluster": "it has no fields",
    "ClusterService/TransferLeader": "what it names is a member or none",
}
WHOLE = {"google.protobuf.Duration", "google.protobuf.Timestamp"}


def paths(descriptor: Descriptor, prefix: str = "") -> Iterator[str]:
    """Every field of a request, with those of the messages in it; of repeated ones only the list."""
    for field in descriptor.fields:
        path = f"{prefix}{field.name}"
        message = field.message_type
        if message is None or field.is_repeated or message.full_name in WHOLE or message.name == "Definition":
            yield path
        else:
            yield from paths(message, f"{path}.")


def place(message: Any, path: str, value: Any) -> None:
    """Set a field by its path."""
    *parents, name = path.split(".")
    for parent in parents:
        # An empty message counts as set.
        getattr(message, parent).SetInParent()
        message = getattr(message, parent)
    if isinstance(value, dict):
        getattr(message, name).clear()
        getattr(message, name).update(value)
    elif isinstance(value, list):
        del getattr(message, name)[:]
        getattr(message, name).extend(value)
    else:
        setattr(message, name, value)
