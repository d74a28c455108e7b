"""How long commands gather: nobody waits for company that never comes, and under load a step takes many."""

from __future__ import annotations

import pytest

from stepward.server.gathering import SLICE_MS, Gathering


def learned(*gathered: int, step_ms: float = 1.0, ms_max: float = 4.0, ms_max_slow: float = 16.0) -> Gathering:
    """What came of steps for so many commands each."""
    gathering = Gathering(ms_max, ms_max_slow)
    for count in gathered:
        gathering.learn(count, step_ms)
    return gathering


@pytest.mark.parametrize(
    ("gathered", "first_ms"),
    [
        # Nothing is known: do not wait.
        ((), 0.0),
        # One caller alone never waits ...
        ((1,) * 15, 0.0),
        # ... but now and then it is tried whether there is another.
        ((1,) * 16, SLICE_MS),
        ((1,) * 17, 0.0),
        # Two came in one turn of the loop.
        ((2,), SLICE_MS),
        # The wait brought nothing.
        ((2, 1), 0.0),
    ],
)
def test_first_wait(gathered: tuple[int, ...], first_ms: float) -> None:
    """The first command waits for one slice when the step before had company."""
    assert learned(*gathered).first_ms == first_ms


@pytest.mark.parametrize(
    ("waited_ms", "came", "step_ms", "goes_on"),
    [
        # As long as something comes, up to the longest wait, exactly and beyond.
        (1.0, 1, 1.0, True),
        (3.0, 1, 1.0, True),
        (4.0, 1, 1.0, False),
        # Nothing came: that was all.
        (1.0, 0, 1.0, False),
        # Where a step takes 5 ms, three times as long.
        (13.0, 1, 5.0, True),
        (15.0, 1, 5.0, False),
        # But never beyond the bound, however slow the disk.
        (15.0, 1, 100.0, True),
        (16.0, 1, 100.0, False),
    ],
)
def test_waiting_goes_on(waited_ms: float, came: int, step_ms: float, goes_on: bool) -> None:
    """Slice by slice, for as long as each brings another command."""
    gathering = learned(*(2,) * 200, step_ms=step_ms)

    assert gathering.goes_on(waited_ms, came=came) is goes_on


@pytest.mark.parametrize(("step_ms", "intake_ms"), [(4.0, 1.0), (8.0, 2.0), (40.0, 10.0), (1_000.0, 16.0)])
def test_loop_takes_in_calls_between_slow_steps(step_ms: float, intake_ms: float) -> None:
    """A quarter of a step, within the bound, so that the disk is busy nearly all the time."""
    assert learned(*(2,) * 400, step_ms=step_ms).intake_ms == pytest.approx(intake_ms)


def test_no_wait_where_none_is_wanted() -> None:
    """A longest wait of 0 switches it off."""
    gathering = learned(100, ms_max=0.0, ms_max_slow=0.0)

    assert gathering.first_ms == 0.0
    assert not gathering.goes_on(0.0, came=100)
    assert gathering.intake_ms == 0.0
