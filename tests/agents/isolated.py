"""Handlers that run in processes of their own, for tests."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
import time
from pathlib import Path

from stepward.agents import Agent, Context, Permanent, isolation

# Far longer than any test waits: what sleeps so long ends with its process.
FOR_EVER_S = 600

agent = Agent(slots=2, drain_timeout_seconds=0.5)


@agent.action(process=True)
def tell(ctx: Context, who: str) -> dict[str, object]:
    return {
        "who": who,
        "pid": os.getpid(),
        "key": ctx.idempotency_key,
        "token": ctx.token,
        "attempt": ctx.attempt,
        "last": ctx.last_progress,
        "cancelled": ctx.cancelled,
    }


@agent.action(process=True)
def beat(ctx: Context, path: str = "", folder: str = "") -> str:
    """Give signs of life until the file is there, or `enough` in the folder."""
    ctx.heartbeat({"percent": 40})
    while not Path(path or f"{folder}/enough").exists():
        ctx.heartbeat()
    return "beaten"


@agent.action(process=True)
def spin(path: str) -> str:
    """Compute for ever, and leave word when interrupted."""
    try:
        Path(path).write_text(str(os.getpid()))
        while True:
            pass
    finally:
        Path(path).write_text("cleaned up")


@agent.action(process=True)
def hold(path: str) -> None:
    """Hold the interpreter for ever: no signal of Python gets through, and no thread."""
    Path(path).write_text(str(os.getpid()))
    ctypes.PyDLL(None).sleep(FOR_EVER_S)


@agent.action(process=True)
def insist(path: str) -> None:
    """Decide, on the way out, what the end comes to."""
    try:
        Path(path).write_text(str(os.getpid()))
        time.sleep(FOR_EVER_S)
    finally:
        raise Permanent("nothing was booked", kind="Withdrawn")


@agent.action(process=True)
def beat_hard(ctx: Context, path: str) -> None:
    """Say much without a pause, so that an interruption comes in the middle of it; then decide."""
    try:
        Path(path).write_text(str(os.getpid()))
        while True:
            ctx.heartbeat("x" * 4_000)
    finally:
        raise Permanent("nothing was booked", kind="Withdrawn")


@agent.action(process=True)
def leave_a_voice(ctx: Context) -> int:
    """Return at once, and let a thread go on that speaks of it."""

    def speak() -> None:
        while True:
            ctx.heartbeat({"voice": "of the one before"})

    threading.Thread(target=speak, daemon=True).start()
    return os.getpid()


@agent.action(process=True)
def die(how: str) -> None:
    match how:
        case "exit":
            sys.exit(4)
        case "_exit":
            os._exit(3)
        case "fork":
            # What it leaves behind holds the socket to the agent open.
            if os.fork() == 0:
                time.sleep(FOR_EVER_S)
            os._exit(5)
        case name:
            os.kill(os.getpid(), signal.Signals[name])


@agent.action(process=True)
def refuse() -> None:
    raise Permanent("no seat", kind="Full")


@agent.action(process=True)
def break_down() -> None:
    raise LookupError("no such row")


@agent.action(process=True)
def give(size: int) -> bytes:
    return bytes(size)


@agent.action(process=True)
def write_rubbish(ctx: Context) -> None:
    """Write into the socket to the agent, as only a bug can."""
    for fd in range(3, 64):
        try:
            os.write(fd, b"\xff" * 64)
        except OSError:
            continue
    ctx.wait_cancelled(FOR_EVER_S)


@agent.action
def beside() -> int:
    return os.getpid()


if isolation.inside() and Path("tests/agents/isolated.broken").exists():
    raise ConnectionRefusedError("the database is down")
