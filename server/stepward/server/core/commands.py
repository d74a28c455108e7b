"""What may be asked of a shard, and what comes back.

Commands carry everything that a decision needs from outside: ids that were drawn, bytes that were checked. They are
plain values, so that a node can hand them to the leader, as msgpack arrays that begin with the name of their class
(`peers.encoding`). Classes and fields are part of what nodes say to each other: rename none, add fields at the end only
and with a default.
"""

from __future__ import annotations

from msgspec import Struct

from stepward.server.core.parts import Resolution
from stepward.server.core.rejections import Rejection
from stepward.server.core.rows import DefinitionBody, JobState, Payload, Value


class Command(Struct, frozen=True, array_like=True, tag=True, forbid_unknown_fields=True):
    """Base of all commands."""


class AttemptWord(Struct, frozen=True, array_like=True, tag=True, forbid_unknown_fields=True):
    """Base of what an agent says of an attempt."""


class CommandAnswer(Struct, frozen=True, array_like=True, tag=True, forbid_unknown_fields=True):
    """Base of all answers but a rejection."""


class SubmitJob(Command, frozen=True):
    """Store a job and start it. `job_id` was drawn by the gateway; a known key answers with the first job instead.

    `deadline_ms` 0: the definition's.
    """

    job_id: str
    namespace: str
    definition_name: str
    definition_version: int
    input: Payload
    idempotency_key: str
    labels: dict[str, str]
    caller_id: str
    fingerprint: bytes
    deadline_ms: int = 0


class CancelJob(Command, frozen=True):
    """Undo what a job did, or may have done."""

    job_id: str
    reason: str
    actor: str = ""


class TerminateJob(Command, frozen=True):
    """End a job at once, and undo nothing more."""

    job_id: str
    reason: str
    actor: str


class PauseJob(Command, frozen=True):
    """Hold a job: nothing new of it is offered."""

    job_id: str
    reason: str
    actor: str


class ResumeJob(Command, frozen=True):
    """Let a paused job go on."""

    job_id: str
    reason: str
    actor: str


class RetryStep(Command, frozen=True):
    """Try a step, or its undo, again: one that waits for a person, or one that waits for its next attempt."""

    job_id: str
    step_id: str
    reason: str
    actor: str


class SkipStep(Command, frozen=True):
    """Pass over a step with an output in its place, or over its undo. `undone`: somebody undid it by other means."""

    job_id: str
    step_id: str
    output: Payload
    undone: bool
    reason: str
    actor: str


class ApplyDefinition(Command, frozen=True):
    """Store a checked definition as a new version, unless the newest one has the same hash."""

    namespace: str
    hash: bytes
    body: DefinitionBody


class AttemptRef(Value, frozen=True, order=True):
    """An assignment, named as everywhere."""

    job_id: str
    step_id: str
    token: int


class OpenSession(Command, frozen=True):
    """Open a session or bind a newer stream of it to a node.

    `known_generation` is the newest that the agent knows: 0 for a session that it has never been welcomed to.
    `goes_on`: when that is the newest, it stays so; an agent without streaming calls again and again.
    """

    session_id: str
    namespace: str
    queue: str
    actions: tuple[str, ...]
    slots: int
    name: str
    library: str
    node_id: str
    known_generation: int = 0
    goes_on: bool = False


class RenewSession(Command, frozen=True):
    """A heartbeat. `held` is None when the agent sent only its digest.

    `on_stream` False: it came by a call of its own. Such calls may overtake each other, so what its list lacks proves
    nothing; and whoever calls only to renew does not listen for offers.
    """

    session_id: str
    generation: int
    held_digest: int
    held: tuple[AttemptRef, ...] | None = None
    busy_slots: int = 0
    on_stream: bool = True


class CloseStream(Command, frozen=True):
    """The stream of this generation is gone; offer nothing more until there is a newer one."""

    session_id: str
    generation: int


class DrainSession(Command, frozen=True):
    """Offer nothing more to this session."""

    session_id: str
    generation: int


class Accepted(AttemptWord, frozen=True):
    """An on-accept offer is taken."""


class Started(AttemptWord, frozen=True):
    """An on-offer handler has started."""


class Succeeded(AttemptWord, frozen=True):
    """The attempt succeeded."""

    output: Payload


class Failed(AttemptWord, frozen=True):
    """The attempt failed. `retry_after_ms` None: the policy's wait."""

    kind: str
    message: str
    retryable: bool
    retry_after_ms: int | None = None
    may_have_happened: bool = False


class Unknown(AttemptWord, frozen=True):
    """Nobody can tell whether the attempt happened."""

    kind: str
    message: str


class Declined(AttemptWord, frozen=True):
    """The attempt was never started and never will be."""

    handed_back: bool


class Stopped(AttemptWord, frozen=True):
    """The attempt was started, and stopped before its end."""

    draining: bool


class ProgressMade(AttemptWord, frozen=True):
    """A sign of life. `details` None: nothing new about how far the attempt is."""

    details: Payload | None


AttemptEvent = Accepted | Started | Succeeded | Failed | Unknown | Declined | Stopped | ProgressMade


class AttemptReport(Value, frozen=True):
    """What became of one attempt."""

    attempt: AttemptRef
    event: AttemptEvent


class ReportAttempts(Command, frozen=True):
    """What became of attempts, many at a time."""

    session_id: str
    generation: int
    reports: tuple[AttemptReport, ...]


class Sweep(Command, frozen=True):
    """Judge what is due, at most `subjects_max` of it, and write the beat.

    `late_ms_max`: by how much the supervisor was late at most since the last beat, for that of this sweep.
    """

    subjects_max: int
    late_ms_max: int = 0


class WatchSilence(Command, frozen=True):
    """The node that leads has seen no beat of its supervisor for at least so long, and has that written down."""

    silent_ms_min: int


class ResolveIncident(Command, frozen=True):
    """Do what a person decides about an incident. `output` and `undone` are those of SkipStep."""

    number: int
    resolution: Resolution
    output: Payload
    undone: bool
    reason: str
    actor: str


class MarkNotices(Command, frozen=True):
    """Notices up to this number need not be sent any more; so many of them were given up."""

    done: int
    given_up: int


AnyCommand = (
    SubmitJob
    | CancelJob
    | TerminateJob
    | PauseJob
    | ResumeJob
    | RetryStep
    | SkipStep
    | ApplyDefinition
    | OpenSession
    | RenewSession
    | CloseStream
    | DrainSession
    | ReportAttempts
    | Sweep
    | ResolveIncident
    | MarkNotices
    | WatchSilence
)


class JobSubmitted(CommandAnswer, frozen=True):
    """Answer to SubmitJob."""

    job_id: str
    duplicate: bool
    state: JobState
    revision: int


class JobCancelled(CommandAnswer, frozen=True):
    """Answer to CancelJob. `already`: it was being undone or cancelled before."""

    job_id: str
    already: bool


class VerbDone(CommandAnswer, frozen=True):
    """Answer to an operator's verb. `already`: there was nothing left to do."""

    job_id: str
    already: bool


class DefinitionApplied(CommandAnswer, frozen=True):
    """Answer to ApplyDefinition."""

    version: int
    created: bool
    created_wall_ms: int


class SessionOpened(CommandAnswer, frozen=True):
    """Answer to OpenSession."""

    generation: int
    ttl_ms: int


class SessionRenewed(CommandAnswer, frozen=True):
    """Answer to RenewSession. `unknown` is what the agent holds although no row says so: it is to stop."""

    send_held: bool
    unknown: tuple[AttemptRef, ...] = ()


class StreamClosed(CommandAnswer, frozen=True):
    """Answer to CloseStream and DrainSession."""


class ReportResult(Value, frozen=True):
    """What one report came to: the name of a public `ReportResult` without its prefix."""

    attempt: AttemptRef
    result: str
    message: str = ""


class AttemptsReported(CommandAnswer, frozen=True):
    """Answer to ReportAttempts: one result for each report that is not mere progress."""

    results: tuple[ReportResult, ...]


class Swept(CommandAnswer, frozen=True):
    """Answer to Sweep. `next_due_led_ms` and `next_due_log_ms` are None when nothing waits on that clock.

    `unfinished`: a bound of the sweep left something to do, and the next one is to follow at once. `purged` counts jobs
    that were removed, and `stuck` names those that were found with nothing left to move them. `overdue` counts what is
    due and was not judged, up to a bound; `held` those of them that the brake holds, for `look_again_in_ms`. `remedied`
    counts what was decided about trouble. `late_ms` are by how much the sweep came after what it judged had fallen
    due.
    """

    handled: int
    overdue: int
    unfinished: bool
    next_due_led_ms: int | None
    next_due_log_ms: int | None
    purged: int = 0
    stuck: tuple[str, ...] = ()
    held: int = 0
    look_again_in_ms: int | None = None
    remedied: int = 0
    late_ms: tuple[int, ...] = ()


class SilenceWatched(CommandAnswer, frozen=True):
    """Answer to WatchSilence: for how long (led time) there has been no beat in this leadership."""

    silent_ms: int


class IncidentResolved(CommandAnswer, frozen=True):
    """Answer to ResolveIncident. `already`: it was resolved before, by whatever that was."""

    job_id: str
    already: bool


class NoticesMarked(CommandAnswer, frozen=True):
    """Answer to MarkNotices: where the cursor is now."""

    done: int


Answer = (
    JobSubmitted
    | JobCancelled
    | VerbDone
    | DefinitionApplied
    | SessionOpened
    | SessionRenewed
    | StreamClosed
    | AttemptsReported
    | Swept
    | IncidentResolved
    | NoticesMarked
    | SilenceWatched
    | Rejection
)
