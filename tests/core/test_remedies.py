"""The decision table against one that is written out, over every case that there is, and what must hold of all."""

from __future__ import annotations

from functools import cache
from itertools import product
from typing import TYPE_CHECKING

import pytest

from stepward.server.core.options import Approval, Effect, OnDeadline, OnExhausted, OnUnknown, Reassign, StartMode
from stepward.server.core.parts import Part, Remedy, Trouble
from stepward.server.core.remedies import RULES, By, Facts, RemedyPolicy, decide
from stepward.v1 import definition_pb2
from tests.core import policies_page
from tests.core.remedy_table import TABLE, expected

if TYPE_CHECKING:
    from collections.abc import Iterator
    from enum import IntEnum

# What trouble is told as when it has come to its end, and that nothing meets as such.
TOLD_ONLY = {Trouble.UNDO_FAILED, Trouble.UNDO_UNKNOWN}
FLAGS = tuple(name for name in Facts._fields if name != "part")


@cache
def policies(part: Part | None) -> tuple[RemedyPolicy, ...]:
    """Every policy that counts for a part, or for the job."""
    if part is None:
        return tuple(RemedyPolicy(on_deadline=on_deadline) for on_deadline in OnDeadline)
    chosen = product((True, False), OnExhausted, OnUnknown, Approval)
    return tuple(RemedyPolicy(*each) for each in chosen)


def cases(part: Part | None, trouble: Trouble) -> Iterator[tuple[Trouble, RemedyPolicy, Facts]]:
    """Every policy under all circumstances."""
    for flags in product((True, False), repeat=len(FLAGS)):
        facts = Facts(part, *flags)
        for policy in policies(part):
            yield trouble, policy, facts


def test_table_is_complete() -> None:
    """Each trouble that can be met has a line for whatever it can meet."""
    met = set(Trouble) - TOLD_ONLY
    of_jobs = {Trouble.JOB_DEADLINE, Trouble.STUCK}

    assert set(TABLE) == set(product(Part, met - of_jobs)) | {(None, trouble) for trouble in of_jobs}


@pytest.mark.parametrize(("part", "trouble"), TABLE, ids=str)
def test_every_case(part: Part | None, trouble: Trouble) -> None:
    """The rules say what the table says, for every policy under all circumstances."""
    for each in cases(part, trouble):
        decision = decide(*each)

        assert (decision.remedy, decision.trouble, decision.proposed) == expected(*each), (each, decision.rule.name)


def test_nothing_decides_twice() -> None:
    """Every rule is the first that fits some case: none stands behind others that leave it nothing."""
    used = {decide(*case).rule.name for part, trouble in TABLE for case in cases(part, trouble)}

    assert {rule.name for rule in RULES} == used
    assert len(used) == len(RULES)


@pytest.mark.parametrize(("part", "trouble"), TABLE, ids=str)
def test_what_holds_of_all(part: Part | None, trouble: Trouble) -> None:
    """Rules above all policies, each of which would do harm if it were broken."""
    for case in cases(part, trouble):
        _, policy, facts = case
        decision = decide(*case)
        if decision.remedy in (Remedy.RETRY, Remedy.REASSIGN):
            # What may have happened is repeated only where that does no harm, and nothing is for ever.
            assert policy.repeatable or trouble is Trouble.ATTEMPT_FAILED or facts.never_started, case
            assert facts.left or facts.never_started, case
        if facts.past_pivot:
            assert decision.remedy not in (Remedy.COMPENSATE, Remedy.CANCEL), case
            assert decision.proposed not in (Remedy.COMPENSATE, Remedy.CANCEL), case
        if policy.approval is Approval.REQUIRED and part is Part.ACTION:
            assert decision.remedy not in (Remedy.COMPENSATE, Remedy.CONTINUE, Remedy.FAIL), case
        if decision.proposed is not Remedy.NONE:
            assert decision.remedy is Remedy.ESCALATE, case
        if part is Part.UNDO:
            # What is half undone is a person's, whatever the policy of its action says.
            assert decision.remedy not in (Remedy.COMPENSATE, Remedy.CONTINUE, Remedy.FAIL, Remedy.NONE), case


def test_a_case_without_a_rule_is_a_bug() -> None:
    """It is told, and not passed over."""
    with pytest.raises(AssertionError, match="UNDO_FAILED"):
        decide(Trouble.UNDO_FAILED, RemedyPolicy(), Facts(Part.ACTION))


def test_options_name_remedies() -> None:
    """Whatever a definition may choose is something that can be done."""
    named = {member.name for member in (*OnExhausted, *OnUnknown, *OnDeadline)}

    assert named <= set(Remedy.__members__)
    assert {by.value for by in By} <= set(RemedyPolicy._fields)


@pytest.mark.parametrize("type_", [Approval, Effect, OnDeadline, OnExhausted, OnUnknown, Reassign, StartMode])
def test_options_are_those_of_the_contract(type_: type[IntEnum]) -> None:
    """Numbers and names are equal, so that no table has to translate them."""
    values = definition_pb2.DESCRIPTOR.enum_types_by_name[type_.__name__].values
    prefix = values[0].name.removesuffix("UNSPECIFIED")

    assert {value.name.removeprefix(prefix): value.number for value in values if value.number} == dict(
        type_.__members__
    )


def test_page_tells_the_rules() -> None:
    """Whoever changes a rule writes the page anew, with `make docs`, and names every word that the rules use."""
    used = {name for rule in RULES for name in (*rule.when, *rule.unless)}

    assert policies_page.PAGE.read_text() == policies_page.page()
    assert all(f"| {name} |" in policies_page.page() for name in used)
