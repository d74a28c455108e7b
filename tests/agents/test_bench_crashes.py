"""Several jobs, agents and queues on one bench, and processes that die."""

from __future__ import annotations

import pytest

from stepward.agents import Agent
from stepward.agents.testing import Bench, BenchError
from tests.agents.test_bench import ONCE, TRIP, Hotel


@pytest.fixture
def hotel() -> Hotel:
    return Hotel()


@pytest.mark.parametrize("after", [False, True])
def test_crash_loses_the_lease(hotel: Hotel, after: bool) -> None:
    """Another process gets the step, later than the dead one's lease allows it to act."""
    with Bench(TRIP, hotel.agent) as bench:
        bench.crash("hotel", after=after)
        job = bench.run()
        first, second = bench.calls("hotel")
        lost = [event for event in bench.history(job) if event.type == "StepAttemptLost"]

    assert job.state == "COMPLETED"
    assert job.steps["hotel"].lease_losses == 1
    # TTL, a third of it, kill grace and margin.
    assert [event.at_seconds for event in lost] == [pytest.approx(first.at_seconds + 10 + 3.334 + 2 + 0.6)]
    assert second.at_seconds >= lost[0].at_seconds
    assert hotel.done.count("hotel") == 1 + after


def test_crash_takes_everything_along(hotel: Hotel) -> None:
    """What another job's step was at is lost, too."""
    with Bench(TRIP, hotel.agent) as bench:
        bench.takes("hotel", minutes=5)
        other = bench.start()
        bench.advance(seconds=10)
        bench.crash("receipt")
        bench.fail("receipt", retryable=False)
        bench.takes("hotel", times=1, seconds=1)
        bench.run()
        job = bench.finish(other)

    assert job.steps["hotel"].lease_losses == 1


def test_what_comes_while_no_process_is_there_waits_for_the_next() -> None:
    """Nothing is offered to the dead one, which would lose it."""
    with Bench(ONCE, {"charge": lambda: None}) as bench:
        bench.crash("charge")
        first = bench.start()
        bench.advance(seconds=0)
        second = bench.start()
        losses = [bench.finish(job_id).steps["charge"].lease_losses for job_id in (first, second)]

    assert losses == [1, 0]
    assert bench.calls()[1].at_seconds == 1


def test_one_process_does_nothing_after_its_death() -> None:
    """What it was told at the same moment is lost with it, and what was at work is never heard of."""
    definition = {"name": "one", "steps": [{"id": "charge"}]}
    with Bench(definition, {"charge": lambda: None}) as bench:
        bench.takes("charge", minutes=5)
        slow = bench.start()
        bench.advance(seconds=1)
        bench.crash("charge")
        jobs = [slow, bench.start(), bench.start()]
        results = [bench.finish(job_id) for job_id in jobs]
        events = [event.type for job_id in jobs for event in bench.history(job_id)]

    assert [job.steps["charge"].lease_losses for job in results] == [1, 1, 1]
    assert "StaleReportObserved" not in events
    # The slow one, the one that died of it, and each of the three once more.
    assert len(bench.calls()) == 5


def test_slots_bound_what_runs_at_once() -> None:
    """As an agent has them: the others wait until one is free."""
    agent = Agent(slots=2)
    agent.action("charge")(lambda: None)
    with Bench(ONCE, agent) as bench:
        bench.takes("charge", minutes=1)
        jobs = [bench.start() for _ in range(6)]
        for job_id in jobs:
            bench.finish(job_id)

    assert [call.at_seconds for call in bench.calls("charge")] == [0, 0, 60, 60, 120, 120]


def test_agents_of_several_queues() -> None:
    """Each serves its own; a crash of one leaves the other alone."""
    definition = """
name: two
steps:
  - {id: left, queue: l}
  - {id: right, queue: r}
"""
    left, right = Agent(queue="l"), Agent(queue="r")
    left.action("left")(lambda: 1)
    right.action("right")(lambda: 2)
    with Bench(definition, [left, right]) as bench:
        bench.crash("left")
        job = bench.run()

    assert [job.steps[step].lease_losses for step in ("left", "right")] == [1, 0]
    with pytest.raises(BenchError, match="one namespace"):
        Bench(definition, [left, Agent(queue="r", namespace="other")])
