"""Agents are killed, paused and restarted under load. The travel service knows keys, and handlers pass them.

What a lost agent did is done or not, and nobody knows which: the step is done again with the same key, later than the
agent's own lease allows it to act.
"""

import asyncio
import random
from pathlib import Path

import psutil
import pytest

from stepward.agents.examples.trip import DEFINITION
from stepward.client import AsyncClient, JobState, StepState
from stepward.client.definition_file import load
from stepward.client.demo.processes import Child
from tests.cluster.rig import LEASE_LOSS_S_MAX, Rig, kill_worker, until, worker_of
from tests.cluster.traffic import Traffic, agents_connect, drawn_seed

TRIPS = 100
SLOW_MS = 30


# Calls the service a while after it was told to, on a thread that nobody can interrupt.
SLEEPER = """
import asyncio
import time
from pathlib import Path

from stepward.agents import Agent, Context
from stepward.agents.examples.travel_client import Booking, Travel

agent = Agent(queue="trip", slots={slots})


@agent.action
def book_flight(ctx: Context, wish: str) -> Booking:
    Path(f"began-{{ctx.job_id}}").touch()
    time.sleep(1.5)
    return asyncio.run(Travel("{travel}").book(ctx, "flights", wish))
"""


async def kill_one(rig: Rig, parent: Child, *, calls: int) -> None:
    """Kill the worker of an agent as soon as the travel service has had so many calls more."""
    wanted = rig.calls() + calls
    await until(lambda: rig.calls() >= wanted, seconds_max=60, what=f"{wanted} calls of the travel service")
    await until(lambda: worker_of(parent) is not None, seconds_max=30, what=f"a worker of {parent.name}")
    pid = worker_of(parent)
    assert pid is not None
    kill_worker(pid)


async def agent_kill_rounds(folder: Path, rounds: int, chance: random.Random) -> None:
    """Kills under load; every trip ends, and the record is clean."""
    with Rig(folder) as rig:
        rig.start_server()
        rig.start_travel("--slow-ms", str(SLOW_MS))
        parents = [rig.start_supervised_agent(name) for name in ("agent-1", "agent-2")]
        async with AsyncClient(rig.address, timeout_s=30) as client:
            traffic = Traffic(client)
            await agents_connect(client, 2)
            for number in range(rounds):
                # One kill at a time: a step that loses three agents is taken for their murderer, and set aside.
                await traffic.submit(TRIPS)
                await kill_one(rig, parents[number % len(parents)], calls=chance.randint(1, 100))
                await traffic.ended(seconds_max=60)
            losses = await traffic.losses()
            jobs = await traffic.ended(seconds_max=10)
        report = rig.judge({job_id: str(job.state) for job_id, job in jobs.items()})
    print(f"{rounds} kills; {len(jobs)} jobs, {len(losses)} attempts lost, {report.repeats} repeats of {report.calls}")

    assert traffic.wrong_ends(jobs) == {}
    assert report.breaches == []
    # The kills hit something.
    assert losses


@pytest.mark.slow
@pytest.mark.timeout(180)
async def test_killed_agents_leave_nothing_undone_or_doubled(tmp_path: Path, only_seed: int | None) -> None:
    """Their parents start them again, and others finish what they had begun."""
    await agent_kill_rounds(tmp_path, 2, drawn_seed(only_seed))


@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_killed_agents_in_many_rounds(tmp_path: Path, only_seed: int | None) -> None:
    """The same, at more moments."""
    await agent_kill_rounds(tmp_path, 4, drawn_seed(only_seed))


async def test_agent_that_was_paused_is_refused_and_goes_on(tmp_path: Path) -> None:
    """It wakes up after its lease and acts once more: the remote service and the cluster refuse its old tokens.

    It drops what was refused at once, so that its slots are free for new work.
    """
    slots = 3
    with Rig(tmp_path) as rig:
        rig.start_server()
        rig.start_travel()
        paused = rig.start_agent("agent-1", slots=slots)
        async with AsyncClient(rig.address, timeout_s=30) as client:
            await agents_connect(client, 1)
            # A flight takes longer than the lease, so every slot is at work when the agent is paused.
            slow = {"traveller": "Ada", "flight": "slow-9000", "hotel": "quiet", "car": "small"}
            ids = [(await client.submit("trip", slow)).job_id for _ in range(slots)]
            for job_id in ids:
                await step_is(client, job_id, "flight", StepState.RUNNING)
            paused.pause()
            rig.start_agent("agent-2")
            ends = [await client.wait(job_id, wait_max_s=LEASE_LOSS_S_MAX + 10) for job_id in ids]
            rig.agents["agent-2"].stop()
            paused.resume()
            after = await asyncio.gather(
                *(client.run("trip", {**slow, "flight": "LHR-TRN"}, wait_max_s=30) for _ in range(4 * slots))
            )
            jobs = {job.job_id: str(job.state) async for job in client.list()}
        report = rig.judge(jobs)

    assert [end.state for end in ends] == [JobState.COMPLETED] * slots
    assert len(after) == 4 * slots
    assert report.breaches == []
    assert report.repeats >= slots


async def test_agent_that_acts_after_its_lease_is_refused_by_the_service(tmp_path: Path) -> None:
    """A paused thread cannot be kept from acting once more when it wakes up. The token tells the service."""
    slots = 3
    with Rig(tmp_path) as rig:
        rig.start_server()
        rig.start_travel()
        sleeper = rig.start_module("sleeper", SLEEPER.format(travel=rig.travel.address, slots=slots))
        async with AsyncClient(rig.address, timeout_s=30) as client:
            await client.apply_definition(load(DEFINITION))
            await agents_connect(client, 1)
            trip = {"traveller": "Ada", "flight": "LHR-TRN", "hotel": "quiet", "car": "small"}
            ids = [(await client.submit("trip", trip)).job_id for _ in range(slots)]
            await until(
                lambda: len(list(tmp_path.glob("began-*"))) == slots, seconds_max=10, what="handlers have begun"
            )
            worker = psutil.Process(worker_of(sleeper))
            worker.suspend()
            rig.start_agent("agent-2")
            ends = [await client.wait(job_id, wait_max_s=LEASE_LOSS_S_MAX) for job_id in ids]
            calls = rig.calls()
            worker.resume()
            await until(lambda: rig.calls() == calls + slots, seconds_max=20, what="the paused calls are made")
        report = rig.judge({end.job_id: str(end.state) for end in ends})

    assert [end.state for end in ends] == [JobState.COMPLETED] * slots
    assert report.stale_refused == slots
    assert report.breaches == []


async def test_offer_that_nobody_heard_is_given_to_another(tmp_path: Path) -> None:
    """An agent that stops just before it gets an offer keeps it for the length of a lease, not of the step's time.

    It was never begun, so it uses no attempt.
    """
    with Rig(tmp_path) as rig:
        rig.start_server()
        rig.start_travel()
        deaf = rig.start_agent("agent-1")
        async with AsyncClient(rig.address, timeout_s=30) as client:
            await agents_connect(client, 1)
            deaf.pause()
            submitted = await client.submit("trip", {"traveller": "Ada", "flight": "f", "hotel": "h", "car": "c"})
            await step_is(client, submitted.job_id, "flight", StepState.OFFERED)
            rig.start_agent("agent-2")
            ended = await client.wait(submitted.job_id, wait_max_s=LEASE_LOSS_S_MAX)
            deaf.resume()
        report = rig.judge({submitted.job_id: str(ended.state)})

    assert ended.job.step("flight").attempts == 1
    assert report.breaches == []


async def step_is(client: AsyncClient, job_id: str, step_id: str, state: StepState, *, seconds_max: float = 10) -> None:
    """Wait until a step is in a state.

    Raises:
        TimeoutError: It was not, in time.
    """
    async with asyncio.timeout(seconds_max):
        async for change in client.watch(job_id):
            if change.job.step(step_id).state is state:
                return
