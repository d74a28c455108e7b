"""What is to be done about trouble, written out case by case, apart from the rules that the server has for it.

By part and trouble: conditions, in their order, and what follows from the first that holds. A condition is made of the
names of facts, and "repeatable" of the policy, each with a "!" before it when it must not hold; "else" always holds.
What follows is a remedy, or the option of a definition that names one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from stepward.server.core.options import Approval
from stepward.server.core.parts import Part, Remedy, Trouble

if TYPE_CHECKING:
    from stepward.server.core.remedies import Facts, RemedyPolicy

T = Trouble
Lines = tuple[tuple[str, str], ...]

_UNWANTED = ("!wanted", "NONE")
_ASK = ("askable", "VERIFY")
_WAITED: Lines = (_UNWANTED, ("else", "on_exhausted"))
_TIMED_OUT: Lines = (
    _UNWANTED,
    _ASK,
    ("left repeatable at_work", "REASSIGN"),
    ("at_work !repeatable", "on_unknown"),
    ("else", "on_exhausted"),
)
_UNANSWERED: Lines = (("never_started", "REASSIGN"), ("resends_left", "RESEND"), ("else", "WITHDRAW"))
_QUESTION_REASSIGNED: Lines = (_UNWANTED, ("left repeatable at_work", "REASSIGN"), ("else", "CONTINUE"))
_QUESTION_REPEATED: Lines = (_UNWANTED, ("left repeatable", "RETRY"), ("else", "CONTINUE"))
_QUESTION_OVER: Lines = (_UNWANTED, ("else", "CONTINUE"))
_UNDO_TIMED_OUT: Lines = (
    ("left repeatable at_work", "REASSIGN"),
    ("at_work !repeatable", "ESCALATE UNDO_UNKNOWN"),
    ("else", "ESCALATE UNDO_FAILED"),
)
_UNDO_OVER: Lines = (("else", "ESCALATE UNDO_FAILED"),)

TABLE: Final[dict[tuple[Part | None, Trouble], Lines]] = {
    (Part.ACTION, T.ATTEMPT_FAILED): (_UNWANTED, ("left", "RETRY"), ("else", "on_exhausted")),
    (Part.ACTION, T.ATTEMPT_BROKEN): (
        _UNWANTED,
        _ASK,
        ("left repeatable", "RETRY"),
        ("!repeatable !final", "on_unknown"),
        ("else", "on_exhausted"),
    ),
    (Part.ACTION, T.ATTEMPT_UNKNOWN): (_UNWANTED, _ASK, ("left repeatable", "RETRY"), ("else", "on_unknown")),
    (Part.ACTION, T.LEASE_LOST): (
        ("never_started", "REASSIGN"),
        _UNWANTED,
        _ASK,
        ("left repeatable at_work", "REASSIGN"),
        ("else", "on_unknown"),
    ),
    (Part.ACTION, T.START_TO_CLOSE): _TIMED_OUT,
    (Part.ACTION, T.HEARTBEAT): _TIMED_OUT,
    (Part.ACTION, T.SCHEDULE_TO_CLOSE): _TIMED_OUT,
    (Part.ACTION, T.QUEUE_TIME): _WAITED,
    (Part.ACTION, T.RETRY_TIME): _WAITED,
    (Part.ACTION, T.INPUT): _WAITED,
    (Part.ACTION, T.POISON): (_UNWANTED, ("else", "ESCALATE")),
    (Part.ACTION, T.OFFER_UNANSWERED): _UNANSWERED,
    (Part.UNDO, T.ATTEMPT_FAILED): (("left", "RETRY"), ("else", "ESCALATE UNDO_FAILED")),
    (Part.UNDO, T.ATTEMPT_BROKEN): (
        ("left repeatable", "RETRY"),
        ("!repeatable !final", "ESCALATE UNDO_UNKNOWN"),
        ("else", "ESCALATE UNDO_FAILED"),
    ),
    (Part.UNDO, T.ATTEMPT_UNKNOWN): (
        ("left repeatable", "RETRY"),
        ("!repeatable", "ESCALATE UNDO_UNKNOWN"),
        ("else", "ESCALATE UNDO_FAILED"),
    ),
    (Part.UNDO, T.LEASE_LOST): (
        ("never_started", "REASSIGN"),
        ("left repeatable at_work", "REASSIGN"),
        ("!repeatable", "ESCALATE UNDO_UNKNOWN"),
        ("else", "ESCALATE UNDO_FAILED"),
    ),
    (Part.UNDO, T.START_TO_CLOSE): _UNDO_TIMED_OUT,
    (Part.UNDO, T.HEARTBEAT): _UNDO_TIMED_OUT,
    (Part.UNDO, T.SCHEDULE_TO_CLOSE): _UNDO_TIMED_OUT,
    (Part.UNDO, T.QUEUE_TIME): _UNDO_OVER,
    (Part.UNDO, T.RETRY_TIME): _UNDO_OVER,
    (Part.UNDO, T.INPUT): _UNDO_OVER,
    (Part.UNDO, T.POISON): (("!repeatable", "ESCALATE UNDO_UNKNOWN"), ("else", "ESCALATE UNDO_FAILED")),
    (Part.UNDO, T.OFFER_UNANSWERED): _UNANSWERED,
    (Part.VERIFY, T.ATTEMPT_FAILED): (_UNWANTED, ("left", "RETRY"), ("else", "CONTINUE")),
    (Part.VERIFY, T.ATTEMPT_BROKEN): _QUESTION_REPEATED,
    (Part.VERIFY, T.ATTEMPT_UNKNOWN): _QUESTION_REPEATED,
    (Part.VERIFY, T.LEASE_LOST): (("never_started", "REASSIGN"), *_QUESTION_REASSIGNED),
    (Part.VERIFY, T.START_TO_CLOSE): _QUESTION_REASSIGNED,
    (Part.VERIFY, T.HEARTBEAT): _QUESTION_REASSIGNED,
    (Part.VERIFY, T.SCHEDULE_TO_CLOSE): _QUESTION_REASSIGNED,
    (Part.VERIFY, T.QUEUE_TIME): _QUESTION_OVER,
    (Part.VERIFY, T.RETRY_TIME): _QUESTION_OVER,
    (Part.VERIFY, T.INPUT): _QUESTION_OVER,
    (Part.VERIFY, T.POISON): _QUESTION_OVER,
    (Part.VERIFY, T.OFFER_UNANSWERED): _UNANSWERED,
    (None, T.JOB_DEADLINE): (_UNWANTED, ("else", "on_deadline")),
    (None, T.STUCK): (("else", "ESCALATE"),),
}


def expected(trouble: Trouble, policy: RemedyPolicy, facts: Facts) -> tuple[Remedy, Trouble, Remedy]:
    """The remedy, what the trouble is told as, and what is only proposed."""
    lines = TABLE[facts.part, trouble]
    said = next(said for condition, said in lines if _holds(condition, policy, facts))
    if not said.startswith("on_"):
        name, _, told = said.partition(" ")
        return Remedy[name], Trouble[told] if told else trouble, Remedy.NONE
    remedy = Remedy[getattr(policy, said).name]
    if facts.past_pivot and remedy.name in ("COMPENSATE", "CANCEL"):
        return Remedy.ESCALATE, trouble, Remedy.NONE
    if policy.approval is Approval.REQUIRED and remedy.name in ("COMPENSATE", "CONTINUE", "FAIL"):
        return Remedy.ESCALATE, trouble, remedy
    return remedy, trouble, Remedy.NONE


def _holds(condition: str, policy: RemedyPolicy, facts: Facts) -> bool:
    known = facts._asdict() | {"repeatable": policy.repeatable, "else": True}
    return all(bool(known[word.removeprefix("!")]) is not word.startswith("!") for word in condition.split())
