"""Reads a failed gRPC call into one of our errors, by the details that the server attached. Never by message text."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import grpc
from google.protobuf.message import DecodeError
from google.rpc import error_details_pb2, status_pb2  # type: ignore[import-untyped]  # it ships no types

from stepward.client.errors import (
    BY_REASON,
    SAID,
    NoAnswerInTime,
    StepwardError,
    UnknownAnswer,
    Unreachable,
    Violation,
)

DOMAIN = "stepward"
CLAUSE_CHARS_MAX = 120
DETAILS_KEY = "grpc-status-details-bin"

# In the metadata of an answer without a reason: gRPC's own word for it.
CODE = "code"

# Without details of ours these come from gRPC itself: a connection that was refused, broke, or was reset half-way.
BROKEN = frozenset(
    {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.INTERNAL, grpc.StatusCode.CANCELLED, grpc.StatusCode.ABORTED}
)


def error_from(failed: grpc.RpcError, address: str) -> StepwardError:
    """The error that a failed call is."""
    # Both kinds of client raise errors with these methods, and only one of them is typed as having them.
    call: Any = failed
    return read_error(call.code(), call.details() or "", call.trailing_metadata() or (), address)


def read_error(
    code: grpc.StatusCode, details: str, trailing_metadata: Iterable[tuple[str, str | bytes]], address: str
) -> StepwardError:
    """The error that this status stands for; `address` is who answered."""
    status = _status(trailing_metadata)
    described = _Described(status) if status else None
    if described and described.reason:
        return described.error(status.message if status and status.message else details, address)
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        text = f"{address} took the call and did not answer in time"
        return NoAnswerInTime(text, metadata={SAID: "no answer in time"}, address=address)
    if code in BROKEN:
        said = clause_of(details) or code.name
        return Unreachable(f"{address}: {said}", metadata={SAID: said}, address=address)
    return UnknownAnswer(
        f"{address} answered {code.name} without a reason of stepward: {details!r}; look whether a stepward server of "
        "this version listens there",
        metadata={CODE: code.name},
        address=address,
    )


def clause_of(details: str) -> str:
    """The end of what gRPC says of a connection: before it stands by which ways it was tried, which helps nobody.

    For people to read. Nothing is decided by it.
    """
    _, marker, reason = details.partition("remote host: ")
    return (reason if marker else details.rstrip("]").rpartition(": ")[2])[:CLAUSE_CHARS_MAX]


def _status(trailing_metadata: Iterable[tuple[str, str | bytes]]) -> status_pb2.Status | None:
    for key, value in trailing_metadata:
        if key == DETAILS_KEY and isinstance(value, bytes):
            try:
                return status_pb2.Status.FromString(value)
            except DecodeError:
                return None
    return None


class _Described:
    """The details of a status, unpacked."""

    def __init__(self, status: status_pb2.Status) -> None:
        self.reason = ""
        self.metadata: dict[str, str] = {}
        self.violations: tuple[Violation, ...] = ()
        self.retry_delay_s: float | None = None
        for detail in status.details:
            self._take(detail)

    def _take(self, detail: Any) -> None:
        info = error_details_pb2.ErrorInfo()
        request = error_details_pb2.BadRequest()
        retry = error_details_pb2.RetryInfo()
        if detail.Unpack(info):
            if info.domain == DOMAIN:
                self.reason = info.reason
                self.metadata = dict(info.metadata)
        elif detail.Unpack(request):
            self.violations = tuple(Violation(one.field, one.description) for one in request.field_violations)
        elif detail.Unpack(retry):
            self.retry_delay_s = retry.retry_delay.ToTimedelta().total_seconds()

    def error(self, message: str, address: str) -> StepwardError:
        kind = BY_REASON.get(self.reason)
        if kind is None:
            kind = UnknownAnswer
            message = (
                f"{address} answered {self.reason}, which this client does not know: {message}; upgrade the client"
            )
        return kind(
            message,
            metadata=self.metadata,
            violations=self.violations,
            retry_delay_s=self.retry_delay_s,
            address=address,
        )
