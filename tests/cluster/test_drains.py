"""Agents are asked to end (SIGTERM) while they work: they hand back what has not begun, and finish or stop the rest."""

import random
import time
from pathlib import Path

import pytest

from stepward.client import AsyncClient, JobState
from stepward.client.definition_file import loads
from tests.cluster.long_form import run_rounds
from tests.cluster.rig import SESSION_TTL_MS, Rig, until
from tests.cluster.traffic import Traffic, agents_connect, agents_drain, drawn_seed

TRIPS = 40
SLOW_MS = 50

# Below this no lease can have ended: a step that waited for one would take longer.
NO_LEASE_S_MAX = 2 * SESSION_TTL_MS / 1000

STUBBORN = """
import time
from pathlib import Path

from stepward.agents import Agent, Context

agent = Agent(queue="stubborn", slots=1, drain_timeout_seconds=1)


@agent.action
def dig(ctx: Context) -> str:
    began = Path("began")
    if began.exists():
        return "dug"
    began.touch()
    time.sleep(60)
    return "dug for a minute"
"""

POLITE = STUBBORN.replace("time.sleep(60)", "ctx.wait_cancelled(60)\n    ctx.raise_if_cancelled()")

DIG = """
name: dig
steps:
  - {id: dig, queue: stubborn}
"""


async def drain_rounds(folder: Path, rounds: int, chance: random.Random) -> None:
    """Restart one of two agents under load, again and again."""
    with Rig(folder) as rig:
        rig.start_server()
        rig.start_travel("--slow-ms", str(SLOW_MS))
        for name in ("agent-1", "agent-2"):
            rig.start_agent(name, slots=4)
        async with AsyncClient(rig.address, timeout_s=30) as client:
            traffic = Traffic(client)
            await agents_connect(client, 2)
            longest_s = 0.0
            for number in range(rounds):
                longest_s = max(longest_s, await drain_round(rig, traffic, f"agent-{number % 2 + 1}", chance))
                await agents_connect(client, 2)
            losses = await traffic.losses()
            jobs = await traffic.ended(seconds_max=10)
        report = rig.judge({job_id: str(job.state) for job_id, job in jobs.items()})
    print(f"{rounds} drains, the longest took {longest_s:.1f} s; {len(jobs)} jobs, {report.repeats} repeats")

    assert losses == []
    assert longest_s < NO_LEASE_S_MAX
    assert traffic.wrong_ends(jobs) == {}
    assert report.breaches == []


async def drain_round(rig: Rig, traffic: Traffic, name: str, chance: random.Random) -> float:
    """Drain one agent in the middle of traffic, and start it again. Returns how long it took to end."""
    wanted = rig.calls() + chance.randint(4, 60)
    await traffic.submit(TRIPS)
    await until(lambda: rig.calls() >= wanted, seconds_max=30, what=f"{wanted} calls of the travel service")
    agent = rig.agents[name]
    began = time.monotonic()
    agent.terminate()
    await until(lambda: not agent.running, seconds_max=30, what=f"{name} has ended")
    took_s = time.monotonic() - began
    assert agent.exit_code == 0, agent.tail()
    rig.start_agent(name, slots=4)
    await traffic.ended(seconds_max=60)
    return took_s


@pytest.mark.timeout(180)
async def test_restart_of_agents_costs_no_lease(tmp_path: Path, only_seed: int | None) -> None:
    """Whatever was offered and not begun is handed back at once, and what had begun is finished."""
    await drain_rounds(tmp_path, 3, drawn_seed(only_seed))


@pytest.mark.slow
@pytest.mark.timeout(900)
async def test_many_restarts_of_agents_cost_no_lease(tmp_path: Path, only_seed: int | None) -> None:
    """The same more often: `make drains ROUNDS=100` is the long form."""
    await drain_rounds(tmp_path, 20, drawn_seed(only_seed))


@pytest.mark.parametrize(
    ("module", "exit_code", "how_it_ended"),
    [
        # A thread that looks whether it should stop: it is handed back, and uses no attempt.
        (POLITE, 0, "StepAttemptStopped"),
        # A thread cannot be interrupted: its process ends with it, and only the lease tells.
        (STUBBORN, 70, "StepAttemptLost"),
    ],
)
async def test_work_that_is_stopped_by_a_drain_is_no_success(
    tmp_path: Path, module: str, exit_code: int, how_it_ended: str
) -> None:
    """The step is done again under a new token."""
    with Rig(tmp_path) as rig:
        rig.start_server()
        first = rig.start_module("first", module)
        async with AsyncClient(rig.address, timeout_s=30) as client:
            await client.apply_definition(loads(DIG))
            await agents_connect(client, 1)
            submitted = await client.submit("dig")
            await until((tmp_path / "began").exists, seconds_max=10, what="the handler has begun")
            first.terminate()
            await until(lambda: not first.running, seconds_max=20, what="the first agent has ended")
            rig.start_module("second", module)
            ended = await client.wait(submitted.job_id, wait_max_s=30)
            history = [event async for event in client.history(submitted.job_id)]

    assert (ended.state, ended.job.output) == (JobState.COMPLETED, "dug")
    assert first.exit_code == exit_code
    assert [event.type for event in history].count("StepSucceeded") == 1
    assert how_it_ended in [event.type for event in history]
    assert ended.job.step("dig").attempts == (1 if module == POLITE else 2)
    tokens = [event.token for event in history if event.type == "StepOffered"]
    assert len(tokens) > 1
    assert tokens == sorted(set(tokens))


async def test_second_signal_ends_at_once(tmp_path: Path) -> None:
    """Who asks twice does not want to wait; nothing is lost by it."""
    with Rig(tmp_path) as rig:
        rig.start_server()
        rig.start_travel()
        agent = rig.start_agent("agent-1")
        async with AsyncClient(rig.address, timeout_s=30) as client:
            await agents_connect(client, 1)
            slow = {"traveller": "Ada", "flight": "slow-20000", "hotel": "quiet", "car": "small"}
            submitted = await client.submit("trip", slow)
            await until(lambda: rig.calls() > 0, seconds_max=10, what="the flight is being booked")
            agent.terminate()
            # Two signals that come together are one to the system.
            await agents_drain(client, 1)
            agent.terminate()
            await until(lambda: not agent.running, seconds_max=10, what="the agent has ended")
            rig.start_agent("agent-2")
            ended = await client.wait(submitted.job_id, wait_max_s=30)
        report = rig.judge({submitted.job_id: str(ended.state)})

    assert ended.state is JobState.COMPLETED
    assert report.breaches == []


if __name__ == "__main__":
    run_rounds(__doc__, drain_rounds)
