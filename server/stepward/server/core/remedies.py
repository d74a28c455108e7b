"""What the supervisor makes of trouble: one table, and the one function that reads it.

No row is read or written here: whoever meets trouble says what it is, what the policy is and how things stand
(`remediation` does for steps), and does what this answers. The rules are gone through in their order and the first
that fits counts. `docs/policies.md` is printed from this table.
"""

from __future__ import annotations

from enum import Enum
from typing import Final, NamedTuple, TypeAlias

from stepward.server.core.options import Approval, OnDeadline, OnExhausted, OnUnknown
from stepward.server.core.parts import Part, Remedy, Trouble


class RemedyPolicy(NamedTuple):
    """What a definition says. Of a job only `on_deadline` counts, of the undo and the question `repeatable` alone."""

    repeatable: bool = True
    """Whether an attempt that may have happened may be followed by another: its effect is idempotent."""
    on_exhausted: OnExhausted = OnExhausted.COMPENSATE
    on_unknown: OnUnknown = OnUnknown.ESCALATE
    approval: Approval = Approval.NOT_REQUIRED
    on_deadline: OnDeadline = OnDeadline.COMPENSATE


class Facts(NamedTuple):
    """How things stand."""

    part: Part | None
    """What met the trouble; None: the job itself."""
    wanted: bool = True
    """Whether what it was at work for still goes on: its job is not being stopped."""
    at_work: bool = True
    """Whether an agent held it, so that an attempt ends here."""
    never_started: bool = False
    """Whether the attempt surely has not started, since its accept was not committed."""
    left: bool = False
    """Whether attempts and time are left for another one, and the failure does not rule it out."""
    final: bool = False
    """Whether its handler vouches that the failure is known, and that repeating is of no use."""
    askable: bool = False
    """Whether somebody can be asked what became of the attempt, and was not yet."""
    past_pivot: bool = False
    """Whether the point of no return of its job has succeeded, or may have."""
    resends_left: bool = False
    """Whether an offer without word may be sent once more."""


class By(Enum):
    """A remedy that is the policy's to choose."""

    ON_EXHAUSTED = "on_exhausted"
    ON_UNKNOWN = "on_unknown"
    ON_DEADLINE = "on_deadline"


class Rule(NamedTuple):
    """A line of the table. `when` and `unless` name what must hold and must not: see `_holds`."""

    name: str
    parts: frozenset[Part | None]
    troubles: frozenset[Trouble]
    remedy: Remedy | By
    why: str
    when: tuple[str, ...] = ()
    unless: tuple[str, ...] = ()
    told: Trouble | None = None
    """What the trouble has come to, if that has a name of its own."""

    def fits(self, trouble: Trouble, policy: RemedyPolicy, facts: Facts) -> bool:
        """Whether this line speaks of such a case."""
        return (
            trouble in self.troubles
            and facts.part in self.parts
            and all(_holds(name, trouble, policy, facts) for name in self.when)
            and not any(_holds(name, trouble, policy, facts) for name in self.unless)
        )


class Decision(NamedTuple):
    """What to do, by which rule, and what is only proposed since a person has to approve it."""

    remedy: Remedy
    rule: Rule
    trouble: Trouble
    proposed: Remedy = Remedy.NONE

    @property
    def unknown(self) -> bool:
        """Whether it was decided for an action of which nobody knows whether it happened."""
        return self.rule.remedy is By.ON_UNKNOWN


T: TypeAlias = Trouble
# An agent, or its silence, ends an attempt by these.
FAILURES: Final = frozenset({T.ATTEMPT_FAILED, T.ATTEMPT_BROKEN, T.ATTEMPT_UNKNOWN})
TIMEOUTS: Final = frozenset({T.START_TO_CLOSE, T.HEARTBEAT, T.SCHEDULE_TO_CLOSE})
LOSSES: Final = frozenset({T.LEASE_LOST, T.POISON})
# These end the wait of a step that no agent holds. All its attempts together may also have run out of time at work.
WAITS: Final = frozenset({T.QUEUE_TIME, T.RETRY_TIME, T.SCHEDULE_TO_CLOSE})
OF_STEPS: Final = FAILURES | TIMEOUTS | LOSSES | WAITS | {T.INPUT}
_ACTION: Final = frozenset[Part | None]({Part.ACTION})
_UNDO: Final = frozenset[Part | None]({Part.UNDO})
_VERIFY: Final = frozenset[Part | None]({Part.VERIFY})
_PARTS: Final = _ACTION | _UNDO | _VERIFY
_JOB: Final = frozenset[Part | None]({None})


def _holds(name: str, trouble: Trouble, policy: RemedyPolicy, facts: Facts) -> bool:
    """Whether a fact holds, `repeatable` of the policy, or `uncertain`: nobody knows whether it has happened."""
    if name == "repeatable":
        return policy.repeatable
    if name == "uncertain":
        return (
            trouble in LOSSES
            or trouble is Trouble.ATTEMPT_UNKNOWN
            or (trouble in TIMEOUTS and facts.at_work)
            or (trouble is Trouble.ATTEMPT_BROKEN and not facts.final)
        )
    held: bool = getattr(facts, name)
    return held


# After this one the decision about the attempt that was asked about follows.
NOT_TOLD: Final = "not-told"

RULES: Final = (
    Rule(
        "never-started",
        _PARTS,
        frozenset({T.LEASE_LOST, T.OFFER_UNANSWERED}),
        Remedy.REASSIGN,
        "It starts only when its accept is committed, which it was not: it goes back, and no attempt is used.",
        when=("never_started",),
    ),
    Rule(
        "resend",
        _PARTS,
        frozenset({T.OFFER_UNANSWERED}),
        Remedy.RESEND,
        "It may have started, so it may not go to another agent: the same offer is sent again, with the same token.",
        when=("resends_left",),
    ),
    Rule(
        "withdraw",
        _PARTS,
        frozenset({T.OFFER_UNANSWERED}),
        Remedy.WITHDRAW,
        "It was sent again for nothing: it is cancelled, and the agent's word or the end of its session decides.",
    ),
    Rule(
        "unwanted",
        _ACTION | _VERIFY,
        OF_STEPS,
        Remedy.NONE,
        "Its job is being stopped: the end of the attempt only tells whether there is something to undo.",
        unless=("wanted",),
    ),
    Rule(
        "ask",
        _ACTION,
        TIMEOUTS | {T.ATTEMPT_BROKEN, T.ATTEMPT_UNKNOWN, T.LEASE_LOST},
        Remedy.VERIFY,
        "It may have happened, and the step says who can be asked: the answer decides.",
        when=("askable",),
    ),
    Rule(
        "retry-failed",
        _PARTS,
        frozenset({T.ATTEMPT_FAILED}),
        Remedy.RETRY,
        "It has not happened, as its handler says, or whoever was asked.",
        when=("left",),
    ),
    Rule(
        "retry",
        _PARTS,
        frozenset({T.ATTEMPT_BROKEN, T.ATTEMPT_UNKNOWN}),
        Remedy.RETRY,
        "It may have happened; repeating it with its key does no harm.",
        when=("left", "repeatable"),
    ),
    Rule(
        "reassign",
        _PARTS,
        TIMEOUTS | {T.LEASE_LOST},
        Remedy.REASSIGN,
        "Its agent was lost, or took too long; repeating it with its key does no harm.",
        when=("left", "repeatable", "at_work"),
    ),
    Rule(
        NOT_TOLD,
        _VERIFY,
        OF_STEPS,
        Remedy.CONTINUE,
        "Nobody could say what became of the attempt: what would have followed without the question follows.",
    ),
    Rule(
        "undo-unknown",
        _UNDO,
        OF_STEPS,
        Remedy.ESCALATE,
        "Nobody knows whether the undo has happened, and it may not be repeated.",
        when=("uncertain",),
        unless=("repeatable",),
        told=T.UNDO_UNKNOWN,
    ),
    Rule(
        "undo-failed",
        _UNDO,
        OF_STEPS,
        Remedy.ESCALATE,
        "The undo is not tried again by itself, and what the step did remains done until a person has looked.",
        told=T.UNDO_FAILED,
    ),
    Rule(
        "poison",
        _ACTION,
        frozenset({T.POISON}),
        Remedy.ESCALATE,
        "Too many sessions were lost while they held the step: another attempt would use up the agents.",
    ),
    Rule(
        "unknown-used-up",
        _ACTION,
        frozenset({T.ATTEMPT_UNKNOWN, T.LEASE_LOST}),
        By.ON_UNKNOWN,
        "Nobody knows whether the last attempt has happened.",
    ),
    Rule(
        "unknown",
        _ACTION,
        OF_STEPS,
        By.ON_UNKNOWN,
        "Nobody knows whether the attempt has happened, and it may not be repeated.",
        when=("uncertain",),
        unless=("repeatable",),
    ),
    Rule(
        "exhausted",
        _ACTION,
        OF_STEPS,
        By.ON_EXHAUSTED,
        "No attempt is left, or no time for one, or the failure rules another out.",
    ),
    Rule(
        "deadline-late",
        _JOB,
        frozenset({T.JOB_DEADLINE}),
        Remedy.NONE,
        "The job is being undone already, and goes on with that.",
        unless=("wanted",),
    ),
    Rule(
        "deadline",
        _JOB,
        frozenset({T.JOB_DEADLINE}),
        By.ON_DEADLINE,
        "The job has not ended within its deadline.",
    ),
    Rule(
        "stuck",
        _JOB,
        frozenset({T.STUCK}),
        Remedy.ESCALATE,
        "Nothing will ever move the job: a bug of the server, from whose rows no rule should go on.",
    ),
)
# A remedy that turns a job around, which is not possible behind its point of no return.
TURNS_BACK: Final = frozenset({Remedy.COMPENSATE, Remedy.CANCEL})
# A remedy that gives a job another direction, which a policy may leave to a person.
MAY_NEED_APPROVAL: Final = frozenset({Remedy.COMPENSATE, Remedy.CONTINUE, Remedy.FAIL})


def decide(trouble: Trouble, policy: RemedyPolicy, facts: Facts) -> Decision:
    """What to do about trouble. Every case that can come has a rule; one without is a bug."""
    rule = next((rule for rule in RULES if rule.fits(trouble, policy, facts)), None)
    assert rule is not None, (trouble, policy, facts)
    told = rule.told or trouble
    if isinstance(rule.remedy, Remedy):
        return Decision(rule.remedy, rule, told)
    remedy = chosen(rule.remedy, policy)
    if remedy in TURNS_BACK and facts.past_pivot:
        return Decision(Remedy.ESCALATE, rule, told)
    if remedy in MAY_NEED_APPROVAL and policy.approval is Approval.REQUIRED:
        return Decision(Remedy.ESCALATE, rule, told, proposed=remedy)
    return Decision(remedy, rule, told)


def chosen(by: By, policy: RemedyPolicy) -> Remedy:
    """The remedy that a policy names."""
    named: OnExhausted | OnUnknown | OnDeadline = getattr(policy, by.value)
    return Remedy[named.name]
