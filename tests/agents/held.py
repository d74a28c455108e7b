"""Handlers that hold the interpreter, or go on when they should not, for tests that run them in a worker process."""

from __future__ import annotations

import ctypes
import os
import threading
import time
from pathlib import Path

from stepward.agents import Agent, Context

# Far longer than any test waits: what sleeps so long ends with its process.
FOR_EVER_S = 600.0

renewal_is_broken = threading.Event()

agent = Agent(slots=2, drain_timeout_seconds=1.0)


def hold_until_released(folder: Path) -> None:
    """One C call that holds the interpreter until somebody writes into the pipe `release`."""
    pipe = os.open(folder / "release", os.O_RDWR)
    (folder / "held").write_text(str(os.getpid()))
    # The pipe stays open: closing it would let others run before this handler has ended.
    ctypes.PyDLL(None).read(pipe, ctypes.create_string_buffer(1), 1)


@agent.action
def hold(folder: str) -> str:
    hold_until_released(Path(folder))
    return "held"


@agent.action
def hold_and_stay(folder: str) -> None:
    """When it gets the interpreter back it goes on, and looks at nothing."""
    hold_until_released(Path(folder))
    time.sleep(FOR_EVER_S)


@agent.action
def mark(folder: str) -> None:
    """Leave word that it was called."""
    (Path(folder) / f"mark-{os.getpid()}").touch()


@agent.action
def work(ctx: Context, folder: str) -> None:
    """Work until the end, whatever anybody wants: nothing is looked at."""
    (Path(folder) / f"work-{ctx.job_id}").write_text(str(os.getpid()))
    while not (Path(folder) / f"enough-{ctx.job_id}").exists():
        time.sleep(0.01)


@agent.action
def break_renewal(folder: str) -> None:
    """Work on, while nobody renews the lease any more."""
    renewal_is_broken.set()
    time.sleep(FOR_EVER_S)


@agent.action
def listen(ctx: Context, folder: str) -> None:
    """Say nothing, and look only whether it is still wanted."""
    (Path(folder) / "listening").touch()
    while not ctx.cancelled:
        time.sleep(0.01)
    (Path(folder) / "heard").touch()
