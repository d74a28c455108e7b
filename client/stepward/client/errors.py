"""What can go wrong, as exceptions. Importing this module loads neither gRPC nor protobuf.

    StepwardError                    reason, message, metadata, violations, retry_delay_s, address
    ├── InvalidRequest               repeating it never helps: change the request
    │   ├── InvalidArgument
    │   ├── InvalidDefinition
    │   ├── PayloadTooLarge
    │   └── PageTokenInvalid
    ├── NotFound
    │   ├── JobNotFound
    │   ├── DefinitionNotFound
    │   ├── StepNotFound
    │   └── IncidentNotFound
    ├── Conflict                     what is already there speaks against it
    │   ├── IdempotencyConflict
    │   ├── JobEnded
    │   ├── StaleToken
    │   ├── SessionEnded
    │   ├── ProtocolVersionRefused
    │   ├── JobStateRefused
    │   ├── StepStateRefused
    │   ├── IncidentCountRefused
    │   ├── IncidentStateRefused
    │   ├── RevisionCompacted
    │   ├── ClusterExists
    │   ├── NodeStateRefused
    │   └── NotAllowed
    ├── Unavailable                  it may pass later, or at another node
    │   ├── Unreachable              no answer of a stepward server: refused, broken, or silent
    │   │   └── NoAnswerInTime
    │   ├── NotLeader
    │   ├── NoLeader
    │   ├── CommitUnknown
    │   ├── NodeDraining
    │   ├── Overloaded
    │   ├── DiskFull
    │   ├── WatchTooSlow
    │   └── NoCluster
    ├── WaitTimedOut                 the job goes on
    ├── ServerFault
    │   ├── InternalFault
    │   ├── NotServed                in the contract and not yet served
    │   └── UnknownAnswer            a reason that this client is too old for, or no stepward server at all
    ├── JobNotCompleted              run() and wait(), unless check=False; carries the job
    │   ├── JobFailed
    │   ├── JobCompensated
    │   ├── JobCancelled
    │   └── JobEscalated
    ├── DefinitionFileError          problems: path, line, column and excerpt of each
    ├── DefinitionError              a definition that is built in Python; raised where it goes wrong
    └── TlsFilesWrong                files for TLS that cannot be used

Each ErrorReason of the contract is one class (`BY_REASON`); the server holds the inverse table.
"""

# ruff: noqa: N818 - they read as what happened; the root says that they are errors

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar, NamedTuple

if TYPE_CHECKING:
    from stepward.client.values import Job

START_ONE = "start one with: stepward dev"
# In the metadata of an `Unreachable`: what became of the call, in a clause that needs no address.
SAID = "said"


class Violation(NamedTuple):
    """One broken rule of a request: where, and what is wrong with which value against which bound."""

    field: str
    description: str

    @property
    def text(self) -> str:
        """In one line. A violation without a field speaks of the list, such as "and 3 more"."""
        return f"{self.field}: {self.description}" if self.field else self.description


class StepwardError(Exception):
    """Something did not work. The message says what happened, with which value, and what to do."""

    reason: ClassVar[str] = ""
    """Name of the ErrorReason without its prefix. Empty when no server gave one."""

    def __init__(
        self,
        message: str,
        *,
        metadata: Mapping[str, str] | None = None,
        violations: tuple[Violation, ...] = (),
        retry_delay_s: float | None = None,
        address: str = "",
    ) -> None:
        # A single one stands in the message already, if the message is the server's.
        told = len(violations) == 1 and violations[0].description in message
        listed = () if told else violations
        super().__init__("\n".join([message, *(f"  {violation.text}" for violation in listed)]))
        self.message = message
        self.metadata: dict[str, str] = dict(metadata or {})
        self.violations = violations
        self.retry_delay_s = retry_delay_s
        self.address = address
        """Who said so. Empty: nobody was asked."""


class InvalidRequest(StepwardError):
    """The request can never be accepted as it is."""


class InvalidArgument(InvalidRequest):
    """A field breaks a rule; `violations` lists all of them."""

    reason = "INVALID_ARGUMENT"


class InvalidDefinition(InvalidRequest):
    """The definition breaks rules; `violations` lists all of them with their paths."""

    reason = "INVALID_DEFINITION"


class PayloadTooLarge(InvalidRequest):
    """A payload is larger than its limit, and always will be."""

    reason = "PAYLOAD_TOO_LARGE"


class PageTokenInvalid(InvalidRequest):
    """The page token was not made by this list with these filters."""

    reason = "PAGE_TOKEN_INVALID"


class NotFound(StepwardError):
    """It does not exist, or no longer."""


class JobNotFound(NotFound):
    """No such job."""

    reason = "JOB_NOT_FOUND"


class DefinitionNotFound(NotFound):
    """No such definition, or no such version of it."""

    reason = "DEFINITION_NOT_FOUND"


class StepNotFound(NotFound):
    """No such step in this job."""

    reason = "STEP_NOT_FOUND"


class IncidentNotFound(NotFound):
    """No such incident, or it was removed with its job."""

    reason = "INCIDENT_NOT_FOUND"


class Conflict(StepwardError):
    """What is already there speaks against it."""


class IdempotencyConflict(Conflict):
    """The idempotency key was used with another request; `metadata` names the first job."""

    reason = "IDEMPOTENCY_CONFLICT"


class JobEnded(Conflict):
    """The job has ended, and not in the way that was asked for."""

    reason = "JOB_ENDED"


class StaleToken(Conflict):
    """The token is not the newest of its step."""

    reason = "STALE_TOKEN"


class SessionEnded(Conflict):
    """The session has ended or a newer stream holds it."""

    reason = "SESSION_ENDED"


class ProtocolVersionRefused(Conflict):
    """The agent's protocol version is not spoken there."""

    reason = "PROTOCOL_VERSION"


class JobStateRefused(Conflict):
    """The job is in a state in which this cannot be done; `metadata` names the state."""

    reason = "JOB_STATE"


class StepStateRefused(Conflict):
    """The step is in a state in which this cannot be done; `metadata` names the state."""

    reason = "STEP_STATE"


class IncidentCountRefused(Conflict):
    """A filter means another number of incidents than the caller expects; nothing was done. `metadata` has both."""

    reason = "INCIDENT_COUNT"


class IncidentStateRefused(Conflict):
    """This cannot be done about the incident; the message says what can."""

    reason = "INCIDENT_STATE"


class RevisionCompacted(Conflict):
    """The revision to resume from is no longer kept."""

    reason = "REVISION_COMPACTED"


class ClusterExists(Conflict):
    """A node knows a cluster already; `metadata` names both."""

    reason = "CLUSTER_EXISTS"


class NodeStateRefused(Conflict):
    """A node is in a state in which this cannot be done; `metadata` names the node."""

    reason = "NODE_STATE"


class NotAllowed(Conflict):
    """The certificate of the caller does not allow this."""

    reason = "NOT_ALLOWED"


class Unavailable(StepwardError):
    """Nobody could do it at the moment."""


class Unreachable(Unavailable):
    """No stepward server answered: the connection was refused or broke. The call may have been carried out."""


class NoAnswerInTime(Unreachable):
    """A server took the call and did not answer in time. The call may have been carried out."""


class NotLeader(Unavailable):
    """The node does not lead and nothing was proposed; `metadata` may name the leader."""

    reason = "NOT_LEADER"


class NoLeader(Unavailable):
    """There is no leader at the moment; nothing was proposed."""

    reason = "NO_LEADER"


class CommitUnknown(Unavailable):
    """The command was proposed and its fate is unknown."""

    reason = "COMMIT_UNKNOWN"


class NodeDraining(Unavailable):
    """The node is shutting down; nothing was proposed."""

    reason = "NODE_DRAINING"


class Overloaded(Unavailable):
    """Too much is waiting; `retry_delay_s` says when to come back."""

    reason = "OVERLOADED"


class DiskFull(Unavailable):
    """The disk is nearly full; new submissions are refused first."""

    reason = "DISK_FULL"


class WatchTooSlow(Unavailable):
    """The caller of a stream did not read; resume from the last revision seen."""

    reason = "WATCH_TOO_SLOW"


class NoCluster(Unavailable):
    """The node belongs to no cluster yet."""

    reason = "NO_CLUSTER"


class WaitTimedOut(StepwardError):
    """The wait ended before the job; the job goes on."""

    reason = "WAIT_TIMED_OUT"

    @property
    def job_id(self) -> str:
        """The job that goes on. Empty when it is not known."""
        return self.metadata.get("job_id", "")


class ServerFault(StepwardError):
    """The server is wrong, or is not what this client takes it for."""


class InternalFault(ServerFault):
    """A bug of the server, which has logged it with a traceback."""

    reason = "INTERNAL"


class NotServed(ServerFault):
    """The call is in the contract and not yet served."""

    reason = "UNIMPLEMENTED"


class UnknownAnswer(ServerFault):
    """An answer that this client cannot place: a newer server, something between, or no stepward server."""


class JobNotCompleted(StepwardError):
    """The job did not complete."""

    def __init__(self, message: str, job: Job) -> None:
        super().__init__(message)
        self.job = job


class JobFailed(JobNotCompleted):
    """The job did not complete, and something remains done: `job.remaining` lists it."""


class JobCompensated(JobNotCompleted):
    """The job failed, and nothing is left done."""


class JobCancelled(JobNotCompleted):
    """The job was cancelled, and nothing is left done."""


class JobEscalated(JobNotCompleted):
    """The job waits for a person."""


class FileProblem(NamedTuple):
    """One thing that is wrong in a definition file."""

    path: str
    line: int
    """From 1; 0 when the trouble has no place."""
    column: int
    """From 1, in characters."""
    description: str
    excerpt: str = ""
    """The line and a caret below the column. Empty: there is nothing to show."""

    @property
    def text(self) -> str:
        """As a compiler prints it: `path:line:column: what is wrong`, then the excerpt."""
        place = f"{self.path}:{self.line}:{self.column}" if self.line else self.path
        said = f"{place}: {self.description}"
        return f"{said}\n{self.excerpt}" if self.excerpt else said


class DefinitionFileError(StepwardError):
    """A definition file cannot be read; `problems` lists all that is wrong in it, by line and column.

    The message begins with `path:line:column`, as editors understand it.
    """

    def __init__(self, problems: Sequence[FileProblem]) -> None:
        super().__init__("\n".join(problem.text for problem in problems))
        self.problems = tuple(problems)


class DefinitionError(StepwardError):
    """A definition cannot be built like this. The message names the step and the field."""


class TlsFilesWrong(StepwardError):
    """Files for TLS that cannot be used. The message names the file and says what is wrong with it."""


BY_REASON: Mapping[str, type[StepwardError]] = {
    error.reason: error
    for error in (
        InvalidArgument,
        InvalidDefinition,
        PayloadTooLarge,
        PageTokenInvalid,
        JobNotFound,
        DefinitionNotFound,
        StepNotFound,
        IdempotencyConflict,
        JobEnded,
        StaleToken,
        SessionEnded,
        ProtocolVersionRefused,
        NotLeader,
        NoLeader,
        CommitUnknown,
        NodeDraining,
        Overloaded,
        DiskFull,
        InternalFault,
        NotServed,
        RevisionCompacted,
        WaitTimedOut,
        JobStateRefused,
        StepStateRefused,
        WatchTooSlow,
        NoCluster,
        ClusterExists,
        NodeStateRefused,
        NotAllowed,
        IncidentNotFound,
        IncidentCountRefused,
        IncidentStateRefused,
    )
}
