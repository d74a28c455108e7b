"""Three clocks that only batches move."""

import random

import pytest

from stepward.server.core.clocks import LED_STEP_MS_MAX, Clocks, advance, reopen
from stepward.server.core.rows import Head

HEAD = Head(
    sequence=7,
    hash=b"seven",
    epoch=3,
    incarnation=1,
    led_ms=10_000,
    log_ms=50_000,
    wall_ms=1_000_000,
    decided_steady_ms=600,
    boot_id="boot-1",
)


@pytest.mark.parametrize(
    ("steady_ms", "wall_ms", "expected"),
    [
        # Nothing passed.
        (600, 1_000_000, Clocks(10_000, 50_000, 1_000_000)),
        # All three move together.
        (750, 1_000_150, Clocks(10_150, 50_150, 1_000_150)),
        # The most that one batch moves led time, exactly and beyond: the rest was a pause and goes to log time.
        (2_600, 1_002_000, Clocks(12_000, 52_000, 1_002_000)),
        (2_601, 1_002_001, Clocks(12_000, 52_001, 1_002_001)),
        (1_000_600, 2_000_000, Clocks(12_000, 1_050_000, 2_000_000)),
        # The wall clock was set back: wall time waits, the others do not care.
        (700, 5, Clocks(10_100, 50_100, 1_000_000)),
        # It was set forward: leases do not care.
        (700, 99_000_000, Clocks(10_100, 50_100, 99_000_000)),
        # A steady clock that went back is none; at least nothing goes back with it.
        (500, 1_000_000, Clocks(10_000, 50_000, 1_000_000)),
    ],
)
def test_advance(steady_ms: int, wall_ms: int, expected: Clocks) -> None:
    """Within an epoch all clocks follow the leader's steady clock; led time by a bounded step."""
    assert advance(HEAD, steady_ms=steady_ms, wall_ms=wall_ms) == expected


@pytest.mark.parametrize(
    ("gap_ms", "wall_ms", "expected"),
    [
        (0, 1_000_000, Clocks(10_000, 50_000, 1_000_000)),
        # The gap goes to log time, whatever the wall clock says.
        (300, 1_000_300, Clocks(10_000, 50_300, 1_000_300)),
        (300, 5, Clocks(10_000, 50_300, 1_000_000)),
        (3_600_000, 1_000_000, Clocks(10_000, 3_650_000, 1_000_000)),
    ],
)
def test_reopen(gap_ms: int, wall_ms: int, expected: Clocks) -> None:
    """A gap without a leader goes to log time only, so no lease dies in it."""
    assert reopen(HEAD, gap_ms=gap_ms, wall_ms=wall_ms) == expected


def test_no_history_turns_a_clock_back_or_hurries_led_time(only_seed: int | None) -> None:
    """Whatever the clocks of the machine do, ours rise, and led time never outruns the steady clock."""
    seed = random.randrange(1 << 32) if only_seed is None else only_seed
    print(f"--seed {seed}")
    chance = random.Random(seed)
    head, boot, steady_ms, wall_ms, passed_ms = HEAD, 1, HEAD.decided_steady_ms, HEAD.wall_ms, 0
    for _ in range(2_000):
        step_ms = chance.choice([0, 1, 50, 1_000, LED_STEP_MS_MAX + 1, 60_000])
        steady_ms, passed_ms = steady_ms + step_ms, passed_ms + step_ms
        wall_ms += step_ms + chance.choice([0, 0, 0, -90_000, 90_000])
        if chance.random() < 0.02:
            boot, steady_ms = boot + 1, chance.randrange(1_000)
        if head.boot_id == f"boot-{boot}" and chance.random() < 0.9:
            moved = advance(head, steady_ms=steady_ms, wall_ms=wall_ms)
        else:
            moved = reopen(head, gap_ms=chance.randrange(step_ms + 1), wall_ms=wall_ms)
        assert 0 <= moved.led_ms - head.led_ms <= min(LED_STEP_MS_MAX, step_ms)
        assert moved.log_ms >= head.log_ms
        assert moved.wall_ms >= head.wall_ms
        assert moved.led_ms - head.led_ms <= moved.log_ms - head.log_ms
        head = Head(7, b"", 3, 1, moved.led_ms, moved.log_ms, moved.wall_ms, steady_ms, f"boot-{boot}")

    assert head.led_ms - HEAD.led_ms <= passed_ms
