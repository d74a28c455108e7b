"""Attempts on three real nodes: who gets a step, what becomes of one that is late, and what is never run twice."""

from __future__ import annotations

import asyncio
import os
import random
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest

from stepward.client import AsyncClient, Definition, JobState, Retry, Timeouts
from stepward.client.demo.processes import Child
from stepward.v1 import agent_service_pb2 as pb
from tests.cluster.long_form import run_rounds
from tests.cluster.nodes import LEASE_LOSS_S_MAX, ROOT, TTL_MS, Nodes
from tests.cluster.rig import kill_worker, until, worker_of
from tests.cluster.traffic import agents_connect, drawn_seed
from tests.server import nodes as stubs_of
from tests.server.plain_agent import PlainAgent, agent, silent, succeeded
from tests.server.unary_agent import listens

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

S_MAX = 30.0
# An attempt may last so long; the one here lasts longer.
TIMEOUT_S = 1.0
# What the scenario demands: a step that is ready is with somebody who waits for it within this.
GIVEN_S_MAX = 1.0
STEPS = 5
# Work that may be done once only: so many jobs a round, each with a fault in its middle, and how long one lasts.
JOBS = 10
WORK_S_MAX = 0.2
AGENTS = ("once-1", "once-2", "once-3")
ROUNDS = 6
# The grace in which what was interrupted may end, and what it takes on a busy machine to notice that it has.
KILL_S_MAX = 2.0 + 2.0


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    """Three nodes for all tests here; none of them is left down."""
    with Nodes(tmp_path_factory.mktemp("nodes")) as three:
        three.start_nodes()
        yield three


@asynccontextmanager
async def beating(joined: PlainAgent) -> AsyncIterator[None]:
    """Say every second that it lives; what it holds it says, too."""

    async def beat() -> None:
        number = 0
        while True:
            number += 1
            await joined.heartbeat(number)
            await asyncio.sleep(1.0)

    task = asyncio.create_task(beat())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_h019_late_first_attempt_moves_nothing(nodes: Nodes) -> None:
    """It is told to stop, its success is refused, by another leader, too; what follows begins once, from the second.

    Each of the two agents is at a follower of its own.
    """
    here, there = nodes.others(await nodes.leader())
    async with AsyncExitStack() as opened:
        client = await opened.enter_async_context(nodes.client())
        await client.apply_definition(chain())
        slow_stubs = await opened.enter_async_context(stubs_of.connected(nodes.addresses[here]))
        slow = await opened.enter_async_context(agent(slow_stubs, "first", "second", handler=silent, slots=1))
        await opened.enter_async_context(beating(slow))
        job_id = (await client.submit("chain")).job_id
        await slow.until(lambda: slow.offers)
        (late,) = slow.offers
        await slow.report(pb.AttemptReport(attempt=late.attempt, started=pb.Started()))
        quick_stubs = await opened.enter_async_context(stubs_of.connected(nodes.addresses[there]))
        quick = await opened.enter_async_context(agent(quick_stubs, "first", "second", handler=silent, slots=1))
        await opened.enter_async_context(beating(quick))
        await slow.until(lambda: slow.cancels)
        await quick.until(lambda: quick.offers)
        await quick.report(succeeded(quick.offers[0], stubs_of.json_payload(b'"from the second"')))
        await quick.until(lambda: len(quick.offers) == 2)
        await client.transfer_leader(there)
        answers = len(slow.answers)
        await slow.report(succeeded(late, stubs_of.json_payload(b'"from the first"')))
        await slow.until(lambda: len(slow.answers) > answers)
        await quick.report(succeeded(quick.offers[1], quick.offers[1].input))
        ended = await client.wait(job_id, wait_max_s=S_MAX)
        history = [event async for event in client.history(job_id)]

    assert [cancel.reason for cancel in slow.cancels] == [pb.CANCEL_REASON_TIMEOUT]
    assert slow.answers[-1].result == pb.REPORT_RESULT_STALE_TOKEN
    assert [(offer.attempt.step_id, offer.attempt_number) for offer in quick.offers] == [("first", 2), ("second", 1)]
    assert len(slow.offers) == 1
    assert quick.offers[0].attempt.token > late.attempt.token
    assert (ended.state, ended.output) == (JobState.COMPLETED, "from the second")
    assert Counter(event.type for event in history)["StaleReportObserved"] == 1


def chain() -> Definition:
    """Two steps, of which the first has little time and may be tried again at once."""
    definition = Definition("chain")
    timeouts = Timeouts(start_to_close=TIMEOUT_S)
    first = definition.step("first", retry=Retry(attempts_max=2, initial=0, cap=0), timeouts=timeouts)
    definition.step("second", needs=[first], input=first.output())
    return definition


# An agent with or without streaming that waits for work and never does any.
WAITER = """
import asyncio
import sys

from tests.server import nodes
from tests.server.plain_agent import agent, silent
from tests.server.unary_agent import UnaryAgent


async def wait(address, kind):
    async with nodes.connected(address) as stubs:
        if kind == "unary":
            waiting = UnaryAgent(stubs, "wanted")
            while True:
                await waiting.lease()
        async with agent(stubs, "wanted", handler=silent) as joined:
            await joined.ended


asyncio.run(wait(*sys.argv[1:]))
"""


@pytest.mark.parametrize("kind", ["stream", "unary"])
async def test_h015_agent_that_was_killed_while_it_waited_gets_nothing(nodes: Nodes, kind: str) -> None:
    """Its wait is gone with its connection: each step goes to the one who lives, within a second."""
    here, there = nodes.others(await nodes.leader())
    async with stubs_of.connected(nodes.addresses[there]) as stubs, nodes.client() as client:
        definition = Definition("wanted")
        definition.step("wanted")
        await client.apply_definition(definition)
        command = [sys.executable, "-c", WAITER, nodes.addresses[here], kind]
        waiter = nodes.agents[f"waiter-{kind}"] = Child.launch(kind, command, folder=nodes.folder, inside=ROOT)
        await listens(stubs, 1)
        waiter.kill()
        killed_at = time.monotonic()
        await listens(stubs, 0)
        gone_after_s = time.monotonic() - killed_at
        async with agent(stubs, "wanted") as alive:
            took_s = [await given_after_s(client, alive, count) for count in range(1, STEPS + 1)]
    print(f"its wait was gone {gone_after_s:.2f} s after it; steps were given after {max(took_s):.2f} s at most")

    assert gone_after_s < GIVEN_S_MAX
    assert max(took_s) < GIVEN_S_MAX


async def given_after_s(client: AsyncClient, alive: PlainAgent, count: int) -> float:
    """How long after it became ready a step was with an agent, which has had so many then."""
    began_at = time.monotonic()
    await client.submit("wanted")
    await alive.until(lambda: len(alive.offers) == count)
    return time.monotonic() - began_at


# Works in processes of its own, asks for nothing, looks at nothing, and says when it was interrupted. One of the two
# does not care.
BUSY = """
import os
import time
from pathlib import Path

from stepward.agents import Agent, Context

agent = Agent(queue="busy", slots=4)
folder = Path("{folder}")


def spin(name: str) -> None:
    (folder / f"{{name}}-at-work").write_text(str(os.getpid()))
    try:
        while True:
            pass
    except BaseException:
        (folder / f"{{name}}-interrupted").write_text(str(time.time()))
        raise


@agent.action(process=True)
def willing(ctx: Context) -> None:
    spin("willing")


@agent.action(process=True)
def stubborn(ctx: Context) -> None:
    while True:
        try:
            spin("stubborn")
        except BaseException:
            continue


@agent.action
def leave(ctx: Context) -> None:
    pass
"""


@pytest.mark.parametrize("kind", ["willing", "stubborn"])
async def test_h024_a_cancel_reaches_work_that_says_nothing(nodes: Nodes, tmp_path: Path, kind: str) -> None:
    """It comes over the stream within a renewal; the work is interrupted, and what does not end then is killed.

    It is asked for at another node than the agent's, a second after the work began.
    """
    await nodes.leader()
    child = nodes.start_module("busy", BUSY.format(folder=tmp_path))
    try:
        async with nodes.client() as client:
            definition = Definition(kind)
            definition.step(kind, queue="busy", undo="leave")
            await client.apply_definition(definition)
            job_id = (await client.submit(kind)).job_id
            at_work = tmp_path / f"{kind}-at-work"
            await until(lambda: at_work.exists() and at_work.read_text() != "", seconds_max=S_MAX, what="work")
            pid = int(at_work.read_text())
            await asyncio.sleep(1.0)
            cancelled_at = time.time()
            await client.cancel(job_id)
            await until(lambda: not alive(pid), seconds_max=S_MAX, what=f"the end of process {pid}")
            ended_s = time.time() - cancelled_at
            ended = await client.wait(job_id, check=False, wait_max_s=S_MAX)
    finally:
        child.terminate()
        await until(lambda: not child.running, seconds_max=S_MAX, what="the end of the agent")
    heard_s = float((tmp_path / f"{kind}-interrupted").read_text()) - cancelled_at
    print(f"interrupted {heard_s:.2f} s after the cancel, ended {ended_s:.2f} s after it")

    # An agent renews its lease six times in a TTL.
    assert heard_s <= TTL_MS / 6_000
    assert ended_s <= TTL_MS / 6_000 + KILL_S_MAX
    assert ended.state is JobState.CANCELLED


def alive(pid: int) -> bool:
    """Whether a process is there."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


# Does what may be done once only: each time is a line in a file.
ONCE = """
import os
import random
import time

from stepward.agents import Agent, Context

agent = Agent(queue="once", slots=4)


@agent.action
def once(ctx: Context) -> None:
    deeds = os.open("{deeds}", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(deeds, f"{{ctx.job_id}}\\n".encode())
    os.close(deeds)
    time.sleep(random.uniform(0, {seconds_max}))
"""


class Deeds:
    """What was done, as it stands outside."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def all(self) -> list[str]:
        """The jobs for which something was done, once for each time."""
        return self.path.read_text().splitlines() if self.path.exists() else []


async def once_round(nodes: Nodes, client: AsyncClient, deeds: Deeds, chance: random.Random, fault: str) -> list[str]:
    """Submit jobs, and lose an agent or the leader while they are at work. Returns their ids."""
    before = len(deeds.all())
    submitting = [asyncio.create_task(client.submit("once")) for _ in range(JOBS)]
    wanted = before + chance.randint(1, JOBS - 1)
    await until(lambda: len(deeds.all()) >= wanted, seconds_max=S_MAX, what=f"{wanted} deeds")
    if fault == "agent":
        parent = nodes.agents[chance.choice(AGENTS)]
        await until(lambda: worker_of(parent) is not None, seconds_max=S_MAX, what=f"a worker of {parent.name}")
        pid = worker_of(parent)
        assert pid is not None
        kill_worker(pid)
    else:
        leader = await nodes.leader()
        nodes.nodes[leader].kill()
        await nodes.leader(*nodes.others(leader))
        await asyncio.to_thread(nodes.start_nodes, leader)
    return [one.job_id for one in await asyncio.gather(*submitting)]


async def once_rounds(nodes: Nodes, rounds: int, chance: random.Random) -> None:
    """Rounds of either fault in turn; then all that was done is held against how the jobs have ended."""
    deeds = Deeds(nodes.folder / "deeds")
    for name in AGENTS:
        nodes.start_module(name, ONCE.format(deeds=deeds.path, seconds_max=WORK_S_MAX))
    async with nodes.client() as client:
        definition = Definition("once")
        definition.step("once", queue="once", effect="non_idempotent", retry=Retry(attempts_max=1))
        await client.apply_definition(definition)
        await agents_connect(client, len(AGENTS))
        job_ids = []
        for number in range(rounds):
            fault = ("agent", "leader")[number % 2]
            job_ids += await once_round(nodes, client, deeds, chance, fault)
        states = await settled(client, set(job_ids))
        waiting = {one.job_id async for one in client.incidents(definition="once", page_size=1_000)}
    done = Counter(deeds.all())
    print(f"{rounds} faults, {len(job_ids)} jobs: {dict(Counter(states.values()))}, {done.total()} deeds")

    assert done.keys() <= states.keys()
    assert {job_id: count for job_id, count in done.items() if count > 1} == {}
    # What nobody can tell is left to a person; all else was done, and is known to have been.
    assert set(states.values()) <= {JobState.COMPLETED, JobState.ESCALATED}
    assert [job_id for job_id, state in states.items() if state is JobState.COMPLETED and job_id not in done] == []
    # Each of those is an incident, and nothing else is.
    assert waiting == {job_id for job_id, state in states.items() if state is JobState.ESCALATED}
    # The faults hit something.
    assert JobState.ESCALATED in states.values()


async def settled(client: AsyncClient, job_ids: set[str]) -> dict[str, JobState]:
    """Wait until these jobs have ended or wait for a person; their states."""
    ends_at = time.monotonic() + LEASE_LOSS_S_MAX + S_MAX
    while True:
        jobs = {job.job_id: job.state async for job in client.list(definition="once", page_size=1000)}
        still = [one for one in job_ids if not (jobs[one].final or jobs[one] is JobState.ESCALATED)]
        if not still:
            return jobs
        assert time.monotonic() < ends_at, f"{len(still)} jobs go on: {still[:5]}"
        await asyncio.sleep(0.1)


async def test_h020_what_may_be_done_once_is_never_done_twice(nodes: Nodes, only_seed: int | None) -> None:
    """Agents die in the middle of it, and the leader just after it has let one begin."""
    await once_rounds(nodes, ROUNDS, drawn_seed(only_seed))


async def many(folder: Path, rounds: int, chance: random.Random) -> None:
    """The same on a cluster of its own."""
    with Nodes(folder) as three:
        three.start_nodes()
        await once_rounds(three, rounds, chance)


if __name__ == "__main__":
    run_rounds(__doc__, many)
