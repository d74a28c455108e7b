"""A few bad minutes are supervised as it is promised, and a supervisor that breaks a promise is seen within them."""

from __future__ import annotations

from typing import Final

import pytest

from tests.museum.planting import Patch, planted
from tests.soak.days import Days
from tests.soak.figures import table
from tests.soak.judge import WrongError

# What is different every time, and the minutes that `make soak` runs for hours.
SECONDS: Final = 420
SEED: Final = 6
HALF_HOUR_S = 1_800
# What must have been met: everything that agents and services do to a supervisor.
MEANT: Final = (
    "agent lost",
    "LEASE_LOST",
    "START_TO_CLOSE",
    "HEARTBEAT",
    "SCHEDULE_TO_CLOSE",
    "OFFER_UNANSWERED",
    "QUEUE_TIME (waiting)",
    "JOB_DEADLINE",
)
_CORE: Final = "stepward.server.core"
# Rules without which some promise is broken, and as what the judge calls that.
BROKEN: Final = {
    "sweeps come every five seconds": (
        Patch(
            "tests.soak.shard:Shard._plan_sweep", "self._plan += 1", "self._plan += 1; wait_ms = max(wait_ms, 5_000)"
        ),
        {"late", "missed"},
    ),
    "the brake lets everything through": (
        Patch(f"{_CORE}.brake:hold", "if missing <= 0:", "if True:"),
        {"brake"},
    ),
    "work is judged 300 ms early": (
        Patch(
            f"{_CORE}.schedules:working",
            "step.started_log_ms + policy.start_to_close_ms",
            "step.started_log_ms + policy.start_to_close_ms - 300",
        ),
        {"early"},
    ),
    "a lease is over when its agent may still work": (
        Patch(f"{_CORE}.leases:session_end_led_ms", "ttl_ms + -(-ttl_ms // 3)", "ttl_ms // 2"),
        {"healthy"},
    ),
    "a lease is over 3 s late": (
        Patch(
            f"{_CORE}.sessions:arm",
            "end_led_ms = ends_led_ms(batch, session)",
            "end_led_ms = 3_000 + ends_led_ms(batch, session)",
        ),
        {"late", "missed"},
    ),
    "signs of life are not heard": (
        Patch(
            f"{_CORE}.reports:_progressed", "batch.draft.put(key, rows.StepProgress(kept, batch.moment.log_ms))", "pass"
        ),
        {"early"},
    ),
    "losses are not written down": (
        Patch(
            f"{_CORE}.remediation:record",
            "if decision.remedy is Remedy.NONE",
            "if decision.trouble is Trouble.LEASE_LOST",
        ),
        {"not written down"},
    ),
    "everything is written down twice": (
        Patch(
            f"{_CORE}.remediation:record",
            "rule = decision.rule.name",
            "rule = decision.rule.name; ledger.record(batch, job_id, ordinal, decision.trouble, remedy, rule=rule)",
        ),
        {"unexplained"},
    ),
    "steps that wait are not looked at": (
        Patch(f"{_CORE}.supervision:_waited_too_long", "if not brake.take(job_id, ordinal):", "if True:"),
        {"missed"},
    ),
}


def test_bad_minutes(only_seed: int | None) -> None:
    """Everything is noticed within its time and written down once, within the brake, and nothing that is well."""
    days = Days(SEED if only_seed is None else only_seed)
    days.run(SECONDS)

    print(table(days))
    if only_seed is None:
        assert [name for name in MEANT if not days.judge.late_ms[name]] == []


@pytest.mark.slow
@pytest.mark.timeout(1_800)
def test_bad_half_hour(only_seed: int | None) -> None:
    """The same for longer; `make soak` plays as many hours as one likes."""
    days = Days(SEED if only_seed is None else only_seed)
    days.run(HALF_HOUR_S)

    print(table(days))


@pytest.mark.slow
@pytest.mark.parametrize("name", BROKEN)
def test_broken_promise_is_seen(name: str) -> None:
    patch, kinds = BROKEN[name]
    with planted(patch), pytest.raises(WrongError) as wrong:
        Days(SEED).run(SECONDS)

    assert wrong.value.kind in kinds, wrong.value
