"""Hand-offs on three real nodes: an offer that the wire eats, and reports that come when nobody waits for them."""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from stepward.agents import Agent, Context
from stepward.client import AsyncClient, Definition, JobState, Retry, Step, StepState, Timeouts
from stepward.client.values import HistoryEvent
from stepward.v1 import agent_service_pb2 as pb
from tests.agents.test_agent_live import serving
from tests.cluster.nodes import NODE_IDS, TTL_MS, Nodes
from tests.cluster.rig import LOOK_EVERY_S
from tests.server import nodes as stubs_of
from tests.server.plain_agent import PlainAgent, agent, silent, succeeded, succeeds
from tests.server.relay import Relay, relay

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

S_MAX = 30.0
TTL_S = TTL_MS / 1_000
# A sweep comes each second, and another leader's first one after a moment without any.
SOON_S = 4.0
# Of an attempt that is to be late.
TIMEOUT_S = 1.0
SLOTS = 4
OTHERS = SLOTS - 1
# Sessions that a step may lose before it is set aside.
LOSSES = 3
# Something else is done so often meanwhile.
HARMLESS_EVERY_S = 1.0


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    """Three nodes for all tests here; none of them is ever down."""
    with Nodes(tmp_path_factory.mktemp("nodes")) as three:
        three.start_nodes()
        yield three


@asynccontextmanager
async def joined(nodes: Nodes, name: str, *actions: str, slots: int = 1) -> AsyncIterator[PlainAgent]:
    """An agent at a node that does nothing by itself but say that it lives, and what it holds."""
    async with (
        stubs_of.connected(nodes.addresses[name]) as stubs,
        agent(stubs, *actions, handler=silent, slots=slots) as one,
    ):

        async def beat() -> None:
            number = 0
            while True:
                number += 1
                await one.heartbeat(number)
                await asyncio.sleep(1.0)

        beating = asyncio.create_task(beat())
        try:
            yield one
        finally:
            beating.cancel()
            await asyncio.gather(beating, return_exceptions=True)


async def becomes(client: AsyncClient, job_id: str, state: StepState) -> Step:
    """The step of a job, once it is in a state."""
    async with contextlib.aclosing(client.watch(job_id)) as changes:
        return await anext(change.job.steps[0] async for change in changes if change.job.steps[0].state is state)


async def lose_the_offer(client: AsyncClient, wire: Relay, listener: PlainAgent, name: str) -> tuple[str, int]:
    """Submit a job whose offer is committed and never arrives. Its id, and the token of the offer."""
    wire.swallow()
    job_id = (await client.submit(name)).job_id
    step = await becomes(client, job_id, StepState.OFFERED)
    wire.cut()
    await listener.ended
    assert listener.offers == []
    return job_id, step.token


async def test_h014_h016_lost_offer_is_left_alone_until_its_deadline_and_then_goes_to_another(nodes: Nodes) -> None:
    """No sweep of either leader touches it before a TTL is over, though another agent waits; no attempt is used."""
    leader = await nodes.leader()
    here, there = nodes.others(leader)
    definition = Definition("lost")
    definition.step("lost", effect="non_idempotent", timeouts=Timeouts(start_to_close=timedelta(hours=2)))
    async with AsyncExitStack() as opened:
        client = await opened.enter_async_context(nodes.client(there))
        await client.apply_definition(definition)
        wire = await opened.enter_async_context(relay(nodes.addresses[here]))
        far = await opened.enter_async_context(stubs_of.connected(wire.address))
        listener = await opened.enter_async_context(agent(far, "lost", handler=silent))
        job_id, lost_token = await lose_the_offer(client, wire, listener, "lost")
        offered_at = time.monotonic()
        other = await opened.enter_async_context(joined(nodes, there, "lost"))
        await client.transfer_leader(there)
        seen = set[tuple[StepState, int]]()
        while time.monotonic() < offered_at + TTL_S - 1.0:
            step = (await client.get(job_id)).step("lost")
            seen.add((step.state, step.token))
            await asyncio.sleep(LOOK_EVERY_S)
        untouched = other.offers == []
        await other.until(lambda: other.offers)
        took_s = time.monotonic() - offered_at
        attempts = (await client.get(job_id)).step("lost").attempts
        accepted = other.offers[0]
        await other.report(
            pb.AttemptReport(attempt=accepted.attempt, accepted=pb.Accepted()), succeeded(accepted, accepted.input)
        )
        ended = await client.wait(job_id, wait_max_s=S_MAX)
    print(f"offered to another {took_s:.1f} s after the first")

    assert seen == {(StepState.OFFERED, lost_token)}
    assert untouched
    assert took_s < TTL_S + SOON_S
    assert (accepted.attempt_number, attempts) == (1, 0)
    assert accepted.attempt.token > lost_token
    assert (ended.state, ended.job.step("lost").attempts) == (JobState.COMPLETED, 1)


async def test_h014_agent_that_is_back_at_another_node_is_told_of_a_lost_offer_at_once(nodes: Nodes) -> None:
    """It starts at once, so it may have started, and nobody else may have it: the same offer, with its token."""
    here, there = nodes.others(await nodes.leader())
    definition = Definition("again")
    definition.step("again", timeouts=Timeouts(start_to_close=timedelta(hours=2)))
    async with AsyncExitStack() as opened:
        client = await opened.enter_async_context(nodes.client(there))
        await client.apply_definition(definition)
        wire = await opened.enter_async_context(relay(nodes.addresses[here]))
        far = await opened.enter_async_context(stubs_of.connected(wire.address))
        listener = await opened.enter_async_context(agent(far, "again", handler=silent))
        job_id, lost_token = await lose_the_offer(client, wire, listener, "again")
        near = await opened.enter_async_context(stubs_of.connected(nodes.addresses[there]))
        began_at = time.monotonic()
        back = await opened.enter_async_context(
            agent(
                near, "again", handler=succeeds, session_id=listener.session_id, generation=listener.welcome.generation
            )
        )
        await back.until(lambda: back.offers)
        took_s = time.monotonic() - began_at
        ended = await client.wait(job_id, wait_max_s=S_MAX)

    assert took_s < SOON_S
    assert [offer.attempt.token for offer in back.offers] == [lost_token]
    assert (ended.state, ended.job.step("again").attempts) == (JobState.COMPLETED, 1)


async def test_h022_result_after_the_timeout_is_kept_where_people_and_the_undo_see_it(nodes: Nodes) -> None:
    """It is told to another leader, twice: refused both times, kept once, read at every node; the step is undone."""
    leader = await nodes.leader()
    here, there = nodes.others(leader)
    definition = Definition("late")
    retry = Retry(attempts_max=2, initial=timedelta(hours=1), cap=timedelta(hours=1))
    definition.step("late", retry=retry, timeouts=Timeouts(start_to_close=TIMEOUT_S), undo="unlate")
    async with AsyncExitStack() as opened:
        client = await opened.enter_async_context(nodes.client(there))
        await client.apply_definition(definition)
        slow = await opened.enter_async_context(joined(nodes, here, "late", "unlate"))
        job_id = (await client.submit("late")).job_id
        await slow.until(lambda: slow.offers)
        (late,) = slow.offers
        await slow.report(pb.AttemptReport(attempt=late.attempt, started=pb.Started()))
        await slow.until(lambda: slow.cancels)
        await becomes(client, job_id, StepState.RETRY_WAIT)
        await client.transfer_leader(there)
        before = (await client.get(job_id)).step("late")
        answers = len(slow.answers)
        for count in (1, 2):
            await slow.report(succeeded(late, stubs_of.json_payload(b'"too late"')))
            await slow.until(lambda count=count: len(slow.answers) == answers + count)  # type: ignore[misc]  # mypy cannot infer it
        after = (await client.get(job_id)).step("late")
        histories = {name: await observed(nodes, name, job_id) for name in NODE_IDS}
        await client.cancel(job_id)
        await slow.until(lambda: len(slow.offers) == 2)
        undo = slow.offers[1]
        await slow.report(succeeded(undo, undo.input))
        ended = await client.wait(job_id, check=False, wait_max_s=S_MAX)

    assert [answer.result for answer in slow.answers[answers : answers + 2]] == [pb.REPORT_RESULT_STALE_TOKEN] * 2
    # When it is due is told by the wall clock of the moment.
    assert replace(before, due_at=None) == replace(after, due_at=None)
    assert [[one.detail for one in seen] for seen in histories.values()] == [["success"]] * len(NODE_IDS)
    assert {one.token for seen in histories.values() for one in seen} == {late.attempt.token}
    told = json.loads(undo.input.data)
    assert (undo.undo, undo.action) == (True, "unlate")
    assert (told["outcome"], told["idempotency_keys"]) == ("unknown", [late.idempotency_key])
    assert ended.state is JobState.CANCELLED


async def observed(nodes: Nodes, name: str, job_id: str) -> list[HistoryEvent]:
    """What a node tells of reports that came too late."""
    async with nodes.client(name) as client:
        return [event async for event in client.history(job_id) if event.type == "StaleReportObserved"]


async def test_h023_refused_report_frees_its_slot_and_holds_up_no_other_work(nodes: Nodes) -> None:
    """Four slots, one late report, refused by another leader than the one that gave it out; the agent drops it.

    All slots are taken, so that the second attempt can only begin when the agent has let go of the first one.
    """
    let_go, finish, calls = threading.Event(), threading.Event(), list[int]()
    working = Agent(slots=SLOTS, queue="refused")

    @working.action
    def slow(ctx: Context) -> str:
        calls.append(ctx.attempt)
        if len(calls) == 1:
            assert let_go.wait(S_MAX)
        return f"attempt {ctx.attempt}"

    @working.action
    def long(ctx: Context) -> str:
        assert finish.wait(S_MAX)
        return ctx.job_id

    leader = await nodes.leader()
    here, there = nodes.others(leader)
    hurried, lasting = Definition("slow"), Definition("long")
    retry = Retry(attempts_max=2, initial=0, cap=0)
    hurried.step("slow", queue="refused", retry=retry, timeouts=Timeouts(start_to_close=TIMEOUT_S))
    lasting.step("long", queue="refused")
    async with nodes.client(there) as client, serving(working, nodes.addresses[here]):
        await client.apply_definition(hurried)
        await client.apply_definition(lasting)
        others = [(await client.submit("long")).job_id for _ in range(OTHERS)]
        late = (await client.submit("slow")).job_id
        for job_id in others:
            await becomes(client, job_id, StepState.RUNNING)
        await becomes(client, late, StepState.READY)
        assert calls == [1]
        await client.transfer_leader(there)
        let_go.set()
        done = await client.wait(late, wait_max_s=S_MAX)
        still = [(await client.get(job_id)).step("long").state for job_id in others]
        finish.set()
        ends = [(await client.wait(job_id, wait_max_s=S_MAX)).state for job_id in others]
        events = [event.type async for event in client.history(late)]

    assert (calls, done.job.step("slow").attempts, done.output) == ([1, 2], 2, "attempt 2")
    assert still == [StepState.RUNNING] * OTHERS
    assert ends == [JobState.COMPLETED] * OTHERS
    assert events.count("StaleReportObserved") + events.count("StepAttemptConfirmedStopped") == 1
    assert events.count("StepOffered") == 2


async def test_h047_step_that_never_started_holds_up_no_undo(nodes: Nodes) -> None:
    """It was offered to an agent that neither takes it nor answers the cancel; what was done is undone all the same."""
    here, there = nodes.others(await nodes.leader())
    definition = Definition("unwilling")
    done = definition.step("done", undo="undone")
    definition.step("never", needs=[done], effect="non_idempotent")
    async with nodes.client(there) as client, joined(nodes, here, "done", "undone", "never") as only:
        await client.apply_definition(definition)
        job_id = (await client.submit("unwilling")).job_id
        await only.until(lambda: only.offers)
        await only.report(succeeded(only.offers[0], only.offers[0].input))
        await only.until(lambda: len(only.offers) == 2)
        cancelled_at = time.monotonic()
        await client.cancel(job_id)
        await only.until(lambda: len(only.offers) == 3)
        took_s = time.monotonic() - cancelled_at
        await only.report(succeeded(only.offers[2], only.offers[2].input))
        ended = await client.wait(job_id, check=False, wait_max_s=S_MAX)

    assert [offer.action for offer in only.offers] == ["done", "never", "undone"]
    assert took_s < SOON_S
    assert ended.state is JobState.CANCELLED
    assert {step.step_id: step.state for step in ended.job.steps} == {
        "done": StepState.COMPENSATED,
        "never": StepState.CANCELLED,
    }


# Dies of one kind of work, and does the other.
MORTAL = """
import os
import signal

from stepward.agents import Agent, Context

agent = Agent(queue="mortal", slots=1)


@agent.action
def kill(ctx: Context) -> None:
    with open("{deaths}", "a") as deaths:
        deaths.write(ctx.job_id + "\\n")
    os.kill(os.getpid(), signal.SIGKILL)


@agent.action
def live(ctx: Context) -> str:
    return "alive"
"""


async def test_h063_step_that_kills_its_agents_is_set_aside_before_it_has_killed_all(
    nodes: Nodes, tmp_path: Path
) -> None:
    """Three die of it, and no more; others go on with what does no harm. A person lets it go on."""
    deaths = tmp_path / "deaths"
    children = [nodes.start_module(f"mortal-{number}", MORTAL.format(deaths=deaths)) for number in range(2)]
    deadly, harmless = Definition("deadly"), Definition("harmless")
    deadly.step("kill", queue="mortal", retry=Retry(attempts_max=10, initial=0, cap=0))
    harmless.step("live", queue="mortal")
    try:
        async with nodes.client() as client:
            await client.apply_definition(deadly)
            await client.apply_definition(harmless)
            job_id = (await client.submit("deadly")).job_id
            while (await client.get(job_id)).state is not JobState.ESCALATED:
                ended = await client.run("harmless", wait_max_s=S_MAX)
                assert ended.output == "alive"
                await asyncio.sleep(HARMLESS_EVERY_S)
            step = (await client.get(job_id)).step("kill")
            killed = len(deaths.read_text().splitlines())
            await client.skip_step(job_id, "kill", reason="done by hand")
            after = await client.wait(job_id, wait_max_s=S_MAX)
    finally:
        for child in children:
            child.terminate()

    assert (killed, step.failure is not None and step.failure.kind) == (LOSSES, "POISON")
    assert after.state is JobState.COMPLETED
