"""Test handlers and definitions without a cluster.

A `Bench` runs whole jobs, under the rules of the cluster, on a clock that skips what is waited for:

    from stepward.agents.testing import Bench

    def test_trip_without_a_car_is_undone():
        with Bench("trip.yaml", agent) as bench:
            bench.fail("book-car", kind="CarUnavailable", retryable=False)
            bench.crash("book-hotel", after=True)
            job = bench.run({"traveller": "Ada"})

            assert job.state == "COMPENSATED"
            assert [call.attempt for call in bench.calls("book-hotel")] == [1, 2]
            assert bench.calls("cancel-hotel")[0].undo

`run_action` calls one handler once, with a context of the test's own:

    ctx = new_context(attempt=2, last_progress={"percent": 40})
    ctx.cancel(StopReason.LEASE_LOST)
    with pytest.raises(LeaseLost):
        await run_action(agent, "book-flight", {"who": "Ada"}, context=ctx)

Reading order: `bench` is what tests use; `workers` are its agents' processes, `faults` what goes wrong in them, `calls`
how a handler is called; `rules` are those of the server, which nobody imports before a bench is made.
"""

from stepward.agents.testing.bench import Bench
from stepward.agents.testing.errors import BenchError, HandlerStuck, JobStuck
from stepward.agents.testing.results import BenchEvent, Call, Failure, JobResult, StepResult
from stepward.agents.testing.single import new_context, run_action

__all__ = [
    "Bench",
    "BenchError",
    "BenchEvent",
    "Call",
    "Failure",
    "HandlerStuck",
    "JobResult",
    "JobStuck",
    "StepResult",
    "new_context",
    "run_action",
]
