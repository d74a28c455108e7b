"""Under which keys rows are stored. The first byte names the kind of row; everything sorts by bytes.

Job ids rise, so almost every write lands at the right edge of its kind. Names cannot hold a NUL byte, which ends
them inside keys. A step is named by its position in the definition, two bytes.
"""

from __future__ import annotations

import hashlib
import re
from enum import IntEnum
from functools import lru_cache
from typing import TYPE_CHECKING, Final

import msgspec

from stepward.server.core import brake_rows, breaker_rows, caller_rows, epoch_rows, ledger_rows, rows, slice_rows

if TYPE_CHECKING:
    from collections.abc import Callable

    from stepward.server.core.rows import Clock, JobState, Row

JOB: Final = b"J"
PROGRESS: Final = b"P"
STEP: Final = b"S"
OUTPUT: Final = b"O"
STEP_PROGRESS: Final = b"G"
JOIN: Final = b"W"
PASS: Final = b"X"
SPREAD: Final = b"F"
READY: Final = b"Q"
TIMER: Final = b"T"
ASSIGNMENT: Final = b"A"
SESSION: Final = b"E"
JOB_INDEX: Final = b"I"
JOB_COUNTS: Final = b"M"
IDEMPOTENCY: Final = b"K"
DEFINITION: Final = b"D"
DEFINITION_HEAD: Final = b"N"
DEFINITION_BODY: Final = b"C"
HISTORY: Final = b"H"
BEAT: Final = b"B"
PURGE: Final = b"R"
EPOCH: Final = b"L"
LEDGER: Final = b"l"
INCIDENT: Final = b"i"
INCIDENT_OF: Final = b"j"
INCIDENT_OPEN: Final = b"o"
INCIDENT_COUNTS: Final = b"c"
NOTICE: Final = b"n"
NOTICE_CURSOR: Final = b"w"
BRAKE: Final = b"Z"
BREAKER: Final = b"Y"
CALLER_ENDS: Final = b"e"
ENDS_GONE: Final = b"g"

_TYPES: Final[dict[bytes, type[Row]]] = {
    JOB: rows.Job,
    PROGRESS: rows.Progress,
    STEP: rows.Step,
    OUTPUT: rows.Output,
    STEP_PROGRESS: rows.StepProgress,
    JOIN: rows.Join,
    PASS: slice_rows.Pass,
    SPREAD: slice_rows.Spread,
    READY: rows.Ready,
    TIMER: rows.Timer,
    ASSIGNMENT: rows.Assignment,
    SESSION: rows.Session,
    JOB_INDEX: rows.JobIndex,
    JOB_COUNTS: rows.JobCounts,
    IDEMPOTENCY: rows.IdempotencyKey,
    DEFINITION: rows.DefinitionRecord,
    DEFINITION_HEAD: rows.DefinitionHead,
    DEFINITION_BODY: rows.DefinitionBody,
    HISTORY: rows.History,
    BEAT: rows.Beat,
    EPOCH: epoch_rows.Epoch,
    PURGE: slice_rows.Purge,
    LEDGER: ledger_rows.LedgerEntry,
    INCIDENT: ledger_rows.Incident,
    INCIDENT_OF: ledger_rows.IncidentIndex,
    INCIDENT_OPEN: ledger_rows.IncidentIndex,
    INCIDENT_COUNTS: ledger_rows.IncidentCounts,
    NOTICE: ledger_rows.Notice,
    NOTICE_CURSOR: ledger_rows.NoticeCursor,
    BRAKE: brake_rows.Brake,
    BREAKER: breaker_rows.Breaker,
    CALLER_ENDS: caller_rows.CallerEnds,
    ENDS_GONE: caller_rows.EndsGone,
}
_DECODERS: Final[dict[int, Callable[[bytes], Row]]] = {
    kind[0]: msgspec.msgpack.Decoder(type_).decode for kind, type_ in _TYPES.items()
}
_encode = msgspec.msgpack.Encoder().encode

# A shard, and a UUIDv7, which begins with milliseconds (RFC 9562, section 5.7).
_JOB_ID_TIME: Final = re.compile(r"[0-9]+-([0-9a-f]{12})").match


class Duty(IntEnum):
    """What a timer is for. Each has queues of its own, so that what the brake holds stands before nothing else."""

    # Something goes on: a wait, a fence, a walk over steps, an offer that is sent again. Nobody has failed.
    WAKE = 1
    # A session has perhaps not been heard from for too long.
    LEASE = 2
    # A bound in time has passed, which is trouble: of a queue, an attempt, a job; or the brake holds what follows.
    JUDGE = 3


# The number of a batch at the end of a key.
SEQUENCE_BYTES: Final = 8

TIMER_STEP: Final = b"s"
TIMER_SESSION: Final = b"e"
TIMER_PASS: Final = b"p"
TIMER_SPREAD: Final = b"f"
TIMER_DEADLINE: Final = b"d"

# All queues of timers, in the order in which a sweep goes through them: on each clock first what goes on.
TIMER_QUEUES: Final = (
    (rows.Clock.LED, Duty.WAKE),
    (rows.Clock.LED, Duty.LEASE),
    (rows.Clock.LED, Duty.JUDGE),
    (rows.Clock.LOG, Duty.WAKE),
    (rows.Clock.LOG, Duty.JUDGE),
)


# A batch asks for the keys of one and the same job dozens of times.
_MADE_MAX: Final = 1 << 14


def encode_row(row: Row) -> bytes:
    """The bytes of a row."""
    return _encode(row)


def decode_row(key: bytes, value: bytes) -> Row:
    """The row stored under `key`.

    Raises:
        msgspec.ValidationError: The row has another format version or fields that this software does not know.
        KeyError: No kind of row has such keys.
    """
    return _DECODERS[key[0]](value)


@lru_cache(_MADE_MAX)
def job(job_id: str) -> bytes:
    """Key of a job's `rows.Job`."""
    return JOB + job_id.encode()


@lru_cache(_MADE_MAX)
def progress(job_id: str) -> bytes:
    """Key of a job's `rows.Progress`."""
    return PROGRESS + job_id.encode()


def progress_job_id(key: bytes) -> str:
    """The job of a progress key."""
    return key[1:].decode()


@lru_cache(_MADE_MAX)
def step(job_id: str, ordinal: int) -> bytes:
    """Key of a step's `rows.Step`."""
    return STEP + subject(job_id, ordinal)


def steps(job_id: str) -> bytes:
    """Prefix of the steps of a job."""
    return STEP + job_id.encode() + b"/"


def output(job_id: str, ordinal: int) -> bytes:
    """Key of a step's `rows.Output`."""
    return OUTPUT + subject(job_id, ordinal)


def step_progress(job_id: str, ordinal: int) -> bytes:
    """Key of a step's `rows.StepProgress`."""
    return STEP_PROGRESS + subject(job_id, ordinal)


def join(job_id: str, ordinal: int) -> bytes:
    """Key of a step's `rows.Join`."""
    return JOIN + subject(job_id, ordinal)


def job_pass(job_id: str) -> bytes:
    """Key of a job's `slice_rows.Pass`."""
    return PASS + job_id.encode()


def spread(job_id: str, ordinal: int) -> bytes:
    """Key of the `slice_rows.Spread` of what became of a step."""
    return SPREAD + subject(job_id, ordinal)


def spreads(job_id: str) -> bytes:
    """Prefix of the spreads of a job."""
    return SPREAD + job_id.encode() + b"/"


@lru_cache(_MADE_MAX)
def subject(job_id: str, ordinal: int) -> bytes:
    """A step as the tail of a key."""
    return job_id.encode() + b"/" + ordinal.to_bytes(2, "big")


def parse_subject(tail: bytes) -> tuple[str, int]:
    """The job and the step's position in a tail made by `subject`."""
    return tail[:-3].decode(), int.from_bytes(tail[-2:], "big")


@lru_cache(_MADE_MAX)
def lane(namespace: str, queue: str, action: str) -> bytes:
    """Prefix of the ready steps that one kind of agent may take."""
    return READY + b"\0".join((namespace.encode(), queue.encode(), action.encode())) + b"\0"


def ready(lane_prefix: bytes, order: int, job_id: str, ordinal: int) -> bytes:
    """Key of a `rows.Ready`: oldest first within its lane, but for the steps of one job (`advance.READY_APART_MS`)."""
    return lane_prefix + order.to_bytes(8, "big") + subject(job_id, ordinal)


def parse_ready(key: bytes, lane_prefix: bytes) -> tuple[int, str, int]:
    """Order, job and step's position of a ready key."""
    tail = key[len(lane_prefix) :]
    return int.from_bytes(tail[:8], "big"), *parse_subject(tail[8:])


def timers(clock: Clock, duty: Duty) -> bytes:
    """Prefix of a queue of timers: those of one duty on one clock, in the order in which they fall due."""
    return TIMER + bytes((clock, duty))


def timers_from(clock: Clock, duty: Duty, at_ms: int) -> bytes:
    """What stands before every timer of a queue that is due at this instant or later, and behind every earlier one."""
    return timers(clock, duty) + at_ms.to_bytes(8, "big")


def step_timer(clock: Clock, duty: Duty, at_ms: int, job_id: str, ordinal: int) -> bytes:
    """Key of a step's `rows.Timer`. Its duty follows from the step (`states.duty`)."""
    return b"T%c%c%b%b%b" % (clock, duty, at_ms.to_bytes(8, "big"), TIMER_STEP, subject(job_id, ordinal))


def session_timer(at_led_ms: int, session_id: str, *, ending: bool = False) -> bytes:
    """Key of a session's `rows.Timer`. One whose lease is over waits for what it holds to be taken from it."""
    duty = Duty.JUDGE if ending else Duty.LEASE
    return timers_from(rows.Clock.LED, duty, at_led_ms) + TIMER_SESSION + session_id.encode()


def pass_timer(at_led_ms: int, job_id: str) -> bytes:
    """Key of the `rows.Timer` of a job's pass."""
    return timers_from(rows.Clock.LED, Duty.WAKE, at_led_ms) + TIMER_PASS + job_id.encode()


def spread_timer(at_led_ms: int, job_id: str, ordinal: int) -> bytes:
    """Key of the `rows.Timer` of a spread."""
    return timers_from(rows.Clock.LED, Duty.WAKE, at_led_ms) + TIMER_SPREAD + subject(job_id, ordinal)


def deadline_timer(at_log_ms: int, job_id: str) -> bytes:
    """Key of the `rows.Timer` of a job's deadline."""
    return timers_from(rows.Clock.LOG, Duty.JUDGE, at_log_ms) + TIMER_DEADLINE + job_id.encode()


def purge(at_log_ms: int, job_id: str) -> bytes:
    """Key of a `slice_rows.Purge`: in the order in which they fall due."""
    return PURGE + at_log_ms.to_bytes(8, "big") + job_id.encode()


def breaker(namespace: str, queue: str, action: str) -> bytes:
    """Key of a `breaker_rows.Breaker`."""
    return BREAKER + namespace.encode() + b"\0" + queue.encode() + b"\0" + action.encode()


def parse_breaker(key: bytes) -> tuple[str, str, str]:
    """Namespace, queue and action of a breaker key."""
    namespace, queue, action = key[1:].decode().split("\0")
    return namespace, queue, action


def parse_purge(key: bytes) -> tuple[int, str]:
    """Due instant (ms) and job of a purge key."""
    return int.from_bytes(key[1:9], "big"), key[9:].decode()


def parse_timer(key: bytes) -> tuple[int, bytes, bytes]:
    """Due instant (ms), kind of subject, and subject of a timer key."""
    return int.from_bytes(key[3:11], "big"), key[11:12], key[12:]


def session(session_id: str) -> bytes:
    """Key of a `rows.Session`."""
    return SESSION + session_id.encode()


def owner(key: bytes) -> str:
    """The session of an assignment's key, or of its own."""
    return (key[1:] if key[:1] == SESSION else key[1 : key.index(b"\0")]).decode()


@lru_cache(_MADE_MAX)
def assignments(session_id: str) -> bytes:
    """Prefix of the assignments of a session."""
    return ASSIGNMENT + session_id.encode() + b"\0"


def assignment(session_id: str, token: int, job_id: str, ordinal: int) -> bytes:
    """Key of a `rows.Assignment`."""
    return b"%b%b%b" % (assignments(session_id), token.to_bytes(8, "big"), subject(job_id, ordinal))


def parse_assignment(key: bytes) -> tuple[str, int, str, int]:
    """Session, token, job and step's position of an assignment key."""
    end = key.index(b"\0")
    tail = key[end + 1 :]
    return key[1:end].decode(), int.from_bytes(tail[:8], "big"), *parse_subject(tail[8:])


def job_index(namespace: str, state: JobState, job_id: str = "") -> bytes:
    """Key of a `rows.JobIndex`; without a job id the prefix of a state."""
    return JOB_INDEX + namespace.encode() + b"\0" + bytes((state,)) + job_id.encode()


def job_counts(namespace: str) -> bytes:
    """Key of a `rows.JobCounts`."""
    return JOB_COUNTS + namespace.encode()


def job_id_ms(job_id: str) -> int:
    """The time in a job's id (wall time of whoever drew it). 0 for an id that has none."""
    found = _JOB_ID_TIME(job_id)
    return int(found[1], 16) if found else 0


def job_id_from(job_id: str, wall_ms: int) -> str:
    """What stands before every id of this time or later, and behind every older one, in the shard of `job_id`."""
    shard, dash, _ = job_id.partition("-")
    return f"{shard}{dash}{max(0, wall_ms):012x}"


def behind_jobs(namespace: str) -> bytes:
    """A place in the index behind all jobs of a namespace, whatever their states."""
    return JOB_INDEX + namespace.encode() + b"\0" + bytes((max(rows.JobState) + 1,))


def parse_job_index(key: bytes) -> tuple[str, int, str]:
    """Namespace, number of the state, and job of an index key."""
    end = key.index(b"\0")
    return key[1:end].decode(), key[end + 1], key[end + 2 :].decode()


def idempotency(namespace: str, idempotency_key: str) -> bytes:
    """Key of a `rows.IdempotencyKey`. Hashed: the caller's text may be longer than a store's keys may be."""
    return IDEMPOTENCY + namespace.encode() + b"\0" + hashlib.sha256(idempotency_key.encode()).digest()


def definition(namespace: str, name: str, version: int) -> bytes:
    """Key of a `rows.DefinitionRecord`."""
    return DEFINITION + namespace.encode() + b"\0" + name.encode() + b"\0" + version.to_bytes(4, "big")


def definition_head(namespace: str, name: str = "") -> bytes:
    """Key of a `rows.DefinitionHead`; without a name the prefix of a namespace."""
    return DEFINITION_HEAD + namespace.encode() + b"\0" + name.encode()


def definition_body(hash_: bytes) -> bytes:
    """Key of a `rows.DefinitionBody`."""
    return DEFINITION_BODY + hash_


def history(job_id: str, sequence: int) -> bytes:
    """Key of a `rows.History`."""
    return histories(job_id) + sequence.to_bytes(8, "big")


def histories(job_id: str) -> bytes:
    """Prefix of the history of a job."""
    return HISTORY + job_id.encode() + b"/"


def ledger(sequence: int, number: int) -> bytes:
    """Key of a `ledger_rows.LedgerEntry`."""
    return ledgers(sequence) + number.to_bytes(2, "big")


def ledgers(sequence: int) -> bytes:
    """Prefix of the remedies of one batch."""
    return LEDGER + sequence.to_bytes(8, "big")


def parse_ledger(key: bytes) -> tuple[int, int]:
    """Sequence of the batch, and number in there, of a ledger key."""
    return int.from_bytes(key[1:9], "big"), int.from_bytes(key[9:11], "big")


def incident(number: int) -> bytes:
    """Key of a `ledger_rows.Incident`."""
    return INCIDENT + number.to_bytes(8, "big")


def incident_of(job_id: str, number: int) -> bytes:
    """Key of an incident under its job."""
    return incidents_of(job_id) + number.to_bytes(8, "big")


def incidents_of(job_id: str) -> bytes:
    """Prefix of the incidents of a job."""
    return INCIDENT_OF + job_id.encode() + b"/"


def incident_open(namespace: str, number: int) -> bytes:
    """Key of an open incident under its namespace."""
    return incidents_open(namespace) + number.to_bytes(8, "big")


def incidents_open(namespace: str) -> bytes:
    """Prefix of the open incidents of a namespace."""
    return INCIDENT_OPEN + namespace.encode() + b"\0"


def parse_number(key: bytes) -> int:
    """The number at the end of a key of an incident, of an index of it, of a notice, or of ends of jobs."""
    return int.from_bytes(key[-8:], "big")


def notice(number: int) -> bytes:
    """Key of a `ledger_rows.Notice`."""
    return NOTICE + number.to_bytes(8, "big")


def ends_of_caller(caller_id: str) -> bytes:
    """Prefix of the ends of a caller's jobs. Hashed as idempotency keys are: his text may be longer than a key."""
    return CALLER_ENDS + hashlib.sha256(caller_id.encode()).digest()


def caller_ends(caller_id: str, sequence: int) -> bytes:
    """Key of a `caller_rows.CallerEnds`."""
    return ends_of_caller(caller_id) + sequence.to_bytes(SEQUENCE_BYTES, "big")
