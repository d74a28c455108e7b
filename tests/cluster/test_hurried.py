"""The judge of steps that fell due while a leader stood still sees each thing that could be wrong with a ledger."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from stepward.client.incident_values import LedgerEntry, Remedy, RemedyBy, Trouble
from tests.cluster.hurried import STEP, breaches
from tests.cluster.remedy_witness import Attempt

FIRST = Attempt("job", STEP, 5)
SECOND = Attempt("job", STEP, 6)
WANTED = {FIRST: {("n1", 1), ("n2", 2)}, SECOND: {("n2", 2)}}


def entry(
    serial: int, attempt: Attempt, *, remedy: Remedy = Remedy.REASSIGN, by: RemedyBy = RemedyBy.SUPERVISOR
) -> LedgerEntry:
    return LedgerEntry(
        serial=serial,
        at=None,
        epoch=2,
        job_id=attempt.job_id,
        step_id=attempt.step_id,
        token=attempt.token,
        trouble=Trouble.START_TO_CLOSE,
        remedy=remedy,
        by=by,
    )


@pytest.mark.parametrize(
    ("entries", "executions"),
    [
        # Two leaders wanted it, and it was done once.
        ([entry(1, FIRST)], {FIRST: 1, SECOND: 1}),
        # The second offer was lost on the way.
        ([entry(1, FIRST), entry(2, SECOND)], {FIRST: 1, Attempt("job", STEP, 7): 1}),
        # An agent said that it had failed.
        ([entry(1, FIRST), entry(2, SECOND, by=RemedyBy.REPORT)], {FIRST: 1, SECOND: 1, Attempt("job", STEP, 7): 1}),
        # An offer was sent again, which ends nothing.
        ([entry(1, FIRST, remedy=Remedy.RESEND), entry(2, FIRST)], {FIRST: 1, SECOND: 1}),
    ],
)
def test_sound_ledger(entries: list[LedgerEntry], executions: Mapping[Attempt, int]) -> None:
    assert breaches(entries, WANTED, executions, ["job"]) == []


@pytest.mark.parametrize(
    ("entries", "executions", "said"),
    [
        ([entry(1, FIRST), entry(2, FIRST)], {FIRST: 1}, "was remedied 2 times"),
        ([entry(1, FIRST), entry(1, SECOND)], {FIRST: 1}, "the serials have gaps or repeat"),
        ([entry(1, FIRST), entry(3, SECOND)], {FIRST: 1}, "the serials have gaps or repeat"),
        ([entry(1, FIRST), entry(2, Attempt("job", STEP, 9))], {FIRST: 1}, "no supervisor wanted that"),
        ([], {FIRST: 1}, "hung and was never remedied"),
        ([entry(1, FIRST, remedy=Remedy.RESEND)], {FIRST: 1}, "hung and was never remedied"),
        ([entry(1, FIRST)], {FIRST: 1, SECOND: 2}, "was executed 2 times"),
        ([entry(1, FIRST)], {FIRST: 1, SECOND: 1, Attempt("job", STEP, 7): 1}, "was executed under 3 tokens"),
    ],
)
def test_ledger_that_is_wrong(entries: list[LedgerEntry], executions: Mapping[Attempt, int], said: str) -> None:
    found = breaches(entries, WANTED, executions, ["job"])

    assert len(found) == 1
    assert said in found[0]
