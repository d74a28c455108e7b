"""How soon trouble is noticed: what is promised of a definition, in numbers and in words."""

from __future__ import annotations

import pytest

from stepward.server.core import latencies
from stepward.server.core.definition_source import (
    DefinitionSource,
    RetrySource,
    TimeoutsSource,
    UndoSource,
    VerifySource,
)
from stepward.server.core.limits import Limits
from stepward.server.core.parts import Part, Trouble
from tests.core.definitions import LIMITS, compiled, step, trip

T = Trouble


def told(source: DefinitionSource) -> dict[tuple[str, Part | None, Trouble], tuple[int, str]]:
    """What is promised of a definition."""
    found = latencies.detections(compiled(source), LIMITS)
    return {(one.step_id, one.part, one.trouble): (one.within_ms, one.text) for one in found}


def test_a_step_with_every_bound() -> None:
    """Each bound is a promise of its own, with what it is made of."""
    bounds = TimeoutsSource(start_to_close_ms=30_000, queue_ms=60_000, heartbeat_ms=500, schedule_to_close_ms=3_600_000)
    source = DefinitionSource(
        "trip", (step("pay", timeouts=bounds, retry=RetrySource(time_ms_max=120_000)),), deadline_ms=86_400_000
    )

    assert told(source) == {
        ("", None, T.JOB_DEADLINE): (
            86_401_000,
            "a job that does not end is noticed within 1 d 1 s of its submission: deadline 1 d + sweep 1 s",
        ),
        ("pay", Part.ACTION, T.LEASE_LOST): (
            16_934,
            "a crashed agent is noticed within 17 s of led time: TTL 10 s x 4/3 + kill grace 2 s + margin 0.6 s + "
            "sweep 1 s",
        ),
        ("pay", Part.ACTION, T.OFFER_UNANSWERED): (
            11_000,
            "an offer without an answer is noticed within 11 s of being made: accept deadline 10 s + sweep 1 s",
        ),
        ("pay", Part.ACTION, T.START_TO_CLOSE): (
            31_000,
            "an attempt that does not end is noticed within 31 s of its start: start_to_close 30 s + sweep 1 s",
        ),
        ("pay", Part.ACTION, T.HEARTBEAT): (
            1_500,
            "an attempt without a sign of life is noticed within 1.5 s of the last one: heartbeat 0.5 s + sweep 1 s",
        ),
        ("pay", Part.ACTION, T.QUEUE_TIME): (
            61_000,
            "a step that nobody takes is noticed within 1 min 1 s of being ready: queue 1 min + sweep 1 s",
        ),
        ("pay", Part.ACTION, T.SCHEDULE_TO_CLOSE): (
            3_611_000,
            "a step that does not end, with all its attempts, is noticed within 1 h 11 s of being ready first: "
            "schedule_to_close 1 h + accept deadline 10 s + sweep 1 s",
        ),
        ("pay", Part.ACTION, T.RETRY_TIME): (
            121_000,
            "a step that may not be tried again is noticed within 2 min 1 s of being ready first: time_max of its "
            "retries 2 min + sweep 1 s",
        ),
    }


def test_the_parts_of_a_step_have_bounds_of_their_own() -> None:
    """Those that were left out have their defaults; what has no bound is not promised."""
    source = trip(step("a", undo=UndoSource("u", timeouts=TimeoutsSource(1_000)), verify=VerifySource("v")))
    bounds = {key[1:]: within_ms for key, (within_ms, _) in told(source).items()}

    assert bounds[Part.UNDO, T.START_TO_CLOSE] == 2_000
    assert bounds[Part.ACTION, T.START_TO_CLOSE] == bounds[Part.VERIFY, T.START_TO_CLOSE] == 601_000
    assert {part for part, _ in bounds} == set(Part)
    assert not {trouble for _, trouble in bounds} & {T.HEARTBEAT, T.SCHEDULE_TO_CLOSE, T.RETRY_TIME, T.JOB_DEADLINE}


@pytest.mark.parametrize(("ttl_ms", "lost_ms"), [(3_000, 7_530), (10_000, 16_934), (60_000, 84_100)])
def test_a_lost_agent(ttl_ms: int, lost_ms: int) -> None:
    """TTL x 4/3 + kill grace + margin + a sweep, whatever the TTL."""
    limits = Limits(session_ttl_ms=ttl_ms)

    assert latencies.lost_agent_ms(limits) == latencies.beyond_bound_ms(T.LEASE_LOST, limits) == lost_ms
    assert latencies.beyond_bound_ms(T.OFFER_UNANSWERED, limits) == ttl_ms + 1_000
    assert latencies.beyond_bound_ms(T.SCHEDULE_TO_CLOSE, limits) == ttl_ms + 1_000
    assert latencies.beyond_bound_ms(T.QUEUE_TIME, limits) == 1_000


def test_promises_are_bounded() -> None:
    """Of the widest definition the first ones are told, whole: some 400 KiB, which every client takes."""
    source = trip(*(step(f"s{number}", undo=UndoSource("u")) for number in range(LIMITS.steps_max)))
    found = latencies.detections(compiled(source), LIMITS)

    assert len(found) == latencies.DETECTIONS_MAX
    assert sum(len(one.text) for one in found) < 400_000


@pytest.mark.parametrize(
    ("ms", "words"),
    [(0, "0 s"), (1, "0.001 s"), (600, "0.6 s"), (1_000, "1 s"), (61_500, "1 min 1.5 s"), (90_000_000, "1 d 1 h")],
)
def test_in_words(ms: int, words: str) -> None:
    """As people say it, and exact."""
    assert latencies.in_words(ms) == words
