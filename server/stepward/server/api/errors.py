"""The one table from reasons to gRPC codes, and the google.rpc details that a refused call carries.

The client holds the inverse table; a test compares both with the public `ErrorReason`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import grpc
from google.protobuf.any_pb2 import Any
from google.rpc import error_details_pb2  # type: ignore[import-untyped]  # ships no types
from google.rpc.status_pb2 import Status  # type: ignore[import-untyped]  # ships no types

from stepward.server.core.rejections import Reason

if TYPE_CHECKING:
    from google.protobuf.message import Message

    from stepward.server.core.rejections import Rejection

DOMAIN: Final = "stepward"
DETAILS_KEY: Final = "grpc-status-details-bin"

# A client's limit for metadata is 8 KiB unless it was told otherwise, and beyond it the whole answer is lost. Both
# copies of the message and the details must fit, percent- and base64-encoded.
MESSAGE_BYTES_MAX: Final = 512
DETAILS_BYTES_MAX: Final = 4_096

CODES: Final[dict[Reason, grpc.StatusCode]] = {
    Reason.INVALID_ARGUMENT: grpc.StatusCode.INVALID_ARGUMENT,
    Reason.INVALID_DEFINITION: grpc.StatusCode.INVALID_ARGUMENT,
    Reason.PAYLOAD_TOO_LARGE: grpc.StatusCode.INVALID_ARGUMENT,
    Reason.PAGE_TOKEN_INVALID: grpc.StatusCode.INVALID_ARGUMENT,
    Reason.JOB_NOT_FOUND: grpc.StatusCode.NOT_FOUND,
    Reason.DEFINITION_NOT_FOUND: grpc.StatusCode.NOT_FOUND,
    Reason.STEP_NOT_FOUND: grpc.StatusCode.NOT_FOUND,
    Reason.IDEMPOTENCY_CONFLICT: grpc.StatusCode.ALREADY_EXISTS,
    Reason.JOB_ENDED: grpc.StatusCode.FAILED_PRECONDITION,
    Reason.STALE_TOKEN: grpc.StatusCode.FAILED_PRECONDITION,
    Reason.SESSION_ENDED: grpc.StatusCode.FAILED_PRECONDITION,
    Reason.PROTOCOL_VERSION: grpc.StatusCode.FAILED_PRECONDITION,
    Reason.NOT_LEADER: grpc.StatusCode.UNAVAILABLE,
    Reason.NO_LEADER: grpc.StatusCode.UNAVAILABLE,
    Reason.COMMIT_UNKNOWN: grpc.StatusCode.UNAVAILABLE,
    Reason.NODE_DRAINING: grpc.StatusCode.UNAVAILABLE,
    Reason.OVERLOADED: grpc.StatusCode.RESOURCE_EXHAUSTED,
    Reason.DISK_FULL: grpc.StatusCode.RESOURCE_EXHAUSTED,
    Reason.INTERNAL: grpc.StatusCode.INTERNAL,
    Reason.UNIMPLEMENTED: grpc.StatusCode.UNIMPLEMENTED,
    Reason.REVISION_COMPACTED: grpc.StatusCode.OUT_OF_RANGE,
    Reason.WAIT_TIMED_OUT: grpc.StatusCode.DEADLINE_EXCEEDED,
    Reason.JOB_STATE: grpc.StatusCode.FAILED_PRECONDITION,
    Reason.STEP_STATE: grpc.StatusCode.FAILED_PRECONDITION,
    Reason.WATCH_TOO_SLOW: grpc.StatusCode.RESOURCE_EXHAUSTED,
    Reason.NO_CLUSTER: grpc.StatusCode.UNAVAILABLE,
    Reason.CLUSTER_EXISTS: grpc.StatusCode.ALREADY_EXISTS,
    Reason.NODE_STATE: grpc.StatusCode.FAILED_PRECONDITION,
    Reason.NOT_ALLOWED: grpc.StatusCode.PERMISSION_DENIED,
    Reason.INCIDENT_NOT_FOUND: grpc.StatusCode.NOT_FOUND,
    Reason.INCIDENT_COUNT: grpc.StatusCode.FAILED_PRECONDITION,
    Reason.INCIDENT_STATE: grpc.StatusCode.FAILED_PRECONDITION,
}

# What kind of thing was not there, and which piece of metadata names it.
_RESOURCES: Final[dict[Reason, tuple[str, str]]] = {
    Reason.JOB_NOT_FOUND: ("stepward.v1.Job", "job_id"),
    Reason.DEFINITION_NOT_FOUND: ("stepward.v1.Definition", "definition_name"),
    Reason.STEP_NOT_FOUND: ("stepward.v1.Step", "step_id"),
    Reason.INCIDENT_NOT_FOUND: ("stepward.v1.Incident", "incident_id"),
    Reason.IDEMPOTENCY_CONFLICT: ("stepward.v1.Job", "job_id"),
}


def status(rejection: Rejection) -> tuple[grpc.StatusCode, str, bytes]:
    """Code, message, and the google.rpc.Status for the trailing metadata."""
    code = CODES[rejection.reason]
    message = _cut(rejection.message, MESSAGE_BYTES_MAX)
    number: int = code.value[0]
    built = Status(code=number, message=message)
    error = error_details_pb2.ErrorInfo(domain=DOMAIN, reason=rejection.reason.value)
    error.metadata.update({key: _cut(value, MESSAGE_BYTES_MAX) for key, value in rejection.metadata.items()})
    built.details.append(_packed(error))
    if rejection.retry_after_ms:
        retry = error_details_pb2.RetryInfo()
        retry.retry_delay.FromMilliseconds(rejection.retry_after_ms)
        built.details.append(_packed(retry))
    if rejection.reason in _RESOURCES:
        type_, named_by = _RESOURCES[rejection.reason]
        name = _cut(rejection.metadata.get(named_by, ""), MESSAGE_BYTES_MAX)
        resource = error_details_pb2.ResourceInfo(resource_type=type_, resource_name=name, description=message)
        built.details.append(_packed(resource))
    if rejection.violations:
        room = DETAILS_BYTES_MAX - built.ByteSize()
        built.details.append(_packed(_bad_request(rejection, room)))
    return code, message, built.SerializeToString()


def _bad_request(rejection: Rejection, bytes_max: int) -> error_details_pb2.BadRequest:
    """As many violations as fit; the last one tells how many did not."""
    request = error_details_pb2.BadRequest()
    size = 128
    for shown, violation in enumerate(rejection.violations):
        field, description = _cut(violation.field, 256), _cut(violation.description, MESSAGE_BYTES_MAX)
        size += len(field.encode()) + len(description.encode()) + 8
        if size > bytes_max:
            left = len(rejection.violations) - shown
            request.field_violations.add(field="", description=f"and {left} more")
            break
        request.field_violations.add(field=field, description=description)
    return request


def _packed(message: Message) -> Any:
    packed = Any()
    packed.Pack(message)
    return packed


def _cut(text: str, bytes_max: int) -> str:
    """Text of at most so many bytes, cut on a character border; what UTF-8 cannot hold is shown as `?`."""
    encoded = text.encode(errors="replace")
    if len(encoded) <= bytes_max:
        return encoded.decode()
    return encoded[: bytes_max - 3].decode(errors="ignore") + "..."
