"""What is stored: one frozen struct for each kind of row.

A row is encoded as a msgpack array that begins with its format version (the tag). A row of another format, or one
with more fields than this software knows, raises instead of being read wrongly. Instants are milliseconds: `_led_ms`
on led time, `_log_ms` on log time, `_wall_ms` on wall time (see `clocks`).
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final

from msgspec import Struct

from stepward.server.core.event_types import EventType as EventType  # noqa: PLC0414 - whoever reads rows needs it, too
from stepward.server.core.job_states import JOB_STATES_AWAITED as JOB_STATES_AWAITED  # noqa: PLC0414 - for importers, too
from stepward.server.core.job_states import JOB_STATES_FINAL as JOB_STATES_FINAL  # noqa: PLC0414 - for importers, too
from stepward.server.core.job_states import JobState as JobState  # noqa: PLC0414 - as above, for importers
from stepward.server.core.job_states import StepState as StepState  # noqa: PLC0414 - as above, for importers
from stepward.server.core.options import Approval as Approval  # noqa: PLC0414 - as above, for importers
from stepward.server.core.options import Effect as Effect  # noqa: PLC0414 - as above, for importers
from stepward.server.core.options import OnDeadline as OnDeadline  # noqa: PLC0414 - as above, for importers
from stepward.server.core.options import OnExhausted as OnExhausted  # noqa: PLC0414 - as above, for importers
from stepward.server.core.options import OnUnknown as OnUnknown  # noqa: PLC0414 - as above, for importers
from stepward.server.core.options import Reassign as Reassign  # noqa: PLC0414 - as above, for importers
from stepward.server.core.options import StartMode as StartMode  # noqa: PLC0414 - as above, for importers
from stepward.server.core.parts import Part as Part  # noqa: PLC0414 - as above, for importers
from stepward.server.core.parts import Trouble as Trouble  # noqa: PLC0414 - as above, for importers


class CancelReason(IntEnum):
    """Why an assignment is no longer wanted."""

    NONE = 0
    JOB_ENDING = 1
    TIMEOUT = 2
    STALE = 3


class Clock(IntEnum):
    """Which clock a timer runs on. NONE: no timer."""

    NONE = 0
    LED = 1
    LOG = 2


class PassKind(IntEnum):
    """What a walk over the steps of a job is for."""

    STOP = 1
    UNDO_COUNT = 2
    UNDO_OPEN = 3
    UNDO_RETRY = 4
    PAUSE = 5
    RESUME = 6
    TERMINATE = 7


class Row(Struct, array_like=True, frozen=True, forbid_unknown_fields=True, gc=False, tag=1):
    """Base of all rows. The tag is the format version."""


class Value(Struct, array_like=True, frozen=True, forbid_unknown_fields=True, gc=False):
    """Base of the values inside rows and commands."""


class Payload(Value, frozen=True):
    """Bytes as their author wrote them, and what they are ("" = "json/utf-8")."""

    data: bytes = b""
    encoding: str = ""


# What stands for the output of a step that was passed over without one.
NO_OUTPUT: Final = Payload(b"null")


class Failure(Value, frozen=True):
    """Why an attempt, a step or a job did not succeed."""

    kind: str
    message: str = ""
    step_id: str = ""
    retryable: bool = True

    @property
    def told(self) -> str:
        """What happened, in words: its kind, and what was said of it, if anything."""
        return f"{self.kind}: {self.message}" if self.message else self.kind


class RetrySpec(Value, frozen=True):
    """How failed attempts are repeated. `time_ms_max` 0: no bound."""

    attempts_max: int = 5
    initial_ms: int = 1_000
    factor: float = 2.0
    cap_ms: int = 60_000
    non_retryable_kinds: tuple[str, ...] = ()
    time_ms_max: int = 0


class UndoSpec(Value, frozen=True):
    """The compensation of a step."""

    action: str
    queue: str
    retry: RetrySpec
    start_to_close_ms: int
    queue_ms: int
    heartbeat_ms: int = 0
    schedule_to_close_ms: int = 0
    effect: Effect = Effect.IDEMPOTENT


class VerifySpec(Value, frozen=True):
    """How a remote service is asked what became of an attempt. It may always be repeated."""

    action: str
    queue: str
    retry: RetrySpec
    start_to_close_ms: int
    queue_ms: int
    heartbeat_ms: int = 0
    schedule_to_close_ms: int = 0


class StepSpec(Value, frozen=True):
    """A step with every default filled in and its edges as positions in the definition.

    `needs` and `dependents` are direct. `input` is the template; empty means the job's whole input. `heartbeat_ms` and
    `schedule_to_close_ms` 0: none.
    """

    id: str
    action: str
    queue: str
    needs: tuple[int, ...]
    dependents: tuple[int, ...]
    input: bytes
    retry: RetrySpec
    start_to_close_ms: int
    queue_ms: int
    effect: Effect
    start: StartMode
    on_unknown: OnUnknown
    undo: UndoSpec | None = None
    verify: VerifySpec | None = None
    heartbeat_ms: int = 0
    schedule_to_close_ms: int = 0
    on_exhausted: OnExhausted = OnExhausted.COMPENSATE
    reassign: Reassign = Reassign.ANY_AGENT
    approval: Approval = Approval.NOT_REQUIRED


class DefinitionBody(Row, frozen=True):
    """A definition by the hash of its canonical form (`C`). `source` is the public message, for reading it back."""

    name: str
    steps: tuple[StepSpec, ...]
    output: bytes
    source: bytes
    deadline_ms: int = 0
    on_deadline: OnDeadline = OnDeadline.COMPENSATE
    description: str = ""


class DefinitionRecord(Row, frozen=True):
    """One stored version of a name (`D`)."""

    hash: bytes
    created_wall_ms: int


class DefinitionHead(Row, frozen=True):
    """The newest version of a name (`N`)."""

    version: int
    hash: bytes


class Job(Row, frozen=True):
    """What a job was submitted with (`J`); never changes. `deadline_ms` 0: none."""

    namespace: str
    definition_name: str
    definition_version: int
    definition_hash: bytes
    input: Payload
    idempotency_key: str
    labels: dict[str, str]
    caller_id: str
    submitted_wall_ms: int
    deadline_ms: int = 0


class Progress(Row, frozen=True):
    """How far a job is (`P`): one small row that each of its batches writes.

    `steps_open` counts steps that have not succeeded; `settling` counts forward steps of a job under compensation
    that may still act; `undo_open` counts steps whose undo has not ended (0 before the undo phase), and `remaining`
    those whose undo has ended and that remain done all the same; `waiting` counts steps that wait for a person.
    `deadline_log_ms` 0: none. `terminating`: it is being ended at once, or was. `incident`: the number of the open one
    of the job as a whole; 0: none. `told_sequence`: the batch among whose `CallerEnds` the job stands; 0: among none.
    """

    state: JobState
    revision: int
    updated_wall_ms: int
    steps_open: int
    settling: int = 0
    undo_open: int = 0
    undoing: bool = False
    ended_wall_ms: int = 0
    cancel_requested: bool = False
    failure: Failure | None = None
    waiting: int = 0
    remaining: int = 0
    deadline_log_ms: int = 0
    deadline_passed: bool = False
    terminating: bool = False
    incident: int = 0
    told_sequence: int = 0


class Lingering(Value, frozen=True):
    """An attempt that has ended for us without a word of its agent: timed out, or lost with its session.

    Unless it only asked what became of another (`asks`), it may still act until its agent is heard of (`closed`), or,
    once its session has ended (`lost`), until the step's fence. It is kept, so that a late report is recorded once, as
    an observation.
    """

    session_id: str
    token: int
    lost: bool = False
    closed: bool = False
    asks: bool = False


class Aside(Value, frozen=True):
    """What stands aside while it is asked what became of a step: its state, and what its action has used.

    `trouble` and `failure` are the end of the attempt that it is asked about.
    """

    state: StepState
    attempts: int
    lease_losses: int
    ready_log_ms: int
    trouble: Trouble
    failure: Failure | None = None


class Avoid(Value, frozen=True):
    """The agent that had the attempt before, to which the next one does not go as long as another may take it.

    Until `until_log_ms` it is kept for others; 0: the step is not ready yet.
    """

    agent: str
    until_log_ms: int = 0


class Step(Row, frozen=True):
    """A step that has become ready at least once (`S`).

    `attempts` and `lease_losses` belong to the part that is at work, and so does `ready_log_ms`, when that first became
    ready (-1: it has not yet); its bounds over all attempts count from there. `timer_clock` and
    `timer_at_ms` name the step's one timer row. `ready_order` finds its row in the ready index. `fence_at_led_ms` is
    the instant until which an attempt that nobody confirmed stopped may still act. `incident` is the number of its open
    one; 0: none. `held`: its timer is due, and the brake holds what follows.
    """

    state: StepState
    updated_wall_ms: int
    attempts: int = 0
    lease_losses: int = 0
    token: int = 0
    session_id: str = ""
    generation: int = 1
    timer_clock: Clock = Clock.NONE
    timer_at_ms: int = 0
    ready_order: int = 0
    maybe_done: bool = False
    undo_waits: int = 0
    fence_at_led_ms: int = 0
    lingering: tuple[Lingering, ...] = ()
    failure: Failure | None = None
    ready_log_ms: int = -1
    started_log_ms: int = 0
    aside: Aside | None = None
    avoid: Avoid | None = None
    incident: int = 0
    held: bool = False


class Output(Row, frozen=True):
    """What a step gave (`O`); written once. `stand_in`: a person put it in place of an output that is not known."""

    payload: Payload
    stand_in: bool = False


class StepProgress(Row, frozen=True):
    """What an attempt said last about how far it is, and when it last gave a sign of life (`G`).

    `payload` is what the newest attempt that said something said; the next one may go on from there.
    """

    payload: Payload | None
    heard_log_ms: int = 0


class Join(Row, frozen=True):
    """How many needs of a step are still open (`W`); only for steps with two needs or more."""

    remaining: int


class Ready(Row, frozen=True):
    """A step that may be offered (`Q`)."""

    part: Part


class Timer(Row, frozen=True):
    """Something falls due (`T`); everything is in the key."""


class Assignment(Row, frozen=True):
    """A committed grant of a step to a session (`A`): an offer until started, then a lease. Takes one slot."""

    part: Part
    start: StartMode
    offered_led_ms: int
    cancel: CancelReason = CancelReason.NONE
    resends: int = 0


class Session(Row, frozen=True):
    """An agent process that holds slots (`E`).

    `renewed_led_ms` never exceeds the led time of its batch. `renewed_steady_ms` is the leader's own steady clock at
    that moment and means something within `renewed_epoch` only. `ending`: its lease is over and its assignments are
    being taken from it, some in each sweep; it cannot be renewed. `full`: the agent has refused work for want of room,
    and no renewal has shown room since.
    """

    namespace: str
    queue: str
    actions: tuple[str, ...]
    slots: int
    name: str
    library: str
    node_id: str
    generation: int
    ttl_ms: int
    renewed_led_ms: int
    renewed_wall_ms: int
    renewed_steady_ms: int
    renewed_epoch: int
    timer_at_led_ms: int
    connected: bool = True
    draining: bool = False
    ending: bool = False
    full: bool = False


class IdempotencyKey(Row, frozen=True):
    """The first job of a submission key (`K`) and the fingerprint of its request."""

    job_id: str
    fingerprint: bytes


class JobIndex(Row, frozen=True):
    """A job under its namespace and state (`I`); everything is in the key."""


class JobCounts(Row, frozen=True):
    """How many jobs a namespace has in each state (`M`); see `counts`. States without jobs are left out.

    A job was submitted at least `submitted_late_ms_min` and at most `submitted_late_ms_max` after the time in its id.
    """

    counts: dict[JobState, int]
    submitted_late_ms_min: int = 0
    submitted_late_ms_max: int = 0


class Event(Value, frozen=True):
    """One thing that happened. `ordinal` -1 is the job itself."""

    type: EventType
    ordinal: int = -1
    attempt: int = 0
    token: int = 0
    session_id: str = ""
    detail: str = ""
    due_in_ms: int = 0
    actor: str = ""


class History(Row, frozen=True):
    """What one batch did to one job (`H`). `moved`: steps that changed their state, and of which no event tells."""

    wall_ms: int
    led_ms: int
    log_ms: int
    events: tuple[Event, ...]
    moved: tuple[int, ...] = ()


class Patrol(Value, frozen=True):
    """How far the walk over the jobs that have not ended has come.

    `job` is the index key of the job that it is at. If that has many steps, those up to `after` have been looked at, at
    `revision` of the job.
    """

    job: bytes = b""
    after: int = -1
    revision: int = 0


class Beat(Row, frozen=True):
    """The supervisor's sign of life (`B`).

    `purge_backlog` counts ended jobs whose time to be kept is over, up to a bound, and `purge_late_ms` is for how long
    that of the first of them has been. `stuck` counts jobs that were found with nothing left to move them. `overdue`
    counts what is due and was not judged, and `held` those of them that the brake holds. `since_led_ms` is since when
    beats have come without a gap of led time, and `late_ms_max` by how much one of its sweeps came after what it
    judged had fallen due, at most.
    """

    epoch: int
    beats: int
    wall_ms: int
    led_ms: int
    log_ms: int
    overdue: int
    remediations: int
    purge_backlog: int = 0
    purge_late_ms: int = 0
    stuck: int = 0
    patrol: Patrol = Patrol()
    held: int = 0
    since_led_ms: int = 0
    late_ms_max: int = 0


class Head(Row, frozen=True):
    """The last batch applied; stands beside the rows, not among them.

    `decided_steady_ms` is the steady clock of the boot `boot_id` at the moment at which the batch was decided.
    """

    sequence: int
    hash: bytes
    epoch: int
    incarnation: int
    led_ms: int
    log_ms: int
    wall_ms: int
    decided_steady_ms: int
    boot_id: str
