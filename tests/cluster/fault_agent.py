"""The agent of the fault matrix. What goes wrong, and when, stands in the input of each job.

    stepward agent run tests.cluster.fault_agent --queue QUEUE

Every handler does its deed at the recording service first, since a fault before the deed is the harmless half; then,
in the first attempt of the part that the plan names, it gets into its trouble.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import time
from pathlib import Path
from typing import Any, Literal

from msgspec import Struct

from stepward.agents import Agent, Context, Permanent, StepFailed
from stepward.agents.examples.http_call import Service
from tests.cluster.fault_service import Answer

LOOK_EVERY_S = 0.005
# Far longer than any cell takes: whoever waits so long is ended by somebody else.
FOR_EVER_S = 600
# How long a handler of ours waits for an answer, where the plan has the service answer later than that.
ANSWER_S_MAX = 0.5
SIGNS_OF_LIFE = 5
SIGN_EVERY_S = 0.1
# Above `payload_bytes_max`.
TOO_LARGE_BYTES = 300_000

Trouble = Literal[
    "none", "stay", "hang", "fall-silent", "hold", "hold-a-while", "hold-for-ever", "wake-late", "too-large"
]

agent = Agent(queue="faults", slots=16, drain_timeout_seconds=0.5)


class Plan(Struct, frozen=True, kw_only=True):
    """What a job of the matrix is told."""

    service: str
    folder: str
    fault: str
    kind: str
    part: Literal["action", "undo"]
    """Which part of the step gets into trouble."""
    keyed: bool
    trouble: Trouble = "none"
    wish: str = ""

    @property
    def release(self) -> Path:
        """A file that appears when those who stay may end."""
        return Path(self.folder, f"release-{self.fault}")

    @property
    def pipe(self) -> Path:
        """A pipe: one byte for each that holds the interpreter."""
        return Path(self.folder, f"pipe-{self.fault}")

    @property
    def held(self) -> Path:
        """A file that appears just before the interpreter is held."""
        return Path(self.folder, f"held-{self.fault}")

    @property
    def began(self) -> Path:
        """A file that appears when the deed is done and the trouble begins, with the wall clock in it."""
        return Path(self.folder, f"began-{self.fault}-{self.kind}")


class Given(Struct, frozen=True):
    """What an undo and a question are told: what the step was, and more that is not needed here."""

    input: Plan


async def call(ctx: Context, plan: Plan, verb: str) -> Answer:
    """One call of the service.

    Raises:
        StepFailed: Refused; `Permanent` where asking again is of no use.
        Unknown: No answer came in time.
    """
    service = Service("recording service", plan.service, unreachable="ServiceUnreachable")
    fields: dict[str, object] = {"about": ctx.idempotency_key.removesuffix("/undo")}
    if in_trouble(ctx, plan) and verb != "ask":
        fields["wish"] = plan.wish
    seconds_max = ANSWER_S_MAX if "slow" in plan.wish else ctx.remaining_seconds
    path = f"/{'keyed' if plan.keyed else 'plain'}/{verb}"
    answer = await service.post(ctx, path, fields, Answer, seconds_max=seconds_max)
    if answer.status == 200:
        return answer
    raise (StepFailed if answer.status == 503 else Permanent)(answer.message, kind=answer.kind)


def in_trouble(ctx: Context, plan: Plan) -> bool:
    """Whether this is the part of the step in which something is to go wrong."""
    return ctx.undo == (plan.part == "undo")


def verb_of(ctx: Context) -> str:
    return "undo" if ctx.undo else "do"


def begin(plan: Plan) -> None:
    """Say that the deed is done, at once as a whole."""
    fresh = plan.began.with_suffix(".new")
    fresh.write_text(str(time.time()))
    fresh.rename(plan.began)


def output(ctx: Context, plan: Plan) -> Any:
    """What the step gives."""
    large = plan.trouble == "too-large" and in_trouble(ctx, plan)
    return "x" * TOO_LARGE_BYTES if large else {"by": os.getpid(), "token": str(ctx.token)}


async def at_work(ctx: Context, plan: Plan) -> Any:
    """A handler on the event loop."""
    await call(ctx, plan, verb_of(ctx))
    if in_trouble(ctx, plan) and ctx.attempt == 1:
        match plan.trouble:
            case "stay":
                begin(plan)
                await asyncio.to_thread(_wait_for, plan.release)
            case "hang":
                begin(plan)
                await asyncio.Event().wait()
            case "fall-silent":
                for _ in range(SIGNS_OF_LIFE):
                    ctx.heartbeat()
                    await asyncio.sleep(SIGN_EVERY_S)
                begin(plan)
                await asyncio.Event().wait()
    return output(ctx, plan)


def blocking(ctx: Context, plan: Plan) -> Any:
    """A handler on a thread or in a process: it looks at no cancel."""
    asyncio.run(_call_once(ctx, plan))
    if in_trouble(ctx, plan) and ctx.attempt == 1:
        match plan.trouble:
            case "hold":
                _hold(plan)
                time.sleep(FOR_EVER_S)
            case "hold-a-while":
                _hold(plan)
            case "hold-for-ever":
                begin(plan)
                ctypes.PyDLL(None).sleep(FOR_EVER_S)
            case "wake-late":
                begin(plan)
                _wait_for(plan.release)
                if plan.keyed:
                    # Once more, with a token that is old by now. Only the service can refuse it.
                    asyncio.run(_call_once(ctx, plan))
    return output(ctx, plan)


def _hold(plan: Plan) -> None:
    """Hold the interpreter: nothing of this process goes on until somebody writes a byte into the pipe."""
    begin(plan)
    _wait_for(plan.release)
    pipe = os.open(plan.pipe, os.O_RDWR)
    plan.held.touch()
    ctypes.PyDLL(None).read(pipe, ctypes.create_string_buffer(1), 1)
    os.close(pipe)


async def _call_once(ctx: Context, plan: Plan) -> None:
    await call(ctx, plan, verb_of(ctx))


def _wait_for(path: Path) -> None:
    """Until whoever plays the fault makes the file."""
    while not path.exists():
        time.sleep(LOOK_EVERY_S)


@agent.action
async def do(ctx: Context, plan: Plan) -> Any:
    return await at_work(ctx, plan)


@agent.action
async def undo(ctx: Context, given: Given) -> Any:
    return await at_work(ctx, given.input)


@agent.action
def do_on_thread(ctx: Context, plan: Plan) -> Any:
    return blocking(ctx, plan)


@agent.action
def undo_on_thread(ctx: Context, given: Given) -> Any:
    return blocking(ctx, given.input)


@agent.action(process=True)
def do_in_process(ctx: Context, plan: Plan) -> Any:
    return blocking(ctx, plan)


@agent.action(process=True)
def undo_in_process(ctx: Context, given: Given) -> Any:
    return blocking(ctx, given.input)


@agent.action
async def ask(ctx: Context, given: Given) -> dict[str, object]:
    """Whether the deed stands, for the cluster to decide what follows."""
    answer = await call(ctx, given.input, "ask")
    return {"happened": answer.happened, "output": "found"}


@agent.action
async def wreck() -> None:
    """Fail for good, so that what was done before is undone."""
    raise Permanent("so that everything is undone", kind="Wrecked")
