"""Ids of jobs rise, whatever the clock does."""

from __future__ import annotations

import random
import uuid

import pytest
from typing_extensions import override

from stepward.server.job_ids import JobIds, is_job_id, shard_of

WALL_MS = 1_900_000_000_000


def test_ids_rise_within_a_millisecond() -> None:
    """Also when more are drawn than a counter from zero would suggest."""
    ids = JobIds(0, random.Random(1))

    drawn = [ids.draw(WALL_MS) for _ in range(10_000)]

    assert drawn == sorted(set(drawn))


def test_ids_rise_when_the_clock_goes_back() -> None:
    """The last instant that was used is used again."""
    ids = JobIds(0, random.Random(1))

    drawn = [ids.draw(at) for at in (WALL_MS, WALL_MS - 60_000, WALL_MS, WALL_MS + 1)]

    assert drawn == sorted(set(drawn))


def test_ids_rise_over_a_restart() -> None:
    """They continue behind the newest job that is stored, although the clock was set back meanwhile."""
    newest = JobIds(0, random.Random(1)).draw(WALL_MS)

    later = JobIds(0, random.Random(2), newest=newest).draw(WALL_MS - 60_000)

    assert later > newest


def test_counter_that_overflows_takes_the_next_millisecond() -> None:
    """The greatest counter is followed by a greater id all the same."""

    class Greatest(random.Random):
        @override
        def getrandbits(self, k: int, /) -> int:
            return (1 << k) - 1

    ids = JobIds(0, Greatest())
    # Half of the counter's room lies above its first value, in steps of 2^32: too many to draw.
    ids._counter = (1 << 74) - 2
    first = ids.draw(0)
    second = ids.draw(0)

    assert first < second
    assert uuid.UUID(second[2:]).version == 7


def test_ids_are_uuids_of_version_7_behind_their_shard() -> None:
    """And hold the instant at which they were drawn."""
    drawn = JobIds(3, random.Random(1)).draw(WALL_MS)

    parsed = uuid.UUID(drawn.removeprefix("3-"))
    assert (parsed.version, parsed.variant) == (7, uuid.RFC_4122)
    assert parsed.int >> 80 == WALL_MS
    assert shard_of(drawn) == 3


@pytest.mark.parametrize(
    ("text", "is_id"),
    [
        ("0-" + "0" * 32, True),
        ("99999-" + "f" * 32, True),
        ("100000-" + "f" * 32, False),
        ("00-" + "0" * 32, False),
        ("0-" + "0" * 31, False),
        ("0-" + "0" * 33, False),
        ("0-" + "F" * 32, False),
        ("0-" + "0" * 32 + "\n", False),
        ("-" + "0" * 32, False),
        ("", False),
    ],
)
def test_shape_of_an_id(text: str, is_id: bool) -> None:
    """What has another shape is never looked up."""
    assert is_job_id(text) is is_id
