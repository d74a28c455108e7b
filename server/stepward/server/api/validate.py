"""What a field may hold, checked at the door before anything enters the log; every broken rule is told at once.

A check gives violations with the field's path, the value and the bound. Payloads that claim to be JSON must be JSON,
since mapping looks into them; any other payload is bytes that nobody looks at.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from stepward.server.api import convert
from stepward.server.core import json_text, system
from stepward.server.core.rejections import Reason, Refused, Rejection, Violation

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sized

    from google.protobuf.duration_pb2 import Duration
    from google.protobuf.timestamp_pb2 import Timestamp

    from stepward.server.core.limits import Limits
    from stepward.v1 import agent_service_pb2, common_pb2, job_service_pb2

PROTOCOL_VERSION: Final = 1
SESSION_ID_CHARS_MIN: Final = 16
SESSION_ID_CHARS_MAX: Final = 64
# Text for people in a hello.
TEXT_CHARS_MAX: Final = 256

# From 0001-01-01 to 9999-12-31, as the Timestamp of protobuf has it.
TIMESTAMP_S_MIN: Final = -62_135_596_800
TIMESTAMP_S_MAX: Final = 253_402_300_799

_is_name = re.compile(r"[A-Za-z0-9._-]+\Z").match
# Values are shown in messages up to here: enough to find them, too little to fill a log.
_SHOWN_CHARS: Final = 60


def submission(job: job_service_pb2.JobSubmission, limits: Limits, path: str) -> Rejection | None:
    """Why a submission can never be granted as it is."""
    found: list[Violation] = []
    found += name(f"{path}.namespace", job.namespace, limits, may_be_empty=True)
    found += name(f"{path}.definition_name", job.definition_name, limits)
    found += text(f"{path}.idempotency_key", job.idempotency_key, limits.idempotency_key_chars_max)
    found += text(f"{path}.caller_id", job.caller_id, limits.name_chars_max)
    if job.labels:
        found += labels(f"{path}.labels", job.labels, limits)
    if job.HasField("deadline"):
        found += duration(f"{path}.deadline", job.deadline, limits, least_ms=1)
    too_large = payload_size(f"{path}.input", job.input, limits)
    found += too_large or payload(f"{path}.input", job.input, limits)
    if not found:
        return None
    return refusal(found, Reason.PAYLOAD_TOO_LARGE if too_large else Reason.INVALID_ARGUMENT)


def refusal(found: Iterable[Violation], reason: Reason = Reason.INVALID_ARGUMENT) -> Rejection:
    """The rejection that tells of violations; its message is the first of them."""
    violations = tuple(found)
    more = f" (and {len(violations) - 1} more)" if len(violations) > 1 else ""
    return Rejection(reason, f"{violations[0].field} {violations[0].description}{more}", violations=violations)


def require(found: Iterable[Violation]) -> None:
    """Refuse a call that breaks a rule.

    Raises:
        Refused: INVALID_ARGUMENT with all violations.
    """
    violations = tuple(found)
    if violations:
        raise Refused(refusal(violations))


def name(field: str, value: str, limits: Limits, *, may_be_empty: bool = False) -> tuple[Violation, ...]:
    """A name of ours: namespace, definition, step, action, queue."""
    if not value:
        return () if may_be_empty else (Violation(field, "is empty; it must have 1 character at least"),)
    if len(value) > limits.name_chars_max:
        return (Violation(field, f"has {len(value)} characters; it must have at most {limits.name_chars_max}"),)
    if not _is_name(value):
        return (Violation(field, f"is {shown(value)}; it must be made of A-Z, a-z, 0-9, '.', '_' and '-'"),)
    return ()


def text(field: str, value: str, chars_max: int) -> tuple[Violation, ...]:
    """Text of somebody else's that stands in rows, and may be part of a key: no NUL, of bounded length."""
    if len(value) > chars_max:
        return (Violation(field, f"has {len(value)} characters; it must have at most {chars_max}"),)
    if "\0" in value:
        return (Violation(field, f"is {shown(value)}; it must not hold a NUL"),)
    return ()


def verb(reason: str, actor: str, limits: Limits) -> tuple[Violation, ...]:
    """Why something is done by hand, and who does it."""
    return text("reason", reason, limits.reason_chars_max) + text("actor", actor, limits.actor_chars_max)


def labels(field: str, given: Mapping[str, str], limits: Limits) -> list[Violation]:
    """Labels of a job, or labels to look for."""
    if len(given) > limits.labels_max:
        return [Violation(field, f"has {len(given)} entries; it must have at most {limits.labels_max}")]
    found: list[Violation] = []
    for key in sorted(given):
        at = f"{field}[{shown(key)}]"
        if not key:
            found.append(Violation(at, "has an empty key; it must have 1 character at least"))
        found += text(f"{at} (key)", key, limits.label_key_chars_max)
        found += text(at, given[key], limits.label_value_chars_max)
    return found


def payload_size(field: str, value: common_pb2.Payload, limits: Limits) -> tuple[Violation, ...]:
    """The bound of a payload's bytes."""
    size = len(value.data)
    if size > limits.payload_bytes_max:
        rule = f"has {size} bytes; it must have at most {limits.payload_bytes_max}: store it elsewhere and refer to it"
        return (Violation(f"{field}.data", rule),)
    return ()


def payload(field: str, value: common_pb2.Payload, limits: Limits) -> tuple[Violation, ...]:
    """What a payload claims to be."""
    fault = text(f"{field}.encoding", value.encoding, convert.ENCODING_CHARS_MAX)
    if fault or not value.data or value.encoding not in json_text.ENCODINGS:
        return fault
    wrong = json_text.json_check(value.data, limits.json_depth_max)
    if wrong is None:
        return ()
    return (Violation(f"{field}.data", f"is not JSON: {wrong}; write JSON, or say in encoding what it is"),)


def hello(message: agent_service_pb2.Hello, limits: Limits) -> Rejection | None:
    """Why a session cannot be opened as asked."""
    if message.protocol_version != PROTOCOL_VERSION:
        said = f"protocol_version is {message.protocol_version}; this node speaks {PROTOCOL_VERSION}"
        return Rejection(Reason.PROTOCOL_VERSION, said, {"protocol_version": str(PROTOCOL_VERSION)})
    found: list[Violation] = []
    found += session_id("hello.session_id", message.session_id)
    found += name("hello.namespace", message.namespace, limits, may_be_empty=True)
    found += name("hello.queue", message.queue, limits, may_be_empty=True)
    found += between("hello.actions", len(message.actions), 1, limits.actions_max, "entries")
    if not found:
        for position, action in enumerate(message.actions):
            found += name(f"hello.actions[{position}]", action, limits)
    found += between("hello.slots", message.slots, 1, limits.slots_max)
    found += text("hello.name", message.name, TEXT_CHARS_MAX)
    found += text("hello.library", message.library, TEXT_CHARS_MAX)
    found += held("hello.held", message.held, limits)
    if found:
        return refusal(found)
    reserved = system.refusal_of_agent(message.namespace)
    return Rejection(Reason.NOT_ALLOWED, reserved) if reserved else None


def held(field: str, refs: Sized, limits: Limits) -> tuple[Violation, ...]:
    """What an agent says that it holds: no more than it can have slots."""
    return between(field, len(refs), 0, limits.slots_max, "entries")


def session_id(field: str, value: str) -> tuple[Violation, ...]:
    """The id that an agent process drew for itself."""
    if SESSION_ID_CHARS_MIN <= len(value) <= SESSION_ID_CHARS_MAX and _is_name(value):
        return ()
    rule = f"it must be {SESSION_ID_CHARS_MIN} to {SESSION_ID_CHARS_MAX} of A-Z, a-z, 0-9, '.', '_' and '-'"
    return (Violation(field, f"is {shown(value)}; {rule}"),)


def between(field: str, value: int, least: int, most: int, unit: str = "") -> tuple[Violation, ...]:
    """A number, or how many there are of something."""
    if least <= value <= most:
        return ()
    said = f"has {value} {unit}" if unit else f"is {value}"
    return (Violation(field, f"{said}; it must be between {least} and {most}"),)


def duration(field: str, value: Duration, limits: Limits, *, least_ms: int = 0) -> tuple[Violation, ...]:
    """A duration that is not negative and not absurd."""
    ms = value.seconds * 1_000 + value.nanos // 1_000_000
    return between(field, ms, least_ms, limits.duration_ms_max, "ms")


def timestamp(field: str, value: Timestamp) -> tuple[Violation, ...]:
    """An instant that a Timestamp may hold, from the year 1 to the year 9999."""
    if TIMESTAMP_S_MIN <= value.seconds <= TIMESTAMP_S_MAX and 0 <= value.nanos < 1_000_000_000:
        return ()
    rule = f"seconds must be between {TIMESTAMP_S_MIN} and {TIMESTAMP_S_MAX}, and nanos between 0 and 999999999"
    return (Violation(field, f"is {value.seconds} s and {value.nanos} ns; {rule}"),)


def shown(value: str) -> str:
    """A value as a message shows it: in quotes, on one line, cut."""
    cut = value if len(value) <= _SHOWN_CHARS else value[:_SHOWN_CHARS] + "..."
    return json_text.quoted(cut)
