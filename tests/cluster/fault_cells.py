"""The fault matrix as a table: what goes wrong, in which kind of step, and what must come of it.

`docs/faults.md` has the same rows; a test compares them.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Literal

from msgspec import Struct

from stepward.agents.route import BACKOFF_MS_MAX
from stepward.client import JobState, StepState
from tests.cluster.fault_agent import Trouble

# Short, and yet longer than a busy machine keeps a heartbeat waiting.
TTL_MS = 2_000
KILL_GRACE_MS = 2_000

# How long after something is due it may be judged: a sweep comes once a second at latest.
SWEEP_MS_MAX = 1_000

# Also the attempt after the first must fit in, with the start of a process on a busy machine.
START_TO_CLOSE_MS = 3_000
HEARTBEAT_MS = 1_000
QUEUE_MS = 1_000
# Bounds of steps that are not about bounds: far away.
FAR_MS = 60_000


class Kind(StrEnum):
    """The kinds of steps that differ in what may follow a fault."""

    REPEATABLE = "repeatable"
    ASKABLE = "askable"
    NEITHER = "neither"
    UNDOING = "undoing"

    @property
    def words(self) -> str:
        return {
            Kind.REPEATABLE: "idempotent, with an undo",
            Kind.ASKABLE: "not idempotent, with a verify",
            Kind.NEITHER: "not idempotent, nobody to ask",
            Kind.UNDOING: "an undo at work",
        }[self]


class Fault(StrEnum):
    """What goes wrong. Each value is a queue, too."""

    AGENT_KILLED = "agent-killed"
    AGENT_PAUSED = "agent-paused"
    AGENT_BLOCKED = "agent-blocked"
    AGENT_BLOCKED_BEFORE = "agent-blocked-before"
    AGENTS_VANISH = "agents-vanish"
    HANDLER_HANGS = "handler-hangs"
    HANDLER_SILENT = "handler-silent"
    HANDLER_PROCESS_BLOCKED = "handler-process-blocked"
    SERVICE_FAILS = "service-fails"
    SERVICE_REFUSES = "service-refuses"
    SERVICE_UNANSWERED = "service-unanswered"
    RESULT_TOO_LARGE = "result-too-large"
    NO_AGENT = "no-agent"
    SERVER_KILLED = "server-killed"
    SERVER_PAUSED = "server-paused"
    SERVER_KILLED_AT_WORK = "server-killed-at-work"


class Bound(StrEnum):
    """By when a fault must be noticed."""

    LEASE = "lease"
    START_TO_CLOSE = "start_to_close"
    HEARTBEAT = "heartbeat"
    QUEUE = "queue"
    ACCEPT = "accept"
    REPORT = "report"
    BACK = "back"
    NOT_NOTICED = "not noticed"

    def ms(self, ttl_ms: int) -> int:
        """The most that may pass from the beginning of the fault to the event that says so, with leases of `ttl_ms`."""
        match self:
            case Bound.LEASE:
                # The lease, a third more, the grace for a process that is slow to die, and what clocks may drift.
                lease_ms = ttl_ms + -(-ttl_ms // 3) + KILL_GRACE_MS + ttl_ms // 100 + 500
                return lease_ms + SWEEP_MS_MAX
            case Bound.START_TO_CLOSE:
                return START_TO_CLOSE_MS + SWEEP_MS_MAX
            case Bound.HEARTBEAT:
                # A sign of life may travel a third of the timeout later than it is given.
                return HEARTBEAT_MS + HEARTBEAT_MS // 3 + SWEEP_MS_MAX
            case Bound.QUEUE:
                return QUEUE_MS + SWEEP_MS_MAX
            case Bound.ACCEPT:
                return ttl_ms + SWEEP_MS_MAX
            case Bound.REPORT:
                # What the handler waits for an answer, and its way.
                return 500 + SWEEP_MS_MAX
            case Bound.BACK:
                # What an agent waits at most before it tries a node again, and its way.
                return BACKOFF_MS_MAX + SWEEP_MS_MAX
            case Bound.NOT_NOTICED:
                return 0

    def words(self, ttl_ms: int) -> str:
        """By what it is noticed, and when, for people."""
        lease = "TTL x 4/3 + 2 s for a process that is slow to die + 1% of the TTL and 0.5 s for clocks that drift"
        judged = "and at most 1 s until it is judged"
        seconds = f"{self.ms(ttl_ms) / 1000:.1f} s here"
        return {
            Bound.LEASE: f"by its silence, {lease} after its last heartbeat, {judged}: {seconds}",
            Bound.START_TO_CLOSE: f"by the start-to-close timeout of the step, {judged}: {seconds}",
            Bound.HEARTBEAT: f"by the heartbeat timeout, a third of it for the way of a sign, {judged}: {seconds}",
            Bound.QUEUE: f"by the queue timeout of the step, {judged}: {seconds}",
            Bound.ACCEPT: f"by an offer that is not accepted within a TTL, {judged}: {seconds}",
            Bound.REPORT: f"by what the handler says; where it waits 0.5 s for an answer, within {seconds}",
            Bound.BACK: f"by what the agent says when the server is back, within {seconds}",
            Bound.NOT_NOTICED: "by nobody: no lease is used up, and no time of a handler that has ended",
        }[self]

    def ms_min(self, ttl_ms: int) -> int:
        """The least: a lease counts from a heartbeat that may be a third of the TTL old when its agent dies."""
        match self:
            case Bound.LEASE:
                return self.ms(ttl_ms) - SWEEP_MS_MAX - ttl_ms // 3
            case Bound.START_TO_CLOSE:
                return START_TO_CLOSE_MS
            case Bound.QUEUE:
                return QUEUE_MS
            case Bound.ACCEPT:
                return ttl_ms
            case _:
                return 0


class Given(Struct, frozen=True, kw_only=True):
    """How a fault is made in a step of any kind."""

    title: str
    bound: Bound
    trouble: Trouble = "none"
    wish: str = ""
    runs: Literal["loop", "thread", "process"] = "loop"
    begins: Literal["injected", "started", "told", "called", "ready", "back"] = "injected"
    """What the time until the fault is noticed counts from: when it was done to a process, the start of the attempt,
    what the handler wrote down, its call of the service, when the step became ready, or when the server was back."""


GIVEN: dict[Fault, Given] = {
    Fault.AGENT_KILLED: Given(title="agent killed (`kill -9`)", bound=Bound.LEASE, trouble="stay"),
    Fault.AGENT_PAUSED: Given(
        title="agent paused (SIGSTOP) for more than 2 TTL, then resumed",
        bound=Bound.LEASE,
        trouble="wake-late",
        runs="thread",
    ),
    Fault.AGENT_BLOCKED: Given(
        title="handler on a thread blocks the agent's interpreter", bound=Bound.LEASE, trouble="hold", runs="thread"
    ),
    Fault.AGENT_BLOCKED_BEFORE: Given(
        title="agent's interpreter is blocked when it is offered a step, and goes on later", bound=Bound.LEASE
    ),
    Fault.AGENTS_VANISH: Given(title="all agents vanish; another comes later", bound=Bound.LEASE, trouble="stay"),
    Fault.HANDLER_HANGS: Given(title="handler hangs", bound=Bound.START_TO_CLOSE, trouble="hang", begins="started"),
    Fault.HANDLER_SILENT: Given(
        title="handler gives no more signs of life", bound=Bound.HEARTBEAT, trouble="fall-silent", begins="told"
    ),
    Fault.HANDLER_PROCESS_BLOCKED: Given(
        title="handler in a process of its own blocks that interpreter",
        bound=Bound.START_TO_CLOSE,
        trouble="hold-for-ever",
        runs="process",
        begins="started",
    ),
    Fault.SERVICE_FAILS: Given(title="service fails once", bound=Bound.REPORT, wish="fails-once", begins="called"),
    Fault.SERVICE_REFUSES: Given(
        title="service refuses for good", bound=Bound.REPORT, wish="none-left", begins="called"
    ),
    Fault.SERVICE_UNANSWERED: Given(
        title="service does the work and does not answer in time",
        bound=Bound.REPORT,
        wish="slow-once-1500",
        begins="called",
    ),
    Fault.RESULT_TOO_LARGE: Given(
        title="result is too large", bound=Bound.REPORT, trouble="too-large", begins="called"
    ),
    Fault.NO_AGENT: Given(title="no agent for the action", bound=Bound.QUEUE, begins="ready"),
    Fault.SERVER_KILLED: Given(
        title="server killed (`kill -9`), started again later than leases last", bound=Bound.NOT_NOTICED, trouble="stay"
    ),
    Fault.SERVER_PAUSED: Given(
        title="server paused (SIGSTOP), resumed later than leases last", bound=Bound.NOT_NOTICED, trouble="stay"
    ),
    Fault.SERVER_KILLED_AT_WORK: Given(
        title="server killed, and handlers are at work for longer than their lease",
        bound=Bound.BACK,
        trouble="stay",
        begins="back",
    ),
}


class End(Struct, frozen=True):
    """How it ends: for the step, for the job, and how often the deed then stands at the service."""

    step: StepState
    job: JobState
    standing: int


class Must(Struct, frozen=True, kw_only=True):
    """What must come of a fault in a kind of step."""

    noticed: str
    """The event that says that something is wrong. Empty: nothing is."""
    decided: tuple[str, ...]
    """Events that follow it, in this order; others may stand between them."""
    end: End
    words: str
    """What is decided, for people."""
    bound: Bound | None = None
    """Where it is noticed by something else than the fault is in other kinds."""


WELL = End(StepState.SUCCEEDED, JobState.COMPLETED, 1)
UNDONE = End(StepState.COMPENSATED, JobState.COMPENSATED, 0)
NEVER_DONE = End(StepState.FAILED, JobState.COMPENSATED, 0)
WAITS = End(StepState.ESCALATED, JobState.ESCALATED, 1)
NOT_UNDONE = End(StepState.UNDO_FAILED, JobState.ESCALATED, 1)
UNDONE_UNSAID = End(StepState.UNDO_FAILED, JobState.ESCALATED, 0)
REMAINS = End(StepState.FAILED, JobState.FAILED, 1)


def _may_have_happened(what: str, again: str) -> dict[Kind, Must]:
    """After an attempt that may have happened. `what` is how its event ends; `again` says when another may start."""
    return {
        Kind.REPEATABLE: Must(
            noticed=f"StepAttempt{what}",
            decided=("StepRetryScheduled", "StepSucceeded", "JobCompleted"),
            words="tried again with the same key; the service does nothing twice",
            end=WELL,
        ),
        Kind.ASKABLE: Must(
            noticed=f"StepAttempt{what}",
            decided=("VerifyReady", "StepFoundDone", "JobCompleted"),
            words=f"the service is asked {again}, and says that it was done",
            end=WELL,
        ),
        Kind.NEITHER: Must(
            noticed=f"StepAttempt{what}",
            decided=("StepOutcomeUnknown", "StepEscalated", "JobEscalated"),
            words="not tried again; a person is asked",
            end=WAITS,
        ),
        Kind.UNDOING: Must(
            noticed=f"UndoAttempt{what}",
            decided=("UndoRetryScheduled", "UndoSucceeded", "JobCompensated"),
            words=f"the undo is tried again {again}, with the same key",
            end=UNDONE,
        ),
    }


def _forward(must: Must, undoing: Must, **others: Must) -> dict[Kind, Must]:
    """The same for every kind of action but those that are named."""
    kinds = dict.fromkeys(Kind, must) | {Kind.UNDOING: undoing}
    return kinds | {Kind(name): other for name, other in others.items()}


_LOST = _may_have_happened("Lost", "when the lost agent surely cannot act any more")
_TIMED_OUT = _may_have_happened("TimedOut", "when the agent has said that the handler has stopped")

MUST: dict[Fault, dict[Kind, Must]] = {
    Fault.AGENT_KILLED: _LOST,
    Fault.AGENT_PAUSED: _LOST,
    Fault.AGENT_BLOCKED: _LOST,
    Fault.AGENT_BLOCKED_BEFORE: _LOST
    | {
        Kind.REPEATABLE: Must(
            noticed="StepAttemptLost",
            decided=("StepRetryScheduled", "StepSucceeded", "JobCompleted"),
            words="given to another agent; the first one does not begin it any more",
            end=WELL,
        ),
        Kind.ASKABLE: Must(
            noticed="StepAttemptLost",
            decided=("VerifyReady", "StepFoundNotDone", "StepSucceeded", "JobCompleted"),
            words="the service is asked when the lost agent surely cannot act any more; it says no, so another does it",
            end=WELL,
        ),
        Kind.NEITHER: Must(
            noticed="StepHandedBack",
            decided=("StepOffered", "StepSucceeded", "JobCompleted"),
            words="given to another agent: it had to be accepted first, so it surely was not begun",
            end=WELL,
            bound=Bound.ACCEPT,
        ),
        Kind.UNDOING: Must(
            noticed="UndoAttemptLost",
            decided=("UndoRetryScheduled", "UndoSucceeded", "JobCancelled"),
            words="the undo (of a cancelled job) goes to another agent when the lost one surely cannot act any more",
            end=End(StepState.COMPENSATED, JobState.CANCELLED, 0),
        ),
    },
    Fault.AGENTS_VANISH: _LOST,
    Fault.HANDLER_HANGS: _TIMED_OUT,
    Fault.HANDLER_SILENT: _TIMED_OUT,
    Fault.HANDLER_PROCESS_BLOCKED: _TIMED_OUT,
    Fault.SERVICE_FAILS: _forward(
        Must(
            noticed="StepAttemptFailed",
            decided=("StepRetryScheduled", "StepSucceeded", "JobCompleted"),
            words="tried again, since the handler vouches that nothing happened",
            end=WELL,
        ),
        Must(
            noticed="UndoAttemptFailed",
            decided=("UndoRetryScheduled", "UndoSucceeded", "JobCompensated"),
            words="the undo is tried again",
            end=UNDONE,
        ),
    ),
    Fault.SERVICE_REFUSES: _forward(
        Must(
            noticed="StepAttemptFailed",
            decided=("StepFailed", "JobCompensationStarted", "JobCompensated"),
            words="not tried again; the job is undone, and of this step there is nothing to undo",
            end=NEVER_DONE,
        ),
        Must(
            noticed="UndoAttemptFailed",
            decided=("UndoFailed", "JobEscalated"),
            words="not tried again; a person is asked",
            end=NOT_UNDONE,
        ),
    ),
    Fault.SERVICE_UNANSWERED: _may_have_happened("Unknown", "at once"),
    Fault.SERVER_KILLED_AT_WORK: _may_have_happened("Unknown", "at once"),
    Fault.RESULT_TOO_LARGE: _forward(
        Must(
            noticed="StepAttemptFailed",
            decided=("StepFailed", "JobCompensationStarted", "UndoSucceeded", "JobCompensated"),
            words="not tried again; it was done, so it is undone",
            end=UNDONE,
        ),
        Must(
            noticed="UndoAttemptFailed",
            decided=("UndoFailed", "JobEscalated"),
            words="not tried again; a person is asked",
            end=UNDONE_UNSAID,
        ),
        askable=Must(
            noticed="StepAttemptFailed",
            decided=("VerifyReady", "StepFoundDone", "JobCompleted"),
            words="the service is asked, and its answer is the result",
            end=WELL,
        ),
        neither=Must(
            noticed="StepAttemptFailed",
            decided=("StepFailed", "JobCompensationStarted", "JobFailed"),
            words="not tried again; it remains done, and the job says so",
            end=REMAINS,
        ),
    ),
    Fault.NO_AGENT: _forward(
        Must(
            noticed="StepFailed",
            decided=("JobCompensationStarted", "JobCompensated"),
            words="the job is undone; of this step there is nothing to undo",
            end=NEVER_DONE,
        ),
        Must(
            noticed="UndoFailed",
            decided=("JobEscalated",),
            words="a person is asked",
            end=NOT_UNDONE,
        ),
    ),
    **dict.fromkeys(
        (Fault.SERVER_KILLED, Fault.SERVER_PAUSED),
        _forward(
            Must(
                noticed="",
                decided=("StepSucceeded", "JobCompleted"),
                words="nothing: what was done meanwhile is reported when the server is back",
                end=WELL,
            ),
            Must(
                noticed="",
                decided=("UndoSucceeded", "JobCompensated"),
                words="nothing: what was undone meanwhile is reported when the server is back",
                end=UNDONE,
            ),
        ),
    ),
}


class Cell(Struct, frozen=True, order=True):
    """One fault in one kind of step."""

    fault: Fault
    kind: Kind

    @property
    def id(self) -> str:
        return f"{self.fault}-{self.kind}"

    @property
    def given(self) -> Given:
        return GIVEN[self.fault]

    @property
    def must(self) -> Must:
        return MUST[self.fault][self.kind]

    @property
    def bound(self) -> Bound:
        """By when the fault must be noticed in this kind of step."""
        return self.must.bound or self.given.bound


CELLS = tuple(Cell(fault, kind) for fault in Fault for kind in Kind)

# One of each fault, for every day: the kinds take turns.
FIRST = frozenset(Cell(fault, list(Kind)[number % len(Kind)]) for number, fault in enumerate(Fault))
