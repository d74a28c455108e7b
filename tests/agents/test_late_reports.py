"""H023 with a real node: an agent with four slots, one of whose reports comes too late and is refused."""

from __future__ import annotations

import threading
from pathlib import Path

from stepward.agents import Agent, Context
from stepward.v1 import common_pb2, definition_pb2
from tests.agents.played import duration
from tests.agents.test_agent_live import serving
from tests.agents.test_agent_node import happened, step_is, step_of, submit
from tests.server import nodes

SLOTS = 4
OTHERS = SLOTS - 1
WAITS_S_MAX = 30.0


async def test_h023_a_late_report_is_dropped_and_its_slot_taken_again_while_the_others_work(tmp_path: Path) -> None:
    """The attempt is out of time and goes on; its result is refused, kept once, and not sent again.

    All slots are taken, so the second attempt can only begin when the agent has let go of the first one.
    """
    let_go, finish, calls = threading.Event(), threading.Event(), list[int]()
    working = Agent(slots=SLOTS)

    @working.action
    def slow(ctx: Context) -> str:
        calls.append(ctx.attempt)
        if len(calls) == 1:
            assert let_go.wait(WAITS_S_MAX)
        return f"attempt {ctx.attempt}"

    @working.action
    def long(ctx: Context) -> str:
        assert finish.wait(WAITS_S_MAX)
        return ctx.job_id

    async with nodes.running(tmp_path / "data") as node, nodes.connected(node.address) as stubs:
        hurried = definition_pb2.Timeouts(start_to_close=duration(1_000))
        retry = definition_pb2.RetryPolicy(attempts_max=2, initial=duration(1))
        await nodes.define(stubs, "slow", definition_pb2.Step(id="slow", timeouts=hurried, retry=retry))
        await nodes.define(stubs, "long", definition_pb2.Step(id="long"))
        async with serving(working, node.address):
            others = [await submit(stubs, "long", tmp_path) for _ in range(OTHERS)]
            late = await submit(stubs, "slow", tmp_path)
            for job_id in others:
                await step_is(stubs, job_id, common_pb2.STEP_STATE_RUNNING)
            await step_is(stubs, late, common_pb2.STEP_STATE_READY)
            assert calls == [1]
            let_go.set()
            done = await step_is(stubs, late, common_pb2.STEP_STATE_SUCCEEDED)
            still = [(await step_of(stubs, job_id)).state for job_id in others]
            finish.set()
            for job_id in others:
                await step_is(stubs, job_id, common_pb2.STEP_STATE_SUCCEEDED)
        events = await happened(stubs, late)

    assert (calls, done.attempts, done.output.data) == ([1, 2], 2, b'"attempt 2"')
    assert still == [common_pb2.STEP_STATE_RUNNING] * OTHERS
    assert events.count("StaleReportObserved") + events.count("StepAttemptConfirmedStopped") == 1
    assert events.count("StepOffered") == 2
