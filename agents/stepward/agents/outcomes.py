"""What became of a handler, as values; `report` puts them into the contract's words."""

from __future__ import annotations

import traceback
from typing import Final, assert_never

import msgspec
from google.protobuf.duration_pb2 import Duration

from stepward.agents.attempts import AttemptKey
from stepward.v1 import agent_service_pb2 as wire
from stepward.v1 import common_pb2

JSON: Final = "json/utf-8"
BYTES: Final = "application/octet-stream"

# Bounds of the cluster, kept here so that what is said about a failure arrives.
KIND_CHARS_MAX: Final = 128
MESSAGE_BYTES_MAX: Final = 4_096

INVALID_INPUT: Final = "INVALID_INPUT"
INVALID_OUTPUT: Final = "INVALID_OUTPUT"
RESULT_TOO_LARGE: Final = "RESULT_TOO_LARGE"
PROCESS_DIED: Final = "PROCESS_DIED"
NOT_STARTED: Final = "NOT_STARTED"


class Succeeded(msgspec.Struct, frozen=True, tag=True):
    """The handler returned."""

    output: bytes
    encoding: str = JSON


class Failed(msgspec.Struct, frozen=True, tag=True):
    """The attempt failed. `may_have_happened`: nobody said that it did not happen, so its effect may be there."""

    kind: str
    message: str
    retryable: bool = True
    retry_after_ms: int | None = None
    may_have_happened: bool = False


class Unknown(msgspec.Struct, frozen=True, tag=True):
    """Nobody can tell whether the attempt happened."""

    kind: str
    message: str


class Stopped(msgspec.Struct, frozen=True, tag=True):
    """The handler has ended after it was cancelled, before its work was done."""


Outcome = Succeeded | Failed | Unknown | Stopped


def not_started(why: str) -> Failed:
    """A handler was not called, so nothing has happened."""
    return Failed(NOT_STARTED, f"the handler was not called: {why}")


def bounded(outcome: Outcome, *, payload_bytes_max: int) -> Outcome:
    """The outcome, or the failure that it becomes because its output is too large to be kept.

    Checked before sending: a stream would break on it, and again after every reconnection.
    """
    match outcome:
        case Succeeded(output=output) if len(output) > payload_bytes_max:
            text = (
                f"the output has {len(output)} bytes; at most {payload_bytes_max} can be kept: "
                "store it elsewhere and return a reference"
            )
            return Failed(RESULT_TOO_LARGE, text, retryable=False, may_have_happened=True)
        case _:
            return outcome


def report(key: AttemptKey, outcome: Outcome, *, draining: bool) -> wire.AttemptReport:
    """The report of an outcome. `draining` is why it was stopped, if it was."""
    ref = key.ref()
    match outcome:
        case Succeeded(output=output, encoding=encoding):
            payload = common_pb2.Payload(data=output, encoding=encoding)
            return wire.AttemptReport(attempt=ref, succeeded=wire.Succeeded(output=payload))
        case Failed():
            return wire.AttemptReport(attempt=ref, failed=_failed(outcome))
        case Unknown(kind=kind, message=message):
            unknown = wire.Unknown(kind=_kind(kind), message=cut(message))
            return wire.AttemptReport(attempt=ref, unknown=unknown)
        case Stopped():
            return wire.AttemptReport(attempt=ref, stopped=wire.Stopped(draining=draining))
        case _:
            assert_never(outcome)


def _failed(outcome: Failed) -> wire.Failed:
    failed = wire.Failed(
        kind=_kind(outcome.kind),
        message=cut(outcome.message),
        retryable=outcome.retryable,
        may_have_happened=outcome.may_have_happened,
    )
    if outcome.retry_after_ms is not None:
        retry_after = Duration()
        retry_after.FromMilliseconds(outcome.retry_after_ms)
        failed.retry_after.CopyFrom(retry_after)
    return failed


def _kind(kind: str) -> str:
    return kind[:KIND_CHARS_MAX].encode(errors="replace").decode()


def text_of(error: BaseException) -> str:
    """What an exception says; also one whose own text cannot be made."""
    return str(traceback.TracebackException(type(error), error, None))


def cut(text: str, bytes_max: int = MESSAGE_BYTES_MAX) -> str:
    """The text, cut on a character border. Lone surrogates, which UTF-8 has no bytes for, become question marks."""
    encoded = text.encode(errors="replace")
    return encoded[:bytes_max].decode(errors="ignore")
