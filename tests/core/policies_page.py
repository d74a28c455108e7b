"""Writes docs/policies.md, which tells of every rule of what is done about trouble, from the rules themselves."""

from __future__ import annotations

from typing import Final

from stepward.server.core import latencies
from stepward.server.core.limits import Limits
from stepward.server.core.parts import Part, Remedy, Trouble
from stepward.server.core.remedies import OF_STEPS, RULES, By, Rule
from tests.repo.sources import ROOT

PAGE: Final = ROOT / "docs" / "policies.md"
_HEAD: Final = """\
# What is done about trouble

One table decides what is done about everything that goes wrong with a step or a job, from what the definition says and
how things stand. The rules are gone through in their order, and the first that fits counts. Every remedy stands in the
ledger with the name of its rule (`stepward ledger list`); sending an offer again and withdrawing it change nothing,
and stand in the history of the job alone. [jobs.md](jobs.md) says how a policy is written.

This page is written by `make docs` from the rules; a test keeps it equal to them, and another one holds the rules
against a table of all cases.

| rule | of | trouble | if | remedy | why |
|---|---|---|---|---|---|
"""
_TAIL: Final = """
Two rules stand above what a policy names:

- Once the point of no return of a job (`effect: pivot`) has succeeded, or may have, nothing of the job is undone: what
  would be COMPENSATE or CANCEL is ESCALATE.
- With `approval: required` COMPENSATE, CONTINUE and FAIL are only proposed: the step waits for a person, whose incident
  names what is proposed, and who approves it or chooses something else.

## What the words mean

| word | holds when |
|---|---|
"""
_WORDS: Final = {
    "wanted": "what it is at work for still goes on: its job is not being stopped",
    "at_work": "an agent held it, so that an attempt ends here",
    "never_started": "it starts when its accept is committed, which it was not",
    "left": "attempts and time are left for another one, and the failure does not rule it out",
    "final": "its handler vouches that the failure is known and that repeating is of no use",
    "askable": "the step has a `verify`, which was not asked about this attempt yet",
    "resends_left": "the offer may be sent once more",
    "repeatable": "its effect is idempotent; a question always is",
    "uncertain": "nobody knows whether it happened: it was lost, timed out at work, or failed in a way that hides it",
}
_PARTS: Final = {Part.ACTION: "action", Part.UNDO: "undo", Part.VERIFY: "verify", None: "job"}


def page() -> str:
    """The whole page."""
    lines = [_line(rule) for rule in RULES]
    words = [f"| {name} | {meaning} |" for name, meaning in _WORDS.items()]
    return f"{_HEAD}{_joined(lines)}{_TAIL}{_joined(words)}\n## How soon it is noticed\n\n{_soon()}"


def _joined(lines: list[str]) -> str:
    return "".join(f"{line}\n" for line in lines)


def _line(rule: Rule) -> str:
    parts = ", ".join(name for part, name in _PARTS.items() if part in rule.parts)
    troubles = ", ".join(trouble.name for trouble in Trouble if trouble in rule.troubles)
    if rule.troubles == OF_STEPS:
        troubles = "any other of a step"
    conditions = ", ".join([*rule.when, *(f"not {name}" for name in rule.unless)])
    if isinstance(rule.remedy, By):
        remedy = f"as `{rule.remedy.value}` says"
    else:
        remedy = "nothing" if rule.remedy is Remedy.NONE else rule.remedy.name
    told = f", told as {rule.told.name}" if rule.told is not None else ""
    return f"| `{rule.name}` | {parts} | {troubles} | {conditions} | {remedy}{told} | {rule.why} |"


def _soon() -> str:
    limits = Limits()
    lost = latencies.in_words(-(-latencies.lost_agent_ms(limits) // 1_000) * 1_000)
    sweep, offer = latencies.in_words(latencies.SWEEP_MS), latencies.in_words(limits.accept_deadline_ms)
    ttl = latencies.in_words(limits.session_ttl_ms)
    return f"""\
While a leader leads, what has gone beyond a bound is noticed within {sweep}. With a TTL of {ttl} a crashed agent is
noticed within {lost} of led time, and an offer without an answer within {offer} and a sweep of being made. What agents
report is noticed with the report. `stepward definition validate` prints the bounds of each step of a definition, and
what they are made of. When many agents are lost together the supervisor notices as soon, and remedies a few first.
"""


if __name__ == "__main__":
    PAGE.write_text(page())
