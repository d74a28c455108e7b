"""What the shapes of the benchmark make of what they saw."""

import pytest

from loadtest.failover import seen
from loadtest.fan import figures
from loadtest.idle import cpu_percents
from loadtest.rates import beside
from loadtest.shapes import PLAIN, compensate, deep, wide
from loadtest.stage import Window, routes_through
from loadtest.tally import End, Tally
from tests.loadtest.test_report import window


def ends(*moments_s: float, latency_s: float = 0.01) -> list[End]:
    """Jobs that ended then."""
    return [End(at - latency_s, at) for at in moments_s]


def every(step_s: float, first_s: float, last_s: float) -> list[float]:
    """Moments at a steady pace."""
    return [first_s + number * step_s for number in range(int((last_s - first_s) / step_s) + 1)]


def test_gap_is_from_the_last_end_before_the_kill() -> None:
    """Nobody was answered from 10.0 to 10.8, and then as many as before."""
    told = seen(ends(*every(0.01, 9.0, 10.0), *every(0.01, 10.8, 12.0)), killed_s=10.001, rate=100)

    assert told["gap_s"] == pytest.approx(0.8)
    # 25 of 100 a second, which end within half a second.
    assert told["half_rate_after_gap_s"] == pytest.approx(0.25, abs=0.02)
    assert told["slowest_job_s"] == pytest.approx(0.01)


def test_silence_before_the_kill_is_no_part_of_the_gap() -> None:
    """A pause from 1.0 to 9.0 was not the failover's."""
    told = seen(ends(1.0, 9.0, 9.9, 10.2), killed_s=10.0, rate=100)

    assert told["gap_s"] == pytest.approx(0.3)


def test_rate_that_never_comes_back() -> None:
    """A few jobs still end, and that is not what was asked for."""
    told = seen(ends(*every(0.01, 9.0, 10.0), *every(0.2, 10.8, 12.0)), killed_s=10.001, rate=100)

    assert told["half_rate_after_gap_s"] == -1.0


def test_slowest_job_is_one_that_the_kill_has_hit() -> None:
    """What was slow before is not told."""
    told = seen(ends(9.0, latency_s=3.0) + ends(10.5, latency_s=1.5), killed_s=10.0, rate=100)

    assert told["slowest_job_s"] == pytest.approx(1.5)


def measured(jobs: int, cpu_ms: float, *, p99_ms: float = 5.0, seconds: float = 2.0) -> Window:
    """A window of so many jobs."""
    return window(latencies_s=[p99_ms / 1000] * jobs, cpu_ms={"server": cpu_ms}, seconds=seconds)


def test_undoing_is_compared_in_steps() -> None:
    """Six jobs of five handlers a second are as much as ten trips."""
    told = beside(measured(20, 60.0), measured(12, 60.0), steps=compensate().steps)

    assert told == {
        "trip_steps_per_s": 30.0,
        "steps_percent_of_trips": 100.0,
        "cpu_ms_per_step": 1.0,
        "trip_cpu_ms_per_step": 1.0,
    }


def test_fan_is_held_beside_trips() -> None:
    """A step costs half as much again, and others waited twice as long."""
    told = figures(
        wide(1_000),
        trips=measured(100, 300.0),
        alone=measured(0, 1_500.0),
        before=measured(10, 1.0, p99_ms=20.0),
        meanwhile=[0.040] * 10,
    )

    assert (told["trip_cpu_ms_per_step"], told["wide_cpu_ms_per_step"], told["cost_ratio"]) == (1.0, 1.5, 1.5)
    assert told["p99_ratio"] == 2.0


def test_trips_beside_a_fan_are_those_on_their_way() -> None:
    """Also those which began before it, and which it held up beyond its own end."""
    tally = Tally(PLAIN)
    tally.ends = [End(began, ended) for began, ended in [(1.0, 2.0), (1.0, 2.5), (2.1, 2.2), (2.9, 4.9), (3.0, 9.0)]]

    assert tally.latencies_s(2.0, 3.0) == pytest.approx([0.1, 1.5, 2.0])


def test_cpu_of_idle_nodes_is_of_one_processor() -> None:
    """100 ms in two seconds are a twentieth."""
    idle = window(cpu_ms={"server": 100.0, "n2": 20.0, "crowd-0": 500.0}, seconds=2.0)

    assert cpu_percents(idle, {"server": 1, "n2": 2}) == {"cpu_percent_server": 5.0, "cpu_percent_n2": 1.0}


@pytest.mark.parametrize(
    ("through", "addresses", "expected"),
    [
        ("leader", "abc", ["abc"]),
        ("followers", "abc", ["bca", "cab"]),
        ("all", "abc", ["abc", "bca", "cab"]),
        # One that is alone.
        ("followers", "a", ["a"]),
    ],
)
def test_routes(through: str, addresses: str, expected: list[str]) -> None:
    """Each begins with another node, and knows all."""
    assert ["".join(route) for route in routes_through(through, addresses)] == expected


def test_shapes_are_what_they_say() -> None:
    """A chain waits for itself, a fan for nothing, and what is undone has five handlers."""
    chain, fan = deep(4).definition, wide(4).definition

    assert [list(step.needs) for step in chain.steps] == [[], ["link-0"], ["link-1"], ["link-2"]]
    assert [list(step.needs) for step in fan.steps] == [[], [], [], []]
    assert len({shape.name for shape in (deep(4), deep(5), wide(4), compensate())}) == 4
